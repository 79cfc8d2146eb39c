"""Closed segments below a snapshot's end: a start takes them as they are, without reading them.

Nothing is built from them any more, and they were durable before the segments behind them were begun.
So a few reads are enough for each: it begins with the batch that its name says; the last entry of
`.index` leads to a batch from which whole batches follow to the end of the file, where the next
segment begins; the last entry of `.timeindex` is not below their timestamps; the epochs at both ends
are those of leader-epoch-checkpoint. Where anything differs the segment has to be walked through.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from quorumd.storage import layout
from quorumd.storage.batch_walk import header_at, walk
from quorumd.storage.epoch_checkpoint import EpochStart, epoch_at
from quorumd.storage.filesystem import FileSystem, opened
from quorumd.storage.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    SegmentIndex,
    TimeIndex,
)
from quorumd.storage.index_checks import FoundSegment
from quorumd.storage.segment import Segment
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BatchHeader


def check_closed_segment(
    fs: FileSystem,
    directory: Path,
    base_offset: int,
    end_offset: int,
    epochs: Sequence[EpochStart],
    index_interval_bytes: int,
) -> FoundSegment | None:
    """Checks the closed segment with offsets `base_offset` .. `end_offset` (exclusive) by a few reads.

    `epochs` are those of the log. Returns None if the segment must be walked through. Raises OSError.
    """
    path = layout.log_path(directory, base_offset)
    segment = Segment(base_offset, path, 0, end_offset)
    index_entry = _last_entry(fs, segment.index_path, OFFSET_ENTRY_BYTES)
    time_entry = _last_entry(fs, segment.time_index_path, TIME_ENTRY_BYTES)
    if not index_entry or not time_entry:
        return None
    ((indexed_offset, position),) = OffsetIndex.from_bytes(base_offset, index_entry).entries()
    times = TimeIndex.from_bytes(base_offset, time_entry)
    segment.max_timestamp, segment.max_timestamp_offset = times.last
    try:
        with opened(fs, path) as handle:
            segment.size_bytes = fs.size(handle)
            if not 0 < position < segment.size_bytes:
                return None
            first = header_at(fs, handle, 0)
            tail = list(walk(fs, handle, position, segment.size_bytes))
    except CorruptBatch:
        return None
    if first is None or not tail or tail[0][1].last_offset != indexed_offset:
        return None
    at, last = tail[-1]
    headers = [header for _, header in tail]
    if at + last.size_bytes != segment.size_bytes or not _ends_fit(segment, first, headers):
        return None
    expected = epoch_at(epochs, base_offset), epoch_at(epochs, end_offset - 1)
    if (first.epoch, last.epoch) != expected:
        return None
    index = SegmentIndex(base_offset, index_interval_bytes)
    return FoundSegment(segment, index, index_is_good=True, time_index_is_good=True)


def _ends_fit(segment: Segment, first: BatchHeader, tail: Sequence[BatchHeader]) -> bool:
    """True if offsets and timestamps of the first batch and the last ones are as they should be."""
    return (
        first.base_offset == segment.base_offset
        and tail[-1].next_offset == segment.end_offset
        and all(before.next_offset == after.base_offset for before, after in pairwise(tail))
        and max(header.max_timestamp for header in (first, *tail)) <= segment.max_timestamp
        and segment.base_offset <= segment.max_timestamp_offset < segment.end_offset
    )


def _last_entry(fs: FileSystem, path: Path, entry_bytes: int) -> bytes:
    """The last entry of an index file; b"" if it is missing, empty or not whole entries."""
    try:
        with opened(fs, path) as handle:
            size = fs.size(handle)
            if size % entry_bytes:
                return b""
            return fs.pread(handle, entry_bytes, max(0, size - entry_bytes))
    except FileNotFoundError:
        return b""
