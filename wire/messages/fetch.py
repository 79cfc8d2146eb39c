"""Fetch: replicas and consumers read the log (KIP-595, 630, 853, 903, 951, 1166).

Source: Apache Kafka 4.4, FetchRequest.json and FetchResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    INT8,
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


class FetchRequestReplicaState(Struct):
    replica_id: int = field(INT32, versions="15+", default=-1)
    replica_epoch: int = field(INT64, versions="15+", default=-1)


class FetchRequestPartition(Struct):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, versions="9+", default=-1, ignorable=True)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, versions="12+", default=-1)
    log_start_offset: int = field(INT64, versions="5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32)
    replica_directory_id: UUID = field(UUID_, versions="17+", tag=0, ignorable=True)
    high_watermark: int = field(
        INT64, versions="18+", default=0x7FFFFFFFFFFFFFFF, tag=1, ignorable=True
    )


class FetchRequestTopic(Struct):
    topic: str = field(STRING, versions="0-12", ignorable=True)
    topic_id: UUID = field(UUID_, versions="13+", ignorable=True)
    partitions: tuple[FetchRequestPartition, ...] = array(FetchRequestPartition)


class FetchRequestForgottenTopic(Struct):
    topic: str = field(STRING, versions="7-12", ignorable=True)
    topic_id: UUID = field(UUID_, versions="13+", ignorable=True)
    partitions: tuple[int, ...] = array(INT32, versions="7+")


class FetchRequest(Message, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = field(
        STRING, versions="12+", nullable="12+", default=None, tag=0, ignorable=True
    )
    replica_id: int = field(INT32, versions="0-14", default=-1)
    replica_state: FetchRequestReplicaState = field(FetchRequestReplicaState, versions="15+", tag=1)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=0x7FFFFFFF)
    isolation_level: int = field(INT8)
    session_id: int = field(INT32, versions="7+", ignorable=True)
    session_epoch: int = field(INT32, versions="7+", default=-1, ignorable=True)
    topics: tuple[FetchRequestTopic, ...] = array(FetchRequestTopic)
    forgotten_topics_data: tuple[FetchRequestForgottenTopic, ...] = array(
        FetchRequestForgottenTopic, versions="7+"
    )
    rack_id: str = field(STRING, versions="11+", ignorable=True)


class FetchResponseDivergingEpoch(Struct):
    epoch: int = field(INT32, versions="12+", default=-1)
    end_offset: int = field(INT64, versions="12+", default=-1)


class FetchResponseCurrentLeader(Struct):
    leader_id: int = field(INT32, versions="12+", default=-1)
    leader_epoch: int = field(INT32, versions="12+", default=-1)


class FetchResponseSnapshotId(Struct):
    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


class FetchResponseAbortedTransaction(Struct):
    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


class FetchResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, default=-1)
    log_start_offset: int = field(INT64, versions="5+", default=-1, ignorable=True)
    diverging_epoch: FetchResponseDivergingEpoch = field(
        FetchResponseDivergingEpoch, versions="12+", tag=0
    )
    current_leader: FetchResponseCurrentLeader = field(
        FetchResponseCurrentLeader, versions="12+", tag=1
    )
    snapshot_id: FetchResponseSnapshotId = field(FetchResponseSnapshotId, versions="12+", tag=2)
    aborted_transactions: tuple[FetchResponseAbortedTransaction, ...] | None = array(
        FetchResponseAbortedTransaction, nullable="4+"
    )
    preferred_read_replica: int = field(INT32, versions="11+", default=-1)
    records: bytes | memoryview | None = field(RECORDS, nullable="0+", default=None)


class FetchResponseTopic(Struct):
    topic: str = field(STRING, versions="0-12", ignorable=True)
    topic_id: UUID = field(UUID_, versions="13+", ignorable=True)
    partitions: tuple[FetchResponsePartition, ...] = array(FetchResponsePartition)


class FetchResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, versions="16+")
    host: str = field(STRING, versions="16+")
    port: int = field(INT32, versions="16+")
    rack: str | None = field(STRING, versions="16+", nullable="16+", default=None)


class FetchResponse(Message, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, versions="7+", ignorable=True)
    session_id: int = field(INT32, versions="7+")
    responses: tuple[FetchResponseTopic, ...] = array(FetchResponseTopic)
    node_endpoints: tuple[FetchResponseNodeEndpoint, ...] = array(
        FetchResponseNodeEndpoint, versions="16+", tag=0
    )
