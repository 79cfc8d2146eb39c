"""A start step by step: what it does to the disk, in which order, what it reports, and finer verdicts."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest
from crc32c import crc32c

from quorumd.storage.errors import DamagedLog, DiskFailed
from quorumd.storage.layout import (
    EPOCH_CHECKPOINT,
    index_path,
    log_path,
    snapshot_path,
    time_index_path,
)
from quorumd.storage.log import Log
from quorumd.storage.recovery_report import RecoveryReport
from quorumd.storage.write_marker import MARKER_BYTES
from tests.storage.faulty_filesystem import SECTOR_BYTES
from tests.storage.helpers import DIRECTORY, append, batch, contents, fill, open_log, put_snapshot
from tests.storage.journal_filesystem import JournalFileSystem

SIZE = len(batch(0))
FIRST, LAST = log_path(DIRECTORY, 0), log_path(DIRECTORY, 10)


def reopen(
    fs: JournalFileSystem, snapshots: Sequence[tuple[int, int]] = (), **settings: Any
) -> Log:
    settings = {"segment_bytes": 5 * SIZE, "index_interval_bytes": 1, **settings}
    return open_log(fs, snapshots=snapshots, **settings)


@pytest.fixture
def fs() -> JournalFileSystem:
    """Offsets 0 .. 12 in three segments of five batches; the last one holds 10 to 12."""
    disk = JournalFileSystem()
    log = reopen(disk)
    fill(log, range(8))
    fill(log, range(8, 13), epoch=3)
    disk.take()
    log._writer.abandon()
    return disk


def everything(end: int) -> bytes:
    return b"".join(batch(offset, epoch=1 if offset < 8 else 3) for offset in range(end))


LOOKED_AT = ["sync 10.log", "forget 10.log"]
"""What is read is then what the disk has."""
NAMES = ["sync names"]
SOUND = RecoveryReport(log_start_offset=0, log_end_offset=13)


# --- what a start does, in order


def test_of_a_sound_log_there_is_nothing_to_say(fs: JournalFileSystem) -> None:
    log = reopen(fs)
    assert fs.take() == [*LOOKED_AT, *NAMES]
    assert log.recovery == SOUND
    assert log.recovery.messages() == []
    assert fs.open_handles == 1


def test_a_torn_tail_is_cut_off_durably(fs: JournalFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 2 * SIZE + 30])
    log = reopen(fs)
    assert fs.take() == [*LOOKED_AT, "cut 10.log", "sync 10.log", *NAMES]
    report = log.recovery
    assert (report.cut_bytes, report.cut_path, report.cut_position) == (30, LAST, 2 * SIZE)
    assert report.cut_reason
    assert report.log_end_offset == 12


@pytest.mark.parametrize("rest", [b"\1", b"\0\1"])
def test_a_single_byte_behind_the_last_batch_is_cut_off_too(
    fs: JournalFileSystem, rest: bytes
) -> None:
    fs.put(LAST, fs.contents(LAST)[: 3 * SIZE] + rest)
    log = reopen(fs)
    assert log.recovery.cut_bytes == len(rest)
    assert fs.contents(LAST) == fs.contents(LAST)[: 3 * SIZE]
    assert contents(log) == everything(13)


@pytest.mark.parametrize("path", [index_path(DIRECTORY, 5), time_index_path(DIRECTORY, 5)])
def test_an_index_is_rebuilt_with_its_twin_and_reported_alone(
    fs: JournalFileSystem, path: Any
) -> None:
    good = {each: fs.contents(each) for each in (path, time_index_path(DIRECTORY, 0))}
    fs.remove(path)
    log = reopen(fs)
    assert fs.take() == [
        *LOOKED_AT,
        *("replace 5.index", *NAMES, "replace 5.timeindex", *NAMES),
        *NAMES,
    ]
    assert log.recovery.rebuilt_indexes == (path,)
    assert {each: fs.contents(each) for each in good} == good


def test_the_epochs_are_rebuilt_from_the_log(fs: JournalFileSystem) -> None:
    fs.remove(DIRECTORY / EPOCH_CHECKPOINT)
    log = reopen(fs)
    assert fs.take() == [*LOOKED_AT, f"replace {EPOCH_CHECKPOINT}", *NAMES, *NAMES]
    assert log.recovery.rebuilt_epochs
    fs.put(DIRECTORY / EPOCH_CHECKPOINT, b"0\n0\n")
    assert reopen(fs).recovery.rebuilt_epochs


def test_an_empty_log_needs_no_file_for_its_epochs() -> None:
    disk = JournalFileSystem()
    reopen(disk)
    disk.take()
    log = reopen(disk)
    assert disk.take() == ["sync 0.log", "forget 0.log", *NAMES]
    assert not log.recovery.rebuilt_epochs


def test_the_snapshot_lasts_before_the_log_that_it_replaces_goes(fs: JournalFileSystem) -> None:
    snapshot = put_snapshot(fs, 50, 4)
    fs.take()
    log = reopen(fs, [snapshot])
    assert fs.take() == [
        *LOOKED_AT,
        *NAMES,
        *("delete 10.log", *NAMES),
        *("delete 5.log", "delete 5.index", "delete 5.timeindex", *NAMES),
        *("cut 0.log", "sync 0.log", "delete 0.index", "delete 0.timeindex"),
        *(f"delete {EPOCH_CHECKPOINT}", "rename to 50.log", *NAMES),
        *NAMES,
    ]
    assert log.recovery == RecoveryReport(
        log_start_offset=50, log_end_offset=50, dropped_end_offset=13
    )


def test_indexes_of_the_last_segment_go_without_a_word_and_others_stay(
    fs: JournalFileSystem,
) -> None:
    log = reopen(fs)
    log.close()
    for suffix in (".index", ".timeindex"):
        assert fs.exists(LAST.with_suffix(suffix))
    fs.take()
    log = reopen(fs)
    assert fs.take() == [*LOOKED_AT, "delete 10.index", "delete 10.timeindex", *NAMES]
    assert log.recovery == SOUND
    assert log.size_bytes == 13 * SIZE + sum(
        len(fs.contents(path(DIRECTORY, base)))
        for base in (0, 5)
        for path in (index_path, time_index_path)
    )


def test_leftovers_go_before_the_names_are_synced(fs: JournalFileSystem) -> None:
    for name in ("00000000000000000003.index", "00000000000000000009-0000000001.checkpoint.part"):
        fs.put(DIRECTORY / name, b"x")
    log = reopen(fs)
    assert fs.take() == [
        *LOOKED_AT,
        "delete 3.index",
        "delete 00000000000000000009-0000000001.checkpoint.part",
        *NAMES,
    ]
    assert len(log.recovery.removed_files) == 2


# --- a disk that fails at one of these steps


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("fsync_directory", "syncing the directory"),
        ("unlink", "deleting leftovers"),
        ("truncate", "cutting off the torn tail"),
        ("fsync", "reading the log"),
    ],
)
def test_a_step_that_fails_is_named_and_the_log_not_opened(
    fs: JournalFileSystem, call: str, what: str
) -> None:
    fs.put(DIRECTORY / "00000000000000000003.index", b"x")
    fs.put(LAST, fs.contents(LAST)[: 2 * SIZE + 30])
    fs.errors[call] = errno.EIO
    with pytest.raises(DiskFailed, match=what):
        reopen(fs)
    fs.errors.clear()
    assert fs.open_handles == 0
    assert contents(reopen(fs)) == everything(12)


def test_a_cut_that_is_not_durable_is_a_failed_disk(fs: JournalFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 2 * SIZE + 30])

    def on_change(line: str) -> None:
        if line == "cut 10.log":
            fs.errors["fsync"] = errno.EIO

    fs.on_change = on_change
    with pytest.raises(DiskFailed, match="cutting off the torn tail"):
        reopen(fs)
    assert fs.open_handles == 0


def test_a_snapshot_that_may_not_last_empties_no_log(fs: JournalFileSystem) -> None:
    snapshot = put_snapshot(fs, 50, 4)
    fs.errors["fsync_directory"] = errno.EIO
    with pytest.raises(DiskFailed, match="repairing the log"):
        reopen(fs, [snapshot])
    fs.errors.clear()
    fs.remove(snapshot_path(DIRECTORY, snapshot))
    assert contents(reopen(fs)) == everything(13)


def test_a_directory_that_cannot_be_listed_is_no_empty_log(fs: JournalFileSystem) -> None:
    with pytest.raises(DiskFailed, match="reading the log"):
        open_log(fs, DIRECTORY / "missing")


# --- finer verdicts


def with_batches(fs: JournalFileSystem, *batches: bytes) -> None:
    """These behind the two first batches of the last segment, in a file that ends with them."""
    fs.put(LAST, fs.contents(LAST)[: 2 * SIZE] + b"".join(batches))


def torn(offset: int, *, epoch: int = 3) -> bytes:
    """A batch of two sectors and more of which the second one is not there."""
    data = bytearray(batch(offset, epoch=epoch, value_bytes=3 * SECTOR_BYTES))
    begin = 2 * SECTOR_BYTES - 2 * SIZE % SECTOR_BYTES
    data[begin : begin + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    return bytes(data)


def test_a_batch_of_an_earlier_epoch_does_not_follow_a_torn_one(fs: JournalFileSystem) -> None:
    """It is no batch of this log: whatever it was, it cannot have been written behind."""
    damaged = bytearray(batch(12, epoch=3))
    damaged[70] ^= 1
    with_batches(fs, bytes(damaged), batch(13, epoch=2))
    assert reopen(fs).recovery.log_end_offset == 12
    with_batches(fs, bytes(damaged), batch(13, epoch=3))
    with pytest.raises(DamagedLog, match=r"in the middle: .* valid batch follows"):
        reopen(fs)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_a_batch_of_any_epoch_follows_a_torn_one_that_is_the_first_of_a_log(epoch: int) -> None:
    disk = JournalFileSystem()
    reopen(disk)
    damaged = bytearray(batch(0, epoch=epoch))
    damaged[70] ^= 1
    disk.put(FIRST, bytes(damaged) + batch(1, epoch=epoch))
    with pytest.raises(DamagedLog, match=r"in the middle: .* valid batch follows"):
        reopen(disk)


def filled_to(fs: JournalFileSystem, place: int) -> None:
    """A log of one batch that ends so many bytes behind the start of the second sector."""
    log = open_log(fs)
    first = batch(0, value_bytes=SECTOR_BYTES + place - SIZE + 10 - 2)
    assert len(first) == SECTOR_BYTES + place
    append(log, first, 0, 1)
    log.close()


@pytest.mark.parametrize("place", [0, 1, 496, 503, 504, 511])
def test_an_offset_that_is_wrong_is_damage_wherever_its_batch_begins(place: int) -> None:
    disk = JournalFileSystem()
    filled_to(disk, place)
    disk.put(FIRST, disk.contents(FIRST) + batch(2))
    with pytest.raises(DamagedLog, match="offset 2 where 1 must follow") as caught:
        open_log(disk)
    assert caught.value.position == SECTOR_BYTES + place


@pytest.mark.parametrize("place", [496, 500, 501, 503, 504])
def test_a_header_without_its_first_sector_is_torn_in_the_last_segment_and_damage_in_others(
    place: int,
) -> None:
    disk = JournalFileSystem()
    filled_to(disk, place)
    missing = SECTOR_BYTES - place
    image = disk.contents(FIRST) + bytes(missing) + batch(1)[missing:]
    disk.put(FIRST, image)
    # All but the last byte of its size are zeros anyway.
    is_whole = missing <= 11
    log = open_log(disk)
    assert log.log_end_offset == 1
    assert ("half written" in log.recovery.cut_reason) == is_whole
    log.close()
    disk.put(FIRST, image)
    disk.put(log_path(DIRECTORY, 2), b"")
    what = "offset 0 where 1 must follow" if is_whole else "not a sequence of whole batches"
    with pytest.raises(DamagedLog, match=what):
        open_log(disk)


@pytest.mark.parametrize("attributes", [0x08, 0x10, 0x40])
def test_of_batches_with_attributes_only_control_batches_are_kept_account_of(
    fs: JournalFileSystem, attributes: int
) -> None:
    log = reopen(fs, segment_bytes=1 << 20)
    data = bytearray(batch(13, epoch=3))
    data[22] |= attributes
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    append(log, bytes(data), 13, 14)
    append(log, batch(14, epoch=3, is_control=True), 14, 15)
    again = reopen(fs, segment_bytes=1 << 20)
    assert list(again.control_batches()) == [batch(14, epoch=3, is_control=True)]


def test_a_mark_is_no_torn_tail(fs: JournalFileSystem) -> None:
    data = fs.contents(LAST)[: 3 * SIZE + MARKER_BYTES]
    for size in (len(data), 3 * SIZE + 17, 3 * SIZE):
        fs.put(LAST, data[:size])
        assert reopen(fs).recovery == SOUND
