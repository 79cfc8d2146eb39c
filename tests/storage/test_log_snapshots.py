"""What a start makes of a log beside snapshots: kept, emptied, refused."""

from __future__ import annotations

from random import Random

import pytest

from quorumd.storage.epoch_checkpoint import load_epochs
from quorumd.storage.layout import index_path, log_path, snapshot_path
from quorumd.wire.records import BatchHeader
from tests.storage.faulty_filesystem import FaultyFileSystem, Survival
from tests.storage.helpers import (
    DIRECTORY,
    START_MS,
    contents,
    empty_disk,
    fill,
    put_snapshot,
    reset,
)
from tests.storage.seven_segments import (
    SIZE,
    CountingFileSystem,
    everything,
    flip,
    record,
    refused,
    reopen,
    seven_segments,
)


@pytest.fixture
def fs() -> CountingFileSystem:
    return seven_segments()


# --- snapshots that the log holds


@pytest.mark.parametrize(
    "snapshot", [(1, 1), (5, 1), (7, 1), (12, 1), (13, 4), (25, 4), (30, 6), (31, 6), (34, 6)]
)
def test_a_snapshot_that_the_log_holds_changes_nothing(
    fs: FaultyFileSystem, snapshot: tuple[int, int]
) -> None:
    put_snapshot(fs, *snapshot)
    expected = reopen(fs)
    seen: list[BatchHeader] = []
    log = reopen(fs, [snapshot], observe=seen.append)
    assert log.recovery.messages() == []
    assert (log.log_start_offset, log.log_end_offset) == (0, 34)
    assert log.epochs == load_epochs(fs, DIRECTORY) == [(1, 0), (4, 12), (6, 25)]
    assert log.closed_segments() == expected.closed_segments()
    assert contents(log) == everything(0, 34)
    assert [header.base_offset for header in seen] == list(range(snapshot[0], 34))
    controls = [offset for offset in (3, 13, 31) if offset >= snapshot[0]]
    assert list(log.control_batches()) == [record(offset) for offset in controls]
    for time in (0, 14, 33):
        assert log.offset_for_timestamp(START_MS + time, 34) == expected.offset_for_timestamp(
            START_MS + time, 34
        )
    assert log.offset_of_max_timestamp(20) == expected.offset_of_max_timestamp(20)
    cut = max(30, snapshot[0])  # nothing is ever cut below a snapshot's end
    assert log.truncate_cache(cut) == log.truncate(cut) == cut
    fill(log, range(cut, 41), epoch=8)
    log.close()
    assert reopen(fs, [snapshot]).recovery.messages() == []
    assert reopen(fs).recovery.messages() == []


def test_of_several_snapshots_the_newest_counts(fs: FaultyFileSystem) -> None:
    snapshots = [put_snapshot(fs, *found) for found in ((7, 1), (13, 4), (27, 6))]
    seen: list[int] = []
    log = reopen(fs, snapshots, observe=lambda header: seen.append(header.base_offset))
    assert seen == list(range(27, 34))
    log.delete_before(13)
    fs.remove(snapshot_path(DIRECTORY, (7, 1)))
    fs.remove(snapshot_path(DIRECTORY, (13, 4)))
    seen.clear()
    log = reopen(fs, [(27, 6)], observe=lambda header: seen.append(header.base_offset))
    assert (log.log_start_offset, log.epochs) == (10, [(1, 10), (4, 12), (6, 25)])
    assert seen == list(range(27, 34))


def test_of_snapshots_that_contradict_each_other_the_one_of_the_later_epoch_counts(
    fs: FaultyFileSystem,
) -> None:
    """A leader of epoch 1 has committed nothing where epoch 4 is."""
    found = [(14, 4), (20, 1)]
    for snapshot in found:
        put_snapshot(fs, *snapshot)
    log = reopen(fs, found)
    assert log.recovery.messages() == []
    assert (log.log_start_offset, log.log_end_offset) == (0, 34)


def test_an_unsound_snapshot_that_the_log_holds_does_no_harm(fs: FaultyFileSystem) -> None:
    put_snapshot(fs, 12, 1)
    put_snapshot(fs, 27, 6)
    for given in ([], [(12, 1)]):
        assert contents(reopen(fs, given)) == everything(0, 34)


# --- snapshots that the log does not hold


