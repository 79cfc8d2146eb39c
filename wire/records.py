"""Record batches (magic 2): header, checks, and the records inside.

The door to the batch format for other packages. Headers are in quorumd.wire.batch_header, what a leader
demands of a produced batch in quorumd.wire.produced; here are the records themselves: reading them one by
one, compressed or not, and building batches.
Source: KIP-98, "Message Format"; Apache Kafka 4.3, DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from quorumd.wire.batch_header import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_FROM,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_is_valid,
    iter_headers,
    packed_delta,
    read_header,
    scan,
    stamp,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.produced import check_produced
from quorumd.wire.varints import encode_varint, read_rest, read_varint, read_varlong

__all__ = [
    "BATCH_OVERHEAD",
    "LOG_OVERHEAD",
    "RECORD_BYTES_MAX",
    "BatchHeader",
    "Record",
    "RecordPlace",
    "build_batch",
    "check_produced",
    "crc_is_valid",
    "iter_headers",
    "iter_places",
    "iter_records",
    "read_header",
    "scan",
    "stamp",
]

RECORD_BYTES_MAX = 64 * 1024 * 1024
"""The largest record that is unpacked from a compressed batch; no more than this and one chunk of
quorumd.wire.compression is held."""

_RECORD_BYTES_MIN = 6
_AS_CLAIMED = -1
"""In place of a record's place: its offset delta was checked before it came into the log."""
_AFTER_CRC = Struct(">hiqqqhii")
_BEFORE_BODY = Struct(">qiibI")
_NULL = encode_varint(-1)

Header = tuple[str | bytes, bytes | None]
T = TypeVar("T")


class Record(NamedTuple):
    """One record. `timestamp` is ms; a header key that is no UTF-8 stays bytes."""

    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


def iter_records(
    batch: bytes | memoryview, *, record_bytes_max: int = RECORD_BYTES_MAX
) -> Iterator[Record]:
    """The records of the batch at the start of `batch`, unpacked as a stream if compressed.

    The offsets of compressed ones are as `packed_delta` says. The CRC is not checked again. Raises
    CorruptBatch, possibly after some records, if the contents are not exactly the records that the header
    counts, or if one is larger than `record_bytes_max`: a reader that must know before it acts makes a list
    first.
    """
    return _iterate(batch, record_bytes_max, _read_body)


class RecordPlace(NamedTuple):
    """The place of a record in a log and in time (ms), and its size."""

    offset: int
    timestamp: int
    size_bytes: int


def iter_places(batch: bytes | memoryview) -> Iterator[RecordPlace]:
    """As `iter_records`, where neither key, value nor headers matter, and none of them is looked at."""
    return _iterate(batch, RECORD_BYTES_MAX, _read_place)


def _iterate(
    batch: bytes | memoryview,
    record_bytes_max: int,
    read: Callable[[BatchHeader, bytes, int, int, int], T],
) -> Iterator[T]:
    header = read_header(batch)
    if header.size_bytes > len(batch):
        raise CorruptBatch(f"only {len(batch)} of {header.size_bytes} bytes are there")
    if header.record_count < 0:
        raise CorruptBatch(f"a record count of {header.record_count}")
    payload = batch[BATCH_OVERHEAD : header.size_bytes]
    try:
        if header.attributes & CODEC_MASK:
            yield from _unpacked_records(header, payload, record_bytes_max, read)
        else:
            yield from _plain_records(header, bytes(payload), read)
    except IndexError:
        raise CorruptBatch("a record runs past its end") from None
    except ValueError as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record holds {error}") from None


def _plain_records(
    header: BatchHeader, data: bytes, read: Callable[[BatchHeader, bytes, int, int, int], T]
) -> Iterator[T]:
    at = 0
    end = len(data)
    for _ in range(header.record_count):
        size, at = read_varint(data, at)
        body_end = at + size
        if size < _RECORD_BYTES_MIN or body_end > end:
            raise CorruptBatch(f"a record of {size} bytes where {end - at} are left")
        yield read(header, data, at, body_end, _AS_CLAIMED)
        at = body_end
    if at != end:
        raise CorruptBatch(f"{end - at} bytes more than the {header.record_count} records")


