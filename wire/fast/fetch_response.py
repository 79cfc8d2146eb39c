"""Fetch responses for one partition: every version written, 12 to 18 read.

Record bytes are neither copied nor read when writing: they stay buffers of their own.
Source: quorumd.wire.messages.fetch, which declares the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 # it is struct that breaks the convention
from typing import Final, NamedTuple

from quorumd.wire.messages.fetch import FetchResponse
from quorumd.wire.varints import encode_unsigned_varint, read_unsigned_varint

_FLEXIBLE_FROM: Final = 12
_TOPIC_ID_FROM: Final = 13
_ENDPOINTS_FROM: Final = 16
_TOP_ERROR_FROM: Final = 7
_LOG_START_FROM: Final = 5
_PREFERRED_REPLICA_FROM: Final = 11
_VERSION_MAX: Final = 18
_ENDPOINTS_BYTES_MAX: Final = 1024
_TAIL_BYTES_MAX: Final = 2 * _ENDPOINTS_BYTES_MAX
_new_tuple: Final = tuple.__new__


class FetchEndpoint(NamedTuple):
    """The address of a node's listener; `port` is an int32 in this message."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class FastFetchResponse(NamedTuple):
    """A Fetch response of one partition. What is not set is None, or -1 for the leader."""

    error_code: int
    topic: bytes
    partition: int
    partition_error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    """Epoch, and its end offset (exclusive)."""
    leader_id: int
    leader_epoch: int
    snapshot_id: tuple[int, int] | None
    """End offset (exclusive), and epoch."""
    records: bytes | memoryview
    node_endpoints: tuple[FetchEndpoint, ...]

    @classmethod
    def from_message(cls, message: FetchResponse, version: int) -> FastFetchResponse | None:
        """The same of a decoded response; None unless it is about exactly one partition."""
        if len(message.responses) != 1 or len(message.responses[0].partitions) != 1:
            return None
        (topic,) = message.responses
        (found,) = topic.partitions
        diverging, leader, snapshot = (
            found.diverging_epoch,
            found.current_leader,
            found.snapshot_id,
        )
        return cls(
            message.error_code,
            topic.topic_id.bytes if version >= _TOPIC_ID_FROM else topic.topic.encode(),
            found.partition_index,
            found.error_code,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            _pair(diverging.epoch, diverging.end_offset),
            leader.leader_id,
            leader.leader_epoch,
            _pair(snapshot.end_offset, snapshot.epoch),
            found.records or b"",
            tuple(
                FetchEndpoint(node.node_id, node.host, node.port, node.rack)
                for node in message.node_endpoints
            ),
        )


JOIN_BYTES_MAX: Final = 8 << 10
"""A smaller response is one buffer: to copy it costs less than to write three."""

# throttle time, error, session id, topic count
_BODY_HEAD: Final = Struct(">ihib")
# partition count, index, error, high watermark, stable offset, log start, aborted, preferred
_PARTITION: Final = Struct(">bihqqqbi")
# its first three, and its last two
_UNTIL_ERROR: Final = Struct(">bih")
_BEHIND_START: Final = Struct(">bi")
_LEADER_TAG: Final = Struct(">bbbiib")
_OLD_TOP_ERROR: Final = Struct(">hi")
_OLD_TOPIC: Final = Struct(">ih")
_OLD_PARTITION: Final = Struct(">iih")
_INT32: Final = Struct(">i")