@pytest.mark.parametrize(
    "snapshot",
    [(35, 6), (100, 6), (100, 8), (34, 7), (20, 5), (30, 5), (30, 9), (100, 5), (26, 4)],
    ids=str,
)
def test_a_log_that_does_not_hold_what_the_snapshot_stands_for_is_emptied(
    fs: FaultyFileSystem, snapshot: tuple[int, int]
) -> None:
    end_offset, _ = put_snapshot(fs, *snapshot)
    seen: list[BatchHeader] = []
    log = reopen(fs, [snapshot], observe=seen.append, committed_offset=end_offset)
    assert seen == []
    assert (log.log_start_offset, log.log_end_offset, log.epochs) == (end_offset, end_offset, [])
    assert list(log.control_batches()) == []
    assert log.recovery.dropped_end_offset == 34
    (message,) = log.recovery.messages()
    assert "ended at offset 34 was emptied" in message
    assert f"at offset {end_offset}" in message
    assert fs.listdir(DIRECTORY) == sorted(
        [log_path(DIRECTORY, end_offset).name, snapshot_path(DIRECTORY, snapshot).name]
    )
    fill(log, range(end_offset, end_offset + 7), epoch=10)
    again = reopen(fs.crash(Survival.LOSE, Random(0)), [snapshot])
    assert again.recovery.messages() == []
    assert again.log_end_offset == end_offset + 7


def test_an_empty_log_begins_behind_a_snapshot() -> None:
    disk = empty_disk()
    reopen(disk)
    snapshot = put_snapshot(disk, 20, 3)
    assert reopen(disk, [snapshot]).log_start_offset == 20
    again = reopen(disk, [snapshot])
    assert again.recovery.messages() == []
    newer = put_snapshot(disk, 30, 3)
    assert reopen(disk, [snapshot, newer]).log_start_offset == 30


def test_a_snapshot_of_nothing_is_held_by_every_log() -> None:
    disk = empty_disk()
    snapshot = put_snapshot(disk, 0, 0)
    for given in ([], [snapshot]):
        log = reopen(disk, given)
        assert (log.log_end_offset, log.recovery.messages()) == (0, [])


def test_a_torn_tail_is_no_obstacle_to_emptying_a_log(fs: FaultyFileSystem) -> None:
    last = log_path(DIRECTORY, 30)
    fs.put(last, fs.contents(last)[: 3 * SIZE + 20])
    log = reopen(fs, [put_snapshot(fs, 50, 7)])
    assert (log.log_start_offset, log.recovery.cut_bytes) == (50, 0)
    assert log.recovery.dropped_end_offset == 33


@pytest.mark.parametrize("snapshot", [(35, 6), (34, 7), (30, 5)])
def test_a_log_is_never_emptied_for_a_snapshot_that_was_not_found_sound(
    fs: FaultyFileSystem, snapshot: tuple[int, int]
) -> None:
    put_snapshot(fs, 12, 1)
    put_snapshot(fs, *snapshot)
    for given in ([], [(12, 1)]):
        error = refused(fs, "was not found sound", given)
        assert error.path == snapshot_path(DIRECTORY, snapshot)
        assert error.offset == 34


def test_a_log_that_holds_an_unsound_snapshot_is_not_emptied_for_a_sound_one(
    fs: FaultyFileSystem,
) -> None:
    """The unsound one is newer: what it stands for would be lost with the log."""
    put_snapshot(fs, 34, 6)
    refused(fs, "was not found sound", [put_snapshot(fs, 30, 5)])


def test_an_unsound_snapshot_below_the_start_of_the_log_does_no_harm(
    fs: FaultyFileSystem,
) -> None:
    snapshot = put_snapshot(fs, 12, 1)
    reopen(fs).delete_before(12)
    put_snapshot(fs, 9, 8)
    assert contents(reopen(fs, [snapshot])) == everything(10, 34)


def test_indexes_of_a_log_that_is_emptied_are_not_worth_a_repair(fs: FaultyFileSystem) -> None:
    fs.remove(index_path(DIRECTORY, 5))
    log = reopen(fs, [put_snapshot(fs, 100, 6)])
    assert log.recovery.rebuilt_indexes == ()
    (message,) = log.recovery.messages()
    assert "was emptied" in message


