"""Messages to events and effects to messages: Fetch between replicas.

Pure functions; see `translate`. Record bytes are looked at batch by batch, never copied: headers and CRC
of everything that came in, contents of control batches only. Source: KIP-595, KIP-853, KIP-1166.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from quorumd.raft.effects import Fetch, FetchReply
from quorumd.raft.events import (
    FetchedRecords,
    FetchRequestReceived,
    FetchResponseReceived,
    LeaderHint,
    RequestFailed,
)
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId, position_of
from quorumd.server.model.topic import TopicPartition
from quorumd.server.translate.common import (
    InvalidRequestShape,
    endpoint_on,
    error_code,
    error_name,
    id_or_minus_one,
    leader_hint,
    leader_nodes,
    request_failed,
    uuid_or_none,
    uuid_or_zero,
)
from quorumd.server.translate.fetched_batches import FetchedBatches, fetched_batches
from quorumd.wire.codec import decode
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.fast import (
    FastFetch,
    FastFetchResponse,
    FetchEndpoint,
    FetchRequestWriter,
    FetchResponseWriter,
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
from quorumd.wire.primitives import uuid_of

FETCH_MAX_BYTES: Final = 8 * 2**20
FETCH_BATCHES_MAX: Final = 2048
"""Of one response a follower takes no more, or its event loop would stand still: 8 MiB can be 120,000 batches
of one record, and 0.2 s. The rest is fetched again."""
FETCH_MAX_WAIT_MS: Final = 500
"""Time that a follower lets its leader wait for records, at most: Kafka's own figure."""
HIGH_WATERMARK_UNSUPPORTED: Final = 2**63 - 1
TOPIC_ID_SINCE: Final = 13
DIRECTORY_ID_SINCE: Final = 17
MAX_WAIT_MS_MAX = 5_000
"""Longest wait that a replica is granted, ten times Kafka's: one whose connection is gone is remembered
for so long."""
NODE_ENDPOINTS_SINCE: Final = 17
"""Kafka's leaders name endpoints from this version on, although the field is one version older."""


@lru_cache(maxsize=256)
def _replica_key(replica_id: int, uuid: int) -> ReplicaKey | None:
    known = uuid_of(uuid.to_bytes(16, "big"))  # the object that the voters' keys have
    return ReplicaKey(replica_id, uuid_or_none(known)) if replica_id >= 0 else None


def fetch_request_received(asked: FastFetch, reply_to: int) -> FetchRequestReceived:
    """The event of a replica's fetch."""
    known: int | None = asked.high_watermark
    if known == HIGH_WATERMARK_UNSUPPORTED:
        known = None
    return FetchRequestReceived(
        reply_to,
        asked.cluster_id,
        # The hash of a UUID is made by Python; that of its number is not.
        _replica_key(asked.replica_id, asked.replica_directory_id.int),
        asked.current_leader_epoch,
        position_of(asked.fetch_offset, asked.last_fetched_epoch),
        min(asked.max_wait_ms, MAX_WAIT_MS_MAX),
        known,
    )


@dataclass(slots=True)
class _Known:
    """The part that the responses of a version repeat, and the leader by it."""

    leader_id: int | None
    epoch: int
    endpoints: tuple[Endpoint, ...]
    listener: str
    writer: FetchResponseWriter


