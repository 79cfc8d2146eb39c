"""Fetch requests for one partition: versions 12 to 18 read, 17 and 18 written as a replica does.

Source: quorumd.wire.messages.fetch, which declares the same bytes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 # it is struct that breaks the convention
from typing import Final, NamedTuple
from uuid import UUID

from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.primitives import uuid_of
from quorumd.wire.schema import ZERO_UUID
from quorumd.wire.varints import encode_unsigned_varint

_FLEXIBLE_FROM: Final = 12
_TOPIC_ID_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15
_DIRECTORY_FROM: Final = 17
_HIGH_WATERMARK_FROM: Final = 18
_FETCH_KEY: Final = 1

HIGH_WATERMARK_ABSENT: Final = 0x7FFFFFFFFFFFFFFF
"""The high watermark of a request that has no such field."""

_REPLICA_ID: Final = Struct(">i")
# max wait, min and max bytes, isolation, session id and epoch, topic count
_HEAD: Final = Struct(">iiibiib")
# partition count, partition, epoch, offset, last epoch, log start, max bytes
_PARTITION: Final = Struct(">biiqiqi")
_HIGH_WATERMARK: Final = Struct(">q")
_REPLICA_STATE: Final = Struct(">iqb")
_WHOLE: Final = Struct(">iiibiib16sbiiqiqi")
# the same, and the partition's two tags: directory id, high watermark; a literal, see `native/reads.py`
_OF_REPLICA: Final = Struct(">iiibiib16sbiiqiqib18s2sq")
_BEFORE_MAX_BYTES: Final = 8
_BEFORE_EPOCH: Final = Struct(">iiibiib16sbi").size
_DIRECTORY_TAG: Final = b"\0\x10"
_HIGH_WATERMARK_TAG: Final = b"\1\x08"
_SENDER_BYTES_MAX: Final = 256
_LENGTH: Final = Struct(">i")
_LENGTH_AND_IDS: Final = Struct(">ihhi")
_new_tuple: Final = tuple.__new__


class FastFetch(NamedTuple):
    """A Fetch request of one partition. `topic` is its name as UTF-8, or from version 13 its id."""

    cluster_id: str | None
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topic: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_directory_id: UUID
    high_watermark: int

    @classmethod
    def from_message(cls, message: FetchRequest, version: int) -> FastFetch | None:
        """The same of a decoded request; None unless it asks for exactly one partition."""
        if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
            return None
        (topic,) = message.topics
        (asked,) = topic.partitions
        return cls(
            message.cluster_id,
            replica_id_of(message, version),
            message.max_wait_ms,
            message.min_bytes,
            message.max_bytes,
            message.isolation_level,
            message.session_id,
            message.session_epoch,
            topic.topic_id.bytes if version >= _TOPIC_ID_FROM else topic.topic.encode(),
            asked.partition,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
            asked.partition_max_bytes,
            asked.replica_directory_id,
            asked.high_watermark,
        )


def replica_id_of(message: FetchRequest, version: int) -> int:
    """The id of the sender of a decoded request; later versions have it in another place."""
    return (
        message.replica_state.replica_id if version >= _REPLICA_STATE_FROM else message.replica_id
    )


def parse_fetch_request(version: int, body: bytes, at: int = 0) -> FastFetch | None:
    """The request (version 12 to 18) whose body begins at `body[at]`.

    None unless it holds exactly one topic with one partition, no forgotten topics and only tags of
    its version; damaged bytes give None too.
    """
    if not _FLEXIBLE_FROM <= version <= _HIGH_WATERMARK_FROM:
        return None
    try:
        if version == _HIGH_WATERMARK_FROM:
            found = _parse_of_replica(body, at)
            if found is not None:
                return found
        return _parse(version, body, at)
    except (StructError, IndexError, ValueError):
        return None


def _parse_of_replica(body: bytes, at: int) -> FastFetch | None:
    """As a `FetchRequestWriter` makes them: everything that changes from one to the next stands at fixed
    places. None of any other."""
    sender_at = at + _OF_REPLICA.size
    if not sender_at < len(body) <= sender_at + _SENDER_BYTES_MAX:
        return None
    (
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        topic,
        partitions,
        partition,
        epoch,
        offset,
        last_epoch,
        log_start,
        partition_bytes,
        tags,
        directory,
        tag,
        high_watermark,
    ) = _OF_REPLICA.unpack_from(body, at)
    if topics != 2 or partitions != 2 or tags != 2 or tag != _HIGH_WATERMARK_TAG:
        return None
    sender = _sender(directory, body[sender_at:])
    if sender is None:
        return None
    directory_id, cluster_id, replica_id = sender
    return _new_tuple(
        FastFetch,
        (
            cluster_id,
            replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation,
            session_id,
            session_epoch,
            topic,
            partition,
            epoch,
            offset,
            last_epoch,
            log_start,
            partition_bytes,
            directory_id,
            high_watermark,
        ),
    )


@lru_cache(maxsize=256)
def _sender(directory: bytes, end: bytes) -> tuple[UUID, str | None, int] | None:
    """Directory id, cluster id and replica id: what one sender repeats in every request."""
    found = _parse_end(_HIGH_WATERMARK_FROM, end, 0, -1)
    if found is None or directory[:2] != _DIRECTORY_TAG:
        return None
    return uuid_of(directory[2:]), *found


def _parse(version: int, body: bytes, at: int) -> FastFetch | None:
    replica_id = -1
    if version < _REPLICA_STATE_FROM:
        (replica_id,) = _REPLICA_ID.unpack_from(body, at)
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics = (
        _HEAD.unpack_from(body, at)
    )
    at += _HEAD.size
    if topics != 2:
        return None
    if version >= _TOPIC_ID_FROM:
        topic = body[at : at + 16]
        at += 16
    else:
        size = body[at]
        if not 0 < size < 128:
            return None
        topic = body[at + 1 : at + size]
        at += size
    partitions, partition, epoch, offset, last_epoch, log_start, partition_bytes = (
        _PARTITION.unpack_from(body, at)
    )
    at += _PARTITION.size
    if partitions != 2:
        return None

    tags = _parse_partition_tags(version, body, at)
    if tags is None:
        return None
    directory_id, high_watermark, at = tags
    sender = _parse_end(version, body, at, replica_id)
    if sender is None:
        return None
    return FastFetch(
        *sender,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topic,
        partition,
        epoch,
        offset,
        last_epoch,
        log_start,
        partition_bytes,
        directory_id,
        high_watermark,
    )


def _parse_partition_tags(version: int, body: bytes, at: int) -> tuple[UUID, int, int] | None:
    """Directory id and high watermark, and where they end; None if another tag is among them."""
    directory_id = ZERO_UUID
    high_watermark = HIGH_WATERMARK_ABSENT
    tags = body[at]
    at += 1
    if tags > 2:
        return None
    for _ in range(tags):
        tag = body[at]
        if tag == 0 and version >= _DIRECTORY_FROM and body[at + 1] == 16:
            directory_id = uuid_of(body[at + 2 : at + 18])
            at += 18
        elif tag == 1 and version >= _HIGH_WATERMARK_FROM and body[at + 1] == 8:
            (high_watermark,) = _HIGH_WATERMARK.unpack_from(body, at + 2)
            at += 10
        else:
            return None
    return directory_id, high_watermark, at


def _parse_end(
    version: int, body: bytes, at: int, replica_id: int
) -> tuple[str | None, int] | None:
    """Cluster id and replica id from what follows the partition; None if there is more in it."""
    # The topic's tags, no forgotten topics, the length of the rack id.
    if body[at] or body[at + 1] != 1 or not 0 < body[at + 2] < 128:
        return None
    at += 2 + body[at + 2]

    cluster_id = None
    tags = body[at]
    at += 1
    if tags > 2:
        return None
    for _ in range(tags):
        tag = body[at]
        if tag == 0:
            tag_size, size = body[at + 1], body[at + 2]
            if not 0 < size < 128 or tag_size != size:
                return None
            cluster_id = _text(body[at + 3 : at + 2 + size])
            at += 2 + size
        elif tag == 1 and version >= _REPLICA_STATE_FROM and body[at + 1] == 13:
            replica_id, _, state_tags = _REPLICA_STATE.unpack_from(body, at + 2)
            if state_tags:
                return None
            at += 15
        else:
            return None
    return None if at > len(body) else (cluster_id, replica_id)


@lru_cache(maxsize=256)
def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


class FetchRequestWriter:
    """Writes the requests (version 17 or 18) of one replica for one partition: only places in the log, and
    how much is wanted, change from one to the next."""

    __slots__ = ("_has_high_watermark", "_layout", "_parts")

    def __init__(
        self,
        version: int,
        *,
        client_id: str,
        cluster_id: str | None,
        replica_id: int,
        replica_directory_id: UUID,
        topic_id: UUID,
        partition: int,
        max_wait_ms: int,
    ) -> None:
        self._has_high_watermark = version >= _HIGH_WATERMARK_FROM
        head = encode_request_header(_FETCH_KEY, version, 0, client_id)[8:]
        whole = _WHOLE.pack(
            max_wait_ms, 0, 0, 0, 0, -1, 2, topic_id.bytes, 2, partition, 0, 0, 0, -1, 0
        )
        tags = []
        if replica_directory_id != ZERO_UUID:
            tags.append(_DIRECTORY_TAG + replica_directory_id.bytes)
        if self._has_high_watermark:
            tags.append(_HIGH_WATERMARK_TAG)
        parts = (
            head + whole[:_BEFORE_MAX_BYTES],
            whole[_BEFORE_MAX_BYTES + 4 : _BEFORE_EPOCH],
            whole[_BEFORE_EPOCH + 16 :] + bytes((len(tags),)) + b"".join(tags),
            _end(cluster_id, replica_id),
        )
        one, two, three, four = map(len, parts)
        last = "q" if self._has_high_watermark else ""
        self._layout = Struct(f">8si{one}si{two}siqi{three}s{last}{four}s")
        length = self._layout.size - _LENGTH.size
        self._parts = _LENGTH_AND_IDS.pack(length, _FETCH_KEY, version, 0)[:8], *parts

    def encode(
        self,
        correlation_id: int,
        current_leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        max_bytes: int,
        high_watermark: int,
    ) -> bytes:
        """A complete request: length, header and body. Version 17 leaves the high watermark out."""
        first, second, third, fourth, last = self._parts
        fields = (
            first,
            correlation_id,
            second,
            max_bytes,
            third,
            current_leader_epoch,
            fetch_offset,
            last_fetched_epoch,
            fourth,
        )
        if self._has_high_watermark:
            return self._layout.pack(*fields, high_watermark, last)
        return self._layout.pack(*fields, last)


def _end(cluster_id: str | None, replica_id: int) -> bytes:
    """Everything behind the partition's tags."""
    tags = []
    if cluster_id is not None:
        raw = cluster_id.encode()
        value = encode_unsigned_varint(len(raw) + 1) + raw
        tags.append(b"\0" + encode_unsigned_varint(len(value)) + value)
    if replica_id != -1:
        tags.append(b"\1\x0d" + _REPLICA_STATE.pack(replica_id, -1, 0))
    return b"\0\1\1" + bytes((len(tags),)) + b"".join(tags)
