"""The indexes of a segment follow from its batches: not from how these came, nor from what was cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from quorumd.storage.index import OffsetIndex, SegmentIndex, TimeIndex, indexed_position
from quorumd.storage.layout import index_path, time_index_path
from quorumd.storage.log import Chunk, ChunkSummary
from quorumd.wire.records import Record, build_batch, iter_headers, read_header
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, contents, empty_disk, open_log


@pytest.fixture
def fs() -> FaultyFileSystem:
    return empty_disk()


TIMES = [50, 40, 50, 60, 60, 10, 70, -1, 0, 65, 90, 90, 89, 20, 95, 95, 94, 99, 3, 99, 100, 1]
SIZES = [10, 10, 10, 90, 10, 10, 10, 70, 10, 10, 10, 10, 10, 33, 10, 10, 60, 10, 10, 10, 10, 10]


def history(times: Sequence[int] = TIMES) -> list[bytes]:
    """One record a batch, with these timestamps, out of order and with equal ones."""
    return [
        build_batch(
            [Record(0, time, None, b"v" * size)],
            base_offset=offset,
            epoch=1 + offset // 9,
        )
        for offset, (time, size) in enumerate(zip(times, SIZES, strict=False))
    ]


INTERVAL_BYTES = 2 * len(history([0])[0])
"""So that some batches begin exactly there, which is not far enough for an entry."""


def indexes_by_the_rule(
    chunks: Sequence[Sequence[bytes]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Offset entries (offset, position) and time entries (timestamp, offset) as Kafka makes them.

    A chunk may get one at its first batch only; its greatest timestamp counts behind that.
    """
    offsets, times = [], [(-1, -1)]
    position, due_above, newest = 0, INTERVAL_BYTES, (-1, -1)
    for batches in chunks:
        if position > due_above:
            offsets.append((read_header(batches[0]).last_offset, position))
            times += [newest] if newest[0] > times[-1][0] else []
            due_above = position + INTERVAL_BYTES
        for data in batches:
            header = read_header(data)
            if header.max_timestamp > newest[0]:
                newest = header.max_timestamp, header.last_offset
            position += len(data)
    times += [newest] if newest[0] > times[-1][0] else []
    return offsets, times[1:]


def indexes_on_disk(fs: FaultyFileSystem) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    offsets = OffsetIndex.from_bytes(0, fs.contents(index_path(DIRECTORY, 0)))
    times = TimeIndex.from_bytes(0, fs.contents(time_index_path(DIRECTORY, 0)))
    return offsets.entries(), times.entries()


