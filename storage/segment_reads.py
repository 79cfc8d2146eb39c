"""Reading from segments: by offset, by timestamp, by header. Any thread; nothing is shared.

Every CRC, offset and epoch is verified before bytes are handed out, so that a bit that flipped since the
segment was written is noticed and not served. An index is only a hint of where to begin: one that leads
nowhere costs a walk from the start of the segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from quorumd.storage.batch_walk import SEEK_WINDOW_BYTES, reason_of, walk
from quorumd.storage.epoch_checkpoint import EpochStart, epoch_at
from quorumd.storage.errors import DamagedLog, from_os_error
from quorumd.storage.filesystem import FileSystem, read_file
from quorumd.storage.index import TimeIndex, indexed_position
from quorumd.storage.segment_table import SegmentView
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BatchHeader, RecordPlace, iter_places, read_header, scan
from quorumd.wire.sequence_check import offset_problem

SEARCH_EFFORT_MAX: Final = 200_000


class SearchEffort:
    """The cost that a search for a timestamp may have, over batches whose greatest timestamp is no record's.

    A producer says what the greatest is, and of a compressed batch nobody checks it. Two kilobytes may
    unpack to gigabytes.
    """

    def __init__(self) -> None:
        self._left = SEARCH_EFFORT_MAX

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def take(self, place: RecordPlace) -> None:
        """Count one record."""
        self._left -= 1 + (place.size_bytes >> 10)


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp (ms)."""

    offset: int
    timestamp: int
    epoch: int


def read_batches(
    fs: FileSystem,
    view: SegmentView,
    offset: int,
    max_bytes: int,
    end_offset: int,
    epochs: Sequence[EpochStart],
) -> bytes:
    """Whole batches from the one with `offset`, up to `end_offset` (exclusive), of one segment.

    Up to `max_bytes`, but at least one batch if one ends at or below `end_offset`. `epochs` are those
    of the log. Raises DamagedLog; FileNotFoundError if the segment is gone.
    """
    handle = open_segment(fs, view)
    try:
        position, first = seek(fs, handle, view, offset)
        size = min(max(max_bytes, first.size_bytes), view.size_bytes - position)
        data = fs.pread(handle, size, position)
    except CorruptBatch as error:
        raise _damaged(view, error.position, offset, error) from error
    except OSError as error:
        raise from_os_error(error, view.path, "reading") from error
    finally:
        fs.close(handle)
    try:
        batches = scan(data)
        _check_places(batches, first.base_offset, epochs)
    except CorruptBatch as error:
        raise _damaged(view, position + error.position, offset, error) from error
    while batches and batches[-1][1].next_offset > end_offset:
        batches.pop()
    if not batches:
        return b""
    at, last = batches[-1]
    return data[: at + last.size_bytes] if at + last.size_bytes < len(data) else data


def _check_places(
    batches: Sequence[tuple[int, BatchHeader]], first: int, epochs: Sequence[EpochStart]
) -> None:
    """Offsets and epochs, which no CRC covers: offsets from `first` on without a gap. Raises CorruptBatch."""
    for position, header in batches:
        if header.base_offset != first:
            raise CorruptBatch(offset_problem(header, first), position)
        epoch = epoch_at(epochs, first)
        # Before the first epoch is what was deleted meanwhile.
        if epoch not in (-1, header.epoch):
            raise CorruptBatch(
                f"epoch {header.epoch} at offset {first} instead of {epoch}", position
            )
        first = header.next_offset


