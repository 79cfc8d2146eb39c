"""Messages to events and effects to messages: Fetch between replicas.

Pure functions; see `translate`. Record bytes are looked at batch by batch, never copied: headers and CRC
of everything that came in, contents of control batches only. Source: KIP-595, KIP-853, KIP-1166.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from quorumd.raft.control import RaftControlRecord
from quorumd.raft.effects import Fetch, FetchReply
from quorumd.raft.events import (
    FetchedRecords,
    FetchRequestReceived,
    FetchResponseReceived,
    RequestFailed,
)
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, SnapshotId
from quorumd.server.model.topic import TopicPartition
from quorumd.server.translate.common import (
    InvalidRequestShape,
    error_code,
    error_name,
    id_or_minus_one,
    id_or_none,
    leader_hint,
    leader_nodes,
    request_failed,
    uuid_or_none,
    uuid_or_zero,
)
from quorumd.server.translate.control_records import control_records_of
from quorumd.storage.sequence_check import offset_problem
from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.codec import decode
from quorumd.wire.errors import CorruptBatch, UnsupportedVersion
from quorumd.wire.fast import (
    FastFetch,
    FastFetchResponse,
    FetchEndpoint,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_response,
)
from quorumd.wire.messages.fetch import (
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseDivergingEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseSnapshotId,
    FetchResponseTopic,
)
from quorumd.wire.records import scan

FETCH_MAX_BYTES = 8 * 2**20
FETCH_BATCHES_MAX = 2048
"""Of one answer a follower takes no more, or its event loop would stand still: 8 MiB can be 120,000 batches
of one record, and 0.2 s. The rest is fetched again."""
FETCH_MAX_WAIT_MS = 500
"""How long a follower lets its leader wait for records, at most: Kafka's own figure."""
HIGH_WATERMARK_UNSUPPORTED = 2**63 - 1
DIRECTORY_ID_SINCE = 17
MAX_WAIT_MS_MAX = 5_000
"""Longest wait that a replica is granted, ten times Kafka's: one whose connection is gone is remembered
for so long."""
NODE_ENDPOINTS_SINCE = 17
"""Kafka's leaders name endpoints from this version on, although the field is one version older."""


@lru_cache(maxsize=256)
def _replica_key(replica_id: int, uuid: UUID) -> ReplicaKey | None:
    return ReplicaKey(replica_id, uuid_or_none(uuid)) if replica_id >= 0 else None


def fetch_request_received(asked: FastFetch, reply_to: int) -> FetchRequestReceived:
    """The event of a replica's fetch."""
    known: int | None = asked.high_watermark
    if known == HIGH_WATERMARK_UNSUPPORTED:
        known = None
    return FetchRequestReceived(
        reply_to,
        asked.cluster_id,
        _replica_key(asked.replica_id, asked.replica_directory_id),
        asked.current_leader_epoch,
        OffsetAndEpoch(asked.fetch_offset, asked.last_fetched_epoch),
        min(asked.max_wait_ms, MAX_WAIT_MS_MAX),
        known,
    )


def fetch_response_frame(
    answer: FetchReply,
    topic: TopicPartition,
    version: int,
    correlation_id: int,
    listener: str,
    records: Sequence[bytes | memoryview],
) -> list[bytes | memoryview]:
    """The complete answer to a replica without touching its records; no other place to go in it."""
    nodes = leader_nodes(answer, listener, version >= NODE_ENDPOINTS_SINCE)
    return encode_fetch_response(
        version,
        correlation_id,
        topic=topic.topic_id.bytes if version >= 13 else topic.name.encode(),
        partition=topic.index,
        error_code=error_code(answer.error),
        high_watermark=id_or_minus_one(answer.high_watermark),
        log_start_offset=id_or_minus_one(answer.log_start_offset),
        records=records,
        leader_id=id_or_minus_one(answer.leader_id),
        leader_epoch=answer.epoch,
        leader_endpoint=FetchEndpoint(*nodes[0]) if nodes else None,
    )


def fetch_response(
    answer: FetchReply,
    topic: TopicPartition,
    version: int,
    listener: str,
) -> FetchResponse:
    """An answer without records; a top-level error has no topics, but still names the leader."""
    nodes = tuple(
        FetchResponseNodeEndpoint(node_id=node_id, host=host, port=port)
        for node_id, host, port in leader_nodes(answer, listener, version >= NODE_ENDPOINTS_SINCE)
    )
    if answer.top_level_error is not None:
        return FetchResponse(error_code=error_code(answer.top_level_error), node_endpoints=nodes)
    diverging = FetchResponseDivergingEpoch()
    if answer.diverging is not None:
        diverging = FetchResponseDivergingEpoch(
            epoch=answer.diverging.epoch, end_offset=answer.diverging.offset
        )
    snapshot = FetchResponseSnapshotId()
    if answer.snapshot is not None:
        snapshot = FetchResponseSnapshotId(
            end_offset=answer.snapshot.offset, epoch=answer.snapshot.epoch
        )
    partition = FetchResponsePartition(
        partition_index=topic.index,
        error_code=error_code(answer.error),
        high_watermark=id_or_minus_one(answer.high_watermark),
        log_start_offset=id_or_minus_one(answer.log_start_offset),
        diverging_epoch=diverging,
        current_leader=FetchResponseCurrentLeader(
            leader_id=id_or_minus_one(answer.leader_id), leader_epoch=answer.epoch
        ),
        snapshot_id=snapshot,
        aborted_transactions=(),
        records=b"",
    )
    responses = FetchResponseTopic(
        topic=topic.name, topic_id=topic.topic_id, partitions=(partition,)
    )
    return FetchResponse(responses=(responses,), node_endpoints=nodes)


