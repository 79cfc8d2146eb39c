"""Produce requests with one batch for one partition; their responses if it was appended, or a record refused.

Source: quorumd.wire.messages.produce, which declares the same bytes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 # it is struct that breaks the convention
from typing import Final, NamedTuple

from quorumd.wire.varints import encode_unsigned_varint, read_unsigned_varint

_FLEXIBLE_FROM: Final = 9
_TOPIC_ID_FROM: Final = 13
_LOG_START_FROM: Final = 5
_RECORD_ERRORS_FROM: Final = 8

# transactional id, acks, timeout, topic count, length of the name
_OLD_HEAD: Final = Struct(">hhiih")
# partition count, index
_OLD_PARTITION: Final = Struct(">ii")
_OLD_BYTES: Final = _OLD_HEAD.size + _OLD_PARTITION.size
_HEAD_WITH_ID: Final = Struct(">bhib16sbi")
_HEAD_WITH_NAME: Final = Struct(">bhibB")
_PARTITION: Final = Struct(">bi")
_NO_TAGS: Final = b"\0\0\0"
_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_INT64: Final = Struct(">q")
_NO_OFFSETS: Final = b"\xff" * 16
"""Neither a base offset nor an append time."""


class ProduceHead(NamedTuple):
    """The fields of a Produce request of one partition before its records.

    `topic` is its name as UTF-8, or from version 13 its id.
    """

    acks: int
    timeout_ms: int
    topic: bytes
    partition: int


def parse_produce(version: int, body: bytes, at: int = 0) -> tuple[ProduceHead, bytes] | None:
    """Head and records of the request whose body begins at `body[at]`.

    None unless it holds exactly one topic with one partition and records, no transactional id and
    no tags; damaged bytes give None too. Heads that were read of late are the same object again: a
    client's requests differ in their records.
    """
    try:
        head, size, at = _until_records(version, body, at)
    except (StructError, IndexError, ValueError):
        return None
    end = at + size
    if head is None or size < 0 or end > len(body):
        return None
    if version >= _FLEXIBLE_FROM and body[end : end + 3] != _NO_TAGS:
        return None
    return head, body[at:end]


def parse_produce_size(version: int, body: bytes, at: int = 0) -> tuple[ProduceHead, int] | None:
    """Head, and how many bytes of records are announced; the request may be cut off behind that.

    None for what `parse_produce` does not take for the same reasons.
    """
    try:
        head, size, _ = _until_records(version, body, at)
    except (StructError, IndexError, ValueError):
        return None
    return None if head is None else (head, size)


_LAST_HEAD: Final[list[tuple[int, bytes, ProduceHead | None]]] = [(-1, b"", None)]
"""Version, bytes and fields of the head that was read last: nearly always the next request has it, too."""


def _until_records(version: int, body: bytes, at: int) -> tuple[ProduceHead | None, int, int]:
    """Head, the records' size (-1 without any), and where they begin."""
    last_version, raw, head = _LAST_HEAD[0]
    head_end = at + len(raw)
    if version != last_version or body[at:head_end] != raw:
        head_end = _head_end(version, body, at)
        raw = body[at:head_end]
        if version >= _TOPIC_ID_FROM:
            head = _head_with_id(raw)
        elif version >= _FLEXIBLE_FROM:
            head = _head_with_name(raw)
        else:
            head = _old_head(raw)
        if head is not None:
            _LAST_HEAD[0] = version, raw, head
    if version < _FLEXIBLE_FROM:
        (size,) = _INT32.unpack_from(body, head_end)
        return head, size, head_end + 4
    size, at = read_unsigned_varint(body, head_end)
    return head, size - 1, at


def _head_end(version: int, body: bytes, at: int) -> int:
    if version >= _TOPIC_ID_FROM:
        return at + _HEAD_WITH_ID.size
    if version >= _FLEXIBLE_FROM:
        return at + _HEAD_WITH_NAME.size + _PARTITION.size + body[at + 8] - 1
    # The name's length has two bytes. Kafka's are shorter than 250; the head of a longer one is cut here.
    return at + _OLD_BYTES + body[at + 13]


@lru_cache(maxsize=256)
def _head_with_id(head: bytes) -> ProduceHead | None:
    transactional_id, acks, timeout_ms, topics, topic, partitions, index = _HEAD_WITH_ID.unpack(
        head
    )
    if transactional_id or topics != 2 or partitions != 2:
        return None
    return ProduceHead(acks, timeout_ms, topic, index)


