"""EndQuorumEpoch: a leader resigns and names successors (KIP-595, 853).

Source: Apache Kafka 4.4, EndQuorumEpochRequest.json and EndQuorumEpochResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import INT16, INT32, STRING, UINT16, UUID_, Message, Struct, array, field


class EndQuorumEpochRequestPreferredCandidate(Struct):
    candidate_id: int = field(INT32, versions="1+")
    candidate_directory_id: UUID = field(UUID_, versions="1+")


class EndQuorumEpochRequestPartition(Struct):
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    preferred_successors: tuple[int, ...] = array(INT32, versions="0", ignorable=True)
    preferred_candidates: tuple[EndQuorumEpochRequestPreferredCandidate, ...] = array(
        EndQuorumEpochRequestPreferredCandidate, versions="1+", ignorable=True
    )


class EndQuorumEpochRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[EndQuorumEpochRequestPartition, ...] = array(EndQuorumEpochRequestPartition)


class EndQuorumEpochRequestLeaderEndpoint(Struct):
    name: str = field(STRING, versions="1+")
    host: str = field(STRING, versions="1+")
    port: int = field(UINT16, versions="1+")


class EndQuorumEpochRequest(Message, api_key=54, versions="0-1", flexible="1+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    topics: tuple[EndQuorumEpochRequestTopic, ...] = array(EndQuorumEpochRequestTopic)
    leader_endpoints: tuple[EndQuorumEpochRequestLeaderEndpoint, ...] = array(
        EndQuorumEpochRequestLeaderEndpoint, versions="1+", ignorable=True
    )


class EndQuorumEpochResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class EndQuorumEpochResponseTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[EndQuorumEpochResponsePartition, ...] = array(EndQuorumEpochResponsePartition)


class EndQuorumEpochResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, versions="1+")
    host: str = field(STRING, versions="1+")
    port: int = field(UINT16, versions="1+")


class EndQuorumEpochResponse(Message, api_key=54, versions="0-1", flexible="1+"):
    error_code: int = field(INT16)
    topics: tuple[EndQuorumEpochResponseTopic, ...] = array(EndQuorumEpochResponseTopic)
    node_endpoints: tuple[EndQuorumEpochResponseNodeEndpoint, ...] = array(
        EndQuorumEpochResponseNodeEndpoint, versions="1+", tag=0
    )
