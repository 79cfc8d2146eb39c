"""AlterPartitionReassignments: which replicas a partition shall have (KIP-455).

Source: Apache Kafka 4.4, AlterPartitionReassignmentsRequest.json and its Response.json.
"""

from __future__ import annotations

from quorumd.wire.schema import BOOL, INT16, INT32, STRING, Message, Struct, array, field


class AlterPartitionReassignmentsRequestPartition(Struct):
    """`replicas` are the wanted ones; None cancels the reassignment that is under way."""

    partition_index: int = field(INT32)
    replicas: tuple[int, ...] | None = array(INT32, nullable="0+", default=None)


class AlterPartitionReassignmentsRequestTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[AlterPartitionReassignmentsRequestPartition, ...] = array(
        AlterPartitionReassignmentsRequestPartition
    )


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int = field(INT32, default=60000)
    allow_replication_factor_change: bool = field(BOOL, versions="1+", default=True)
    topics: tuple[AlterPartitionReassignmentsRequestTopic, ...] = array(
        AlterPartitionReassignmentsRequestTopic
    )


class AlterPartitionReassignmentsResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class AlterPartitionReassignmentsResponseTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[AlterPartitionReassignmentsResponsePartition, ...] = array(
        AlterPartitionReassignmentsResponsePartition
    )


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    allow_replication_factor_change: bool = field(BOOL, versions="1+", default=True, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: tuple[AlterPartitionReassignmentsResponseTopic, ...] = array(
        AlterPartitionReassignmentsResponseTopic
    )
