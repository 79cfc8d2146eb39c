"""Conditional batches: append if unchanged. The keys of a produced batch, and the condition that it carries.

A batch whose first record has the header `quorumd.if-unchanged-since: N` is to be appended only if no key of
its records, and none named by further headers `quorumd.key` of that record, was written at offset N or later.
This module reads that from the bytes; whether it is so is judged elsewhere. Work is done in steps, because a
small batch may unpack to much, and what is held of it is bounded. Where nobody wants the keys, a compressed
batch is unpacked only as far as its first record might have the header.
Source: docs/protocol.md, "Append if unchanged".
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from quorumd.wire.batch_header import BATCH_OVERHEAD, CODEC_MASK, BatchHeader
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import CorruptBatch, RefusedBatch, TooLargeBlock
from quorumd.wire.record_walk import check_records
from quorumd.wire.unpacked_size import BLOCK_BYTES_MAX, refused_block
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
"""Of a conditional batch, named ones included. Those of a batch with more records are not told: to note or
judge them would hold the event loop."""
HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""What a conditional batch may unpack to: as much as it may have uncompressed. The keys of a batch that
unpacks to more are not told."""
SEARCHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Where the headers of the first record must end, once it is unpacked, if it has any."""

_NAMED_KEY: Final = NAMED_KEY.encode()
_FIRST_BYTES: Final = 512
_CHUNK_BYTES: Final = 64 * 1024
_VARINT_BYTES_MAX: Final = 10
_STEP_RECORDS: Final = 512
_STEP_HEADERS: Final = 2048
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
    answer is None, too, unless the batch might have a condition. Raises RefusedBatch: INVALID_RECORD for a
    condition that is not as docs/protocol.md has it, MESSAGE_TOO_LARGE for a first record whose headers are
    too far behind to be looked at. A condition on a later record is seen, and refused, in a batch that is
    not compressed, or whose keys are wanted and can be told.
    """
    if not header.attributes & CODEC_MASK:
        return (yield from _read(header, data, BATCH_OVERHEAD, keys))
    is_marked = yield from _is_first_marked(header, data)
    if keys is None and not is_marked:
        return None
    payload = None
    if header.record_count <= KEYS_MAX:
        payload = yield from _unpack(header, data, is_marked=is_marked)
    elif is_marked:
        raise _refused(f"a condition on more than {KEYS_MAX} keys")
    if payload is None:
        return KeyedBatch(None, None)
    keys = []
    try:
        yield from check_records(payload, 0, header.record_count, keys=keys)
    except RefusedBatch as refused:
        if is_marked:
            raise _refused(f"its condition cannot be read: {refused.message}") from None
        return KeyedBatch(None, None)
    return (yield from _read(header, payload, 0, keys))


def _read(
    header: BatchHeader, data: bytes, at: int, keys: Keys | None
) -> Generator[None, None, KeyedBatch | None]:
    """The same, of records at `data[at:]` that are known to be well-formed."""
    condition = None
    count = header.record_count
    if MARK in data:
        condition = yield from _read_condition(data, at, count)
    if condition is None and (keys is None or count > KEYS_MAX):
        return None if keys is None else KeyedBatch(None, None)
    if condition is not None and count + len(condition.named) > KEYS_MAX:
        raise _refused(f"a condition on more than {KEYS_MAX} keys")
    if keys is None or len(keys) != count:
        keys = []
        yield from check_records(data, at, count, keys=keys)
    if condition is not None:
        _check_keys(keys, condition)
    return KeyedBatch(keys, condition)


# -- what a compressed batch unpacks to


