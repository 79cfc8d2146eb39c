"""FetchSnapshot: a replica copies a snapshot, chunk by chunk (KIP-630, KIP-853).

Source: Apache Kafka 4.4, FetchSnapshotRequest.json and FetchSnapshotResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class FetchSnapshotRequestSnapshotId(Struct):
    end_offset: int = field(INT64)
    epoch: int = field(INT32)


class FetchSnapshotRequestPartition(Struct):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32)
    snapshot_id: FetchSnapshotRequestSnapshotId = field(FetchSnapshotRequestSnapshotId)
    position: int = field(INT64)
    replica_directory_id: UUID = field(UUID_, versions="1+", tag=0)


class FetchSnapshotRequestTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[FetchSnapshotRequestPartition, ...] = array(FetchSnapshotRequestPartition)


class FetchSnapshotRequest(Message, api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = field(STRING, nullable="0+", default=None, tag=0)
    replica_id: int = field(INT32, default=-1)
    max_bytes: int = field(INT32, default=2**31 - 1)
    topics: tuple[FetchSnapshotRequestTopic, ...] = array(FetchSnapshotRequestTopic)


class FetchSnapshotResponseSnapshotId(Struct):
    end_offset: int = field(INT64)
    epoch: int = field(INT32)


class FetchSnapshotResponseLeader(Struct):
    """Zeros, not -1, stand for its absence."""

    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class FetchSnapshotResponsePartition(Struct):
    """`size` is that of the whole snapshot in bytes; the records begin and end anywhere in it."""

    index: int = field(INT32)
    error_code: int = field(INT16)
    snapshot_id: FetchSnapshotResponseSnapshotId = field(FetchSnapshotResponseSnapshotId)
    current_leader: FetchSnapshotResponseLeader = field(FetchSnapshotResponseLeader, tag=0)
    size: int = field(INT64)
    position: int = field(INT64)
    unaligned_records: bytes = field(RECORDS)


class FetchSnapshotResponseTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[FetchSnapshotResponsePartition, ...] = array(FetchSnapshotResponsePartition)


class FetchSnapshotResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, versions="1+")
    host: str = field(STRING, versions="1+")
    port: int = field(UINT16, versions="1+")


class FetchSnapshotResponse(Message, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    topics: tuple[FetchSnapshotResponseTopic, ...] = array(FetchSnapshotResponseTopic)
    node_endpoints: tuple[FetchSnapshotResponseNodeEndpoint, ...] = array(
        FetchSnapshotResponseNodeEndpoint, versions="1+", tag=0
    )
