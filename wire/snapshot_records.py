"""The data batches of a snapshot: records in the order of their keys, each key once.

They are uncompressed, and each record has one header more than in the log, the last: `quorumd.offset`,
with the offset that it had there. Keys and what is held of records are those of quorumd.wire.keyed_records.
Source of the formats: KIP-98; Apache Kafka 4.3, DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import lt
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from quorumd.wire.batch_header import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_FROM,
    HEADER,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.keyed_records import (
    BITS_64,
    COMPLETE,
    OFFSET_HEADER,
    ONE_HEADER,
    PREFIX,
    REFERENCE_BYTES,
    skip_header,
)
from quorumd.wire.records import RECORD_BYTES_MAX
from quorumd.wire.varints import encode_unsigned_varint, encode_varint, read_rest, read_rest_long

__all__ = [
    "OFFSET_HEADER",
    "SNAPSHOT_BATCH_BYTES",
    "SNAPSHOT_BATCH_BYTES_MAX",
    "RecordPacker",
    "SnapshotRecords",
    "read_snapshot_records",
]

SNAPSHOT_BATCH_BYTES = 1 << 20
"""The most that a data batch has, unless it is a single record that needs more."""
SNAPSHOT_BATCH_BYTES_MAX = RECORD_BYTES_MAX + 1024
"""No batch in a snapshot is larger: one with the largest record that a compressed batch may hold."""

_READ_PREFIX = Struct(">qq")
_BITS_63 = 1 << 63


class SnapshotRecords(NamedTuple):
    """The records of a data batch: keys, and what is held of each."""

    keys: list[bytes]
    held: list[bytes]


def read_snapshot_records(header: BatchHeader, data: bytes, *, check: bool) -> SnapshotRecords:
    """The records of the data batch that `data` is, its CRC verified.

    Raises CorruptBatch unless it is what `RecordPacker` makes: uncompressed, with offset deltas from
    0 on, and keys that ascend. Only with `check` what is behind a key is read: a value that is
    not null, and the offset as the last header.
    """
    if header.attributes & (CODEC_MASK | CONTROL_BIT | APPEND_TIME_BIT):
        raise CorruptBatch("a data batch of a snapshot has no attributes")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise CorruptBatch(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    found = SnapshotRecords([], [])
    try:
        _read_all(header, data, found, check)
    except IndexError:
        raise CorruptBatch("a record runs past its end") from None
    except ValueError as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record holds {error}") from None
    if not all(map(lt, found.keys, found.keys[1:])):
        raise CorruptBatch("the keys do not ascend")
    return found


def _read_all(header: BatchHeader, data: bytes, found: SnapshotRecords, check: bool) -> None:
    base_timestamp = header.base_timestamp
    prefix = PREFIX.pack
    short, _ = _varint_tables()
    add_key, add_held = found.keys.append, found.held.append
    at = BATCH_OVERHEAD
    end = header.size_bytes
    for index in range(header.record_count):
        size = data[at]
        at += 1
        if size > 127:
            size, at = read_rest(data, at, size)
        body_end = at + (size >> 1)
        if size & 1 or body_end > end:
            raise CorruptBatch(f"a record of {size >> 1} bytes where {end - at} are left")
        at += 2
        timestamp = data[at - 1]
        if timestamp > 127:
            timestamp, at = read_rest_long(data, at, timestamp)
        place = index << 1
        place_bytes = short[place] if place < 1 << 14 else encode_unsigned_varint(place)
        if not data.startswith(place_bytes, at):
            raise CorruptBatch(f"record {index} has another offset delta")
        at += len(place_bytes)
        size = data[at]
        at += 1
        if size > 127:
            size, at = read_rest(data, at, size)
        value_at = at + (size >> 1)
        if size & 1 or value_at >= body_end:
            raise CorruptBatch(f"record {index} has no key, or nothing behind it")
        if check:
            _check_rest(data, value_at, body_end)
        timestamp = base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1))
        add_key(data[at:value_at])
        add_held(prefix(timestamp & BITS_64, COMPLETE) + data[value_at:body_end])
        at = body_end
    if at != end:
        raise CorruptBatch(f"{end - at} bytes more than the {header.record_count} records")


def _check_rest(data: bytes, at: int, end: int) -> None:
    """A value and the headers up to `end`, as they have to be."""
    size = data[at]
    at += 1
    if size > 127:
        size, at = read_rest(data, at, size)
    if size & 1:
        raise CorruptBatch("a record has no value")
    at += size >> 1
    if data.startswith(ONE_HEADER, at):
        at += len(ONE_HEADER)
    else:
        count = data[at]
        at += 1
        if count > 127:
            count, at = read_rest(data, at, count)
        if count & 1 or not 0 < count >> 1 <= (end - at) // 2:
            raise CorruptBatch(f"{count >> 1} headers in the {end - at} bytes that are left")
        for _ in range((count >> 1) - 1):
            at = skip_header(data, at)
        if not data.startswith(ONE_HEADER[1:], at):
            raise CorruptBatch(f"the last header of a record is not {OFFSET_HEADER.decode()}")
        at += len(ONE_HEADER) - 1
    digits = data[at + 1 : end]
    if len(digits) << 1 != data[at] or not digits.isdigit():
        raise CorruptBatch("a record does not say which offset it had")


class RecordPacker:
    """Puts records into a data batch until it is full: a function of the records alone."""

    def __init__(self, base_timestamp: int, load: Callable[[bytes], bytes]) -> None:
        """`base_timestamp` (ms) is that of every batch; `load` gives what a reference stands for."""
        self._base_timestamp = base_timestamp
        self._load = load
        self._short, self._long = _varint_tables()
        self._parts: list[bytes] = []
        self._size_bytes = BATCH_OVERHEAD
        self.count = 0
        """Records in the batch."""
        self.is_full = False
        """True if the record where `add` stopped belongs in the next batch."""

    def add(
        self, keys: Sequence[bytes], held: Mapping[bytes, bytes], start: int, records_max: int
    ) -> int:
        """Adds the records of `keys[start:]`, at most `records_max`; returns where it stopped."""
        assert not self.is_full, "the batch was not taken"
        short, long = self._short, self._long
        base = self._base_timestamp
        read_prefix = _READ_PREFIX.unpack_from
        append = self._parts.append
        room = SNAPSHOT_BATCH_BYTES - self._size_bytes
        count = self.count
        stop = min(len(keys), start + records_max)
        for at in range(start, stop):
            key = keys[at]
            record = held[key]
            if len(record) <= REFERENCE_BYTES:
                if not record:
                    continue
                record = self._load(record)
            timestamp, offset = read_prefix(record)
            delta = timestamp - base
            delta = delta << 1 if delta >= 0 else ~(delta << 1)
            if delta < 1 << 14:
                delta_bytes = short[delta]
            elif delta < 1 << 28:
                delta_bytes = long[delta & 16383] + short[delta >> 14]
            elif delta < 1 << 42:
                delta_bytes = long[delta & 16383] + long[delta >> 14 & 16383] + short[delta >> 28]
            else:
                delta_bytes = _far(timestamp, base)
            place = count << 1
            place_bytes = short[place] if place < 1 << 14 else encode_unsigned_varint(place)
            key_size = len(key) << 1
            if offset == COMPLETE:
                rest = record[16:]
            else:
                digits = b"%d" % offset
                rest = b"".join((record[16:], ONE_HEADER, short[len(digits) << 1], digits))
            key_size_bytes = short[key_size] if key_size < 1 << 14 else encode_varint(len(key))
            body = b"".join((b"\0", delta_bytes, place_bytes, key_size_bytes, key, rest))
            size = len(body) << 1
            size_bytes = short[size] if size < 1 << 14 else encode_varint(len(body))
            room -= len(size_bytes) + len(body)
            if room < 0 and count:
                self.is_full = True
                stop = at
                break
            append(size_bytes)
            append(body)
            count += 1
        self.count = count
        self._size_bytes = SNAPSHOT_BATCH_BYTES - room
        return stop

    def take(self, base_offset: int, epoch: int) -> tuple[bytes, bytes]:
        """Header and records of the batch, which has at least one; the next one begins."""
        payload = b"".join(self._parts)
        header = _header(payload, base_offset, epoch, self.count, self._base_timestamp)
        self._parts.clear()
        self._size_bytes = BATCH_OVERHEAD
        self.count = 0
        self.is_full = False
        return header, payload


def _far(timestamp: int, base: int) -> bytes:
    """A difference of many years; one beyond 64 bits wraps around, as it does for readers."""
    return encode_varint((timestamp - base + _BITS_63 & BITS_64) - _BITS_63)


def _header(payload: bytes, base_offset: int, epoch: int, count: int, timestamp: int) -> bytes:
    length = BATCH_OVERHEAD - LOG_OVERHEAD + len(payload)
    before = (base_offset, length, epoch, MAGIC)
    after = (0, count - 1, timestamp, timestamp, -1, -1, -1, count)
    covered = HEADER.pack(*before, 0, *after)[CRC_FROM:]
    return HEADER.pack(*before, crc32c(payload, crc32c(covered)), *after)


@functools.cache
def _varint_tables() -> tuple[list[bytes], list[bytes]]:
    """For each 14-bit number: its varint, and the two bytes that it is within a longer varint."""
    short = [encode_unsigned_varint(value) for value in range(1 << 14)]
    long = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]
    return short, long
