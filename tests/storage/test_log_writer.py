"""The log writer: what reaches the disk, in which order, and what the indexes and the table say then."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from crc32c import crc32c

from quorumd.storage.batch_walk import BATCH_BYTES_MAX
from quorumd.storage.errors import DamagedLog, DiskFailed, DiskFull
from quorumd.storage.layout import EPOCH_CHECKPOINT, log_path
from quorumd.storage.log import Chunk, ChunkSummary, Log
from quorumd.storage.segment import RELATIVE_OFFSET_MAX
from quorumd.wire.batch_header import CRC_FROM
from quorumd.wire.records import Record, build_batch, read_header
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import (
    DIRECTORY,
    append,
    batch,
    contents,
    empty_disk,
    fill,
    open_log,
    put_snapshot,
    reset,
)
from tests.storage.journal_filesystem import JournalFileSystem

SIZE = len(batch(0))
SEGMENT_BYTES = SIZE * 5


@pytest.fixture
def fs() -> JournalFileSystem:
    return JournalFileSystem()


def segments_of_five(fs: FaultyFileSystem, end: int = 12) -> Log:
    """One batch for each offset, five in a segment."""
    log = open_log(fs, segment_bytes=SEGMENT_BYTES, index_interval_bytes=SIZE)
    fill(log, range(end))
    return log


# --- what reaches the disk, in order


def test_a_start_of_a_sound_log_syncs_what_it_has_read_and_writes_nothing(
    fs: JournalFileSystem,
) -> None:
    segments_of_five(fs)
    fs.take()
    open_log(fs, segment_bytes=SEGMENT_BYTES, index_interval_bytes=SIZE)
    assert fs.take() == ["sync 10.log", "forget 10.log", "sync names"]


def test_the_entry_of_a_new_epoch_is_durable_before_its_first_batch(fs: JournalFileSystem) -> None:
    log = open_log(fs)
    fs.take()
    append(log, batch(0), 0, 1)
    assert fs.take() == [
        f"replace {EPOCH_CHECKPOINT}",
        "sync names",
        "zeros 0.log",
        "write 0.log",
        "sync 0.log",
    ]
    append(log, batch(1), 1, 2)
    assert fs.take() == ["write 0.log", "sync 0.log"]
    append(log, batch(2, epoch=4), 2, 3)
    assert fs.take() == [f"replace {EPOCH_CHECKPOINT}", "sync names", "write 0.log", "sync 0.log"]


def test_nothing_to_write_is_not_written(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs)
    fs.take()
    log.write_many(())
    log.sync()
    assert fs.take() == []


ROLL = [
    "cut 0.log",
    "sync 0.log",
    "replace 0.index",
    "sync names",
    "replace 0.timeindex",
    "sync names",
    "create 5.log",
    "sync 5.log",
    "sync names",
    "zeros 5.log",
    "write 5.log",
]


def test_a_full_segment_is_durable_and_closed_before_the_next_one_begins(
    fs: JournalFileSystem,
) -> None:
    log = segments_of_five(fs, 5)
    fs.take()
    append(log, batch(5), 5, 6)
    assert fs.take() == [*ROLL, "sync 5.log"]


def test_what_of_a_write_fits_is_synced_before_its_segment_is_closed(
    fs: JournalFileSystem,
) -> None:
    log = segments_of_five(fs, 4)
    fs.take()
    data = b"".join(map(batch, range(4, 7)))
    log.append(data, 4, 7)
    log.write(data, 4, 7)
    # The mark behind the data needs room beyond the segment's end.
    assert fs.take() == ["zeros 0.log", "write 0.log", "sync 0.log", *ROLL]
    assert contents(log) == b"".join(map(batch, range(7)))


def test_a_truncation_drops_segments_from_the_newest_down(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs, 10)
    fill(log, range(10, 17), epoch=2)
    fs.take()
    log.truncate_cache(7)
    assert log.truncate(7) == 7
    assert fs.take() == [
        *("delete 15.log", "sync names"),
        *("delete 10.log", "sync names"),
        *("delete 10.index", "sync names"),
        *("delete 10.timeindex", "sync names"),
        *("cut 5.log", "sync 5.log"),
        *("delete 5.index", "sync names"),
        *("delete 5.timeindex", "sync names"),
        *(f"replace {EPOCH_CHECKPOINT}", "sync names"),
    ]
    assert fs.open_handles == 1


@pytest.mark.parametrize("offset", [0, 5, 10])
def test_a_truncation_to_the_start_of_a_segment_leaves_it_empty(
    fs: JournalFileSystem, offset: int
) -> None:
    log = segments_of_five(fs)
    log.truncate_cache(offset)
    assert log.truncate(offset) == offset
    assert [segment.base_offset for segment in log._table._segments] == [*range(0, offset + 1, 5)]
    assert fs.contents(log_path(DIRECTORY, offset)) == b""
    fill(log, range(offset, 12))
    assert contents(log) == b"".join(map(batch, range(12)))


def test_a_truncation_within_an_epoch_leaves_the_epochs_alone(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs)
    fs.take()
    log.truncate_cache(11)
    log.truncate(11)
    assert fs.take() == ["cut 10.log", "sync 10.log"]


def test_a_truncation_to_the_end_or_beyond_does_nothing(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs)
    fs.take()
    assert log.truncate(12) == 12
    assert log._writer.truncate(13) == 12
    assert fs.take() == []
    assert contents(log) == b"".join(map(batch, range(12)))


def test_a_deletion_drops_segments_from_the_oldest_up(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs, 10)
    fill(log, range(10, 17), epoch=2)
    put_snapshot(fs, 14, 2)
    fs.take()
    assert log.delete_before(14) == 10
    assert fs.take() == [
        *("delete 0.log", "delete 0.index", "delete 0.timeindex", "sync names"),
        *("delete 5.log", "delete 5.index", "delete 5.timeindex", "sync names"),
        *(f"replace {EPOCH_CHECKPOINT}", "sync names"),
    ]
    assert log.epochs == [(2, 10)]
    assert log.delete_before(14) == 10
    assert fs.take() == []


@pytest.mark.parametrize(("offset", "start"), [(4, 0), (5, 5), (9, 5), (10, 10), (12, 10)])
def test_a_segment_goes_if_all_of_it_is_below_the_offset(
    fs: JournalFileSystem, offset: int, start: int
) -> None:
    assert segments_of_five(fs).delete_before(offset) == start


def test_the_active_segment_is_never_deleted(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs, 10)
    fill(log, range(10, 17), epoch=2)
    assert log.delete_before(17) == 15
    assert contents(log) == batch(15, epoch=2) + batch(16, epoch=2)
    assert log.epochs == [(2, 15)]


def test_a_log_that_is_empty_after_a_deletion_has_no_epochs(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs)
    log.truncate_cache(5)
    log.truncate(5)
    assert log.epochs == [(1, 0)]
    assert log.delete_before(5) == 5
    assert (log.epochs, log.log_end_offset) == ([], 5)
    put_snapshot(fs, 5, 1)
    again = open_log(fs, segment_bytes=SEGMENT_BYTES, snapshots=[(5, 1)])
    assert again.recovery.messages() == []


def test_a_reset_goes_from_the_newest_segment_down(fs: JournalFileSystem) -> None:
    log = segments_of_five(fs, 7)
    put_snapshot(fs, 40, 2)
    fs.take()
    reset(log, 40)
    assert fs.take() == [
        *("delete 5.log", "sync names"),
        *("cut 0.log", "sync 0.log", "delete 0.index", "delete 0.timeindex"),
        *(f"delete {EPOCH_CHECKPOINT}", "rename to 40.log", "sync names"),
    ]
    assert log.epochs == []


def test_a_clean_stop_syncs_what_was_written_before_the_file_ends_there(
    fs: JournalFileSystem,
) -> None:
    log = segments_of_five(fs, 3)
    log.append(batch(3), 3, 4)
    log.write(batch(3), 3, 4)
    fs.take()
    log.close()
    assert fs.take() == [
        *("sync 0.log", "cut 0.log", "sync 0.log"),
        *("replace 0.index", "sync names", "replace 0.timeindex", "sync names"),
    ]
    assert fs.open_handles == 0


# --- the table of segments


def change_by_truncation(log: Log) -> None:
    log.truncate_cache(7)
    log.truncate(7)


def change_by_a_short_truncation(log: Log) -> None:
    log.truncate_cache(16)
    log.truncate(16)


def change_by_deletion(log: Log) -> None:
    log.delete_before(10)


def change_by_reset(log: Log) -> None:
    reset(log, 30)


CHANGES = (
    change_by_truncation,
    change_by_a_short_truncation,
    change_by_deletion,
    change_by_reset,
)


@pytest.mark.parametrize("change", CHANGES)
def test_readers_can_tell_that_they_were_overtaken_before_a_file_changes(
    fs: JournalFileSystem, change: Callable[[Log], None]
) -> None:
    log = segments_of_five(fs, 17)
    put_snapshot(fs, 30, 2)
    generations = [log._table.generation]

    def on_change(line: str) -> None:
        verb, _, name = line.partition(" ")
        if verb in ("cut", "delete") and name.endswith(".log"):
            generations.append(log._table.generation)

    fs.on_change = on_change
    change(log)
    if change is change_by_reset:
        # All segments go at once.
        del generations[2:]
    assert len(generations) > 1
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("change", CHANGES)
def test_the_table_has_an_index_of_the_active_segment_and_the_sizes_of_the_others(
    fs: JournalFileSystem, change: Callable[[Log], None]
) -> None:
    log = segments_of_five(fs, 17)
    put_snapshot(fs, 30, 2)
    for step in (lambda: None, lambda: change(log), lambda: fill_on(log, 8), lambda: change(log)):
        step()
        *closed, active = log._table._segments
        assert active.index is not None
        assert all(segment.index is None for segment in closed)
        assert log._table.index_bytes == {
            segment.base_offset: len(fs.contents(segment.index_path))
            + len(fs.contents(segment.time_index_path))
            for segment in closed
        }
        data = sum(len(fs.contents(segment.path)) for segment in closed)
        sizes = data + sum(log._table.index_bytes.values()) + active.size_bytes
        assert log.size_bytes == sizes


def fill_on(log: Log, count: int) -> None:
    end = log.log_end_offset
    fill(log, range(end, end + count), epoch=5)


# --- what does not continue the log


def patched(data: bytes, at: int, value: int, width: int) -> bytes:
    """A batch with another number in its header, and the CRC for it."""
    changed = bytearray(data)
    changed[at : at + width] = value.to_bytes(width, "big", signed=True)
    changed[17:CRC_FROM] = crc32c(bytes(changed[CRC_FROM:])).to_bytes(4, "big")
    return bytes(changed)


SUMMARY = ChunkSummary(1, 5, 3)
BACKWARDS = patched(batch(3), 23, -1, 4)


@pytest.mark.parametrize(
    ("chunk", "what"),
    [
        (Chunk(batch(4), 4, 5, SUMMARY), "records 4 .. 5 do not continue the log at 3"),
        (Chunk(batch(2), 2, 3, SUMMARY), "records 2 .. 3 do not continue the log at 3"),
        (Chunk(batch(3), 3, 3, SUMMARY), "records 3 .. 3 do not continue the log at 3"),
        (Chunk(batch(3), 3, 2, SUMMARY), "records 3 .. 2 do not continue the log at 3"),
        (Chunk(b"", 3, 4), "end at offset 3 instead of 4"),
        (Chunk(b"x", 3, 4), "bytes 0 .. 1 of a chunk are no whole batch"),
        (Chunk(BACKWARDS + batch(3), 3, 4), "a batch whose last offset is -1 from its first"),
        (Chunk(batch(4) + batch(5), 3, 6), "offset 4 where 3 must follow"),
        (Chunk(batch(3), 3, 4, ChunkSummary(0, 5, 3)), "epoch 0 after one of epoch 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_behind_another", [False, True])
def test_a_chunk_that_does_not_continue_the_log_leaves_no_trace(
    fs: JournalFileSystem, chunk: Chunk, what: str, is_behind_another: bool
) -> None:
    log = segments_of_five(fs, 2 if is_behind_another else 3)
    before, first = contents(log), [Chunk(batch(2), 2, 3)] if is_behind_another else []
    fs.take()
    with pytest.raises(ValueError, match=what):
        log.write_many([*first, chunk])
    assert fs.take() == []
    assert contents(log) == before


@pytest.mark.parametrize(
    ("data", "end_offset", "what"),
    [
        (batch(3) + batch(4) + batch(5) + b"rest", 6, "no whole batch"),
        (batch(3) + batch(4) + batch(5) + batch(6)[:-1], 6, "no whole batch"),
        (batch(3) + batch(4) + batch(5), 7, "no whole batch"),
        (batch(3) + batch(4) + batch(5), 5, "no whole batch"),
        (batch(3) + batch(4) + batch(6), 7, "offset 6 where 5 must follow"),
        (b"x" * 6 * SIZE, 4, "magic"),
    ],
)
def test_a_chunk_that_begins_a_segment_and_is_not_whole_leaves_no_trace(
    fs: JournalFileSystem, data: bytes, end_offset: int, what: str
) -> None:
    log = segments_of_five(fs, 3)
    before = contents(log)
    with pytest.raises(ValueError, match=what):
        log.write(data, 3, end_offset)
    assert contents(log) == before
    assert log.written_end_offset == 3
    again = open_log(fs, segment_bytes=SEGMENT_BYTES)
    assert contents(again) == before


@pytest.mark.parametrize("data", [b"x", b"x" * 60])
def test_bytes_that_are_no_batch_begin_no_segment(fs: JournalFileSystem, data: bytes) -> None:
    log = segments_of_five(fs, 5)
    fs.take()
    with pytest.raises(ValueError, match=f"bytes 0 .. {len(data)} of a chunk are no whole batch"):
        log.write(data, 5, 6)
    assert fs.take() == []


@pytest.mark.parametrize("excess", [0, 1])
def test_a_batch_may_be_as_large_as_readers_take_and_no_larger(excess: int) -> None:
    log = open_log(empty_disk(), segment_bytes=2 * BATCH_BYTES_MAX)
    small = build_batch([Record(0, 0, b"", b"")], base_offset=0, epoch=1)
    data = small + bytes(BATCH_BYTES_MAX + excess - len(small))
    data = patched(data, 8, len(data) - 12, 4)
    if excess:
        with pytest.raises(ValueError, match=f"a batch of {len(data)} bytes: it does not continue"):
            log.write(data, 0, 1)
        return
    log.write(data, 0, 1)
    assert log.written_end_offset == 1


# --- where a segment is full


def test_a_batch_larger_than_a_segment_may_be_the_first_of_a_log(fs: JournalFileSystem) -> None:
    log = open_log(fs, segment_bytes=300)
    large = batch(0, value_bytes=1000)
    append(log, large + batch(1), 0, 2)
    assert [segment[:2] for segment in log.closed_segments()] == [(0, 1)]
    assert contents(log) == large + batch(1)
    assert contents(open_log(fs, segment_bytes=300)) == large + batch(1)


def wide(base_offset: int, count: int) -> bytes:
    """A batch that says it has so many records."""
    return patched(batch(base_offset), 23, count - 1, 4)


@pytest.mark.parametrize("start", [0, 1 << 40])
@pytest.mark.parametrize("has_summary", [False, True])
def test_a_segment_has_as_many_offsets_as_its_indexes_can_name(
    fs: JournalFileSystem, start: int, has_summary: bool
) -> None:
    log = open_log(fs, index_interval_bytes=1)
    put_snapshot(fs, start, 1)
    reset(log, start)
    full = start + RELATIVE_OFFSET_MAX
    places = [(start, full - 2), (full - 2, full - 1), (full - 1, full), (full, full + 1)]
    for base, end in places:
        data = wide(base, end - base)
        newest = read_header(data).max_timestamp
        summary = ChunkSummary(1, newest, end - 1) if has_summary else None
        log.append(data, base, end)
        log.write(data, base, end, summary)
    assert [segment[:2] for segment in log.closed_segments()] == [(start, full)]
    log.close()
    again = open_log(fs, index_interval_bytes=1, snapshots=[(start, 1)] if start else [])
    assert again.recovery.messages() == []
    assert again.log_end_offset == full + 1


# --- a disk that is full, or fails, at one step


def fail_once(fs: JournalFileSystem, line: str, error_number: int) -> None:
    """The next change of this kind fails, and only that one."""

    def on_change(what: str) -> None:
        if what == line:
            fs.on_change = lambda _: None
            raise OSError(error_number, "told to fail")

    fs.on_change = on_change


@pytest.mark.parametrize("line", ["create 4.log", "sync 4.log", "sync names"])
def test_a_segment_that_finds_no_room_is_not_begun(fs: JournalFileSystem, line: str) -> None:
    """If its file stayed, what still fits into the one before would overlap with it."""
    log = open_log(fs, segment_bytes=SEGMENT_BYTES, index_interval_bytes=SIZE)
    fill(log, range(4))
    large = batch(4, value_bytes=50)
    handles = fs.open_handles
    if line == "sync names":
        # The one behind the indexes, which are replaced before.
        fs.on_change = lambda what: (
            fail_once(fs, line, errno.ENOSPC) if what == "create 4.log" else None
        )
    else:
        fail_once(fs, line, errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.write(large, 4, 5)
    assert fs.open_handles == handles
    assert log.written_end_offset == 4
    append(log, batch(4), 4, 5)
    assert [segment.base_offset for segment in log._table._segments] == [0]
    again = open_log(fs, segment_bytes=SEGMENT_BYTES)
    assert contents(again) == b"".join(map(batch, range(5)))


@pytest.mark.parametrize("line", ["delete 10.log", "sync names"])
def test_a_truncation_that_fails_leaves_a_log_that_can_be_closed(
    fs: JournalFileSystem, line: str
) -> None:
    log = segments_of_five(fs)
    log.truncate_cache(3)
    fail_once(fs, line, errno.EIO)
    with pytest.raises(DiskFailed, match="making data durable failed"):
        log.truncate(3)
    log.close()
    assert fs.open_handles == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [(change_by_truncation, "delete 10.timeindex"), (change_by_reset, "rename to 30.log")],
)
def test_a_file_that_cannot_be_opened_again_leaves_a_log_that_can_be_closed(
    fs: JournalFileSystem, change: Callable[[Log], None], line: str
) -> None:
    log = segments_of_five(fs, 17)
    put_snapshot(fs, 30, 2)

    def on_change(what: str) -> None:
        if what == line:
            fs.errors["open for writing"] = errno.EIO

    fs.on_change = on_change
    with pytest.raises(DiskFailed, match="opening"):
        change(log)
    log.close()
    assert fs.open_handles == 0


def test_a_truncation_that_finds_damage_or_cannot_read_says_so_and_cuts_nothing(
    fs: JournalFileSystem,
) -> None:
    for harm in ("damage", "reading"):
        log = open_log(fs) if harm == "reading" else segments_of_five(fs)
        size = len(fs.contents(log_path(DIRECTORY, 10)))
        log.truncate_cache(11)
        if harm == "damage":
            fs.flip(log_path(DIRECTORY, 10), 7)
            with pytest.raises(DamagedLog, match="can't truncate: a batch with offset") as caught:
                log.truncate(11)
            place = (caught.value.path, caught.value.position, caught.value.offset)
            assert place == (log_path(DIRECTORY, 10), 0, 11)
            fs.flip(log_path(DIRECTORY, 10), 7)
        else:
            fs.errors["pread"] = errno.EIO
            with pytest.raises(DiskFailed, match="reading"):
                log.truncate(11)
        assert len(fs.contents(log_path(DIRECTORY, 10))) == size


def test_what_was_placed_before_a_chunk_is_refused_is_taken_back_from_every_segment(
    fs: JournalFileSystem,
) -> None:
    log = segments_of_five(fs, 3)
    before, epochs = contents(log), log.epochs
    chunks = [Chunk(batch(offset, epoch=2), offset, offset + 1) for offset in range(3, 17)]
    with pytest.raises(ValueError, match="do not continue the log"):
        log.write_many([*chunks, Chunk(batch(18), 18, 19)])
    assert (contents(log), log.epochs, log.written_end_offset) == (before, epochs, 3)
    fill_on(log, 4)
    assert open_log(fs, segment_bytes=SEGMENT_BYTES).log_end_offset == 7
