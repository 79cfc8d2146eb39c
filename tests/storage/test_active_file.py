"""The file of the active segment by itself: zeros ahead, the mark, full disks, and what a cut syncs."""

from __future__ import annotations

import pytest

from quorumd.storage.errors import DiskFailed, DiskFull
from quorumd.storage.log import SEGMENT_BYTES_MAX
from quorumd.storage.segment import SYNCS_UNCHECKED, ZERO_STEP_BYTES, ActiveFile
from quorumd.storage.write_marker import MARKER_BYTES, build_marker, read_marker
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
)
from tests.storage.journal_filesystem import JournalFileSystem

PATH = DIRECTORY / "00000000000000000000.log"
SEGMENT_BYTES = 1000


def made(fs: FaultyFileSystem, segment_bytes: int = SEGMENT_BYTES) -> ActiveFile:
    return ActiveFile(fs, PATH, 0, segment_bytes, create=True)


def test_after_a_write_that_found_no_space_the_file_is_as_before() -> None:
    fs = empty_disk()
    file = made(fs)
    file.write([b"a" * 900], 900)
    file.sync()
    fs.capacity_bytes = len(fs.contents(PATH)) + 50
    with pytest.raises(DiskFull):
        file.write([b"b" * 400], 400)
    assert fs.contents(PATH) == b"a" * 900
    file.write([b"c" * 20], 20)
    assert fs.contents(PATH).rstrip(b"\0") == b"a" * 900 + b"c" * 20 + build_marker(900, 920)


def test_zeros_ahead_that_find_no_space_leave_nothing_behind() -> None:
    fs = empty_disk()
    file = made(fs, 4 * ZERO_STEP_BYTES)
    file.write([b"a" * 900], 900)
    file.write([bytes(ZERO_STEP_BYTES - 900)], ZERO_STEP_BYTES - 900)
    file.sync()
    fs.capacity_bytes = len(fs.contents(PATH)) + 10_000
    file.prepare()
    assert len(fs.contents(PATH)) == ZERO_STEP_BYTES
    fs.capacity_bytes = None
    file.prepare()
    assert len(fs.contents(PATH)) > ZERO_STEP_BYTES + ZERO_STEP_BYTES // 2


def test_no_zeros_are_written_ahead_beyond_the_end_of_a_segment() -> None:
    fs = empty_disk()
    file = made(fs)
    file.write([b"a" * 100], 100)
    size = len(fs.contents(PATH))
    assert size == SEGMENT_BYTES
    for _ in range(2):
        file.prepare()
        assert len(fs.contents(PATH)) == SEGMENT_BYTES


def test_zeros_ahead_have_room_for_the_mark_behind_the_last_batch_of_a_segment() -> None:
    """A write that makes the file longer would have to sync its size as well."""
    fs = JournalFileSystem()
    file = made(fs)
    sizes: list[int] = []
    fs.on_change = lambda line: sizes.append(len(fs.contents(PATH)))
    file.write([b"a" * SEGMENT_BYTES], SEGMENT_BYTES)
    assert fs.take()[-2:] == ["zeros 0.log", "write 0.log"]
    assert sizes[-1] == len(fs.contents(PATH)) == SEGMENT_BYTES + MARKER_BYTES


def test_what_makes_a_file_shorter_is_synced_with_its_size() -> None:
    """`fdatasync` promises no more of the size than reading back needs."""
    fs = empty_disk()
    file = made(fs)
    file.write([b"a" * 100], 100)
    fs.log.clear()
    file.cut(100)
    assert fs.log == ["fdatasync", "truncate", "fsync"]
    fs.log.clear()
    file.cut(50)
    assert fs.log == ["truncate", "fsync"]
    file.sync()
    assert fs.log == ["truncate", "fsync"]


def test_what_is_opened_is_durable_as_far_as_its_data_go() -> None:
    fs = empty_disk()
    made(fs).write([b"a" * 100], 100)
    file = ActiveFile(fs, PATH, 100, SEGMENT_BYTES, create=False)
    fs.log.clear()
    file.sync()
    assert fs.log == []
    file.write([b"b"], 1)
    assert read_marker(fs.contents(PATH)[101 : 101 + MARKER_BYTES], 101) == 100


def test_a_mark_of_which_a_byte_differs_is_none() -> None:
    mark = build_marker(700, 900)
    assert read_marker(mark, 900) == 700
    assert read_marker(mark, 901) is None
    for place in range(MARKER_BYTES):
        for mask in (1, 0x80):
            changed = bytearray(mark)
            changed[place] ^= mask
            assert read_marker(bytes(changed), 900) is None


