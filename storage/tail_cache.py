"""The newest bytes of the log in memory, so that followers and tailing consumers touch no disk.

A sequence of chunks, each the whole batches of one append, contiguous in offsets. Used by the event
loop thread alone. A chunk that is not on disk yet is never evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from quorumd.storage.filesystem import Buffer
from quorumd.wire.records import iter_headers

_CHUNK_OVERHEAD_BYTES: Final = 200
"""Bytes that Python adds to those of a chunk: counted, or one-record chunks would take twice the limit."""
_COMPACT_ABOVE: Final = 1024
CHUNKS_READ_MAX: Final = 2048
"""A read returns no more: each is a buffer of its own to write."""


@dataclass(slots=True)
class _Chunk:
    base_offset: int
    end_offset: int
    data: Buffer


class TailCache:
    """At most `max_bytes` of chunks, unless more than that waits to be written."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        # Chunks before `_first` are gone (their slots hold None); deleting from the front of a list
        # costs its length, so it is done for many at once.
        self._chunks: list[_Chunk | None] = []
        self._bases: list[int] = []
        self._first = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that the chunks take, Python's overhead included."""
        return self._size_bytes

    @property
    def start_offset(self) -> int | None:
        """The first offset that is held, or None if nothing is."""
        return self._bases[self._first] if self._first < len(self._bases) else None

    def append(
        self, base_offset: int, end_offset: int, data: Buffer, written_end_offset: int
    ) -> None:
        """Adds a chunk; evicts the oldest ones that end at or below `written_end_offset`."""
        self._chunks.append(_Chunk(base_offset, end_offset, data))
        self._bases.append(base_offset)
        self._size_bytes += len(data) + _CHUNK_OVERHEAD_BYTES
        if self._size_bytes > self._max_bytes:
            self._evict(written_end_offset)

    def _evict(self, written_end_offset: int) -> None:
        while self._size_bytes > self._max_bytes and self._first < len(self._chunks):
            chunk = self._chunk(self._first)
            if chunk.end_offset > written_end_offset:
                break
            self._size_bytes -= len(chunk.data) + _CHUNK_OVERHEAD_BYTES
            self._chunks[self._first] = None
            self._first += 1
        if self._first > _COMPACT_ABOVE and self._first * 2 > len(self._chunks):
            del self._chunks[: self._first]
            del self._bases[: self._first]
            self._first = 0

    def _chunk(self, at: int) -> _Chunk:
        chunk = self._chunks[at]
        assert chunk is not None, "a chunk that was evicted"
        return chunk

    def batch_start(self, offset: int) -> int | None:
        """Base offset of the batch that contains `offset`, or None if it is not held."""
        at = bisect_right(self._bases, offset, self._first) - 1
        if at < self._first or offset >= self._chunk(at).end_offset:
            return None
        return self._chunk(at).base_offset + self._inside(self._chunk(at), offset)[1]

    def truncate(self, offset: int) -> None:
        """Drops everything from `offset` on, which must be the start of a batch."""
        while len(self._chunks) > self._first and self._chunk(-1).end_offset > offset:
            chunk = self._chunk(-1)
            self._chunks.pop()
            self._bases.pop()
            self._size_bytes -= len(chunk.data) + _CHUNK_OVERHEAD_BYTES
            if chunk.base_offset < offset:
                position, _ = self._inside(chunk, offset)
                data = bytes(memoryview(chunk.data)[:position])
                self._chunks.append(_Chunk(chunk.base_offset, offset, data))
                self._bases.append(chunk.base_offset)
                self._size_bytes += position + _CHUNK_OVERHEAD_BYTES

    def read(self, offset: int, max_bytes: int, end_offset: int) -> list[Buffer] | None:
        """Whole batches from the one that contains `offset`, up to `end_offset` (exclusive).

        Up to `max_bytes`, but at least one batch if one ends at or below `end_offset`; at most
        CHUNKS_READ_MAX buffers, which are the chunks themselves or views of them. None if `offset` is
        not held.
        """
        bases = self._bases
        if self._first < len(bases) and bases[-1] == offset:
            newest = self._chunk(-1)
            if newest.end_offset <= end_offset and len(newest.data) <= max_bytes:
                return [newest.data]  # as nearly always
        at = bisect_right(bases, offset, self._first) - 1
        if at < self._first or offset >= self._chunk(at).end_offset:
            return None
        found: list[Buffer] = []
        left = max_bytes
        for place in range(at, min(at + CHUNKS_READ_MAX, len(bases))):
            chunk = self._chunk(place)
            size = len(chunk.data)
            if chunk.base_offset >= offset and chunk.end_offset <= end_offset and size <= left:
                found.append(chunk.data)
                left -= size
                continue
            start, end = _span(chunk, offset, left, end_offset, at_least_one=not found)
            if end > start:
                found.append(memoryview(chunk.data)[start:end])
                left -= end - start
            if end < size:
                break
        return found

    def chunks_from(self, offset: int) -> list[Buffer]:
        """All chunks that end above `offset`, ascending."""
        at = max(bisect_right(self._bases, offset, self._first) - 1, self._first)
        held = [self._chunk(place) for place in range(at, len(self._chunks))]
        return [chunk.data for chunk in held if chunk.end_offset > offset]

    @staticmethod
    def _inside(chunk: _Chunk, offset: int) -> tuple[int, int]:
        """(position, offset from the chunk's start) of the batch in `chunk` with `offset`."""
        for position, header in iter_headers(chunk.data):
            if header.next_offset > offset:
                return position, header.base_offset - chunk.base_offset
        raise AssertionError(f"no batch with offset {offset} in the chunk at {chunk.base_offset}")


def _span(
    chunk: _Chunk, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool
) -> tuple[int, int]:
    """Bytes (start, end) of the batches of one chunk that a read gets; (0, 0) if there is none."""
    start: int | None = None
    end = 0
    for position, header in iter_headers(chunk.data):
        next_offset = header.next_offset
        if next_offset <= offset:
            continue
        if start is None:
            start = position
        too_large = position + header.size_bytes - start > max_bytes
        if next_offset > end_offset or (too_large and (end or not at_least_one)):
            break
        end = position + header.size_bytes
    return (0, 0) if start is None or not end else (start, end)