@lru_cache(maxsize=256)
def _head_with_name(head: bytes) -> ProduceHead | None:
    transactional_id, acks, timeout_ms, topics, size = _HEAD_WITH_NAME.unpack_from(head)
    name_at = _HEAD_WITH_NAME.size
    name_end = name_at + size - 1
    partitions, index = _PARTITION.unpack_from(head, name_end)
    if transactional_id or topics != 2 or partitions != 2 or not 0 < size < 128:
        return None
    return ProduceHead(acks, timeout_ms, head[name_at:name_end], index)


@lru_cache(maxsize=256)
def _old_head(head: bytes) -> ProduceHead | None:
    transactional_id, acks, timeout_ms, topics, size = _OLD_HEAD.unpack_from(head)
    name_at = _OLD_HEAD.size
    name_end = name_at + size
    if transactional_id >= 0 or topics != 1 or len(head) != _OLD_BYTES + size:
        return None
    partitions, index = _OLD_PARTITION.unpack_from(head, name_end)
    if partitions != 1:
        return None
    return ProduceHead(acks, timeout_ms, head[name_at:name_end], index)


class ProduceResponseWriter:
    """Writes the responses to batches of one partition, in one version.

    `topic` is the name as UTF-8, or from version 13 the 16 bytes of the id.
    """

    __slots__ = (
        "_behind_offset",
        "_end",
        "_head",
        "_layout",
        "_length",
        "_log_start_offset",
        "_start",
        "_tail",
        "_version",
    )

    def __init__(self, version: int, topic: bytes, partition: int) -> None:
        self._version = version
        if version >= _FLEXIBLE_FROM:
            name = topic
            if version < _TOPIC_ID_FROM:
                name = encode_unsigned_varint(len(topic) + 1) + topic
            # No header tags, one topic; one partition.
            start = b"\0\2" + name + b"\2"
            # No tags of the partition and the topic, the throttle time, no tags.
            end = b"\0\0" + _INT32.pack(0) + b"\0"
            no_errors = b"\1\0"
        else:
            start = _INT32.pack(1) + len(topic).to_bytes(2, "big") + topic + _INT32.pack(1)
            end = _INT32.pack(0)
            no_errors = _INT32.pack(0) + b"\xff\xff" if version >= _RECORD_ERRORS_FROM else b""
        self._start = start + _INT32.pack(partition)
        self._end = end
        self._head = self._start + b"\0\0"
        self._tail = no_errors + end
        self._log_start_offset = 0
        self._behind_offset = self._append_time_and_rest(0)
        # length, correlation id, head with the error code, base offset, what is behind it
        self._layout = Struct(f">4si{len(self._head)}sq{len(self._behind_offset)}s")
        self._length = _INT32.pack(self._layout.size - _INT32.size)

    def encode(self, correlation_id: int, base_offset: int, log_start_offset: int) -> bytes:
        """A complete response to a batch that was appended: length, header and body."""
        if log_start_offset != self._log_start_offset:
            self._log_start_offset = log_start_offset
            self._behind_offset = self._append_time_and_rest(log_start_offset)
        return self._layout.pack(
            self._length, correlation_id, self._head, base_offset, self._behind_offset
        )

    def _append_time_and_rest(self, log_start_offset: int) -> bytes:
        """What is behind the base offset: it stays the same until the log starts elsewhere."""
        start = _INT64.pack(log_start_offset) if self._version >= _LOG_START_FROM else b""
        return _INT64.pack(-1) + start + self._tail

    def encode_refusal(
        self, correlation_id: int, error_code: int, record_index: int, message: bytes
    ) -> bytes:
        """A complete response to a batch that is refused for one of its records; `message` is UTF-8."""
        errors, version = b"", self._version
        if version >= _FLEXIBLE_FROM:
            text = encode_unsigned_varint(len(message) + 1) + message
            errors = b"\2" + _INT32.pack(record_index) + text + b"\0" + text
        elif version >= _RECORD_ERRORS_FROM:
            text = _INT16.pack(len(message)) + message
            errors = _INT32.pack(1) + _INT32.pack(record_index) + text + text
        offsets = _NO_OFFSETS + b"\xff" * 8 if version >= _LOG_START_FROM else _NO_OFFSETS
        body = self._start + _INT16.pack(error_code) + offsets + errors + self._end
        return _INT32.pack(4 + len(body)) + _INT32.pack(correlation_id) + body