def fetch_request_frame(
    request: Fetch,
    topic: TopicPartition,
    version: int,
    correlation_id: int,
    client_id: str,
    cluster_id: str | None,
    local: ReplicaKey,
    max_wait_ms: int,
    max_bytes: int = FETCH_MAX_BYTES,
) -> bytes:
    """A replica's complete request. Raises UnsupportedVersion if it could not say who it is."""
    if version < DIRECTORY_ID_SINCE:
        raise UnsupportedVersion(f"Fetch {version} has no field for the storage id")
    return encode_fetch_request(
        version,
        correlation_id,
        client_id=client_id,
        cluster_id=cluster_id,
        replica_id=local.id,
        replica_directory_id=uuid_or_zero(local.uuid),
        topic_id=topic.topic_id,
        partition=topic.index,
        current_leader_epoch=request.epoch,
        fetch_offset=request.position.offset,
        last_fetched_epoch=request.position.epoch,
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        high_watermark=id_or_minus_one(request.high_watermark),
    )


class ParsedFetchResponse(NamedTuple):
    """The event of a fetch answer, its record bytes, and their batches with positions."""

    event: FetchResponseReceived | RequestFailed
    data: bytes | memoryview
    batches: list[tuple[int, BatchHeader]]


def fetch_response_received(
    version: int, frame: bytes, at: int, request_id: int, listener: str
) -> ParsedFetchResponse:
    """What a peer answered to a fetch.

    Raises MalformedMessage and InvalidRequestShape; CorruptBatch if a batch is damaged, and then
    nothing of the answer counts.
    """
    answer = parse_fetch_response(version, frame, at)
    if answer is None:
        message = decode(FetchResponse, version, frame, at)
        if message.error_code:
            return _refused(request_id, message.error_code, message.node_endpoints)
        answer = FastFetchResponse.from_message(message, version)
        if answer is None:
            raise InvalidRequestShape("a fetch answer is about exactly one partition")
    if answer.error_code:
        return _refused(request_id, answer.error_code, answer.node_endpoints)
    nodes = tuple((node.node_id, node.host, node.port) for node in answer.node_endpoints)
    batches = scan(answer.records, FETCH_BATCHES_MAX)
    diverging, snapshot = answer.diverging_epoch, answer.snapshot_id
    if snapshot is not None and min(snapshot) < 0:
        raise InvalidRequestShape(f"half a snapshot id: {snapshot}")
    event = FetchResponseReceived(
        request_id=request_id,
        error=error_name(answer.partition_error_code),
        hint=leader_hint(answer.leader_id, answer.leader_epoch, nodes, listener),
        high_watermark=id_or_none(answer.high_watermark),
        diverging=None if diverging is None else OffsetAndEpoch(diverging[1], diverging[0]),
        snapshot=None if snapshot is None else SnapshotId(*snapshot),
        records=_fetched_records(answer.records, batches, request_id) if batches else None,
    )
    data = answer.records
    if batches:
        # A Kafka leader cuts its answer at so many bytes: what is left of the last batch is no record. A
        # copy, since a view keeps all of the answer.
        end = batches[-1][0] + batches[-1][1].size_bytes
        data = data if end == len(data) else bytes(data[:end])
    return ParsedFetchResponse(event, data, batches)


def next_max_bytes(asked: int, fetched: ParsedFetchResponse) -> int:
    """What the next fetch asks for: hardly more than is taken, if batches are small."""
    count = len(fetched.batches)
    if count == FETCH_BATCHES_MAX:
        return len(fetched.data)
    return min(2 * asked, FETCH_MAX_BYTES) if count < FETCH_BATCHES_MAX // 2 else asked


def _refused(
    request_id: int, code: int, nodes: Sequence[FetchEndpoint | FetchResponseNodeEndpoint]
) -> ParsedFetchResponse:
    """A top-level error; the first node that it names is the leader."""
    leader_id = nodes[0].node_id if nodes else None
    return ParsedFetchResponse(request_failed(request_id, code, leader_id), b"", [])


def _fetched_records(
    data: bytes | memoryview, batches: Sequence[tuple[int, BatchHeader]], token: int
) -> FetchedRecords:
    """Raises CorruptBatch if the batches do not follow one another without a gap."""
    epochs: list[tuple[int, int]] = []
    control: list[tuple[int, RaftControlRecord]] = []
    next_offset = batches[0][1].base_offset
    for position, header in batches:
        if header.base_offset != next_offset or header.last_offset_delta < 0:
            raise CorruptBatch(offset_problem(header, next_offset), position)
        next_offset = header.base_offset + header.last_offset_delta + 1
        if not epochs or epochs[-1][0] != header.epoch:
            epochs.append((header.epoch, header.base_offset))
        if header.is_control:
            control += control_records_of(data[position : position + header.size_bytes])
    return FetchedRecords(
        token=token,
        base_offset=batches[0][1].base_offset,
        end_offset=batches[-1][1].next_offset,
        epochs=tuple(epochs),
        control=tuple(control),
    )
