"""Deleting old segments and beginning anew behind a snapshot, on the real file system and a faulty one."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quorumd.storage.epoch_checkpoint import load_epochs
from quorumd.storage.errors import DamagedLog, DiskFailed, DiskFull, OffsetNotInLog
from quorumd.storage.filesystem import FileSystem, RealFileSystem, read_file
from quorumd.storage.layout import EPOCH_CHECKPOINT, log_path
from quorumd.storage.log import Chunk, Log
from tests.storage.faulty_filesystem import Survival
from tests.storage.helpers import (
    DIRECTORY,
    START_MS,
    batch,
    contents,
    empty_disk,
    fill,
    open_log,
    put_snapshot,
    reset,
)

SIZE = len(batch(0))
SEGMENT_BYTES = SIZE * 5
Place = tuple[FileSystem, Path]


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return (RealFileSystem(), tmp_path) if request.param == "real" else (empty_disk(), DIRECTORY)


def reopen(place: Place, snapshots: Sequence[tuple[int, int]] = (), **settings: Any) -> Log:
    settings = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 1, **settings}
    return open_log(*place, snapshots=snapshots, **settings)


@pytest.fixture
def log(place: Place) -> Log:
    """Offsets 0 .. 18 in four segments of five batches; epochs 1, 4 from 7 on and 6 from 12 on."""
    log = reopen(place)
    fill(log, range(7))
    fill(log, range(7, 12), epoch=4)
    fill(log, range(12, 19), epoch=6)
    return log


def everything(start: int, end: int) -> bytes:
    return b"".join(
        batch(offset, epoch=1 if offset < 7 else 4 if offset < 12 else 6)
        for offset in range(start, end)
    )


def bases(place: Place) -> list[int]:
    fs, directory = place
    return [int(name[:20]) for name in fs.listdir(directory) if name.endswith(".log")]


# --- deleting


@pytest.mark.parametrize(
    ("offset", "start", "epochs"),
    [
        (0, 0, [(1, 0), (4, 7), (6, 12)]),
        (4, 0, [(1, 0), (4, 7), (6, 12)]),
        (5, 5, [(1, 5), (4, 7), (6, 12)]),
        (9, 5, [(1, 5), (4, 7), (6, 12)]),
        (10, 10, [(4, 10), (6, 12)]),
        (15, 15, [(6, 15)]),
        (19, 15, [(6, 15)]),
        (99, 15, [(6, 15)]),
    ],
)
def test_whole_closed_segments_below_an_offset_are_deleted(
    place: Place, log: Log, offset: int, start: int, epochs: list[tuple[int, int]]
) -> None:
    snapshot = put_snapshot(place[0], 19, 6, place[1])
    assert log.delete_before(offset) == start
    assert bases(place) == [base for base in (0, 5, 10, 15) if base >= start]
    assert log.log_start_offset == start
    assert log.epochs == load_epochs(*place) == epochs
    assert contents(log) == everything(start, 19)
    for below in range(-1, start):
        with pytest.raises(OffsetNotInLog) as caught:
            log.read(below, 1, 19)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (start, 19)
        with pytest.raises(OffsetNotInLog):
            log.read_cached(below, 1, 19)
    assert log.delete_before(offset) == start

    again = reopen(place, [snapshot])
    assert again.recovery.messages() == []
    assert (again.log_start_offset, again.epochs) == (start, epochs)
    assert contents(again) == everything(start, 19)
    fill(again, range(19, 30), epoch=7)
    again.close()
    assert reopen(place, [snapshot]).epochs == [*epochs, (7, 19)]


def test_a_log_that_starts_above_0_can_be_truncated_to_nothing_and_go_on(
    place: Place, log: Log
) -> None:
    snapshot = put_snapshot(place[0], 10, 4, place[1])
    log.delete_before(10)
    with pytest.raises(ValueError, match=r"can't truncate 10 .. 19 to 9"):
        log.truncate_cache(9)
    assert log.truncate_cache(10) == log.truncate(10) == 10
    assert (log.log_start_offset, log.log_end_offset, log.epochs) == (10, 10, [])
    assert reopen(place, [snapshot]).log_end_offset == 10
    fill(log, range(10, 17), epoch=8)
    log.close()
    again = reopen(place, [snapshot])
    assert again.recovery.messages() == []
    assert (again.log_start_offset, again.log_end_offset) == (10, 17)
    assert again.epochs == [(8, 10)]


def test_what_is_deleted_is_told_and_counted(place: Place, log: Log) -> None:
    fs, directory = place

    def on_disk(base: int) -> int:
        names = (name for name in fs.listdir(directory) if name.startswith(f"{base:020d}."))
        return sum(len(read_file(fs, directory / name)) for name in names)

    put_snapshot(fs, 19, 6, directory)
    for opened in (log, reopen(place), reopen(place, [(19, 6)])):
        closed = opened.closed_segments()
        assert closed == [
            (base, base + 5, on_disk(base), START_MS + base + 4) for base in (0, 5, 10)
        ]
        # Of the active segment only what was written counts.
        assert opened.size_bytes == sum(on_disk(base) for base in (0, 5, 10)) + 4 * SIZE
    log.delete_before(10)
    assert log.closed_segments() == closed[2:]
    assert log.size_bytes == closed[2].size_bytes + 4 * SIZE
    log.truncate_cache(12)
    log.truncate(12)
    assert log.closed_segments() == []
    assert log.size_bytes == 2 * SIZE
    fill(log, range(12, 21), epoch=7)
    assert [segment[:2] for segment in log.closed_segments()] == [(10, 15), (15, 20)]


def test_an_empty_active_segment_alone_is_an_empty_log() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(10))
    log.append(batch(10, value_bytes=3000), 10, 11)
    fs.capacity_bytes = 2000  # enough for the roll
    with pytest.raises(DiskFull):
        log.write(batch(10, value_bytes=3000), 10, 11)
    fs.capacity_bytes = None
    log.truncate_cache(10)
    log.truncate(10)
    assert log.closed_segments()[-1].end_offset == 10
    put_snapshot(fs, 10, 1)
    assert log.delete_before(10) == 10
    assert (log.log_end_offset, log.epochs, load_epochs(fs, DIRECTORY)) == (10, [], [])
    again = open_log(fs, snapshots=[(10, 1)])
    assert again.recovery.messages() == []
    assert (again.log_start_offset, again.log_end_offset) == (10, 10)
    fill(again, range(10, 13), epoch=1)
    assert again.epochs == [(1, 10)]


def test_epochs_that_a_full_disk_cannot_take_are_rebuilt_by_the_next_start() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(7))
    fill(log, range(7, 12), epoch=4)
    fs.capacity_bytes = 0
    assert log.delete_before(10) == 10
    assert log.epochs == [(4, 10)]
    fs.capacity_bytes = None
    put_snapshot(fs, 11, 4)
    again = open_log(fs, segment_bytes=SEGMENT_BYTES, snapshots=[(11, 4)])
    assert again.epochs == [(4, 10)]
    assert again.recovery.rebuilt_epochs


@pytest.mark.parametrize("call", ["unlink", "fsync_directory"])
def test_a_failed_deletion_is_final(call: str) -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(12))
    put_snapshot(fs, 10, 1)
    fs.errors[call] = errno.EIO
    with pytest.raises(DiskFailed):
        log.delete_before(10)
    fs.errors.clear()
    with pytest.raises(DiskFailed, match="refused after an earlier failure"):
        log.delete_before(10)
    assert open_log(fs, snapshots=[(10, 1)]).log_end_offset == 12


# --- resetting


@pytest.mark.parametrize("end_offset", [0, 5, 18, 19, 10**15])
@pytest.mark.parametrize("is_closed_between", [False, True])
def test_a_reset_log_is_empty_and_goes_on(
    place: Place, log: Log, end_offset: int, is_closed_between: bool
) -> None:
    fs, directory = place
    snapshot = put_snapshot(fs, end_offset, 9, directory)
    reset(log, end_offset)
    assert (log.log_start_offset, log.log_end_offset) == (end_offset, end_offset)
    assert (log.written_end_offset, log.epochs, log.last_epoch) == (end_offset, [], 0)
    assert (log.closed_segments(), log.size_bytes) == ([], 0)
    assert sorted(fs.listdir(directory)) == sorted(
        [log_path(directory, end_offset).name, f"{end_offset:020d}-0000000009.checkpoint"]
    )
    for offset in (end_offset - 1, end_offset + 1):
        with pytest.raises(OffsetNotInLog):
            log.read(offset, 1, 100)
    assert log.read(end_offset, 1, 1 << 60) == b""
    assert list(log.scan_headers()) == []
    assert log.offset_for_timestamp(0, 1 << 60) is None
    if is_closed_between:
        log.close()
        log = reopen(place, [snapshot])
        assert log.recovery.messages() == []
    more = range(end_offset, end_offset + 12)
    fill(log, more, epoch=9)
    assert contents(log) == b"".join(batch(offset, epoch=9) for offset in more)
    assert log.epochs == [(9, end_offset)]
    log.close()
    again = reopen(place, [snapshot])
    assert again.recovery.messages() == []
    assert (again.log_start_offset, again.log_end_offset) == (end_offset, end_offset + 12)


def test_the_event_loop_goes_on_while_a_reset_waits_for_the_disk(place: Place, log: Log) -> None:
    log.append(batch(19, epoch=6), 19, 20)
    put_snapshot(place[0], 12, 9, place[1])
    log.reset_cache(12)
    assert (log.log_start_offset, log.log_end_offset, log.written_end_offset) == (12, 12, 12)
    assert (log.epochs, log.closed_segments(), log.size_bytes) == ([], [], 0)
    newer = [batch(offset, epoch=9) for offset in range(12, 18)]
    for offset, data in enumerate(newer, 12):
        log.append(data, offset, offset + 1)
    # The files still have the old offsets 12 to 18.
    assert log.read(14, 1, 18) == b""
    assert log.read_cached(14, 1, 18) == [newer[2]]
    assert list(log.scan_headers()) == []
    assert log.offset_for_timestamp(START_MS, 18) is None
    assert log.offset_of_max_timestamp(18) is None
    with pytest.raises(OffsetNotInLog):
        log.read(11, 1, 18)
    assert log.truncate_cache(16) == 16

    log.write(batch(19, epoch=6), 19, 20)
    log.reset(12)
    assert log.written_end_offset == 12
    log.write_many([Chunk(data, 12 + i, 13 + i) for i, data in enumerate(newer)])
    assert log.truncate(16) == 16
    log.sync()
    assert contents(log) == b"".join(newer[:4])
    assert log.epochs == [(9, 12)]


def test_what_was_appended_after_a_reset_is_not_evicted_before_it_is_written(
    place: Place, log: Log
) -> None:
    log = reopen(place, tail_cache_bytes=300)
    log.reset_cache(12)
    newer = [batch(offset, epoch=9) for offset in range(12, 24)]
    for offset, data in enumerate(newer, 12):
        log.append(data, offset, offset + 1)
    assert log.read_cached(12, 1, 24) == [newer[0]]
    log.reset(12)
    for offset, data in enumerate(newer, 12):
        log.write(data, offset, offset + 1)
    log.append(batch(24, epoch=9), 24, 25)
    assert log.read_cached(12, 1, 24) is None
    assert log.read(12, 1, 24) == newer[0]


def test_resets_are_carried_out_in_the_order_in_which_they_were_asked(
    place: Place, log: Log
) -> None:
    log.reset_cache(30)
    log.append(batch(30, epoch=7), 30, 31)
    log.reset_cache(40)
    log.append(batch(40, epoch=8), 40, 41)
    log.reset(30)
    assert (log.log_start_offset, log.written_end_offset) == (40, 40)
    log.write(batch(30, epoch=7), 30, 31)
    assert log.read(40, 1, 41) == b""
    log.reset(40)
    log.write(batch(40, epoch=8), 40, 41)
    assert contents(log) == batch(40, epoch=8)
    assert bases(place) == [40]


def test_a_reset_that_is_repeated_does_nothing(log: Log) -> None:
    reset(log, 30)
    log.append(batch(30, epoch=7), 30, 31)
    log.reset(30)
    assert log.log_end_offset == 31
    assert log.read_cached(30, 1, 31) == [batch(30, epoch=7)]
    log.write(batch(30, epoch=7), 30, 31)
    with pytest.raises(ValueError, match="does not know of"):
        log.reset(30)
    assert contents(log) == batch(30, epoch=7)


def test_a_reset_that_is_repeated_is_not_taken_for_the_next_one(log: Log) -> None:
    log.reset_cache(30)
    log.reset_cache(40)
    log.append(batch(40, epoch=8), 40, 41)
    log.reset(30)
    log.reset(30)
    # The files are not there yet.
    assert (log.log_start_offset, log.written_end_offset) == (40, 40)
    log.reset(40)
    log.write(batch(40, epoch=8), 40, 41)
    assert contents(log) == batch(40, epoch=8)


def test_a_reset_never_goes_back(log: Log) -> None:
    reset(log, 30)
    with pytest.raises(ValueError, match="can't reset a log that starts at 30 to 29"):
        log.reset_cache(29)
    assert log.log_end_offset == 30


def test_deletions_and_resets_follow_each_other(place: Place, log: Log) -> None:
    log.reset_cache(12)
    log.append(batch(12, epoch=9), 12, 13)
    assert log.delete_before(10) == 10  # was asked for before the reset
    assert log.log_start_offset == 12
    log.reset(12)
    log.write(batch(12, epoch=9), 12, 13)
    fill(log, range(13, 30), epoch=9)
    assert log.delete_before(25) == 22
    assert contents(log) == b"".join(batch(offset, epoch=9) for offset in range(22, 30))
    assert log.epochs == load_epochs(*place) == [(9, 22)]


def test_deletions_and_resets_are_durable_when_they_return() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(19))
    put_snapshot(fs, 12, 1)
    log.delete_before(12)
    names = fs.listdir(DIRECTORY)
    assert fs.crash(Survival.LOSE, Random(0)).listdir(DIRECTORY) == names
    put_snapshot(fs, 40, 3)
    reset(log, 40)
    after = fs.crash(Survival.LOSE, Random(0))
    assert after.listdir(DIRECTORY) == [
        "00000000000000000012-0000000001.checkpoint",
        "00000000000000000040-0000000003.checkpoint",
        "00000000000000000040.log",
    ]
    assert after.contents(log_path(DIRECTORY, 40)) == b""


def test_a_reset_needs_no_space() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(12))
    put_snapshot(fs, 40, 3)
    fs.capacity_bytes = 0
    reset(log, 40)
    assert fs.listdir(DIRECTORY) == [
        "00000000000000000040-0000000003.checkpoint",
        "00000000000000000040.log",
    ]
    log.append(batch(40), 40, 41)
    with pytest.raises(DiskFull):
        log.write(batch(40), 40, 41)
    fs.capacity_bytes = None
    log.write(batch(40), 40, 41)
    log.sync()
    assert contents(log) == batch(40)
    assert open_log(fs, snapshots=[(40, 3)]).log_end_offset == 41


@pytest.mark.parametrize("call", ["unlink", "truncate", "fsync", "fsync_directory", "rename"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_reset_that_fails_is_finished_by_the_next_start(call: str, number: int) -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(12))
    put_snapshot(fs, 40, 3)
    fs.errors[call] = number
    log.reset_cache(40)
    with pytest.raises(DiskFailed, match="check it"):
        log.reset(40)
    fs.errors.clear()
    with pytest.raises(DiskFailed, match="refused after an earlier failure"):
        log.reset(40)
    with pytest.raises(DiskFailed, match="refused after an earlier failure"):
        log.reset_cache(50)
    log.close()
    assert fs.open_handles == 0
    again = open_log(fs, snapshots=[(40, 3)])
    assert (again.log_start_offset, again.log_end_offset, again.epochs) == (40, 40, [])
    assert "was emptied" in again.recovery.messages()[0]
    fill(again, range(40, 43), epoch=3)
    assert EPOCH_CHECKPOINT in fs.listdir(DIRECTORY)


def test_files_are_not_left_open() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(19))
    log.delete_before(10)
    assert fs.open_handles == 1
    put_snapshot(fs, 40, 3)
    reset(log, 40)
    assert fs.open_handles == 1
    fill(log, range(40, 59), epoch=3)
    put_snapshot(fs, 57, 3)
    fs.put(DIRECTORY / EPOCH_CHECKPOINT, b"0\n1\n3 40\n")
    again = open_log(fs, segment_bytes=SEGMENT_BYTES, snapshots=[(57, 3)])
    assert fs.open_handles == 2
    again.close()
    log.close()
    assert fs.open_handles == 0


# --- truncation


def test_a_truncation_of_nothing_leaves_what_is_appended_meanwhile(log: Log) -> None:
    assert log.truncate_cache(19) == 19
    log.append(batch(19, epoch=6), 19, 20)
    assert log.truncate(19) == 19
    assert log.log_end_offset == 20
    assert log.read_cached(19, 1, 20) == [batch(19, epoch=6)]
    log.write(batch(19, epoch=6), 19, 20)
    assert contents(log) == everything(0, 20)


def test_an_epoch_that_is_being_truncated_begins_no_batch(log: Log) -> None:
    log.truncate_cache(5)
    log.append(batch(5, count=5, epoch=9), 5, 10)
    # Epoch 4 began at 7, and on disk it still does.
    assert log.truncate_cache(7) == 5
    assert log.truncate(5) == 5
    log.write(batch(5, count=5, epoch=9), 5, 10)
    assert log.truncate(7) == 5
    assert contents(log) == everything(0, 5)


def test_damage_is_not_mistaken_for_being_overtaken(place: Place, log: Log) -> None:
    fs, directory = place
    log.delete_before(5)
    handle = fs.open(log_path(directory, 5), writable=True)
    fs.pwritev(handle, [b"\xff"], SIZE + 70)
    fs.close(handle)
    assert log.read(5, 1, 19) == batch(5)
    with pytest.raises(DamagedLog):
        log.read(6, 1, 19)
    with pytest.raises(DamagedLog):
        list(log.scan_headers())
