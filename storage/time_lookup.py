"""Records found by their timestamp: across the segments of a log, and in what they have not got yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quorumd.storage import segment_reads
from quorumd.storage.filesystem import Buffer, FileSystem
from quorumd.storage.segment_reads import SearchEffort, TimestampAndOffset
from quorumd.storage.segment_table import SegmentTable, SegmentView
from quorumd.wire.records import BatchHeader, iter_headers


def first_at_or_after(
    fs: FileSystem,
    table: SegmentTable,
    timestamp_ms: int,
    bounds: tuple[int, int],
    read: Callable[[int], bytes],
    unwritten: Sequence[Buffer],
) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one within `bounds`.

    `bounds` are an offset of the first segment to be searched, and an end (exclusive). `read` gives the
    verified batch at an offset. `unwritten` are whole batches that may be missing in the files: a record
    that other replicas have synced is committed before a slow disk has it. Raises DamagedLog, OSError, and
    what `read` raises.
    """
    effort = SearchEffort()
    for view in _views_within(table, bounds):
        if view.max_timestamp < timestamp_ms:
            continue
        times = table.time_entries(view.base_offset)
        place = segment_reads.first_at_or_after(
            fs, view, timestamp_ms, bounds[1], times, read, effort
        )
        if place is not None:
            return place
    for header, batch in _batches(unwritten, bounds):
        if header.max_timestamp >= timestamp_ms:
            place = segment_reads.record_at_or_after(bytes(batch), timestamp_ms, effort)
            if place is not None:
                return place
    return None


def first_with_greatest(
    fs: FileSystem,
    table: SegmentTable,
    bounds: tuple[int, int],
    read: Callable[[int], bytes],
    unwritten: Sequence[Buffer],
) -> TimestampAndOffset | None:
    """The first record with the greatest timestamp within `bounds`; the rest as above.

    Of the batch that claims the greatest, whatever its records have: None if there is no record at all.
    """
    end_offset = bounds[1]
    best = (-1, -1)
    for view in _views_within(table, bounds):
        at_end = table.view_at(end_offset - 1) if view.end_offset > end_offset else view
        times = table.time_entries(view.base_offset)
        found = segment_reads.greatest_timestamp(fs, at_end, end_offset, times)
        if found[0] > best[0]:
            best = found
    newest: memoryview | None = None
    for header, batch in _batches(unwritten, bounds):
        if header.max_timestamp > best[0]:
            best, newest = (header.max_timestamp, header.last_offset), batch
    if best[1] < 0:
        return None
    found_batch = read(best[1]) if newest is None else bytes(newest)
    return segment_reads.greatest_record(found_batch, SearchEffort())


def _batches(
    chunks: Sequence[Buffer], bounds: tuple[int, int]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches within `bounds`, each with its bytes; the cache may hold what is about to be deleted."""
    for chunk in chunks:
        data = memoryview(chunk)
        for position, header in iter_headers(data):
            if header.next_offset > bounds[1]:
                return
            if header.next_offset > bounds[0]:
                yield header, data[position : position + header.size_bytes]


def _views_within(table: SegmentTable, bounds: tuple[int, int]) -> list[SegmentView]:
    start_offset, end_offset = bounds
    views = table.views_from(start_offset)
    return [view for view in views if view.base_offset < end_offset and view.size_bytes]