class FetchResponseFrames:
    """Complete responses to replicas, whose records it does not touch; no other place to go in them."""

    def __init__(self, topic: TopicPartition) -> None:
        self._topic = topic
        self._known: dict[int, _Known] = {}
        """By version."""

    def of(
        self,
        reply: FetchReply,
        version: int,
        correlation_id: int,
        listener: str,
        records: Sequence[bytes | memoryview],
    ) -> list[bytes | memoryview]:
        high_watermark, start = reply.high_watermark, reply.log_start_offset
        known = self._known.get(version)
        if reply.error is not None:
            writer = self._writer(reply, version, listener)
        elif (
            known is None
            or known.epoch != reply.epoch
            or known.leader_id != reply.leader_id
            or known.endpoints is not reply.leader_endpoints
            or known.listener != listener
        ):
            writer = self._writer(reply, version, listener)
            self._known[version] = _Known(
                reply.leader_id, reply.epoch, reply.leader_endpoints, listener, writer
            )
        else:
            writer = known.writer
        return writer.encode(
            correlation_id,
            -1 if high_watermark is None else high_watermark,
            -1 if start is None else start,
            records,
        )

    def _writer(self, reply: FetchReply, version: int, listener: str) -> FetchResponseWriter:
        topic = self._topic
        return FetchResponseWriter(
            version,
            topic=topic.id_bytes if version >= TOPIC_ID_SINCE else topic.name_bytes,
            partition=topic.index,
            leader_id=id_or_minus_one(reply.leader_id),
            leader_epoch=reply.epoch,
            leader_endpoint=_told_endpoint(reply, version, listener),
            error_code=error_code(reply.error),
        )


def _told_endpoint(reply: FetchReply, version: int, listener: str) -> FetchEndpoint | None:
    """Endpoint of the leader, in versions that have it."""
    leader_id = reply.leader_id
    if leader_id is None or version < NODE_ENDPOINTS_SINCE:
        return None
    at = endpoint_on(reply.leader_endpoints, listener)
    return None if at is None else FetchEndpoint(leader_id, at.host, at.port)


def fetch_response(
    reply: FetchReply,
    topic: TopicPartition,
    version: int,
    listener: str,
) -> FetchResponse:
    """A response without records; a top-level error has no topics, but still names the leader."""
    nodes = tuple(
        FetchResponseNodeEndpoint(node_id=node_id, host=host, port=port)
        for node_id, host, port in leader_nodes(reply, listener, version >= NODE_ENDPOINTS_SINCE)
    )
    if reply.top_level_error is not None:
        return FetchResponse(error_code=error_code(reply.top_level_error), node_endpoints=nodes)
    diverging = FetchResponseDivergingEpoch()
    if reply.diverging is not None:
        diverging = FetchResponseDivergingEpoch(
            epoch=reply.diverging.epoch, end_offset=reply.diverging.offset
        )
    snapshot = FetchResponseSnapshotId()
    if reply.snapshot is not None:
        snapshot = FetchResponseSnapshotId(
            end_offset=reply.snapshot.end_offset, epoch=reply.snapshot.epoch
        )
    partition = FetchResponsePartition(
        partition_index=topic.index,
        error_code=error_code(reply.error),
        high_watermark=id_or_minus_one(reply.high_watermark),
        log_start_offset=id_or_minus_one(reply.log_start_offset),
        diverging_epoch=diverging,
        current_leader=FetchResponseCurrentLeader(
            leader_id=id_or_minus_one(reply.leader_id), leader_epoch=reply.epoch
        ),
        snapshot_id=snapshot,
        aborted_transactions=(),
        records=b"",
    )
    responses = FetchResponseTopic(
        topic=topic.name, topic_id=topic.topic_id, partitions=(partition,)
    )
    return FetchResponse(responses=(responses,), node_endpoints=nodes)


class FetchRequestFrames:
    """A replica's complete requests for one partition."""

    def __init__(
        self, topic: TopicPartition, client_id: str, local: ReplicaKey, max_wait_ms: int
    ) -> None:
        self._topic = topic
        self._client_id = client_id
        self._local = local
        self._max_wait_ms = max_wait_ms
        self._written: tuple[int, str | None] = (-1, None)
        """Version and cluster id that `_writer` writes."""
        self._writer: FetchRequestWriter | None = None

    def of(
        self,
        request: Fetch,
        version: int,
        correlation_id: int,
        cluster_id: str | None,
        max_bytes: int = FETCH_MAX_BYTES,
    ) -> bytes:
        """Raises UnsupportedVersion if it has no field for the storage id."""
        writer = self._writer
        if writer is None or version != self._written[0] or cluster_id != self._written[1]:
            if version < DIRECTORY_ID_SINCE:
                raise UnsupportedVersion(f"Fetch {version} has no field for the storage id")
            topic, local = self._topic, self._local
            self._written = version, cluster_id
            self._writer = writer = FetchRequestWriter(
                version,
                client_id=self._client_id,
                cluster_id=cluster_id,
                replica_id=local.id,
                replica_directory_id=uuid_or_zero(local.uuid),
                topic_id=topic.topic_id,
                partition=topic.index,
                max_wait_ms=self._max_wait_ms,
            )
        offset, epoch = request.position
        known = request.high_watermark
        return writer.encode(correlation_id, request.epoch, offset, epoch, max_bytes, known)


