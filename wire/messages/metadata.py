"""Metadata: brokers, topics, partitions and their leaders (KIP-516, 700, 1102).

Source: Apache Kafka 4.4, MetadataRequest.json and MetadataResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import BOOL, INT16, INT32, STRING, UUID_, Message, Struct, array, field


class MetadataRequestTopic(Struct):
    topic_id: UUID = field(UUID_, versions="10+", ignorable=True)
    name: str | None = field(STRING, nullable="10+")


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+"):
    topics: tuple[MetadataRequestTopic, ...] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = field(BOOL, versions="4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, versions="8-10")
    include_topic_authorized_operations: bool = field(BOOL, versions="8+")


class MetadataResponseBroker(Struct):
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, versions="1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, versions="7+", default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = array(INT32)
    isr_nodes: tuple[int, ...] = array(INT32)
    offline_replicas: tuple[int, ...] = array(INT32, versions="5+", ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")
    topic_id: UUID = field(UUID_, versions="10+", ignorable=True)
    is_internal: bool = field(BOOL, versions="1+", ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = array(MetadataResponsePartition)
    topic_authorized_operations: int = field(INT32, versions="8+", default=-0x80000000)


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = field(INT32, versions="3+", ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = array(MetadataResponseBroker)
    cluster_id: str | None = field(
        STRING, versions="2+", nullable="2+", default=None, ignorable=True
    )
    controller_id: int = field(INT32, versions="1+", default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = field(INT32, versions="8-10", default=-0x80000000)
    error_code: int = field(INT16, versions="13+", ignorable=True)
