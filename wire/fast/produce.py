"""Produce requests with one batch for one partition, and their answers when all went well.

Source: quorumd.wire.messages.produce, which declares the same bytes.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 # it is struct that breaks the convention
from typing import NamedTuple

from quorumd.wire.varints import encode_unsigned_varint, read_unsigned_varint

_FLEXIBLE_FROM = 9
_TOPIC_ID_FROM = 13
_LOG_START_FROM = 5
_RECORD_ERRORS_FROM = 8

# transactional id, acks, timeout, topic count
_OLD_HEAD = Struct(">hhii")
_OLD_NAME_LENGTH = Struct(">h")
# partition count, index, length of the records
_OLD_PARTITION = Struct(">iii")
_HEAD_WITH_ID = Struct(">bhib16sbi")
_HEAD_WITH_NAME = Struct(">bhibB")
_PARTITION = Struct(">bi")
_NO_TAGS = b"\0\0\0"
_new_tuple = tuple.__new__


class FastProduce(NamedTuple):
    """A Produce request of one partition. `topic` is its name as UTF-8, or from version 13 its id."""

    acks: int
    timeout_ms: int
    topic: bytes
    partition: int
    records: bytes | memoryview


def parse_produce(version: int, body: bytes | memoryview, at: int = 0) -> FastProduce | None:
    """The request whose body begins at `body[at]`.

    None unless it holds exactly one topic with one partition and records, no transactional id and
    no tags; damaged bytes give None too.
    """
    try:
        if version >= _FLEXIBLE_FROM:
            return _parse_flexible(version, body, at)
        return _parse_old(body, at)
    except (StructError, IndexError, ValueError):
        return None


def _parse_flexible(version: int, body: bytes | memoryview, at: int) -> FastProduce | None:
    if version >= _TOPIC_ID_FROM:
        transactional_id, acks, timeout_ms, topics, topic, partitions, index = (
            _HEAD_WITH_ID.unpack_from(body, at)
        )
        at += _HEAD_WITH_ID.size
    else:
        transactional_id, acks, timeout_ms, topics, size = _HEAD_WITH_NAME.unpack_from(body, at)
        if not 0 < size < 128:
            return None
        name_at = at + 9
        at += 8 + size
        topic = bytes(body[name_at:at])
        partitions, index = _PARTITION.unpack_from(body, at)
        at += 5
    if transactional_id or topics != 2 or partitions != 2:
        return None
    size, at = read_unsigned_varint(body, at)
    end = at + size - 1
    if not size or body[end : end + 3] != _NO_TAGS:
        return None
    return _new_tuple(FastProduce, (acks, timeout_ms, topic, index, body[at:end]))


def _parse_old(body: bytes | memoryview, at: int) -> FastProduce | None:
    transactional_id, acks, timeout_ms, topics = _OLD_HEAD.unpack_from(body, at)
    (size,) = _OLD_NAME_LENGTH.unpack_from(body, at + 12)
    if transactional_id >= 0 or topics != 1 or size < 0:
        return None
    name_at = at + 14
    at = name_at + size
    partitions, index, size = _OLD_PARTITION.unpack_from(body, at)
    topic = bytes(body[name_at:at])
    at += 12
    end = at + size
    if partitions != 1 or size < 0 or end > len(body):
        return None
    return _new_tuple(FastProduce, (acks, timeout_ms, topic, index, body[at:end]))


# length, correlation id, header tags, topic count, topic id, partition count, index, error, base
# offset, append time, log start, record errors, error message, partition and topic tags, throttle
# time, tags
_ANSWER_WITH_ID = Struct(">iibb16sbihqqqbbbbib")
_ANSWER_HEAD = Struct(">iibb")
_ANSWER_TAIL = Struct(">bihqqqbbbbib")
_OLD_ANSWER_HEAD = Struct(">iiih")
_OLD_ANSWER_TAILS = {
    # partition count, index, error, base offset, append time, then what the version has
    3: Struct(">iihqqi"),
    _LOG_START_FROM: Struct(">iihqqqi"),
    _RECORD_ERRORS_FROM: Struct(">iihqqqihi"),
}


def encode_produce_response(
    version: int,
    correlation_id: int,
    topic: bytes,
    partition: int,
    error_code: int,
    base_offset: int,
    log_start_offset: int,
) -> bytes:
    """A complete answer for one partition: length, header and body, without text and leader hints.

    `topic` is the name as UTF-8, or from version 13 the 16 bytes of the id.
    """
    if version >= _TOPIC_ID_FROM:
        return _ANSWER_WITH_ID.pack(
            _ANSWER_WITH_ID.size - 4,
            correlation_id,
            0,
            2,
            topic,
            2,
            partition,
            error_code,
            base_offset,
            -1,
            log_start_offset,
            1,
            0,
            0,
            0,
            0,
            0,
        )
    if version >= _FLEXIBLE_FROM:
        name = encode_unsigned_varint(len(topic) + 1) + topic
        tail = _ANSWER_TAIL.pack(
            2, partition, error_code, base_offset, -1, log_start_offset, 1, 0, 0, 0, 0, 0
        )
        return _ANSWER_HEAD.pack(len(name) + len(tail) + 6, correlation_id, 0, 2) + name + tail
    if version >= _RECORD_ERRORS_FROM:
        tail = _OLD_ANSWER_TAILS[_RECORD_ERRORS_FROM].pack(
            1, partition, error_code, base_offset, -1, log_start_offset, 0, -1, 0
        )
    elif version >= _LOG_START_FROM:
        tail = _OLD_ANSWER_TAILS[_LOG_START_FROM].pack(
            1, partition, error_code, base_offset, -1, log_start_offset, 0
        )
    else:
        tail = _OLD_ANSWER_TAILS[3].pack(1, partition, error_code, base_offset, -1, 0)
    head = _OLD_ANSWER_HEAD.pack(len(topic) + len(tail) + 10, correlation_id, 1, len(topic))
    return head + topic + tail