def open_segment(fs: FileSystem, view: SegmentView) -> int:
    """A handle to read from. Raises FileNotFoundError if a truncation has deleted the segment."""
    try:
        return fs.open(view.path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise from_os_error(error, view.path, "opening") from error


def seek(fs: FileSystem, handle: int, view: SegmentView, offset: int) -> tuple[int, BatchHeader]:
    """(position, header) of the batch that contains `offset`. Raises CorruptBatch, OSError."""
    start = _start(fs, view, offset)
    if start:
        try:
            return _seek_from(fs, handle, start, view, offset)
        except CorruptBatch:
            # The index may be what is wrong.
            start = 0
    return _seek_from(fs, handle, start, view, offset)


def _start(fs: FileSystem, view: SegmentView, offset: int) -> int:
    """Position at which the search for `offset` begins."""
    if view.start is not None:
        return view.start
    return indexed_position(fs, view.index_path, view.base_offset, offset, view.size_bytes)


def _seek_from(
    fs: FileSystem, handle: int, start: int, view: SegmentView, offset: int
) -> tuple[int, BatchHeader]:
    """By headers that follow each other: no CRC is checked, and none covers the offset of a batch."""
    found: tuple[int, BatchHeader] | None = None
    batches = walk(fs, handle, start, view.size_bytes, window_bytes=SEEK_WINDOW_BYTES)
    for position, header in _in_order(batches, start, view):
        if found is not None:
            return found
        if header.base_offset > offset:
            raise CorruptBatch(f"offset {offset} is not where it should be", position)
        if header.next_offset > offset:
            found = position, header
    if found is None or found[1].next_offset != view.end_offset:
        raise CorruptBatch(f"offset {offset} is not in its segment", start)
    return found


def _in_order(
    batches: Iterable[tuple[int, BatchHeader]], start: int, view: SegmentView
) -> Iterator[tuple[int, BatchHeader]]:
    """`batches` from position `start` of a segment on, each from where the one before it ends.

    No CRC covers an offset, and a batch of another place is whole in itself. Raises CorruptBatch.
    """
    expected = None if start else view.base_offset
    for position, header in batches:
        if expected is not None and header.base_offset != expected:
            raise CorruptBatch(offset_problem(header, expected), position)
        expected = header.next_offset
        yield position, header


def headers_from(
    fs: FileSystem, view: SegmentView, offset: int, *, verify_crc: bool
) -> Generator[tuple[int, BatchHeader]]:
    """(position, header) of the batches of a segment that end above `offset`.

    A caller that stops early closes it. Raises DamagedLog, OSError.
    """
    if offset >= view.end_offset:
        return
    handle = open_segment(fs, view)
    end_offset = offset
    position = 0
    try:
        start = seek(fs, handle, view, offset)[0] if offset > view.base_offset else 0
        batches = walk(fs, handle, start, view.size_bytes, verify_crc=verify_crc)
        for position, header in _in_order(batches, start, view):
            end_offset = header.next_offset
            yield position, header
        if end_offset != view.end_offset:
            raise CorruptBatch(f"the segment ends at {end_offset}", position)
    except CorruptBatch as error:
        raise _damaged(view, error.position, end_offset, error) from error
    finally:
        fs.close(handle)


def first_at_or_after(
    fs: FileSystem,
    view: SegmentView,
    timestamp: int,
    end_offset: int,
    times: list[tuple[int, int]] | None,
    read: Callable[[int], bytes],
    effort: SearchEffort,
) -> TimestampAndOffset | None:
    """The first record below `end_offset` with this timestamp or a later one in one segment.

    `times` are the entries of the time index if it is in memory, `read` gives the verified batch at
    an offset. A batch that does not unpack counts as empty. When `effort` is used up the batch's header is
    believed, and its first record is the one: whoever reads from there misses nothing.
    """
    entries = times if times is not None else _closed_times(fs, view)
    at = bisect_right(entries, (timestamp - 1, 1 << 63)) - 1
    start = entries[at][1] if at >= 0 else view.base_offset
    with closing(headers_from(fs, view, start, verify_crc=True)) as headers:
        for _, header in headers:
            if header.next_offset > end_offset:
                return None
            if header.max_timestamp < timestamp:
                continue
            place = record_at_or_after(read(header.base_offset), timestamp, effort)
            if place is not None:
                return place
    return None


def greatest_timestamp(
    fs: FileSystem, view: SegmentView, end_offset: int, times: list[tuple[int, int]] | None
) -> tuple[int, int]:
    """(timestamp, an offset in the first batch that has it) below `end_offset` in one segment.

    `view` was taken for `end_offset - 1`, so that `start` is near there; `times` as above.
    """
    if view.end_offset <= end_offset:
        return view.max_timestamp, view.max_timestamp_offset
    entries = times if times is not None else _closed_times(fs, view)
    known = max((entry for entry in entries if entry[1] < end_offset), default=(-1, -1))
    start = _start(fs, view, end_offset - 1)
    handle = open_segment(fs, view)
    try:
        try:
            return _greatest_from(fs, handle, start, view, end_offset, known)
        except CorruptBatch:
            # The index may be what is wrong; then the time index is not relied on either.
            return _greatest_from(fs, handle, 0, view, end_offset, (-1, -1))
    except CorruptBatch as error:
        raise _damaged(view, error.position, view.base_offset, error) from error
    finally:
        fs.close(handle)


def _greatest_from(
    fs: FileSystem,
    handle: int,
    start: int,
    view: SegmentView,
    end_offset: int,
    best: tuple[int, int],
) -> tuple[int, int]:
    """`best`, or what beats it among the batches from `start`, which the time index leaves out."""
    batches = walk(fs, handle, start, view.size_bytes, verify_crc=True)
    for _, header in _in_order(batches, start, view):
        if header.next_offset > end_offset:
            break
        if header.max_timestamp > best[0]:
            best = header.max_timestamp, header.last_offset
    return best


def record_at_or_after(
    batch: bytes, timestamp: int, effort: SearchEffort
) -> TimestampAndOffset | None:
    """The first record of a batch with this timestamp or a later one; `effort` as above."""
    return _first_record(batch, effort, lambda found, _: found >= timestamp)


def greatest_record(batch: bytes, effort: SearchEffort) -> TimestampAndOffset:
    """The first record of a batch with its greatest timestamp; `effort` as above.

    Where no record has the timestamp that the header claims, the greatest that one has; where none can be
    read, what the header claims: the log is not empty.
    """
    header = read_header(batch)
    best: TimestampAndOffset | None = None

    def is_claimed(timestamp: int, offset: int) -> bool:
        nonlocal best
        if best is None or timestamp > best.timestamp:
            best = TimestampAndOffset(offset, timestamp, header.epoch)
        return timestamp == header.max_timestamp

    found = _first_record(batch, effort, is_claimed) or best
    return found or TimestampAndOffset(header.base_offset, header.max_timestamp, header.epoch)


def _first_record(
    batch: bytes, effort: SearchEffort, wanted: Callable[[int, int], bool]
) -> TimestampAndOffset | None:
    """`wanted` is asked for each record, by timestamp and offset."""
    header = read_header(batch)
    try:
        for record in iter_places(batch):
            if wanted(record.timestamp, record.offset):
                return TimestampAndOffset(record.offset, record.timestamp, header.epoch)
            effort.take(record)
            if effort.is_used_up:
                return TimestampAndOffset(header.base_offset, header.max_timestamp, header.epoch)
    except CorruptBatch:
        # Its CRC is right: the producer sent contents that are no records. Empty for every reader.
        return None
    return None


def _closed_times(fs: FileSystem, view: SegmentView) -> list[tuple[int, int]]:
    """The entries of a time index on disk; none if it is missing, or cannot be that of this segment."""
    try:
        data = read_file(fs, view.time_index_path)
        entries = TimeIndex.from_bytes(view.base_offset, data).entries()
    except (FileNotFoundError, ValueError):
        return []
    before = (-1, view.base_offset - 1)
    for entry in entries:
        if entry[0] <= before[0] or entry[1] <= before[1]:
            return []
        before = entry
    if before[0] > view.max_timestamp or before[1] >= view.end_offset:
        return []
    return entries


def _damaged(view: SegmentView, position: int, offset: int, error: CorruptBatch) -> DamagedLog:
    return DamagedLog(
        f"damaged since it was written: {reason_of(error)}",
        path=view.path,
        position=position,
        offset=offset,
    )