def _unpacked_records(
    header: BatchHeader,
    payload: bytes | memoryview,
    record_bytes_max: int,
    read: Callable[[BatchHeader, bytes, int, int, int], T],
) -> Iterator[T]:
    # Imported here because the codecs cost memory and start time, and most batches have none.
    from quorumd.wire.compression import unpack

    chunks = unpack(header.codec, payload)
    held = bytearray()
    for place in range(header.record_count):
        while len(held) < 5 and (chunk := next(chunks, None)) is not None:
            held += chunk
        size, at = read_varint(held, 0)
        if not _RECORD_BYTES_MIN <= size <= record_bytes_max:
            raise CorruptBatch(f"a record of {size} bytes, {record_bytes_max} are allowed")
        while len(held) < at + size:
            if (chunk := next(chunks, None)) is None:
                raise CorruptBatch("the unpacked records end too early")
            held += chunk
        body = bytes(memoryview(held)[at : at + size])
        # Cutting the front of a bytearray moves its start and copies nothing.
        del held[: at + size]
        yield read(header, body, 0, size, place)
    if held or next(chunks, None) is not None:
        raise CorruptBatch(f"more than the {header.record_count} records that the header counts")


def _read_body(header: BatchHeader, data: bytes, at: int, end: int, place: int) -> Record:
    timestamp_delta, at = read_varlong(data, at + 1)
    offset_delta, at = read_varint(data, at)
    if place != _AS_CLAIMED:
        offset_delta = packed_delta(header, offset_delta, place)
    key, at = _read_bytes(data, at, end)
    value, at = _read_bytes(data, at, end)
    count = data[at]
    at += 1
    headers: tuple[Header, ...] = ()
    if count:
        headers, at = _read_headers(data, at - 1, end)
    if at != end:
        raise CorruptBatch("a record's length is not that of its fields")
    timestamp = _timestamp(header, timestamp_delta)
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def _read_place(header: BatchHeader, data: bytes, at: int, end: int, place: int) -> RecordPlace:
    timestamp_delta, delta_at = read_varlong(data, at + 1)
    offset_delta, _ = read_varint(data, delta_at)
    if place != _AS_CLAIMED:
        offset_delta = packed_delta(header, offset_delta, place)
    timestamp = _timestamp(header, timestamp_delta)
    return RecordPlace(header.base_offset + offset_delta, timestamp, end - at)


def _timestamp(header: BatchHeader, delta: int) -> int:
    is_append_time = header.attributes & APPEND_TIME_BIT
    return header.max_timestamp if is_append_time else header.base_timestamp + delta


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size = data[at]
    at += 1
    if size > 127:
        size, at = read_rest(data, at, size)
    if size & 1:
        return None, at
    value_end = at + (size >> 1)
    if value_end > end:
        raise CorruptBatch("a field runs past the end of its record")
    return data[at:value_end], value_end


def _read_headers(data: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, at = read_varint(data, at)
    if not 0 <= count <= (end - at) // 2:
        raise CorruptBatch(f"{count} headers in the {end - at} bytes that are left")
    headers: list[Header] = []
    for _ in range(count):
        raw_key, at = _read_bytes(data, at, end)
        if raw_key is None:
            raise CorruptBatch("a null header key")
        value, at = _read_bytes(data, at, end)
        headers.append((_text_or_bytes(raw_key), value))
    return tuple(headers), at


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    epoch: int = -1,
    codec: int = 0,
    base_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_control: bool = False,
    is_transactional: bool = False,
) -> bytes:
    """One batch with these records at consecutive offsets from `base_offset`.

    A record's own `offset` is ignored: its place decides. `base_timestamp` (ms) is the first
    record's unless given. `codec` is a number of quorumd.wire.compression, 0 for none.
    """
    first_timestamp = records[0].timestamp if records else 0
    base = first_timestamp if base_timestamp is None else base_timestamp
    payload = b"".join(_encode_records(records, base))
    if codec:
        from quorumd.wire.compression import pack

        payload = pack(codec, payload)
    attributes = codec
    if is_control:
        attributes |= CONTROL_BIT
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    covered = (
        _AFTER_CRC.pack(
            attributes,
            len(records) - 1,
            base,
            max((record.timestamp for record in records), default=base),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
        + payload
    )
    length = len(covered) + CRC_FROM - LOG_OVERHEAD
    return _BEFORE_BODY.pack(base_offset, length, epoch, MAGIC, crc32c(covered)) + covered


def _encode_records(records: Iterable[Record], base_timestamp: int) -> Iterator[bytes]:
    for delta, (_, timestamp, key, value, headers) in enumerate(records):
        parts = [b"\0", encode_varint(timestamp - base_timestamp), encode_varint(delta)]
        _add_bytes(parts, key)
        _add_bytes(parts, value)
        parts.append(encode_varint(len(headers)))
        for name, header_value in headers:
            _add_bytes(parts, name.encode() if isinstance(name, str) else name)
            _add_bytes(parts, header_value)
        body = b"".join(parts)
        yield encode_varint(len(body))
        yield body


def _add_bytes(parts: list[bytes], data: bytes | None) -> None:
    if data is None:
        parts.append(_NULL)
    else:
        parts += (encode_varint(len(data)), data)