class FetchResponseWriter:
    """Writes the responses to fetches of one partition, while the same leader leads it with the same error.

    `topic` is the name as UTF-8, or from version 13 the 16 bytes of the id; `error_code` is the partition's.
    Leader and endpoint are left out by versions that lack them.
    """

    __slots__ = (
        "_after_start",
        "_before_watermark",
        "_end",
        "_has_start",
        "_is_flexible",
        "_layout",
        "_other_bytes",
    )

    def __init__(
        self,
        version: int,
        *,
        topic: bytes,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        leader_endpoint: FetchEndpoint | None,
        error_code: int = 0,
    ) -> None:
        self._is_flexible = version >= _FLEXIBLE_FROM
        self._has_start = version >= _LOG_START_FROM
        self._end = b""
        if self._is_flexible:
            name = topic
            if version < _TOPIC_ID_FROM:
                name = encode_unsigned_varint(len(topic) + 1) + topic
            # The first byte is the header's tags.
            topics = b"\0" + _BODY_HEAD.pack(0, 0, 0, 2) + name
            head = topics + _UNTIL_ERROR.pack(2, partition, error_code)
            after = _BEHIND_START.pack(1, -1)
            self._end = _tail(version, leader_id, leader_epoch, leader_endpoint)
        else:
            top_error = _OLD_TOP_ERROR.pack(0, 0) if version >= _TOP_ERROR_FROM else b""
            topics = _OLD_TOPIC.pack(1, len(topic)) + topic
            head = bytes(4) + top_error + topics + _OLD_PARTITION.pack(1, partition, error_code)
            after = bytes(4) + (b"\xff" * 4 if version >= _PREFERRED_REPLICA_FROM else b"")
        self._before_watermark, self._after_start = head, after
        # length, correlation id, topic and partition, high watermark, stable offset, log start, the rest
        start = "q" if self._has_start else ""
        self._layout = Struct(f">ii{len(head)}sqq{start}{len(after)}s")
        self._other_bytes = self._layout.size - 4 + len(self._end)

    def encode(
        self,
        correlation_id: int,
        high_watermark: int,
        log_start_offset: int,
        records: Sequence[bytes | memoryview],
    ) -> list[bytes | memoryview]:
        """A complete response as buffers to be written one after the other: head, records, end; or as one."""
        size = len(records[0]) if len(records) == 1 else sum(map(len, records))
        records_length = (
            encode_unsigned_varint(size + 1) if self._is_flexible else _INT32.pack(size)
        )
        length = self._other_bytes + len(records_length) + size
        before, after = self._before_watermark, self._after_start
        if self._has_start:
            head = self._layout.pack(
                length, correlation_id, before, high_watermark, -1, log_start_offset, after
            )
        else:
            head = self._layout.pack(length, correlation_id, before, high_watermark, -1, after)
        if length < JOIN_BYTES_MAX:
            return [b"".join((head, records_length, *records, self._end))]
        return [head + records_length, *records, self._end]


@lru_cache(maxsize=256)
def _tail(version: int, leader_id: int, leader_epoch: int, endpoint: FetchEndpoint | None) -> bytes:
    """Bytes behind the records: the partition's tags, the topic's, and those of the response."""
    if leader_id == -1 and leader_epoch == -1:
        tags = b"\0\0"
    else:
        tags = _LEADER_TAG.pack(1, 1, 9, leader_id, leader_epoch, 0) + b"\0"
    if endpoint is None or version < _ENDPOINTS_FROM:
        return tags + b"\0"
    return tags + _endpoint_tag(endpoint)


def _endpoint_tag(endpoint: FetchEndpoint) -> bytes:
    """The tag section of a response with one node endpoint."""
    host = endpoint.host.encode()
    parts = [b"\2", _INT32.pack(endpoint.node_id), encode_unsigned_varint(len(host) + 1), host]
    parts.append(_INT32.pack(endpoint.port))
    if endpoint.rack is None:
        parts.append(b"\0")
    else:
        rack = endpoint.rack.encode()
        parts += (encode_unsigned_varint(len(rack) + 1), rack)
    parts.append(b"\0")
    value = b"".join(parts)
    return b"\1\0" + encode_unsigned_varint(len(value)) + value


_DIVERGING: Final = Struct(">iqb")
_LEADER: Final = Struct(">iib")
_SNAPSHOT: Final = Struct(">qib")


def parse_fetch_response(
    version: int, body: bytes | memoryview, at: int = 0
) -> FastFetchResponse | None:
    """The response (version 12 to 18) whose body begins at `body[at]`.

    None unless it holds exactly one topic with one partition, no aborted transactions and only tags
    of its version; damaged bytes give None too. Null records read as empty.
    """
    if not _FLEXIBLE_FROM <= version <= _VERSION_MAX:
        return None
    try:
        return _parse(version, body if isinstance(body, bytes) else bytes(body), at)
    except (StructError, IndexError, ValueError):
        return None


