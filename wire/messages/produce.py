"""Produce: append record batches (KIP-98, 467, 951, 1319).

Source: Apache Kafka 4.4, ProduceRequest.json and ProduceResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class ProduceRequestPartition(Struct):
    index: int = field(INT32)
    records: bytes | memoryview | None = field(RECORDS, nullable="0+", default=None)


class ProduceRequestTopic(Struct):
    name: str = field(STRING, versions="0-12", ignorable=True)
    topic_id: UUID = field(UUID_, versions="13+", ignorable=True)
    partition_data: tuple[ProduceRequestPartition, ...] = array(ProduceRequestPartition)


class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = field(STRING, nullable="3+", default=None)
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: tuple[ProduceRequestTopic, ...] = array(ProduceRequestTopic)


class ProduceResponseRecordError(Struct):
    batch_index: int = field(INT32, versions="8+")
    batch_index_error_message: str | None = field(
        STRING, versions="8+", nullable="8+", default=None
    )


class ProduceResponseCurrentLeader(Struct):
    leader_id: int = field(INT32, versions="10+", default=-1)
    leader_epoch: int = field(INT32, versions="10+", default=-1)


class ProduceResponsePartition(Struct):
    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, default=-1)
    log_start_offset: int = field(INT64, versions="5+", default=-1, ignorable=True)
    record_errors: tuple[ProduceResponseRecordError, ...] = array(
        ProduceResponseRecordError, versions="8+", ignorable=True
    )
    error_message: str | None = field(
        STRING, versions="8+", nullable="8+", default=None, ignorable=True
    )
    current_leader: ProduceResponseCurrentLeader = field(
        ProduceResponseCurrentLeader, versions="10+", tag=0
    )


class ProduceResponseTopic(Struct):
    name: str = field(STRING, versions="0-12", ignorable=True)
    topic_id: UUID = field(UUID_, versions="13+", ignorable=True)
    partition_responses: tuple[ProduceResponsePartition, ...] = array(ProduceResponsePartition)


class ProduceResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, versions="10+")
    host: str = field(STRING, versions="10+")
    port: int = field(INT32, versions="10+")
    rack: str | None = field(STRING, versions="10+", nullable="10+", default=None)


class ProduceResponse(Message, api_key=0, versions="3-13", flexible="9+"):
    responses: tuple[ProduceResponseTopic, ...] = array(ProduceResponseTopic)
    throttle_time_ms: int = field(INT32)
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = array(
        ProduceResponseNodeEndpoint, versions="10+", tag=0
    )
