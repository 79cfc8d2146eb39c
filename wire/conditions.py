"""Conditional batches: append if unchanged. The keys of a produced batch, and the condition that it carries.

A batch whose first record has the header `quorumd.if-unchanged-since: N` is to be appended only if no key of
its records, and none named by further headers `quorumd.key` of that record, was written at offset N or later.
This module reads that from the bytes; whether it is so is judged elsewhere. Work is done in steps, because a
small batch may unpack to much.
Source: docs/protocol.md, "Append if unchanged".
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from quorumd.wire.batch_header import BATCH_OVERHEAD, CODEC_MASK, BatchHeader
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import CorruptBatch, RefusedBatch
from quorumd.wire.record_walk import check_records
from quorumd.wire.records import Record, iter_records

IF_UNCHANGED_SINCE: Final = "quorumd.if-unchanged-since"
"""The header with the offset, in decimal digits."""
NAMED_KEY: Final = "quorumd.key"
"""A header with a key that the batch does not write, and which must be unchanged, too."""
MARK: Final = IF_UNCHANGED_SINCE.encode()
"""Bytes that every conditional batch holds, once it is unpacked."""
KEY_BYTES_MAX: Final = 64 * 1024
"""The longest key of a conditional batch."""
KEYS_MAX: Final = 50_000
"""Of a conditional batch, named ones included. Those of a batch with more records are not told: to note or
judge them would hold the event loop."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a compressed batch may unpack to: a condition in it has to be found before it is appended."""

_KEYS_BYTES_MAX: Final = 8 * 1024 * 1024
_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
_ANY_TIMESTAMP: Final = 1 << 70
_RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
_STEP_RECORDS: Final = 256
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")

Keys = list[bytes | None]
"""The key of each record of a batch, by its place."""


class Condition(NamedTuple):
    """Append only if no key of the batch, and none of `named`, was written at offset `since` or later."""

    since: int
    named: tuple[bytes, ...]


class KeyedBatch(NamedTuple):
    """The keys of a batch, None if they cannot be told, and its condition, None if it has none."""

    keys: Keys | None
    condition: Condition | None


def read_keyed(
    header: BatchHeader, data: bytes, keys: Keys | None
) -> Generator[None, None, KeyedBatch | None]:
    """Steps that read the condition of a batch that passed `check_produced`, and its keys.

    `keys` are those that the check has read, or an empty list; None if keys are not wanted, and then the
    answer is None, too, unless the batch has a condition. Raises RefusedBatch: INVALID_RECORD for a
    condition that is not as docs/protocol.md has it, MESSAGE_TOO_LARGE for a batch that unpacks to more
    than `UNPACKED_BYTES_MAX`.
    """
    is_compressed = bool(header.attributes & CODEC_MASK)
    unpacked: bytes | None = None
    if is_compressed:
        is_marked, unpacked = yield from _unpack(header, data, holds=keys is not None)
    else:
        is_marked = MARK in data
    if is_marked:
        return (yield from _read_conditional(data))
    if keys is None:
        return None
    if header.record_count > KEYS_MAX:
        return KeyedBatch(None, None)
    if not is_compressed:
        if len(keys) != header.record_count:
            keys.clear()
            yield from check_records(
                data, BATCH_OVERHEAD, header.record_count, _ANY_TIMESTAMP, keys
            )
        return KeyedBatch(keys, None)
    if unpacked is None:
        return (yield from _read_compressed(data))
    keys = []
    try:
        yield from check_records(unpacked, 0, header.record_count, _ANY_TIMESTAMP, keys)
    except RefusedBatch:
        return KeyedBatch(None, None)
    return KeyedBatch(keys, None)


def _unpack(
    header: BatchHeader, data: bytes, *, holds: bool
) -> Generator[None, None, tuple[bool, bytes | None]]:
    """Whether the mark is in it, and what it unpacks to if that is to be held and is not too much.

    Where the batch does not unpack, what comes before that counts: a reader finds no record in it.
    """
    from quorumd.wire.compression import unpack

    tail, total = b"", 0
    chunks: list[bytes] = []
    try:
        for chunk in unpack(header.codec, memoryview(data)[BATCH_OVERHEAD:]):
            seen = tail + chunk
            if MARK in seen:
                return True, None
            total += len(chunk)
            if total > UNPACKED_BYTES_MAX:
                raise RefusedBatch(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"The batch unpacks to more than {UNPACKED_BYTES_MAX} bytes. Send smaller batches.",
                )
            if total > _HELD_BYTES_MAX:
                holds = False
                chunks.clear()
            elif holds:
                chunks.append(chunk)
            tail = seen[-len(MARK) + 1 :]
            yield
    except CorruptBatch:
        return False, b""
    return False, b"".join(chunks) if holds else None


