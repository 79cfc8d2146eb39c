"""Conditional batches: append if unchanged. The keys of a produced batch, and the condition that it carries.

A batch whose first record has the header `quorumd.if-unchanged-since: N` is to be appended only if no key of
its records, and none named by further headers `quorumd.key` of that record, was written at offset N or later.
This module reads that from the bytes; whether it is so is judged elsewhere. Work is done in steps, because a
small batch may unpack to much, and what is held of it is bounded.
Source: docs/protocol.md, "Append if unchanged".
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple

from quorumd.wire.batch_header import BATCH_OVERHEAD, CODEC_MASK, BatchHeader
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.packed_records import HELD_BYTES_MAX, PackedRecords
from quorumd.wire.record_walk import ANY_DELTA, check_records
from quorumd.wire.varints import read_varint, read_varlong

IF_UNCHANGED_SINCE: Final = "quorumd.if-unchanged-since"
"""The header with the offset, in decimal digits."""
NAMED_KEY: Final = "quorumd.key"
"""A header with a key that the batch does not write, and which must be unchanged, too."""
MARK: Final = IF_UNCHANGED_SINCE.encode()
"""Bytes that every conditional batch holds, once it is unpacked."""
KEY_BYTES_MAX: Final = 64 * 1024
"""The longest key of a conditional batch."""
KEYS_MAX: Final = 50_000
"""Of a conditional batch, named ones included: to judge more would hold the event loop."""
NOTED_KEYS_MAX: Final = 150_000
"""Of any other batch. log.max.batch.bytes permits no more records, unless it is configured."""

_NAMED_KEY: Final = NAMED_KEY.encode()
_STEP_RECORDS: Final = 512
_STEP_HEADERS: Final = 2048
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")

Keys = list[bytes | None]
"""The key of each record of a batch, by its place."""


class Condition(NamedTuple):
    """Append only if no key of the batch, and none of `named`, was written at offset `since` or later."""

    since: int
    named: tuple[bytes, ...]


class ManyKeys(NamedTuple):
    """Keys of a batch of more than KEYS_MAX records: the last place of each, and a bound of their bytes."""

    places: dict[bytes | None, int]
    key_bytes: int


class KeyedBatch(NamedTuple):
    """The keys of a batch and its condition; None if they cannot be told or are many, and if it has none."""

    keys: Keys | None
    condition: Condition | None
    many: ManyKeys | None = None


def read_keyed(
    header: BatchHeader,
    data: bytes,
    keys: Keys | None,
    timestamp_deltas: range = ANY_DELTA,
) -> Generator[None, None, KeyedBatch | None]:
    """Steps that read the condition of a batch that passed `check_produced`, and its keys.

    `keys` are those that the check has read, or an empty list; None if keys are not wanted, and then the
    result is None, too, unless the batch has a condition. The records of a compressed batch are checked
    only here: `timestamp_deltas` is as for `check_records`. Raises RefusedBatch: what `PackedRecords` raises,
    and INVALID_RECORD for a condition that is not as docs/protocol.md has it.
    """
    count = header.record_count
    condition: Condition | None = None
    if header.attributes & CODEC_MASK:
        is_countable = count <= NOTED_KEYS_MAX
        wanted: Keys | None = None if keys is None or not is_countable else []
        records = PackedRecords(header, data, timestamp_deltas, wanted)
        for part in records.parts():
            if part is None:
                yield
            else:
                condition = yield from _read_condition(
                    part.data, 0, part.first, part.end, condition
                )
                if condition is not None and records.keys is None and is_countable:
                    # The condition is in the first part, whose keys were not wanted before.
                    records.keys = []
                    yield from check_records(part.data, 0, part.end, keys=records.keys, is_cut=True)
        if condition is not None and not records.is_held:
            raise _refused(
                f"a condition on a batch that unpacks to more than {HELD_BYTES_MAX} bytes"
            )
        are_known, read_keys = records.is_held, records.keys or []
    else:
        condition = yield from _read_condition(data, BATCH_OVERHEAD, 0, count, None)
        are_known, read_keys = True, keys or []
    if condition is None and keys is None:
        return None
    if condition is not None and count + len(condition.named) > KEYS_MAX:
        raise _refused(f"a condition on more than {KEYS_MAX} keys")
    if count > NOTED_KEYS_MAX or not are_known:
        return KeyedBatch(None, None)
    if len(read_keys) != count:
        read_keys = []
        yield from check_records(data, BATCH_OVERHEAD, count, keys=read_keys)
    if count > KEYS_MAX:
        return KeyedBatch(None, None, (yield from _last_places(read_keys)))
    if condition is not None:
        _check_keys(read_keys, condition)
    return KeyedBatch(read_keys, condition)


def _last_places(keys: Keys) -> Generator[None, None, ManyKeys]:
    places: dict[bytes | None, int] = {}
    key_bytes = 0
    for first in range(0, len(keys), _STEP_RECORDS):
        part = keys[first : first + _STEP_RECORDS]
        before = len(places)
        places.update(zip(part, range(first, first + len(part)), strict=True))
        key_bytes += (len(places) - before) * max(map(len, filter(None, part)), default=0)
        yield
    return ManyKeys(places, key_bytes)


# -- the condition


def _read_condition(
    data: bytes, at: int, first: int, count: int, condition: Condition | None
) -> Generator[None, None, Condition | None]:
    """The condition of a batch whose records `first`..count-1 are at `data[at:]`.

    `condition` is that of the records before them. What marks it is in a header, or in a key or value, where
    it has no meaning.
    """
    for index in range(first, count):
        if index - first < 2 and not _is_marked(data, at, condition):
            return condition
        size, at = read_varint(data, at)
        end = at + size
        headers_at = _headers_at(data, at)
        if not index:
            if data.find(MARK, headers_at, end) >= 0:
                condition = _condition_of((yield from _own_headers(data, headers_at, index)))
        elif data.find(MARK, headers_at, end) >= 0 or data.find(_NAMED_KEY, headers_at, end) >= 0:
            for name, _ in (yield from _own_headers(data, headers_at, index)):
                if condition is not None or name == MARK:
                    raise _refused(
                        f"the header {name.decode()} belongs to the first record of a batch. Send what"
                        " depends on one condition as one batch, and nothing else in it",
                        index,
                    )
        at = end
        if not index % _STEP_RECORDS:
            yield
    return condition


def _is_marked(data: bytes, at: int, condition: Condition | None) -> bool:
    """True if a record at `data[at:]` may have a header that belongs to a condition."""
    return data.find(MARK, at) >= 0 or (condition is not None and data.find(_NAMED_KEY, at) >= 0)


def _headers_at(data: bytes, at: int) -> int:
    """Position of the headers of a record whose body begins at `at`."""
    _, at = read_varlong(data, at + 1)
    _, at = read_varint(data, at)
    size, at = read_varint(data, at)
    size, at = read_varint(data, at + max(size, 0))
    return at + max(size, 0)


def _own_headers(
    data: bytes, at: int, index: int
) -> Generator[None, None, list[tuple[bytes, bytes | None]]]:
    """Of the headers of record `index`, which are at `at`: those that belong to a condition."""
    count, at = read_varint(data, at)
    found: list[tuple[bytes, bytes | None]] = []
    for place in range(1, count + 1):
        size, at = read_varint(data, at)
        name = data[at : at + size]
        size, at = read_varint(data, at + size)
        end = at + max(size, 0)
        if name in (MARK, _NAMED_KEY):
            found.append((name, None if size < 0 else data[at:end]))
            if len(found) > KEYS_MAX + 1:
                raise _refused(f"a condition on more than {KEYS_MAX} keys", index)
        at = end
        if not place % _STEP_HEADERS:
            yield
    return found


def _condition_of(headers: list[tuple[bytes, bytes | None]]) -> Condition | None:
    """Condition of the first record of a batch. Raises RefusedBatch."""
    values = [value for name, value in headers if name == MARK]
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
    named = [value for name, value in headers if name == _NAMED_KEY]
    if None in named:
        raise _refused(f"a header {NAMED_KEY} is null, and must be a key")
    return Condition(int(value), tuple(key for key in named if key is not None))


def _check_keys(keys: Keys, condition: Condition) -> None:
    """Raises RefusedBatch if there is none, or one that is too long."""
    for key in condition.named:
        _check_length(key, 0)
    has_key = bool(condition.named)
    for index, each in enumerate(keys):
        if each is not None:
            has_key = True
            _check_length(each, index)
    if not has_key:
        raise _refused(
            f"a condition without any key. Give a record a key, or name one in the header {NAMED_KEY}"
        )


def _check_length(key: bytes, index: int) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise _refused(
            f"a key of {len(key)} bytes; keys of conditional batches have {KEY_BYTES_MAX} at the most",
            index,
        )


def _refused(what: str, index: int = 0) -> RefusedBatch:
    return RefusedBatch(ErrorCode.INVALID_RECORD, f"Record {index}: {what}.", index)
