"""ListPartitionReassignments: the reassignments that are under way (KIP-455).

Source: Apache Kafka 4.4, ListPartitionReassignmentsRequest.json and ListPartitionReassignmentsResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import INT16, INT32, STRING, Message, Struct, array, field


class ListPartitionReassignmentsRequestTopic(Struct):
    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = array(INT32)


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    timeout_ms: int = field(INT32, default=60000)
    topics: tuple[ListPartitionReassignmentsRequestTopic, ...] | None = array(
        ListPartitionReassignmentsRequestTopic, nullable="0+", default=None
    )


class ListPartitionReassignmentsResponsePartition(Struct):
    partition_index: int = field(INT32)
    replicas: tuple[int, ...] = array(INT32)
    adding_replicas: tuple[int, ...] = array(INT32)
    removing_replicas: tuple[int, ...] = array(INT32)


class ListPartitionReassignmentsResponseTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[ListPartitionReassignmentsResponsePartition, ...] = array(
        ListPartitionReassignmentsResponsePartition
    )


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    topics: tuple[ListPartitionReassignmentsResponseTopic, ...] = array(
        ListPartitionReassignmentsResponseTopic
    )
