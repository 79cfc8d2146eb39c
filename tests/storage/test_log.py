"""What every log does, on the real file system and on the faulty one without faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from quorumd.storage.errors import DamagedLog, OffsetNotInLog
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.layout import index_path, log_path, time_index_path
from quorumd.storage.log import Chunk, ChunkSummary, Log
from quorumd.storage.segment import ZERO_STEP_BYTES
from quorumd.storage.tail_cache import CHUNKS_READ_MAX
from quorumd.wire.batch_header import stamp
from quorumd.wire.records import Record, build_batch, iter_records, read_header
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import (
    DIRECTORY,
    START_MS,
    append,
    batch,
    contents,
    empty_disk,
    fill,
    last_end,
    open_log,
)

Place = tuple[FileSystem, Path]


@pytest.fixture
def counting() -> tuple[FaultyFileSystem, Path]:
    return empty_disk(), DIRECTORY


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return (RealFileSystem(), tmp_path) if request.param == "real" else (empty_disk(), DIRECTORY)


@pytest.fixture
def opened(place: Place) -> Callable[..., Log]:
    def open_it(**settings: int) -> Log:
        return open_log(*place, **settings)

    return open_it


def test_an_empty_directory_is_an_empty_log(opened: Callable[..., Log]) -> None:
    log = opened()
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch, log.epochs) == (0, 0, 0, [])
    assert log.read(0, 100, 100) == b""
    assert log.read_cached(0, 100, 100) == []
    assert list(log.scan_headers()) == []
    assert log.offset_for_timestamp(0, 10) is None
    assert log.offset_of_max_timestamp(10) is None


def test_what_was_appended_can_be_read_before_it_is_written(opened: Callable[..., Log]) -> None:
    log = opened()
    data = batch(0)
    log.append(data, 0, 1)
    assert log.log_end_offset == 1
    assert log.written_end_offset == 0
    assert log.read_cached(0, 1000, 1) == [data]
    assert log.read(0, 1000, 1) == b""
    log.write(data, 0, 1)
    assert log.read(0, 1000, 1) == data
    assert log.sync() == 1


def test_a_log_comes_back_with_everything_after_a_clean_stop(opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=500)
    fill(log, range(5))
    fill(log, range(5, 20), epoch=3)
    expected = contents(log)
    log.close()

    again = opened(segment_bytes=500)
    assert contents(again) == expected
    assert (again.log_start_offset, again.log_end_offset) == (0, 20)
    assert again.epochs == [(1, 0), (3, 5)]
    assert again.last_epoch == 3
    assert again.recovery.messages() == []


def test_a_log_that_was_not_closed_comes_back_too(opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=500)
    fill(log, range(20))
    again = opened(segment_bytes=500)
    assert contents(again) == contents(log)
    assert again.recovery.cut_bytes == 0
    fill(again, range(20, 25))
    assert last_end(contents(again)) == 25


@pytest.mark.parametrize("base_offset", [0, 2, 5])
def test_an_append_that_does_not_continue_the_log_is_refused(
    opened: Callable[..., Log], base_offset: int
) -> None:
    log = opened()
    fill(log, range(3))
    with pytest.raises(ValueError, match="do not continue the log"):
        log.append(batch(base_offset), base_offset, base_offset + 1)
    if base_offset != 3:
        with pytest.raises(ValueError, match="continue the log"):
            log.write(batch(base_offset), base_offset, base_offset + 1)
    fill(log, [3])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (batch(3) + batch(5), "continue the log"),
        (batch(3, epoch=2) + batch(4, epoch=1), "epoch 1 after one of epoch 2"),
        (batch(3) + batch(4)[:-1], "whole batch"),
        (batch(3) + b"\0" * 70, "magic"),
        (batch(3, epoch=0) + batch(4, epoch=0), "epoch 0 after one of epoch 1"),
        (batch(3), "instead of 5"),
    ],
)
def test_a_write_of_anything_else_than_the_next_batches_leaves_no_trace(
    opened: Callable[..., Log], data: bytes, what: str
) -> None:
    log = opened()
    fill(log, range(3))
    before = contents(log)
    with pytest.raises(ValueError, match=what):
        log.write(data, 3, 5)
    assert contents(log) == before
    fill(log, [3, 4])
    assert last_end(contents(log)) == 5


def test_an_empty_log_takes_no_batch_without_an_epoch(opened: Callable[..., Log]) -> None:
    log = opened()
    with pytest.raises(ValueError, match="epoch -1: no leader has stamped it"):
        log.write(batch(0, epoch=-1), 0, 1)
    fill(log, [0])


def test_a_batch_never_spans_segments(place: Place, opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=300)
    chunk = b"".join(batch(offset) for offset in range(20))
    append(log, chunk, 0, 20)
    log.close()
    fs, directory = place
    parts = []
    for name in fs.listdir(directory):
        if name.endswith(".log"):
            handle = fs.open(directory / name)
            data = fs.pread(handle, 10_000, 0)
            assert len(data) <= 300
            assert read_header(data).base_offset == int(name[:20])
            parts.append(data)
            fs.close(handle)
    assert len(parts) == 7
    assert b"".join(parts) == chunk


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=300)
    data = [batch(0), batch(1, value_bytes=1000), batch(2)]
    append(log, b"".join(data), 0, 3)
    assert [log.read(offset, 1, 3) for offset in range(3)] == data
    log.close()
    assert contents(opened(segment_bytes=300)) == b"".join(data)


def test_several_chunks_go_to_disk_with_one_call(counting: tuple[FaultyFileSystem, Path]) -> None:
    fs, directory = counting
    log = open_log(fs, directory)
    fill(log, [0])
    chunks = [Chunk(batch(1), 1, 2), Chunk(batch(2) + batch(3), 2, 4), Chunk(batch(4), 4, 5)]
    for chunk in chunks:
        log.append(chunk.data, chunk.base_offset, chunk.end_offset)
    fs.log.clear()
    log.write_many(chunks)
    assert log.sync() == 5
    assert fs.log == ["pwritev", "fdatasync"]
    assert log.sync() == 5
    assert fs.log == ["pwritev", "fdatasync"]


def test_zeros_are_written_ahead_and_cut_off_at_a_clean_stop(place: Place) -> None:
    fs, directory = place
    log = open_log(fs, directory, segment_bytes=32 << 20)
    fill(log, [0])
    path = log_path(directory, 0)
    handle = fs.open(path)
    assert fs.size(handle) == len(batch(0)) + ZERO_STEP_BYTES
    log.close()
    assert fs.size(handle) == len(batch(0))
    fs.close(handle)


def test_zeros_can_be_written_in_an_idle_moment(counting: tuple[FaultyFileSystem, Path]) -> None:
    fs, directory = counting
    log = open_log(fs, directory, segment_bytes=32 << 20)
    log.prepare()
    log.prepare()
    assert len(fs.contents(log_path(directory, 0))) == ZERO_STEP_BYTES + 1
    fs.log.clear()
    log.append(batch(0), 0, 1)
    log.write(batch(0, epoch=1), 0, 1)
    assert fs.log.count("pwritev") == 2  # the epoch's entry and the batch


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_read_gives_whole_batches_within_its_bounds(
    opened: Callable[..., Log], is_cached: bool
) -> None:
    log = opened()
    batches = [batch(offset, count=2) for offset in range(0, 20, 2)]
    size = len(batches[0])
    for start in range(0, 10, 5):
        append(log, b"".join(batches[start : start + 5]), start * 2, start * 2 + 10)

    def read(offset: int, max_bytes: int, end_offset: int) -> bytes:
        if not is_cached:
            return log.read(offset, max_bytes, end_offset)
        found = log.read_cached(offset, max_bytes, end_offset)
        assert found is not None
        return b"".join(found)

    assert read(0, 1 << 20, 20) == b"".join(batches)
    assert read(0, 1, 20) == batches[0]
    assert read(3, 1, 20) == batches[1]
    assert read(3, size * 2, 20) == b"".join(batches[1:3])
    assert read(3, size * 3 - 1, 20) == b"".join(batches[1:3])
    assert read(4, 1 << 20, 8) == b"".join(batches[2:4])
    assert read(4, 1 << 20, 9) == b"".join(batches[2:4])
    assert read(4, size * 4, 20) == b"".join(batches[2:6])
    assert read(8, size * 7, 13) == b"".join(batches[4:6])
    assert read(4, 1 << 20, 5) == b""
    assert read(4, 1 << 20, 4) == b""
    assert read(20, 100, 30) == b""
    for offset in (-1, 21):
        with pytest.raises(OffsetNotInLog):
            read(offset, 100, 30)


def test_whole_cached_chunks_are_handed_out_without_copying(opened: Callable[..., Log]) -> None:
    log = opened()
    chunks = [batch(0) + batch(1), batch(2), batch(3)]
    append(log, chunks[0], 0, 2)
    append(log, chunks[1], 2, 3)
    append(log, chunks[2], 3, 4)
    found = log.read_cached(0, 1 << 20, 4)
    assert found is not None
    assert all(a is b for a, b in zip(found, chunks, strict=True))
    part = log.read_cached(1, 1 << 20, 3)
    assert part == [batch(1), batch(2)]
    assert isinstance(part[0], memoryview)


def test_a_read_from_memory_returns_so_many_appends(opened: Callable[..., Log]) -> None:
    log = opened()
    one, count = batch(0), CHUNKS_READ_MAX + 10
    for offset in range(count):
        log.append(stamp(one, offset, 1), offset, offset + 1)
    assert len(log.read_cached(0, 1 << 30, count) or ()) == CHUNKS_READ_MAX
    assert len(log.read_cached(CHUNKS_READ_MAX, 1 << 30, count) or ()) == 10


def test_the_cache_forgets_only_what_is_written(opened: Callable[..., Log]) -> None:
    log = opened(tail_cache_bytes=1000)
    for offset in range(20):
        log.append(batch(offset), offset, offset + 1)
    assert log.read_cached(0, 1, 20) == [batch(0)]
    for offset in range(20):
        log.write(batch(offset), offset, offset + 1)
    log.append(batch(20), 20, 21)
    assert log.read_cached(0, 1, 20) is None
    assert log.read(0, 1, 20) == batch(0)
    assert log.read_cached(20, 1, 21) == [batch(20)]
    assert log._cache.size_bytes <= 1000


def test_many_small_chunks_pass_through_the_cache(opened: Callable[..., Log]) -> None:
    log = opened(tail_cache_bytes=5000)
    for offset in range(3000):
        data = batch(offset)
        log.append(data, offset, offset + 1)
        log.write(data, offset, offset + 1)
    assert len(log._cache._chunks) < 2100
    assert log.read_cached(2999, 1, 3000) == [batch(2999)]
    assert log.read_cached(100, 1, 3000) is None


@pytest.mark.parametrize("offset", [0, 1, 6, 7, 19, 20])
@pytest.mark.parametrize("is_closed_between", [False, True])
def test_truncation_removes_everything_from_an_offset_on(
    opened: Callable[..., Log], offset: int, is_closed_between: bool
) -> None:
    log = opened(segment_bytes=500, index_interval_bytes=100)
    fill(log, range(7))
    fill(log, range(7, 20), epoch=2)
    if is_closed_between:
        log.close()
        log = opened(segment_bytes=500, index_interval_bytes=100)
    assert log.truncate_cache(offset) == offset
    assert log.log_end_offset == offset
    assert log.truncate(offset) == offset
    assert contents(log) == b"".join(batch(i, epoch=1 if i < 7 else 2) for i in range(offset))
    expected_epochs = [entry for entry in [(1, 0), (2, 7)] if entry[1] < offset]
    assert log.epochs == expected_epochs

    fill(log, range(offset, offset + 10), epoch=5)
    expected = contents(log)
    newest = START_MS + offset + 9
    assert log.offset_of_max_timestamp(100) == (offset + 9, newest, 5)
    log.close()
    again = opened(segment_bytes=500, index_interval_bytes=100)
    assert contents(again) == expected
    assert again.epochs == [*expected_epochs, (5, offset)]
    assert again.recovery.messages() == []


def test_truncation_into_a_batch_removes_the_whole_batch(opened: Callable[..., Log]) -> None:
    for is_cached in (True, False):
        log = opened(tail_cache_bytes=1 << 20 if is_cached else 1)
        start = log.log_end_offset
        append(log, batch(start, count=5) + batch(start + 5, count=5), start, start + 10)
        append(log, batch(start + 10), start + 10, start + 11)
        assert log.truncate_cache(start + 7) == start + 5
        assert log.truncate(start + 7) == start + 5
        assert last_end(contents(log)) == start + 5
        log.close()


def test_appends_go_on_while_a_truncation_waits_for_the_disk(opened: Callable[..., Log]) -> None:
    log = opened(tail_cache_bytes=500)
    fill(log, range(10))
    log.truncate_cache(5)
    newer = [batch(offset, epoch=2) for offset in range(5, 15)]
    for offset, data in enumerate(newer, 5):
        log.append(data, offset, offset + 1)
    # Nothing of this is on disk, though the files reach as far as offset 10.
    assert log.read_cached(5, 1, 15) == [newer[0]]
    log.truncate(5)
    for offset, data in enumerate(newer, 5):
        log.write(data, offset, offset + 1)
    log.sync()
    assert contents(log) == b"".join([*(batch(offset) for offset in range(5)), *newer])


def test_truncation_outside_the_log_is_refused(opened: Callable[..., Log]) -> None:
    log = opened()
    fill(log, range(3))
    for call in (log.truncate, log.truncate_cache):
        for offset in (-1, 4):
            with pytest.raises(ValueError, match="can't truncate"):
                call(offset)
    fill(log, [3])


def test_headers_can_be_scanned_from_any_offset(opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=400)
    for offset in range(0, 40, 2):
        append(log, batch(offset, count=2), offset, offset + 2)
    assert [header.base_offset for header in log.scan_headers()] == list(range(0, 40, 2))
    for start in (0, 1, 13, 38, 39, 40):
        expected = list(range(start - start % 2, 40, 2))
        assert [header.base_offset for header in log.scan_headers(start)] == expected


def test_control_batches_are_found_at_start(opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=400)
    controls = {3, 8, 9}
    for offset in range(12):
        append(log, batch(offset, is_control=offset in controls), offset, offset + 1)
    log.close()
    again = opened(segment_bytes=400)
    found = [read_header(data).base_offset for data in again.control_batches()]
    assert found == sorted(controls)


def test_a_batch_is_found_by_timestamp(opened: Callable[..., Log]) -> None:
    log = opened(segment_bytes=600, index_interval_bytes=100)
    times = [5, 3, 9, 9, 2, 12, 12, 1, 30, 7, 8, 40, 6, 6, 41, 3]
    for offset, time in enumerate(times):
        data = batch(offset, timestamp=START_MS + time, epoch=1 + offset // 4, codec=offset % 2)
        append(log, data, offset, offset + 1)
    for reopened in (False, True):
        if reopened:
            log.close()
            log = opened(segment_bytes=600, index_interval_bytes=100)
        for end in range(len(times) + 1):
            below = times[:end]
            for wanted in range(43):
                first = next((i for i, time in enumerate(below) if time >= wanted), None)
                place = None
                if first is not None:
                    place = (first, START_MS + times[first], 1 + first // 4)
                assert log.offset_for_timestamp(START_MS + wanted, end) == place, (wanted, end)
            newest = None
            if below:
                first = below.index(max(below))
                newest = (first, START_MS + max(below), 1 + first // 4)
            assert log.offset_of_max_timestamp(end) == newest


def test_a_record_inside_a_batch_is_found_by_timestamp(opened: Callable[..., Log]) -> None:
    log = opened()
    append(log, batch(0, count=10), 0, 10)
    assert log.offset_for_timestamp(START_MS + 4, 10) == (4, START_MS + 4, 1)
    assert log.offset_of_max_timestamp(10) == (9, START_MS + 9, 1)


def test_a_compressed_batch_that_does_not_unpack_counts_as_empty(
    opened: Callable[..., Log],
) -> None:
    good = build_batch([Record(0, START_MS + 50, b"k", b"v", ())], base_offset=0, epoch=1)
    broken = bytearray(good)
    broken[22] |= 1  # says gzip
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    log = opened()
    append(log, bytes(broken), 0, 1)
    append(log, batch(1, timestamp=START_MS + 60), 1, 2)
    assert log.offset_for_timestamp(START_MS + 40, 2) == (1, START_MS + 60, 1)


def test_who_stops_early_leaves_no_file_open() -> None:
    """Machine code closes nothing that is only let go of: the file of a generator, for example."""
    fs = empty_disk()
    log = open_log(fs, segment_bytes=600)
    for offset in range(20):
        append(log, batch(offset, timestamp=START_MS + offset), offset, offset + 1)
    held = fs.open_handles
    assert log.offset_for_timestamp(START_MS + 2, 20)[0] == 2
    headers = log.scan_headers()
    assert next(headers).base_offset == 0
    assert fs.open_handles == held + 1
    headers.close()
    assert fs.open_handles == held


@pytest.mark.parametrize("has_summary", [False, True])
def test_a_chunk_with_a_summary_is_indexed_without_a_walk(place: Place, has_summary: bool) -> None:
    fs, directory = place
    log = open_log(fs, directory, index_interval_bytes=300, segment_bytes=4000)
    times = [(offset * 7919) % 1000 for offset in range(300)]
    for base in range(0, 300, 6):
        data = b"".join(batch(i, timestamp=START_MS + times[i]) for i in range(base, base + 6))
        newest = max(times[base : base + 6])
        summary = ChunkSummary(1, START_MS + newest, base + times[base : base + 6].index(newest))
        log.append(data, base, base + 6)
        log.write(data, base, base + 6, summary if has_summary else None)
    log.sync()
    for _ in range(2):
        for wanted in range(0, 1000, 13):
            first = next((i for i, time in enumerate(times) if time >= wanted), None)
            found = log.offset_for_timestamp(START_MS + wanted, 300)
            assert (found and found.offset) == first
        for offset in range(300):
            assert log.read(offset, 1, 300) == batch(offset, timestamp=START_MS + times[offset])
        log.close()
        log = open_log(fs, directory, index_interval_bytes=300, segment_bytes=4000)
        assert log.recovery.messages() == []


def test_indexes_are_kafkas(place: Place) -> None:
    fs, directory = place
    log = open_log(fs, directory, index_interval_bytes=150, segment_bytes=100_000)
    for offset in range(0, 20, 2):
        append(log, batch(offset, count=2), offset, offset + 2)
    log.close()
    size = len(batch(0, count=2))
    handle = fs.open(index_path(directory, 0))
    entries = fs.pread(handle, 10_000, 0)
    fs.close(handle)
    # The last offset of a batch and its position, whenever more than 150 bytes lie behind.
    step = 150 // size + 1
    expected = [(batch_index * 2 + 1, batch_index * size) for batch_index in range(step, 10, step)]
    assert entries == b"".join(
        offset.to_bytes(4, "big") + position.to_bytes(4, "big") for offset, position in expected
    )
    handle = fs.open(time_index_path(directory, 0))
    entries = fs.pread(handle, 10_000, 0)
    fs.close(handle)
    covered = [offset - 2 for offset, _ in expected] + [19]
    assert entries == b"".join(
        (START_MS + offset).to_bytes(8, "big") + offset.to_bytes(4, "big")
        for offset in sorted(set(covered))
    )


@pytest.mark.parametrize(
    "entries",
    [
        [(START_MS, 1 << 20)],
        [(1, 0), (START_MS + 1, 0)],
        [(START_MS + 1, 1), (START_MS, 2)],
        [(START_MS + 4, 2), (1 << 50, 3)],
        [(START_MS, -5)],
    ],
    ids=["behind the end", "offsets stand still", "times go back", "too late", "before the start"],
)
def test_a_time_index_that_cannot_be_the_segments_is_not_believed(
    place: Place, entries: list[tuple[int, int]]
) -> None:
    fs, directory = place
    log = open_log(fs, directory, segment_bytes=600)
    fill(log, range(20))
    assert log.closed_segments()[0].end_offset > 4
    found = [log.offset_for_timestamp(START_MS + offset, 20) for offset in range(4)]
    handle = fs.open(time_index_path(directory, 0), writable=True)
    data = b"".join(
        time.to_bytes(8, "big") + at.to_bytes(4, "big", signed=True) for time, at in entries
    )
    fs.truncate(handle, len(data))
    fs.pwritev(handle, [data], 0)
    fs.close(handle)
    assert [place.offset for place in found if place] == [0, 1, 2, 3]
    assert [log.offset_for_timestamp(START_MS + offset, 20) for offset in range(4)] == found


def test_a_flip_in_a_closed_segment_is_noticed_before_it_is_served(place: Place) -> None:
    fs, directory = place
    log = open_log(fs, directory, segment_bytes=400)
    fill(log, range(20))
    path = log_path(directory, 0)
    handle = fs.open(path, writable=True)
    byte = fs.pread(handle, 1, 80)[0]
    fs.pwritev(handle, [bytes([byte ^ 4])], 80)
    fs.close(handle)
    for again in (log, open_log(fs, directory, segment_bytes=400)):
        with pytest.raises(DamagedLog) as caught:
            again.read(0, 1000, 20)
        assert caught.value.path == path
        assert caught.value.exit_code == 3
        with pytest.raises(DamagedLog):
            list(again.scan_headers())
        assert list(iter_records(again.read(19, 1000, 20)))


def test_a_wrong_index_costs_a_walk_and_nothing_else(place: Place) -> None:
    fs, directory = place
    log = open_log(fs, directory, segment_bytes=2000, index_interval_bytes=200)
    fill(log, range(60))
    handle = fs.open(index_path(directory, 0), writable=True)
    fs.pwritev(handle, [b"\0\0\0\1\0\0\0\7"], 0)
    fs.close(handle)
    assert [log.read(offset, 1, 60) for offset in range(60)] == [batch(i) for i in range(60)]


def test_files_are_not_left_open(counting: tuple[FaultyFileSystem, Path]) -> None:
    fs, directory = counting
    log = open_log(fs, directory, segment_bytes=400)
    fill(log, range(30))
    contents(log)
    list(log.scan_headers())
    log.offset_of_max_timestamp(17)
    log.truncate(9)
    assert fs.open_handles == 1
    log.close()
    assert fs.open_handles == 0
