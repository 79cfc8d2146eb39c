"""DescribeQuorum: who votes, who observes, how far each has fetched (KIP-595, 836, 853).

Source: Apache Kafka 4.4, DescribeQuorumRequest.json and DescribeQuorumResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from wire.schema import INT16, INT32, INT64, STRING, UINT16, UUID_, Message, Struct, array, field


class DescribeQuorumRequestPartition(Struct):
    partition_index: int = field(INT32)


class DescribeQuorumRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[DescribeQuorumRequestPartition, ...] = array(DescribeQuorumRequestPartition)


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    topics: tuple[DescribeQuorumRequestTopic, ...] = array(DescribeQuorumRequestTopic)


class DescribeQuorumResponseReplica(Struct):
    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_, versions="2+")
    log_end_offset: int = field(INT64)
    last_fetch_timestamp: int = field(INT64, versions="1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = field(INT64, versions="1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, versions="2+", nullable="2+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    current_voters: tuple[DescribeQuorumResponseReplica, ...] = array(DescribeQuorumResponseReplica)
    observers: tuple[DescribeQuorumResponseReplica, ...] = array(DescribeQuorumResponseReplica)


class DescribeQuorumResponseTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[DescribeQuorumResponsePartition, ...] = array(DescribeQuorumResponsePartition)


class DescribeQuorumResponseListener(Struct):
    name: str = field(STRING, versions="2+")
    host: str = field(STRING, versions="2+")
    port: int = field(UINT16, versions="2+")


class DescribeQuorumResponseNode(Struct):
    node_id: int = field(INT32, versions="2+")
    listeners: tuple[DescribeQuorumResponseListener, ...] = array(
        DescribeQuorumResponseListener, versions="2+"
    )


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, versions="2+", nullable="2+", ignorable=True)
    topics: tuple[DescribeQuorumResponseTopic, ...] = array(DescribeQuorumResponseTopic)
    nodes: tuple[DescribeQuorumResponseNode, ...] = array(DescribeQuorumResponseNode, versions="2+")