class _Unpacking:
    """What a batch unpacks to, as a stream: `held` is what stands at `position`. In steps of a chunk."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.position = 0
        self.held = bytearray()
        self._chunks = chunks

    @property
    def end(self) -> int:
        return self.position + len(self.held)

    def drop(self, position: int) -> None:
        """Nothing before `position` is needed any more."""
        count = max(0, min(position - self.position, len(self.held)))
        del self.held[:count]
        self.position += count

    def reach(self, end: int) -> Generator[None, None, None]:
        """Unpack up to `end`, or as much as there is."""
        while self.end < end and (chunk := next(self._chunks, None)) is not None:
            self.held += chunk
            yield

    def skip(self, position: int) -> Generator[None, None, None]:
        """Go on at `position`, where a varint begins, without keeping anything before."""
        while self.position < position:
            self.drop(position)
            if self.position < position:
                yield from self.reach(self.position + 1)
                if not self.held:
                    raise CorruptBatch("the unpacked records end too early")
        yield from self.reach(position + _VARINT_BYTES_MAX)


def _unpacking(header: BatchHeader, data: bytes, first_bytes: int = _CHUNK_BYTES) -> _Unpacking:
    from quorumd.wire.compression import unpack_in_steps

    payload = memoryview(data)[BATCH_OVERHEAD:]
    return _Unpacking(
        unpack_in_steps(
            header.codec, payload, first_bytes=first_bytes, block_bytes_max=BLOCK_BYTES_MAX
        )
    )


def _too_far() -> RefusedBatch:
    return RefusedBatch(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The first record unpacks to more than {SEARCHED_BYTES_MAX} bytes before its headers end."
        " Send it without headers, or smaller.",
    )


def _is_first_marked(header: BatchHeader, data: bytes) -> Generator[None, None, bool]:
    """Has the first record of a compressed batch the mark behind its value, where its headers are?

    Where the batch does not unpack so far there is none: a reader finds no record in it.
    """
    stream = _unpacking(header, data, _FIRST_BYTES)
    try:
        yield from stream.reach(3 * _VARINT_BYTES_MAX)
        held = stream.held
        size, at = read_varint(held, 0)
        end = at + size
        _, at = read_varlong(held, at + 1)
        _, at = read_varint(held, at)
        for _ in ("key", "value"):
            yield from stream.skip(at)
            size, length_bytes = read_varint(stream.held, 0)
            at += length_bytes + max(size, 0)
            if end - at <= len(MARK):
                return False
            if at > SEARCHED_BYTES_MAX:
                raise _too_far()
        if end > SEARCHED_BYTES_MAX:
            raise _too_far()
        yield from stream.skip(at)
        while stream.held.find(MARK, 0, max(end - stream.position, 0)) < 0:
            seen = stream.end
            if seen >= end:
                return False
            stream.drop(seen - len(MARK) + 1)
            yield from stream.reach(seen + 1)
            if stream.end == seen:
                return False
        return True
    except RefusedBatch:
        raise
    except TooLargeBlock as error:
        raise refused_block(error) from None
    except (CorruptBatch, IndexError, ValueError):
        return False


def _unpack(
    header: BatchHeader, data: bytes, *, is_marked: bool
) -> Generator[None, None, bytes | None]:
    """What it unpacks to; None if that cannot be told, or is too much to be held.

    Raises RefusedBatch for that if it may have a condition.
    """
    stream = _unpacking(header, data)
    try:
        yield from stream.reach(HELD_BYTES_MAX + 1)
    except CorruptBatch as error:
        if is_marked:
            raise _refused(f"its condition cannot be read: {error}") from None
        return None
    if stream.end <= HELD_BYTES_MAX:
        return bytes(stream.held)
    if is_marked:
        raise _refused(f"a condition on a batch that unpacks to more than {HELD_BYTES_MAX} bytes")
    return None


# -- the condition


def _read_condition(data: bytes, at: int, count: int) -> Generator[None, None, Condition | None]:
    """The mark is in one of these records: in a header, or in a key or value, where it has no meaning."""
    condition: Condition | None = None
    for index in range(count):
        size, at = read_varint(data, at)
        end = at + size
        headers_at = _headers_at(data, at)
        if not index:
            if data.find(MARK, headers_at, end) >= 0:
                condition = _condition_of((yield from _own_headers(data, headers_at, index)))
            if data.find(MARK, end) < 0 and (condition is None or data.find(_NAMED_KEY, end) < 0):
                return condition
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


def _headers_at(data: bytes, at: int) -> int:
    """Where the headers of a record are whose body begins at `at`."""
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
    """That of the first record of a batch. Raises RefusedBatch."""
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
