"""One pass over records, unpacked if they were compressed: would every reader understand them?

Knows nothing of the batch header and keeps nothing of what it reads. Records of equal shape that
follow each other, which is what producers with fixed-size values send, are checked together: the
bytes at one place of all of them are one strided slice. Everything else goes record by record.
Source: KIP-98, record format; Apache Kafka 4.3, DefaultRecord.readFrom.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Final

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.varints import encode_varint, read_rest, read_rest_long

ANY_DELTA: Final = range(-(1 << 70), 1 << 70)
_RUN_RECORDS_MIN: Final = 4
_RUN_PAYS: Final = 32
"""A run this long cost less than its records would have, one by one."""
_BLOCK: Final = 8192
_STEP_RECORDS: Final = 512
_STEP_HEADERS: Final = 2048
_LENGTH_BYTES_MAX: Final = 5

# The varint bytes of offset deltas. One byte: deltas below 64; two: below 8192; three: each block
# of 8192 repeats the low bytes and the middle bytes, and has one high byte.
_SINGLE: Final = bytes(delta << 1 for delta in range(64))
_LOW: Final = bytes(delta << 1 | 0x80 for delta in range(64)) * (_BLOCK // 64)
_HIGH: Final = b"".join(bytes((value,)) * 64 for value in range(128))
_MIDDLE: Final = bytes(value | 0x80 for value in _HIGH)

_REMEMBERED_BYTES: Final = 2048
_KEYLESS_STARTS: Final[list[bytes | None]] = [None] * _REMEMBERED_BYTES
"""By the size of a record: what `_keyless_start` has found. Its own memory takes longer to ask."""

_LAST_BYTES: Final = bytes(range(128))
_MORE_BYTES: Final = bytes(range(128, 256))


def is_plain_record(data: bytes, at: int) -> bool:
    """True if `data[at:]` is one well-formed record with timestamp delta 0, a value and no headers.

    Most producers that wait for each response send such a one. After False `check_records` decides.
    """
    end = len(data)
    size = end - at
    start = _KEYLESS_STARTS[size] if 0 <= size < _REMEMBERED_BYTES else _keyless_start(size)
    if start is None:
        start = _KEYLESS_STARTS[size] = _keyless_start(size)
    if start and data[at : at + len(start)] == start:  # `startswith` costs five times as much
        return not data[-1]
    try:
        length = data[at]
        at += 1
        if length > 127:
            more = data[at]
            if more > 127:
                return False
            length += (more - 1) << 7
            at += 1
        # Behind the attributes: timestamp delta and offset delta.
        if length != (end - at) << 1 or data[at + 1] or data[at + 2]:
            return False
        size = data[at + 3]
        if size & 1 or size > 127:
            return False
        at += 4 + (size >> 1)
        size = data[at]
        at += 1
        if size > 127:
            more = data[at]
            if more > 127:
                return False
            size += (more - 1) << 7
            at += 1
        # The rest is the value and the count of headers, a byte of 0.
        return size == (end - at - 1) << 1 and not data[-1]
    except IndexError:
        return False


def plain_record_key(data: bytes, at: int) -> bytes | None:
    """The key of a record at `data[at:]` that is as `is_plain_record` says."""
    while data[at] > 127:
        at += 1
    at += 4  # the last byte of the length, the attributes, timestamp delta and offset delta
    size = data[at]
    return None if size & 1 else data[at + 1 : at + 1 + (size >> 1)]


@lru_cache(maxsize=1024)
def _keyless_start(size: int) -> bytes:
    """Bytes before the value in a plain record of `size` bytes without a key: its size says it all.

    Empty if there is no record of this size whose varints are as short as they can be.
    """
    for length_bytes in range(1, 6):
        length = encode_varint(size - length_bytes)
        for value_bytes in range(1, 6):
            value_size = size - length_bytes - 5 - value_bytes
            value = encode_varint(value_size)
            if value_size >= 0 and (len(length), len(value)) == (length_bytes, value_bytes):
                return length + b"\0\0\0\1" + value
    return b""


def check_records(
    data: bytes,
    at: int,
    count: int,
    timestamp_deltas: range = ANY_DELTA,
    keys: list[bytes | None] | None = None,
    first: int = 0,
    *,
    is_cut: bool = False,
) -> Generator[None, None, tuple[int, int]]:
    """Check that `data[at:]` is exactly well-formed records with the offset deltas `first`..count-1.

    Goes on as the iterator is asked to, in steps of less than a millisecond: a batch of a megabyte can hold
    100,000 records. `timestamp_deltas` is how far (ms) a record may be ahead of the batch's base timestamp,
    or behind it. The key of each record is added to `keys`, where that is given. If it `is_cut`, `data` may
    end anywhere: returns the index of the first record that is not whole, and where it begins. Raises
    RefusedBatch, INVALID_RECORD or INVALID_TIMESTAMP, naming the record.
    """
    end = len(data)
    length_at_max = end - _LENGTH_BYTES_MAX if is_cut else end
    # In zig-zag form: up to here a delta is one of `timestamp_deltas`, whatever its sign.
    sure = min(2 * (timestamp_deltas.stop - 1), -2 * timestamp_deltas.start - 1)
    index = first
    run_from = 1
    run_wait = 1
    try:
        while index < count:
            stop = min(count, index + _STEP_RECORDS)
            while index < stop:
                start = at
                if at > length_at_max:
                    return index, at
                length = data[at]
                at += 1
                if length > 127:
                    length, at = read_rest(data, at, length)
                body_at = at
                body_end = at + (length >> 1)
                if length & 1 or body_end > end:
                    if is_cut and not length & 1:
                        return index, start
                    raise invalid_record("its length does not fit the batch", index)
                at += 2
                timestamp = data[at - 1]
                if timestamp > 127:
                    timestamp, at = read_rest_long(data, at, timestamp)
                if timestamp > sure and (
                    (timestamp >> 1) ^ -(timestamp & 1) not in timestamp_deltas
                ):
                    raise RefusedBatch(
                        ErrorCode.INVALID_TIMESTAMP,
                        f"Record {index}: its timestamp is too far from the server's clock.",
                        index,
                    )
                offset_at = at
                offset = data[at]
                at += 1
                if offset > 127:
                    offset, at = read_rest(data, at, offset)
                if offset != index << 1:
                    raise invalid_record("its offset delta is not its place in the batch", index)
                key_at = at
                size = data[at]
                at += 1
                if size > 127:
                    size, at = read_rest(data, at, size)
                if not size & 1:
                    at += size >> 1
                elif size != 1:
                    raise invalid_record("its key length is negative", index)
                value_at = at
                if keys is not None:
                    keys.append(None if size & 1 else data[at - (size >> 1) : at])
                size = data[at]
                at += 1
                if size > 127:
                    size, at = read_rest(data, at, size)
                if not size & 1:
                    at += size >> 1
                elif size != 1:
                    raise invalid_record("its value length is negative", index)
                headers = data[at]
                at += 1
                if headers:
                    if headers > 127:
                        at = yield from _skip_many_headers(data, at, headers, index)
                    else:
                        at = _skip_headers(data, at, headers, index)
                if at != body_end:
                    raise invalid_record("its length is not that of its fields", index)
                index += 1
                if (
                    index >= run_from
                    and count - index >= _RUN_RECORDS_MIN
                    and not headers
                    and at < end
                    and data[at] == data[start]
                ):
                    fields = (start, body_at, offset_at, key_at, value_at, at)
                    run = run_of_equals(data, fields, index, count - index, sure)
                    if keys is not None and run:
                        _add_keys_of_run(data, keys, value_at, at - start, run)
                    index += run
                    at += run * (at - start)
                    run_wait = 1 if run >= _RUN_PAYS else 2 * run_wait
                    run_from = index + run_wait
                    break
            if index < count:
                yield
    except IndexError:
        raise invalid_record("it runs past the end of the batch", index) from None
    except ValueError as error:
        if isinstance(error, RefusedBatch):
            raise
        raise invalid_record(f"it holds {error}", index) from None
    if at != end and not is_cut:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"The batch holds {end - at} bytes more than its {count} records.",
        )
    return index, at


def run_of_equals(
    data: bytes,
    fields: tuple[int, int, int, int, int, int],
    index: int,
    count: int,
    timestamp_max: int,
) -> int:
    """Number of the next `count` records, the first being `index`, that have the form of the one before them.

    `fields` are the positions of that record's parts; it has no headers. Every byte that decides
    the shape of a record is compared, so each counted record is as valid as the one before them.
    Every timestamp delta whose zig-zag form is at most `timestamp_max` is valid. Returns 0 where a
    closer comparison doesn't pay; the caller then goes on record by record.
    """
    start, body_at, offset_at, key_at, value_at, at = fields
    stride = at - start
    timestamp_bytes = offset_at - body_at - 1
    if 1 << (7 * timestamp_bytes) > timestamp_max:
        return 0
    offset_bytes = key_at - offset_at
    place = index
    room = 64 - index
    if offset_bytes > 1:
        place = index % _BLOCK
        room = _BLOCK - place
        if index < 64 or (offset_bytes == 2) != (index < _BLOCK) or offset_bytes > 3:
            return 0
    run = min(count, (len(data) - at) // stride, room)
    if run < _RUN_RECORDS_MIN:
        return 0

    key_end, value_end = _varint_end(data, key_at), _varint_end(data, value_at)
    for field_at in (
        *range(start, body_at),
        *range(key_at, key_end),
        *range(value_at, value_end),
        at - 1,
    ):
        column = data[field_at + stride : field_at + stride + run * stride : stride]
        run -= len(column.lstrip(data[field_at : field_at + 1]))
    last = offset_at - 1
    for field_at in range(body_at + 1, offset_at):
        column = data[field_at + stride : field_at + stride + run * stride : stride]
        run -= len(column.lstrip(_LAST_BYTES if field_at == last else _MORE_BYTES))

    if offset_bytes == 1:
        expected: tuple[bytes, ...] = (_SINGLE,)
    elif offset_bytes == 2:
        expected = (_LOW, _HIGH)
    else:
        expected = (_LOW, _MIDDLE, bytes((index // _BLOCK,)) * _BLOCK)
    for field_at, column_expected in enumerate(expected, offset_at + stride):
        column = data[field_at : field_at + run * stride : stride]
        if column != column_expected[place : place + run]:
            return 0
    return run


def _add_keys_of_run(
    data: bytes, keys: list[bytes | None], key_end: int, stride: int, run: int
) -> None:
    """Adds the keys of `run` records of `stride` bytes behind the one whose key is the last of `keys`."""
    key = keys[-1]
    if key is None:
        keys += [None] * run
        return
    size = len(key)
    first = key_end - size + stride
    keys += [data[at : at + size] for at in range(first, first + run * stride, stride)]


def _varint_end(data: bytes, at: int) -> int:
    while data[at] > 127:
        at += 1
    return at + 1


def _skip_headers(data: bytes, at: int, count: int, index: int) -> int:
    """The position behind `count` headers, which is twice their number."""
    if count & 1:
        raise invalid_record("its header count is negative", index)
    for _ in range(count >> 1):
        size = data[at]
        at += 1
        if size > 127:
            size, at = read_rest(data, at, size)
        if size & 1:
            raise invalid_record("a header key is null", index)
        at += size >> 1
        size = data[at]
        at += 1
        if size > 127:
            size, at = read_rest(data, at, size)
        if not size & 1:
            at += size >> 1
        elif size != 1:
            raise invalid_record("a header value length is negative", index)
    return at


def _skip_many_headers(data: bytes, at: int, count: int, index: int) -> Generator[None, None, int]:
    """The same where the number takes more bytes than one; each takes two or more, so the data bound it."""
    count, at = read_rest(data, at, count)
    while count > 2 * _STEP_HEADERS:
        at = _skip_headers(data, at, 2 * _STEP_HEADERS, index)
        count -= 2 * _STEP_HEADERS
        yield
    return _skip_headers(data, at, count, index)


def invalid_record(what: str, index: int) -> RefusedBatch:
    """The refusal of the batch for the record at this place in it, counted from 0."""
    return RefusedBatch(ErrorCode.INVALID_RECORD, f"Record {index}: {what}.", index)