def in_groups(batches: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    for at in range(0, len(batches), size):
        yield batches[at : at + size]


def chunk_of(batches: Sequence[bytes], *, has_summary: bool) -> Chunk:
    headers = [read_header(data) for data in batches]
    newest = max(headers, key=lambda header: header.max_timestamp)
    summary = ChunkSummary(headers[0].epoch, newest.max_timestamp, newest.last_offset)
    return Chunk(
        b"".join(batches),
        headers[0].base_offset,
        headers[-1].next_offset,
        summary if has_summary else None,
    )


@pytest.mark.parametrize("chunks_a_write", [1, 2, 30])
@pytest.mark.parametrize("batches_a_chunk", [1, 3, 30])
@pytest.mark.parametrize("end", [1, 8, 17, 22])
def test_indexes_do_not_depend_on_how_batches_came(
    fs: FaultyFileSystem, batches_a_chunk: int, chunks_a_write: int, end: int
) -> None:
    log = open_log(fs, index_interval_bytes=INTERVAL_BYTES)
    batches = history()[:end]
    chunks = [chunk_of(group, has_summary=False) for group in in_groups(batches, batches_a_chunk)]
    for at in range(0, len(chunks), chunks_a_write):
        log.write_many(chunks[at : at + chunks_a_write])
    assert log.epochs == [(epoch, at) for epoch, at in ((1, 0), (2, 9), (3, 18)) if at < end]
    log.close()
    assert indexes_on_disk(fs) == indexes_by_the_rule([[data] for data in batches])
    assert contents(open_log(fs)) == b"".join(batches)


@pytest.mark.parametrize("chunks_a_write", [1, 2, 30])
@pytest.mark.parametrize("batches_a_chunk", [1, 3])
def test_a_summary_stands_for_a_chunk_in_the_indexes(
    fs: FaultyFileSystem, batches_a_chunk: int, chunks_a_write: int
) -> None:
    log = open_log(fs, index_interval_bytes=INTERVAL_BYTES)
    groups = list(in_groups(history(), batches_a_chunk))
    chunks = [chunk_of(group, has_summary=True) for group in groups]
    for at in range(0, len(chunks), chunks_a_write):
        log.write_many(chunks[at : at + chunks_a_write])
    assert log.epochs == [(1, 0), (2, 9), (3, 18)]
    log.close()
    assert indexes_on_disk(fs) == indexes_by_the_rule(groups)


@pytest.mark.parametrize("end", range(1, 22))
@pytest.mark.parametrize("is_closed_before", [False, True])
def test_after_a_truncation_indexes_are_those_of_what_is_left(
    fs: FaultyFileSystem, end: int, is_closed_before: bool
) -> None:
    log = open_log(fs, index_interval_bytes=INTERVAL_BYTES)
    batches = history()
    for chunk in in_groups(batches, 4):
        log.write_many([chunk_of(chunk, has_summary=False)])
    if is_closed_before:
        log.close()
        log = open_log(fs, index_interval_bytes=INTERVAL_BYTES)
    assert log.truncate(end) == end
    left = batches[:end]
    newest = max(TIMES[:end])
    found = log.offset_of_max_timestamp(end)
    assert found is not None
    assert found[:2] == (TIMES.index(newest), newest)
    segment = log._table.active
    assert (segment.max_timestamp_offset, segment.max_timestamp) == found[:2]
    log.close()
    assert indexes_on_disk(fs) == indexes_by_the_rule([[data] for data in left])


@pytest.mark.parametrize("times", [(0,), (-1,), (-1, 0), (0, -1), (-1, -1)])
def test_the_timestamp_0_counts_and_minus_1_is_none(
    fs: FaultyFileSystem, times: Sequence[int]
) -> None:
    log = open_log(fs)
    log.write_many([chunk_of(history(times), has_summary=False)])
    known = log._table.active.max_timestamp, log._table.active.max_timestamp_offset
    assert known == ((0, times.index(0)) if 0 in times else (-1, -1))
    log.close()
    assert indexes_on_disk(fs)[1] == ([known] if 0 in times else [])
    assert [header.max_timestamp for _, header in iter_headers(contents(open_log(fs)))] == [*times]


def test_what_is_added_after_a_cut_gets_its_entries_as_if_nothing_had_been_there() -> None:
    def added(index: SegmentIndex, positions: Sequence[int]) -> SegmentIndex:
        for position in positions:
            index.add(position, position // 10, position)
        return index

    index = added(SegmentIndex(0, 100), range(0, 1000, 30))
    left, new = range(0, 480, 30), range(480, 900, 20)
    resume = index.cut(480, 48)
    added(index, [position for position in left if position >= resume])
    added(index, new)
    fresh = added(added(SegmentIndex(0, 100), left), new)
    assert index.offsets.entries() == fresh.offsets.entries()
    assert index.times.entries() == fresh.times.entries()


def test_an_index_that_leads_beyond_the_segment_leads_to_its_start(fs: FaultyFileSystem) -> None:
    path, index = index_path(DIRECTORY, 7), OffsetIndex(7)
    assert indexed_position(fs, path, 7, 9, 1000) == 0
    index.append(9, 100)
    fs.put(path, index.to_bytes())
    assert [indexed_position(fs, path, 7, 9, size) for size in (1, 99, 100, 101)] == [0, 0, 0, 100]
    assert indexed_position(fs, path, 7, 8, 101) == 0
    for damaged in (index.to_bytes()[:-1], b"\0\0\0\1\xff\xff\xff\xff"):
        fs.put(path, damaged)
        assert indexed_position(fs, path, 7, 9, 1000) == 0
