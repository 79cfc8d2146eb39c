"""AlterPartition: a broker that leads a partition tells the controller its in-sync replicas (KIP-497).

Source: Apache Kafka 4.3, AlterPartitionRequest.json and AlterPartitionResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import INT8, INT16, INT32, INT64, UUID_, Message, Struct, array, field


class AlterPartitionRequestTopicPartitionBrokerState(Struct):
    broker_id: int = field(INT32, versions="3+")
    broker_epoch: int = field(INT64, versions="3+", default=-1)


class AlterPartitionRequestTopicPartition(Struct):
    partition_index: int = field(INT32)
    leader_epoch: int = field(INT32)
    new_isr: tuple[int, ...] = array(INT32, versions="0-2")
    new_isr_with_epochs: tuple[AlterPartitionRequestTopicPartitionBrokerState, ...] = array(
        AlterPartitionRequestTopicPartitionBrokerState, versions="3+"
    )
    leader_recovery_state: int = field(INT8)
    partition_epoch: int = field(INT32)


class AlterPartitionRequestTopic(Struct):
    topic_id: UUID = field(UUID_, ignorable=True)
    partitions: tuple[AlterPartitionRequestTopicPartition, ...] = array(
        AlterPartitionRequestTopicPartition
    )


class AlterPartitionRequest(Message, api_key=56, versions="2-3", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    topics: tuple[AlterPartitionRequestTopic, ...] = array(AlterPartitionRequestTopic)


class AlterPartitionResponseTopicPartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    isr: tuple[int, ...] = array(INT32)
    leader_recovery_state: int = field(INT8, ignorable=True)
    partition_epoch: int = field(INT32)


class AlterPartitionResponseTopic(Struct):
    topic_id: UUID = field(UUID_, ignorable=True)
    partitions: tuple[AlterPartitionResponseTopicPartition, ...] = array(
        AlterPartitionResponseTopicPartition
    )


class AlterPartitionResponse(Message, api_key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    topics: tuple[AlterPartitionResponseTopic, ...] = array(AlterPartitionResponseTopic)