def _parse(version: int, body: bytes, at: int) -> FastFetchResponse | None:
    _, error_code, _, topics = _BODY_HEAD.unpack_from(body, at)
    at += _BODY_HEAD.size
    size = 16
    if version < _TOPIC_ID_FROM:
        size = body[at] - 1
        at += 1
        if not 0 <= size < 127:
            return None
    topic = body[at : at + size]
    at += size
    partitions, partition, partition_error, high_watermark, stable, log_start, aborted, _ = (
        _PARTITION.unpack_from(body, at)
    )
    at += _PARTITION.size
    if topics != 2 or partitions != 2 or not 0 <= aborted <= 1:
        return None
    size, at = read_unsigned_varint(body, at)
    end = at + size - 1 if size else at
    if len(body) - end > _TAIL_BYTES_MAX:
        return None
    tail = _parse_tail(version, body[end:])
    if tail is None:
        return None
    diverging_epoch, leader_id, leader_epoch, snapshot_id, endpoints = tail
    return _new_tuple(
        FastFetchResponse,
        (
            error_code,
            topic,
            partition,
            partition_error,
            high_watermark,
            stable,
            log_start,
            diverging_epoch,
            leader_id,
            leader_epoch,
            snapshot_id,
            body[at:end],
            endpoints,
        ),
    )


_Tail = tuple[tuple[int, int] | None, int, int, tuple[int, int] | None, tuple[FetchEndpoint, ...]]


@lru_cache(maxsize=256)
def _parse_tail(version: int, body: bytes) -> _Tail | None:
    """The parts behind the records, the same in nearly all responses of a leader.

    Diverging epoch, leader id and epoch, snapshot id, endpoints; None unless it is just tags of the version.
    """
    diverging_epoch = snapshot_id = None
    leader_id = leader_epoch = -1
    tags, at = body[0], 1
    if tags > 3:
        return None
    for _ in range(tags):
        tag, size = body[at], body[at + 1]
        at += 2
        if tag == 1 and size == 9:
            leader_id, leader_epoch, inner = _LEADER.unpack_from(body, at)
        elif tag == 0 and size == 13:
            epoch, end_offset, inner = _DIVERGING.unpack_from(body, at)
            diverging_epoch = _pair(epoch, end_offset)
        elif tag == 2 and size == 13:
            end_offset, epoch, inner = _SNAPSHOT.unpack_from(body, at)
            snapshot_id = _pair(end_offset, epoch)
        else:
            return None
        if inner:
            return None
        at += size

    if body[at]:
        return None
    tags = body[at + 1]
    at += 2
    endpoints: tuple[FetchEndpoint, ...] = ()
    if tags:
        if tags != 1 or body[at] or version < _ENDPOINTS_FROM:
            return None
        size, at = read_unsigned_varint(body, at + 1)
        end = at + size
        if end > len(body) or size > _ENDPOINTS_BYTES_MAX:
            return None
        found = _endpoints(body[at:end])
        if found is None:
            return None
        endpoints = found
    return diverging_epoch, leader_id, leader_epoch, snapshot_id, endpoints


def _pair(first: int, second: int) -> tuple[int, int] | None:
    """Both values; None where both are -1, which is how an absent struct reads."""
    return None if first == second == -1 else (first, second)


def _endpoints(raw: bytes) -> tuple[FetchEndpoint, ...] | None:
    """The data of the tag NodeEndpoints; None if it is not exactly an array without inner tags."""
    count, at = read_unsigned_varint(raw, 0)
    if not 0 < count < 128:
        return None
    found = []
    for _ in range(count - 1):
        (node_id,) = _INT32.unpack_from(raw, at)
        size, at = read_unsigned_varint(raw, at + 4)
        if not 0 < size < 128:  # machine code takes no slice that ends before it begins
            return None
        host_end = at + size - 1
        host = raw[at:host_end].decode(errors="replace")
        (port,) = _INT32.unpack_from(raw, host_end)
        rack_size, at = read_unsigned_varint(raw, host_end + 4)
        rack = raw[at : at + rack_size - 1].decode(errors="replace") if rack_size else None
        at += rack_size if rack_size else 1
        if rack_size >= 128 or raw[at - 1]:
            return None
        found.append(FetchEndpoint(node_id, host, port, rack))
    return tuple(found) if at == len(raw) else None