def _read_conditional(data: bytes) -> Generator[None, None, KeyedBatch]:
    """The mark is there: in a header, or in a key or value, where it has no meaning."""
    keys: Keys = []
    condition: Condition | None = None
    try:
        for record in _in_place(data):
            index = len(keys)
            if index:
                _refuse_later_headers(record, index, has_condition=condition is not None)
            else:
                condition = _condition_of(record)
            if condition is not None and record.key is not None:
                _check_key(record.key, index)
            keys.append(record.key)
            if condition is not None and len(keys) + len(condition.named) > KEYS_MAX:
                raise _refused(f"a condition on more than {KEYS_MAX} keys")
            if not index % _STEP_RECORDS:
                yield
    except CorruptBatch as error:
        raise _refused(f"its condition cannot be read: {error}") from None
    if condition is not None and not condition.named and all(key is None for key in keys):
        raise _refused(
            f"a condition without any key. Give a record a key, or name one in the header {NAMED_KEY}"
        )
    return KeyedBatch(keys, condition)


def _read_compressed(data: bytes) -> Generator[None, None, KeyedBatch]:
    """The keys of a batch that unpacks to more than is held. It is unpacked again, record by record."""
    keys: Keys = []
    size_bytes = 0
    try:
        for record in _in_place(data):
            keys.append(record.key)
            size_bytes += len(record.key or b"")
            if size_bytes > _KEYS_BYTES_MAX:
                return KeyedBatch(None, None)
            if not len(keys) % _STEP_RECORDS:
                yield
    except CorruptBatch:
        return KeyedBatch(None, None)
    return KeyedBatch(keys, None)


def _in_place(data: bytes) -> Iterator[Record]:
    """The records of a batch. Raises CorruptBatch, also for one that claims another place than its own."""
    for index, record in enumerate(iter_records(data, record_bytes_max=_RECORD_BYTES_MAX)):
        if record.offset != index:
            raise CorruptBatch(f"record {index} claims the offset delta {record.offset}")
        yield record


def _condition_of(record: Record) -> Condition | None:
    """That of the first record of a batch. Raises RefusedBatch."""
    values = [value for name, value in record.headers if name == IF_UNCHANGED_SINCE]
    if not values:
        return None
    if len(values) > 1:
        raise _refused(f"{len(values)} headers {IF_UNCHANGED_SINCE}, of which a batch may have one")
    value = values[0]
    if value is None or _DECIMAL.fullmatch(value) is None:
        shown = "null" if value is None else repr(value[:40])[1:]
        raise _refused(
            f"the header {IF_UNCHANGED_SINCE} is {shown}, and must be an offset from 0 on in decimal digits"
        )
    named = [value for name, value in record.headers if name == NAMED_KEY]
    for key in named:
        if key is None:
            raise _refused(f"a header {NAMED_KEY} is null, and must be a key")
        _check_key(key, 0)
    return Condition(int(value), tuple(key for key in named if key is not None))


def _refuse_later_headers(record: Record, index: int, *, has_condition: bool) -> None:
    for name, _ in record.headers:
        if name == IF_UNCHANGED_SINCE or (has_condition and name == NAMED_KEY):
            raise _refused(
                f"the header {name} belongs to the first record of a batch. Send what depends on one"
                " condition as one batch, and nothing else in it",
                index,
            )


def _check_key(key: bytes, index: int) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise _refused(
            f"a key of {len(key)} bytes; keys of conditional batches have {KEY_BYTES_MAX} at the most",
            index,
        )


def _refused(what: str, index: int = 0) -> RefusedBatch:
    return RefusedBatch(ErrorCode.INVALID_RECORD, f"Record {index}: {what}.", index)
