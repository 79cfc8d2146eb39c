"""The segments of a log as all threads see them: one lock, and snapshots to read by.

The disk thread changes the table; readers take a view under the lock and read files without it.
Knows no file contents.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from quorumd.storage.segment import Segment


class SegmentView(NamedTuple):
    """A segment at some moment. Bytes below `size_bytes` are whole batches up to `end_offset`.

    `start` is where a search for the requested offset begins, None if the index is on disk.
    """

    path: Path
    base_offset: int
    size_bytes: int
    end_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    index_path: Path
    time_index_path: Path
    start: int | None


class OffsetLocation(NamedTuple):
    """The segment of an offset, and the bounds of the log at that moment; `end_offset` is exclusive.

    An offset below the start gets the first segment.
    """

    start_offset: int
    end_offset: int
    view: SegmentView


class ClosedSegment(NamedTuple):
    """A segment that can be deleted: `size_bytes` counts its indexes, `end_offset` is exclusive.

    `max_timestamp` is in ms, -1 if no batch has one.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int


class SegmentTable:
    """Segments in order, never none.

    `generation` grows whenever some of them change or go, before files do: a reader that finds bytes
    wrong or a file gone, and the generation changed, has been overtaken, nothing more. `index_bytes`
    has what both index files of each closed segment take, by its first offset.
    """

    def __init__(self, segments: list[Segment], index_bytes: dict[int, int]) -> None:
        self.lock = Lock()
        """Held for a change inside a segment, too, that leaves the table as it is."""
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.index_bytes = index_bytes
        self.generation = 0

    @contextmanager
    def changing(self) -> Iterator[list[Segment]]:
        """The segments, for the disk thread to change under the lock; they must stay in order."""
        with self.lock:
            yield self._segments
            self._bases = [segment.base_offset for segment in self._segments]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def end_offset(self) -> int:
        """Exclusive end of what was written."""
        return self._segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        """The data of all segments and the indexes of the closed ones, in bytes."""
        with self.lock:
            data = sum(segment.size_bytes for segment in self._segments)
            return data + sum(map(self._index_bytes_of, self._segments[:-1]))

    def closed(self) -> list[ClosedSegment]:
        """All but the active one, ascending."""
        with self.lock:
            return [
                ClosedSegment(
                    segment.base_offset,
                    segment.end_offset,
                    segment.size_bytes + self._index_bytes_of(segment),
                    segment.max_timestamp,
                )
                for segment in self._segments[:-1]
            ]

    def _index_bytes_of(self, segment: Segment) -> int:
        return self.index_bytes[segment.base_offset]

    def location_of(self, offset: int) -> OffsetLocation:
        """Log start, log end and segment of `offset`, all as of one moment."""
        with self.lock:
            at = max(0, bisect_right(self._bases, offset) - 1)
            view = _view(self._segments[at], offset)
            return OffsetLocation(self._bases[0], self._segments[-1].end_offset, view)

    def view_at(self, offset: int) -> SegmentView:
        """The segment that `offset` falls into; below the start, the first one."""
        with self.lock:
            at = max(0, bisect_right(self._bases, offset) - 1)
            return _view(self._segments[at], offset)

    def views_from(self, offset: int) -> list[SegmentView]:
        """The segment that `offset` falls into and all after it."""
        with self.lock:
            at = max(0, bisect_right(self._bases, offset) - 1)
            return [_view(segment, offset) for segment in self._segments[at:]]

    def time_entries(self, base_offset: int) -> list[tuple[int, int]] | None:
        """(timestamp, offset) entries of a segment whose index is in memory, else None."""
        with self.lock:
            for segment in self._segments:
                if segment.base_offset == base_offset and segment.index is not None:
                    return segment.index.times.entries()
        return None


def _view(segment: Segment, offset: int) -> SegmentView:
    start = segment.index.offsets.lookup(offset) if segment.index is not None else None
    return SegmentView(
        segment.path,
        segment.base_offset,
        segment.size_bytes,
        segment.end_offset,
        segment.max_timestamp,
        segment.max_timestamp_offset,
        segment.index_path,
        segment.time_index_path,
        start,
    )