def test_a_segment_is_as_large_as_its_indexes_can_name() -> None:
    assert contents(open_log(empty_disk(), segment_bytes=SEGMENT_BYTES_MAX)) == b""
    for wrong in (SEGMENT_BYTES_MAX + 1, 0, -1):
        with pytest.raises(ValueError, match="segment_bytes must be 1 "):
            open_log(empty_disk(), segment_bytes=wrong)


# -- the log above it


def test_an_epoch_whose_first_batch_found_no_space_is_not_one_of_the_log() -> None:
    fs = empty_disk()
    log = open_log(fs)
    fill(log, range(3))
    log.append(batch(3, epoch=2), 3, 4)
    # Room for the small file with one epoch more, and none for a batch.
    log._writer._file.cut(log._table.active.size_bytes)
    fs.capacity_bytes = sum(len(file.data) for file in fs._live.values()) + 40
    with pytest.raises(DiskFull):
        log.write(batch(3, epoch=2), 3, 4)
    assert log.epochs == [(1, 0)]
    fs.capacity_bytes = None
    log.write(batch(3, epoch=2), 3, 4)
    assert log.epochs == [(1, 0), (2, 3)]


def test_a_sync_answers_for_what_was_written_and_not_for_what_was_only_appended() -> None:
    log = open_log(empty_disk())
    fill(log, range(2))
    log.append(batch(2), 2, 3)
    assert log.sync() == 2
    log.write(batch(2), 2, 3)
    assert log.sync() == 3


def test_an_append_leaves_no_gap() -> None:
    log = open_log(empty_disk())
    fill(log, range(2))
    for wrong in (1, 3):
        with pytest.raises(ValueError, match="do not continue the log at 2"):
            log.append(batch(wrong), wrong, wrong + 1)
    with pytest.raises(ValueError, match="do not continue the log at 2"):
        log.append(batch(2), 2, 2)


def test_after_a_reset_nothing_of_the_former_log_is_in_memory() -> None:
    fs = empty_disk()
    log = open_log(fs)
    fill(log, range(10))
    assert log._cache.size_bytes > 0
    log.reset_cache(20)
    assert log._cache.size_bytes == 0
    following = batch(20, epoch=3)
    log.append(following, 20, 21)
    put_snapshot(fs, 20, 3)
    log.reset(20)
    log.write(following, 20, 21)
    assert contents(log) == following


def test_nothing_is_asked_of_the_disk_where_a_read_ends_before_it_begins() -> None:
    log = open_log(empty_disk(), tail_cache_bytes=0)
    fill(log, range(5))
    append(log, batch(5), 5, 6)
    assert log.read_cached(2, 1000, 6) is None
    for offset in (0, 2, 6):
        assert log.read_cached(offset, 1000, offset) == []


def test_a_reset_that_nobody_asked_for_is_refused_though_the_log_ends_there() -> None:
    log = open_log(empty_disk())
    fill(log, range(5))
    with pytest.raises(ValueError, match="a reset to 5 that the event loop does not know of"):
        log.reset(5)
    assert contents(log) != b""


def test_of_a_log_that_is_closed_nothing_can_be_had_any_more() -> None:
    log = open_log(empty_disk())
    fill(log, range(2))
    log.close()
    for use in (lambda: log.append(batch(2), 2, 3), log.sync, lambda: log.read(0, 1, 2)):
        with pytest.raises(Exception, match="the log is closed"):
            use()


def deleted(fs: FaultyFileSystem) -> ActiveFile:
    """A file with one synced byte, which is found to be there, and then deleted."""
    file = made(fs, ZERO_STEP_BYTES)
    file.write([b"a"], 1)
    file.sync()
    file.prepare()
    fs.unlink(PATH)
    return file


def test_behind_a_pause_a_deleted_file_is_found_to_be_so() -> None:
    file = deleted(empty_disk())
    with pytest.raises(DiskFailed, match=f"{PATH}: the file was deleted while this node ran"):
        file.prepare()


def test_a_deleted_file_takes_a_few_writes_and_no_more() -> None:
    file = deleted(empty_disk())
    for _ in range(SYNCS_UNCHECKED - 2):
        file.write([b"a"], 1)
        file.sync()
    file.write([b"a"], 1)
    with pytest.raises(DiskFailed, match="deleted"):
        file.sync()
