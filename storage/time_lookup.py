"""Records found by their timestamp, across the segments of a log."""

from __future__ import annotations

from collections.abc import Callable

from quorumd.storage import segment_reads
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.segment_reads import SearchEffort, TimestampAndOffset
from quorumd.storage.segment_table import SegmentTable, SegmentView


def first_at_or_after(
    fs: FileSystem,
    table: SegmentTable,
    timestamp_ms: int,
    end_offset: int,
    read: Callable[[int], bytes],
) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one below `end_offset` (exclusive).

    `read` gives the verified batch at an offset. Raises DamagedLog, OSError, and what `read` raises.
    """
    effort = SearchEffort()
    for view in _views_below(table, end_offset):
        if view.max_timestamp < timestamp_ms:
            continue
        times = table.time_entries(view.base_offset)
        place = segment_reads.first_at_or_after(
            fs, view, timestamp_ms, end_offset, times, read, effort
        )
        if place is not None:
            return place
    return None


def first_with_greatest(
    fs: FileSystem, table: SegmentTable, end_offset: int, read: Callable[[int], bytes]
) -> TimestampAndOffset | None:
    """The first record with the greatest timestamp below `end_offset`; the rest as above."""
    best = (-1, -1)
    for view in _views_below(table, end_offset):
        at_end = table.view_at(end_offset - 1) if view.end_offset > end_offset else view
        times = table.time_entries(view.base_offset)
        found = segment_reads.greatest_timestamp(fs, at_end, end_offset, times)
        if found[0] > best[0]:
            best = found
    if best[1] < 0:
        return None
    return segment_reads.record_with_timestamp(read(best[1]), best[0], SearchEffort())


def _views_below(table: SegmentTable, end_offset: int) -> list[SegmentView]:
    views = table.views_from(table.start_offset)
    return [view for view in views if view.base_offset < end_offset and view.size_bytes]
