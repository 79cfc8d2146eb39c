"""ListOffsets: offsets by timestamp, the first and the last one (KIP-79, 320, 734, 1023).

Source: Apache Kafka 4.4, ListOffsetsRequest.json and ListOffsetsResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import INT8, INT16, INT32, INT64, STRING, Message, Struct, array, field


class ListOffsetsRequestPartition(Struct):
    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, versions="4+", default=-1, ignorable=True)
    timestamp: int = field(INT64)


class ListOffsetsRequestTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[ListOffsetsRequestPartition, ...] = array(ListOffsetsRequestPartition)


class ListOffsetsRequest(Message, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, versions="2+")
    topics: tuple[ListOffsetsRequestTopic, ...] = array(ListOffsetsRequestTopic)
    timeout_ms: int = field(INT32, versions="10+", ignorable=True)


class ListOffsetsResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    timestamp: int = field(INT64, default=-1)
    offset: int = field(INT64, default=-1)
    leader_epoch: int = field(INT32, versions="4+", default=-1)


class ListOffsetsResponseTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[ListOffsetsResponsePartition, ...] = array(ListOffsetsResponsePartition)


class ListOffsetsResponse(Message, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = field(INT32, versions="2+", ignorable=True)
    topics: tuple[ListOffsetsResponseTopic, ...] = array(ListOffsetsResponseTopic)
