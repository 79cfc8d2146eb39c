"""Vote: a candidate asks for votes, or in a pre-vote whether it would get them (KIP-595, 853, 996).

Source: Apache Kafka 4.4, VoteRequest.json and VoteResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class VoteRequestPartition(Struct):
    partition_index: int = field(INT32)
    replica_epoch: int = field(INT32)
    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_, versions="1+", ignorable=True)
    voter_directory_id: UUID = field(UUID_, versions="1+", ignorable=True)
    last_offset_epoch: int = field(INT32)
    last_offset: int = field(INT64)
    pre_vote: bool = field(BOOL, versions="2+")


class VoteRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[VoteRequestPartition, ...] = array(VoteRequestPartition)


class VoteRequest(Message, api_key=52, versions="0-2", flexible="0+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32, versions="1+", default=-1, ignorable=True)
    topics: tuple[VoteRequestTopic, ...] = array(VoteRequestTopic)


class VoteResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    vote_granted: bool = field(BOOL)


class VoteResponseTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[VoteResponsePartition, ...] = array(VoteResponsePartition)


class VoteResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, versions="1+")
    host: str = field(STRING, versions="1+")
    port: int = field(UINT16, versions="1+")


class VoteResponse(Message, api_key=52, versions="0-2", flexible="0+"):
    error_code: int = field(INT16)
    topics: tuple[VoteResponseTopic, ...] = array(VoteResponseTopic)
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = array(
        VoteResponseNodeEndpoint, versions="1+", tag=0
    )
