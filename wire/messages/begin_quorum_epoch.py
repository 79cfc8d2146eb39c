"""BeginQuorumEpoch: a new leader makes itself known to the voters (KIP-595, 853).

Source: Apache Kafka 4.4, BeginQuorumEpochRequest.json and BeginQuorumEpochResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import INT16, INT32, STRING, UINT16, UUID_, Message, Struct, array, field


class BeginQuorumEpochRequestPartition(Struct):
    partition_index: int = field(INT32)
    voter_directory_id: UUID = field(UUID_, versions="1+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class BeginQuorumEpochRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[BeginQuorumEpochRequestPartition, ...] = array(
        BeginQuorumEpochRequestPartition
    )


class BeginQuorumEpochRequestLeaderEndpoint(Struct):
    name: str = field(STRING, versions="1+")
    host: str = field(STRING, versions="1+")
    port: int = field(UINT16, versions="1+")


class BeginQuorumEpochRequest(Message, api_key=53, versions="0-1", flexible="1+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32, versions="1+", default=-1, ignorable=True)
    topics: tuple[BeginQuorumEpochRequestTopic, ...] = array(BeginQuorumEpochRequestTopic)
    leader_endpoints: tuple[BeginQuorumEpochRequestLeaderEndpoint, ...] = array(
        BeginQuorumEpochRequestLeaderEndpoint, versions="1+", ignorable=True
    )


class BeginQuorumEpochResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class BeginQuorumEpochResponseTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[BeginQuorumEpochResponsePartition, ...] = array(
        BeginQuorumEpochResponsePartition
    )


class BeginQuorumEpochResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, versions="1+")
    host: str = field(STRING, versions="1+")
    port: int = field(UINT16, versions="1+")


class BeginQuorumEpochResponse(Message, api_key=53, versions="0-1", flexible="1+"):
    error_code: int = field(INT16)
    topics: tuple[BeginQuorumEpochResponseTopic, ...] = array(BeginQuorumEpochResponseTopic)
    node_endpoints: tuple[BeginQuorumEpochResponseNodeEndpoint, ...] = array(
        BeginQuorumEpochResponseNodeEndpoint, versions="1+", tag=0
    )