@dataclass(slots=True)
class ParsedFetchResponse:
    """The event of a fetch response, and the batches that came with it."""

    event: FetchResponseReceived | RequestFailed
    fetched: FetchedBatches | None = None


def fetch_response_received(
    version: int, frame: bytes, at: int, topic: TopicPartition, request_id: int, listener: str
) -> ParsedFetchResponse:
    """A peer's Fetch response as an event.

    Raises MalformedMessage, and InvalidRequestShape unless it is about exactly this partition; CorruptBatch
    if a batch is damaged, and then nothing of the response counts.
    """
    response = parse_fetch_response(version, frame, at)
    if response is None:
        message = decode(FetchResponse, version, frame, at)
        if message.error_code:
            return _refused(request_id, message.error_code, message.node_endpoints)
        response = FastFetchResponse.from_message(message, version)
        if response is None:
            raise InvalidRequestShape("a fetch response is about exactly one partition")
    (
        top_error,
        named,
        partition,
        error,
        high_watermark,
        _,
        _,
        diverging,
        leader_id,
        epoch,
        snapshot,
        records,
        endpoints,
    ) = response
    if top_error:
        return _refused(request_id, top_error, endpoints)
    asked = topic.id_bytes if version >= TOPIC_ID_SINCE else topic.name_bytes
    if named != asked or partition != topic.index:
        raise InvalidRequestShape("a fetch response is about a partition that was not asked for")
    fetched = fetched_batches(
        records if isinstance(records, bytes) else bytes(records), FETCH_BATCHES_MAX
    )
    if snapshot is not None and min(snapshot) < 0:
        raise InvalidRequestShape(f"half a snapshot id: {snapshot}")
    event = FetchResponseReceived(
        request_id,
        error_name(error) if error else None,
        _hint(leader_id, epoch, endpoints, listener),
        None if high_watermark < 0 else high_watermark,
        None if diverging is None else OffsetAndEpoch(diverging[1], diverging[0]),
        None if snapshot is None else SnapshotId(snapshot[0], snapshot[1]),
        None if fetched is None else _fetched_records(fetched, request_id),
    )
    return ParsedFetchResponse(event, fetched)


@lru_cache(maxsize=64)
def _hint(
    leader_id: int, epoch: int, endpoints: tuple[FetchEndpoint, ...], listener: str
) -> LeaderHint:
    nodes = tuple((node.node_id, node.host, node.port) for node in endpoints)
    return leader_hint(leader_id, epoch, nodes, listener)


def next_max_bytes(asked: int, fetched: FetchedBatches) -> int:
    """Limit in bytes for the next fetch: hardly more than is taken, if batches are small."""
    count = fetched.count
    if count == FETCH_BATCHES_MAX:
        return len(fetched.chunk.data)
    return min(2 * asked, FETCH_MAX_BYTES) if count < FETCH_BATCHES_MAX // 2 else asked


def _refused(
    request_id: int, code: int, nodes: Sequence[FetchEndpoint | FetchResponseNodeEndpoint]
) -> ParsedFetchResponse:
    """A top-level error; the first node that it names is the leader."""
    leader_id = nodes[0].node_id if nodes else None
    return ParsedFetchResponse(request_failed(request_id, code, leader_id))


def _fetched_records(fetched: FetchedBatches, token: int) -> FetchedRecords:
    chunk = fetched.chunk
    return FetchedRecords(
        token,
        chunk.base_offset,
        chunk.end_offset,
        tuple(fetched.epochs),
        tuple(fetched.control),
    )
