"""OffsetForLeaderEpoch: where an epoch ends, to detect truncation (KIP-101, 320).

Source: Apache Kafka 4.4, OffsetForLeaderEpochRequest.json and OffsetForLeaderEpochResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import INT16, INT32, INT64, STRING, Message, Struct, array, field


class OffsetForLeaderEpochRequestPartition(Struct):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32)


class OffsetForLeaderEpochRequestTopic(Struct):
    topic: str = field(STRING)
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...] = array(
        OffsetForLeaderEpochRequestPartition
    )


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="2-4", flexible="4+"):
    replica_id: int = field(INT32, versions="3+", default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...] = array(OffsetForLeaderEpochRequestTopic)


class OffsetForLeaderEpochResponsePartition(Struct):
    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1)
    end_offset: int = field(INT64, default=-1)


class OffsetForLeaderEpochResponseTopic(Struct):
    topic: str = field(STRING)
    partitions: tuple[OffsetForLeaderEpochResponsePartition, ...] = array(
        OffsetForLeaderEpochResponsePartition
    )


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = field(INT32)
    topics: tuple[OffsetForLeaderEpochResponseTopic, ...] = array(OffsetForLeaderEpochResponseTopic)