@pytest.mark.parametrize("snapshot", [(20, 5), (100, 6)])
def test_an_emptied_log_has_no_control_batches_of_before(
    fs: FaultyFileSystem, snapshot: tuple[int, int]
) -> None:
    log = reopen(fs, [put_snapshot(fs, *snapshot)])
    fill(log, range(snapshot[0], snapshot[0] + 20), epoch=9)
    assert list(log.control_batches()) == []


def test_a_log_is_not_emptied_if_more_than_the_snapshot_was_committed(fs: FaultyFileSystem) -> None:
    snapshot = put_snapshot(fs, 36, 6)
    refused(fs, "ends at offset 36, .* below 37 was committed", [snapshot], committed_offset=37)
    assert reopen(fs, [snapshot], committed_offset=36).log_end_offset == 36


def test_damage_is_refused_before_a_log_is_emptied(fs: FaultyFileSystem) -> None:
    flip(fs, 30, 1, 18)
    refused(fs, "valid batch follows", [put_snapshot(fs, 50, 7)])


# --- no segment


def test_where_no_segment_is_left_the_log_begins_behind_the_snapshot(fs: FaultyFileSystem) -> None:
    for name in fs.listdir(DIRECTORY):
        if name.endswith(".log"):
            fs.remove(DIRECTORY / name)
    refused(fs, "no segment, but leader-epoch-checkpoint names epoch 6")
    snapshot = put_snapshot(fs, 30, 5)
    refused(fs, "no segment, but leader-epoch-checkpoint names epoch 6", [snapshot])
    fs.remove(snapshot_path(DIRECTORY, snapshot))
    snapshot = put_snapshot(fs, 34, 6)
    refused(fs, "no segment")
    log = reopen(fs, [snapshot])
    assert (log.log_start_offset, log.log_end_offset, log.epochs) == (34, 34, [])
    assert not [name for name in fs.listdir(DIRECTORY) if "index" in name]
    assert reopen(fs, [snapshot]).recovery.messages() == []


def test_epochs_below_that_of_the_snapshot_need_no_segment(fs: FaultyFileSystem) -> None:
    for name in fs.listdir(DIRECTORY):
        if name.endswith(".log"):
            fs.remove(DIRECTORY / name)
    log = reopen(fs, [put_snapshot(fs, 40, 7)])
    assert (log.log_start_offset, log.log_end_offset, log.epochs) == (40, 40, [])


def test_a_snapshot_alone_needs_to_be_sound() -> None:
    disk = empty_disk()
    snapshot = put_snapshot(disk, 34, 6)
    refused(disk, "was not found sound")
    assert reopen(disk, [snapshot]).log_start_offset == 34


# --- after deletions and resets


def test_control_batches_that_are_gone_are_passed_over(fs: FaultyFileSystem) -> None:
    log = reopen(fs)
    put_snapshot(fs, 12, 1)
    log.delete_before(12)
    assert list(log.control_batches()) == [record(13), record(31)]
    log.truncate_cache(20)
    log.truncate(20)
    assert list(log.control_batches()) == [record(13)]
    reset(log, 40)
    assert list(log.control_batches()) == []


def test_a_log_that_was_reset_grows_a_history_of_its_own(fs: FaultyFileSystem) -> None:
    log = reopen(fs)
    put_snapshot(fs, 100, 7)
    reset(log, 100)
    fill(log, range(100, 117), epoch=7)
    snapshots = [(100, 7), put_snapshot(fs, 113, 7)]
    seen: list[int] = []
    again = reopen(fs, snapshots, observe=lambda header: seen.append(header.base_offset))
    assert again.recovery.messages() == []
    assert seen == list(range(113, 117))
    assert [segment[:2] for segment in again.closed_segments()] == [
        (100, 105),
        (105, 110),
        (110, 115),
    ]


@pytest.mark.parametrize("left", range(7))
def test_a_reset_that_got_half_way_is_finished(fs: FaultyFileSystem, left: int) -> None:
    for base in range(5 * left + 5, 35, 5):
        fs.remove(log_path(DIRECTORY, base))
    snapshot = put_snapshot(fs, 40, 6)
    if left:
        refused(fs, "was not found sound")
    log = reopen(fs, [snapshot], committed_offset=40)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert reopen(fs, [snapshot]).recovery.messages() == []
