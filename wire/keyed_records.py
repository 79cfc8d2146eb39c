"""The records of a log that have a key, each as two byte strings: for those who take in millions.

One is the key. The other is what is *held* of the record: 16 bytes, timestamp and offset, then the
record's own bytes from its value's length on. They stay as they are in the log, without the count of
headers, which is zero; or, if the offset is `COMPLETE`, they are all that a snapshot has behind a key:
value, count of headers, headers, the last of them `OFFSET_HEADER`. `DELETED` is held of a record whose
value is null.

Records of equal shape that follow each other are read together, as in quorumd.wire.record_walk. The walk
from record to record stands in both modules: to share it would cost a call for each record.
Source of the record format: KIP-98; Apache Kafka 4.3, DefaultRecord.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quorumd.wire.batch_header import APPEND_TIME_BIT, CODEC_MASK, BatchHeader, packed_delta
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.record_walk import run_of_equals
from quorumd.wire.varints import encode_varint, read_rest, read_rest_long, read_varlong

OFFSET_HEADER: Final = b"quorumd.offset"
"""The header that a snapshot adds to each record: the offset that it had, as decimal ASCII."""
DELETED: Final = b""
COMPLETE: Final = -(1 << 63)
REFERENCE_BYTES: Final = 16
"""Bytes of a reference to a record that lies elsewhere. A held record has more, so that the two differ."""

PREFIX: Final = Struct(">Qq")
"""Timestamp (ms; that of a record may be beyond 64 bits, and wraps around as it does for readers) and
offset."""
BITS_64: Final = (1 << 64) - 1
ONE_HEADER: Final = b"\x02" + encode_varint(len(OFFSET_HEADER)) + OFFSET_HEADER
"""One header, `OFFSET_HEADER`, up to its value."""

_RECORD_BYTES_MIN: Final = 6
_RUN_RECORDS_MIN: Final = 4
_RUN_RECORDS_MAX: Final = 512
_ANY_TIMESTAMP: Final = 1 << 70


def take_records(
    header: BatchHeader,
    data: bytes,
    at: int,
    end: int,
    *,
    first: int,
    count: int,
    record_bytes_max: int,
    held: dict[bytes, bytes],
) -> tuple[int, int, int]:
    """Reads up to `count` unpacked records of a batch from `data[at:end]`, those with a key into `held`.

    Returns how many were read, the position behind them, and how many bytes the next one, which is not
    whole, lacks at least: 0 if all were read. `first` records of the batch were read before. The offsets of
    compressed ones are as `packed_delta` says; another one outside the batch is moved to the nearest inside.
    The same records are refused as by wire.records: raises CorruptBatch, perhaps after some were taken.
    """
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    last_delta = header.last_offset_delta << 1
    is_append_time = header.attributes & APPEND_TIME_BIT
    is_packed = header.attributes & CODEC_MASK
    prefix = PREFIX.pack
    index = 0
    body_end = -1
    run_from = run_wait = 1
    try:
        while index < count:
            start = at
            body_end = -1
            size = data[at]
            at += 1
            if size > 127:
                size, at = read_rest(data, at, size)
            if size & 1 or size < _RECORD_BYTES_MIN << 1 or size >> 1 > record_bytes_max:
                raise CorruptBatch(f"a record's length of {size >> 1} bytes")
            body_at = at
            body_end = at + (size >> 1)
            if body_end > end:
                return index, start, body_end - end
            at += 2
            timestamp = data[at - 1]
            if timestamp > 127:
                timestamp, at = read_rest_long(data, at, timestamp)
            delta_at = at
            delta = data[at]
            at += 1
            if delta > 127:
                delta, at = read_rest(data, at, delta)
            key_size_at = at
            size = data[at]
            at += 1
            if size > 127:
                size, at = read_rest(data, at, size)
            key_at = at
            has_key = not size & 1
            if has_key:
                at += size >> 1
            value_at = at
            size = data[at]
            at += 1
            if size > 127:
                size, at = read_rest(data, at, size)
            if not size & 1:
                at += size >> 1
            headers_at = at
            headers = data[at]
            at += 1
            if headers:
                headers, first_at, at = _skip_headers(data, at, headers, body_end)
            if at != body_end:
                raise CorruptBatch("a record's length is not that of its fields")
            index += 1
            if has_key and size & 1:
                held[data[key_at:value_at]] = DELETED
            elif has_key:
                if is_packed:
                    claimed = (delta >> 1) ^ -(delta & 1)
                    delta = packed_delta(header, claimed, first + index - 1) << 1
                elif delta & 1 or delta > last_delta:
                    delta = 0 if delta & 1 else last_delta
                offset = base_offset + (delta >> 1)
                if is_append_time:
                    timestamp = header.max_timestamp & BITS_64
                else:
                    timestamp = base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1)) & BITS_64
                if headers_at == at - 1:
                    held[data[key_at:value_at]] = (
                        prefix(timestamp, offset) + data[value_at:headers_at]
                    )
                else:
                    value = data[value_at:headers_at]
                    others = encode_varint(headers + 1) + data[first_at:body_end]
                    held[data[key_at:value_at]] = b"".join(
                        (prefix(timestamp, COMPLETE), value, others, _offset_header(offset))
                    )
            if (
                index >= run_from
                and count - index >= _RUN_RECORDS_MIN
                and headers_at == at - 1
                and at < end
                and data[at] == data[start]
            ):
                fields = (start, body_at, delta_at, key_size_at, value_at, at)
                place = first + index
                most = min(count - index, header.last_offset_delta + 1 - place, _RUN_RECORDS_MAX)
                run = run_of_equals(data, fields, place, most, _ANY_TIMESTAMP)
                if run:
                    if has_key:
                        _take_run(header, data, fields, key_at, run, place, held)
                    index += run
                    at += run * (at - start)
                    run_wait = 1
                else:
                    run_wait *= 2
                run_from = index + run_wait
    except IndexError:
        if body_end < 0:
            return index, start, 1
        raise CorruptBatch("a record runs past its end") from None
    except ValueError as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record holds {error}") from None
    return index, at, 0


def _take_run(
    header: BatchHeader,
    data: bytes,
    fields: tuple[int, int, int, int, int, int],
    key_at: int,
    run: int,
    index: int,
    held: dict[bytes, bytes],
) -> None:
    """`run` records without headers that have the shape of the one before, which ends at `fields[-1]`.

    `index` is the place of the first of them in the batch, which is its offset delta.
    """
    start, body_at, delta_at, _, value_at, at = fields
    view = memoryview(data)[at : at + run * (at - start)]
    if data[value_at] & 1:
        keys = Struct(f"{key_at - start}x{value_at - key_at}s{at - value_at}x")
        held.update((key, DELETED) for (key,) in keys.iter_unpack(view))
        return
    parts = Struct(
        f"{body_at + 1 - start}x{delta_at - body_at - 1}s{key_at - delta_at}x"
        f"{value_at - key_at}s{at - 1 - value_at}sx"
    )
    is_append_time = header.attributes & APPEND_TIME_BIT
    prefix = PREFIX.pack
    offset = header.base_offset + index
    known: dict[bytes, int] = {}
    for stamp, key, rest in parts.iter_unpack(view):
        timestamp = known.get(stamp)
        if timestamp is None:
            timestamp = header.base_timestamp + read_varlong(stamp, 0)[0]
            timestamp = known[stamp] = (
                header.max_timestamp if is_append_time else timestamp
            ) & BITS_64
        held[key] = prefix(timestamp, offset) + rest
        offset += 1


def _skip_headers(data: bytes, at: int, count: int, end: int) -> tuple[int, int, int]:
    """Number of headers, position of the first one, and position behind the last one."""
    if count > 127:
        count, at = read_rest(data, at, count)
    if count & 1 or count >> 1 > (end - at) // 2:
        raise CorruptBatch(f"{count >> 1} headers in the {end - at} bytes that are left")
    first_at = at
    for _ in range(count >> 1):
        at = skip_header(data, at)
    return count >> 1, first_at, at


def skip_header(data: bytes, at: int) -> int:
    """Position behind the header that begins at `at`. Raises CorruptBatch, IndexError, ValueError."""
    size = data[at]
    at += 1
    if size > 127:
        size, at = read_rest(data, at, size)
    if size & 1:
        raise CorruptBatch("a null header key")
    at += size >> 1
    size = data[at]
    at += 1
    if size > 127:
        size, at = read_rest(data, at, size)
    return at if size & 1 else at + (size >> 1)


def _offset_header(offset: int) -> bytes:
    digits = b"%d" % offset
    return b"".join((ONE_HEADER[1:], encode_varint(len(digits)), digits))
