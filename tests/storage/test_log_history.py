"""Closed segments below a snapshot: how little of them a start reads, and what it notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumd.storage.epoch_checkpoint import load_epochs
from quorumd.storage.errors import DamagedLog, DiskFailed
from quorumd.storage.layout import EPOCH_CHECKPOINT, index_path, log_path, time_index_path
from quorumd.storage.log import Log
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import (
    DIRECTORY,
    append,
    batch,
    contents,
    empty_disk,
    open_log,
    put_snapshot,
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

CHECKPOINT = DIRECTORY / EPOCH_CHECKPOINT


@pytest.fixture
def fs() -> CountingFileSystem:
    return seven_segments()


def below(fs: FaultyFileSystem, snapshot: tuple[int, int] = (27, 6), **settings: Any) -> Log:
    """Opens beside a snapshot that ends in the sixth segment: five closed ones are history."""
    put_snapshot(fs, *snapshot)
    return reopen(fs, [snapshot], **settings)


@pytest.mark.parametrize("end_offset", [25, 27, 29])
def test_closed_segments_below_a_snapshot_are_not_walked_through(
    fs: CountingFileSystem, end_offset: int
) -> None:
    below(fs, (end_offset, 4 if end_offset == 25 else 6))
    for base in (0, 5, 10, 15, 20):
        # A header at the front, and from the last index entry on, which here is the last batch.
        assert fs.bytes_read[log_path(DIRECTORY, base).name] == 61 + SIZE
        assert fs.bytes_read[index_path(DIRECTORY, base).name] == 8
        assert fs.bytes_read[time_index_path(DIRECTORY, base).name] == 12
    assert fs.bytes_read[log_path(DIRECTORY, 25).name] == 5 * SIZE


def test_snapshots_up_to_the_log_start_say_nothing_of_the_epochs_behind_it(
    fs: CountingFileSystem,
) -> None:
    snapshots = [put_snapshot(fs, *each) for each in ((8, 1), (10, 1), (27, 6))]
    reopen(fs, snapshots).delete_before(10)
    fs.bytes_read.clear()
    reopen(fs, snapshots)
    for base in (10, 15, 20):
        assert fs.bytes_read[log_path(DIRECTORY, base).name] == 61 + SIZE


def test_history_may_begin_with_epoch_0() -> None:
    disk = seven_segments(lambda offset: batch(offset, epoch=0))
    reopen(disk, [put_snapshot(disk, 27, 0)])
    for base in (0, 5, 10, 15, 20):
        assert disk.bytes_read[log_path(DIRECTORY, base).name] == 61 + SIZE


def test_an_epoch_may_begin_in_the_last_segment_of_history(fs: CountingFileSystem) -> None:
    log = below(fs, (16, 4))
    for base in (0, 5, 10):
        assert fs.bytes_read[log_path(DIRECTORY, base).name] == 61 + SIZE
    assert log.recovery.messages() == []


def test_a_snapshot_may_end_behind_the_first_record_of_an_epoch(fs: CountingFileSystem) -> None:
    log = reopen(fs, [put_snapshot(fs, 13, 4), put_snapshot(fs, 27, 6)])
    for base in (0, 5, 10, 15, 20):
        assert fs.bytes_read[log_path(DIRECTORY, base).name] == 61 + SIZE
    assert log.recovery.messages() == []


def test_an_epoch_may_begin_with_the_last_record_of_history() -> None:
    disk = empty_disk()
    log = reopen(disk)
    for offset in range(22):
        append(log, batch(offset, epoch=1 if offset < 14 else 4), offset, offset + 1)
    again = reopen(disk, [put_snapshot(disk, 16, 4)])
    assert again.recovery.messages() == []
    assert again.epochs == [(1, 0), (4, 14)]


@pytest.mark.parametrize("end_offset", [26, 30, 31])
def test_from_the_segment_that_holds_the_end_on_all_is_checked(
    fs: FaultyFileSystem, end_offset: int
) -> None:
    base = end_offset // 5 * 5
    flip(fs, base, 2, 7)
    refused(fs, "must follow", [put_snapshot(fs, end_offset, 6)])


def test_damage_in_history_is_noticed_when_it_is_read(fs: FaultyFileSystem) -> None:
    flip(fs, 5, 2, 18)
    flip(fs, 10, 2, 7)
    log = below(fs, observe=lambda _: None)
    assert log.recovery.messages() == []
    for offset in (7, 12):
        with pytest.raises(DamagedLog) as caught:
            log.read(offset, 1, 34)
        assert caught.value.path == log_path(DIRECTORY, offset // 5 * 5)
    assert log.read(8, 1, 34) == record(8)


@pytest.mark.parametrize("bit", [0x01, 0x40])
def test_an_epoch_that_has_changed_on_the_disk_is_noticed_when_it_is_read(
    fs: FaultyFileSystem, bit: int
) -> None:
    """No CRC covers it: be it lower or higher than what the log knows of it."""
    flip(fs, 10, 2, 15, bit)
    with pytest.raises(DamagedLog, match=r"epoch .* at offset 12 instead of "):
        below(fs, observe=lambda _: None).read(12, 1, 34)


def shorten(fs: FaultyFileSystem, data: bytes, entries: int) -> None:
    """The third segment holds something else, and its index has fewer entries."""
    fs.put(log_path(DIRECTORY, 10), data)
    path = index_path(DIRECTORY, 10)
    fs.put(path, fs.contents(path)[: 8 * entries])


SEGMENT_DAMAGE: dict[str, tuple[Callable[[FaultyFileSystem], None], str]] = {
    "missing": (lambda fs: fs.remove(log_path(DIRECTORY, 10)), "a gap between segments"),
    "first missing": (lambda fs: fs.remove(log_path(DIRECTORY, 0)), "begins at offset 5"),
    "doubled": (
        lambda fs: fs.put(log_path(DIRECTORY, 12), everything(12, 15)),
        "an overlap between segments",
    ),
    "misnamed": (
        lambda fs: fs.put(log_path(DIRECTORY, 10), everything(15, 20)),
        "offset 15 where 10 must follow",
    ),
    "short": (
        lambda fs: fs.put(log_path(DIRECTORY, 10), everything(10, 15)[:-1]),
        "not a sequence of whole batches",
    ),
    "too short": (
        lambda fs: fs.put(log_path(DIRECTORY, 10), everything(10, 14)),
        "a gap between segments",
    ),
    "too short, and the index agrees": (
        lambda fs: shorten(fs, everything(10, 14), 2),
        "a gap between segments",
    ),
    "a hole behind the last index entry": (
        lambda fs: shorten(fs, everything(10, 12) + everything(13, 15), 1),
        "offset 13 where 12 must follow",
    ),
    "too long": (
        lambda fs: fs.put(log_path(DIRECTORY, 10), everything(10, 15) + bytes(70)),
        "not a sequence of whole batches",
    ),
    "a little too long": (
        lambda fs: fs.put(log_path(DIRECTORY, 10), everything(10, 15) + bytes(20)),
        "not a sequence of whole batches",
    ),
    "empty": (lambda fs: fs.put(log_path(DIRECTORY, 10), b""), "a gap between segments"),
    "first offset": (lambda fs: flip(fs, 10, 0, 7), "offset 11 where 10 must follow"),
    "last offset": (lambda fs: flip(fs, 10, 4, 7), "offset 15 where 14 must follow"),
    "first epoch": (lambda fs: flip(fs, 10, 0, 15), "a batch of epoch 0 after one of epoch 1"),
    "wrong epoch": (
        lambda fs: flip(fs, 15, 4, 15, 0x40),
        "a batch of epoch 4 after one of epoch 68",
    ),
}


@pytest.mark.parametrize("damage", SEGMENT_DAMAGE)
def test_damage_at_the_ends_of_history_is_refused(fs: FaultyFileSystem, damage: str) -> None:
    harm, what = SEGMENT_DAMAGE[damage]
    harm(fs)
    if damage == "first missing":
        # A snapshot that ends at the start or behind it covers what is missing.
        assert below(fs).log_start_offset == 5
        return
    refused(fs, what, [put_snapshot(fs, 27, 6)])


@pytest.mark.parametrize("path", [index_path(DIRECTORY, 5), time_index_path(DIRECTORY, 5)])
@pytest.mark.parametrize(
    "damage", ["missing", "short", "long", "empty", "zeros", "wrong", "far", "below", "stale"]
)
def test_an_index_of_history_that_looks_wrong_is_rebuilt(
    fs: FaultyFileSystem, path: Path, damage: str
) -> None:
    assert path in (index_path(DIRECTORY, 5), time_index_path(DIRECTORY, 5))
    good = fs.contents(path)
    entry_bytes = 8 if path.suffix == ".index" else 12
    bad = {
        "short": good[:-1],
        "long": b"\0" + good,
        "empty": b"",
        "zeros": good + bytes(entry_bytes),
        "wrong": good[:-entry_bytes]
        + bytes([*good[-entry_bytes:][:3], 2])
        + good[4 - entry_bytes :],
        "far": good[:-1] + b"\xff",
        "below": good[:-4] + b"\xff" * 4,
        "stale": good[:entry_bytes],
    }
    if damage == "missing":
        fs.remove(path)
    else:
        fs.put(path, bad[damage])
    log = below(fs)
    if damage == "stale" and path.suffix == ".index":
        # Fewer entries are not wrong.
        assert log.recovery.messages() == []
        return
    assert log.recovery.rebuilt_indexes == (path,)
    assert fs.contents(path) == good
    assert log.epochs == [(1, 0), (4, 12), (6, 25)]
    assert below(fs).recovery.messages() == []


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"nonsense",
        b"0\n3\n1 1\n4 12\n6 25\n",
        b"0\n2\n1 0\n6 25\n",
        b"0\n3\n1 0\n3 12\n6 25\n",
        b"0\n3\n1 0\n4 10\n6 25\n",
        b"0\n4\n1 0\n4 12\n5 20\n6 25\n",
        b"0\n3\n-1 0\n4 12\n6 25\n",
    ],
)
def test_without_a_consistent_epoch_checkpoint_all_is_walked_through(
    fs: CountingFileSystem, text: bytes | None
) -> None:
    if text is None:
        fs.remove(CHECKPOINT)
    else:
        fs.put(CHECKPOINT, text)
    seen: list[int] = []
    log = below(fs, observe=lambda header: seen.append(header.base_offset))
    if text is None:
        assert fs.bytes_read[log_path(DIRECTORY, 5).name] == 5 * SIZE
    assert log.recovery.rebuilt_epochs
    assert log.epochs == load_epochs(fs, DIRECTORY) == [(1, 0), (4, 12), (6, 25)]
    assert seen == list(range(27, 34))
    assert contents(log) == everything(0, 34)
    assert [segment.base_offset for segment in log.closed_segments()] == [0, 5, 10, 15, 20, 25]


def test_an_epoch_checkpoint_that_no_snapshot_agrees_with_is_not_trusted(
    fs: CountingFileSystem,
) -> None:
    fs.put(CHECKPOINT, b"0\n3\n1 0\n4 13\n6 25\n")
    log = reopen(fs, [put_snapshot(fs, 13, 4), put_snapshot(fs, 27, 6)])
    assert log.recovery.rebuilt_epochs
    assert log.epochs == [(1, 0), (4, 12), (6, 25)]


def test_an_epoch_that_was_begun_and_not_written_is_forgotten(fs: FaultyFileSystem) -> None:
    fs.put(CHECKPOINT, b"0\n4\n1 0\n4 12\n6 25\n9 34\n")
    log = below(fs)
    assert log.recovery.messages() == ["leader-epoch-checkpoint rebuilt from the log"]
    assert log.epochs == [(1, 0), (4, 12), (6, 25)]


def test_with_a_missing_checkpoint_history_is_checked_as_any_segment(fs: FaultyFileSystem) -> None:
    fs.remove(CHECKPOINT)
    flip(fs, 5, 2, 7)
    refused(fs, "must follow", [put_snapshot(fs, 27, 6)])


def test_a_disk_that_cannot_be_read_is_not_called_damaged(fs: FaultyFileSystem) -> None:
    fs.errors["pread"] = 5
    with pytest.raises(DiskFailed, match="told to fail"):
        below(fs)


def test_segments_with_large_batches_and_sparse_indexes_are_history_too() -> None:
    disk = empty_disk()
    log = open_log(disk, segment_bytes=3000)
    offset = 0
    while offset < 60:
        count = 1 + offset % 4
        data = batch(offset, count=count, value_bytes=offset * 37 % 1100)
        append(log, data, offset, offset + count)
        offset += count
    put_snapshot(disk, offset, 1)
    again = open_log(disk, segment_bytes=3000, snapshots=[(offset, 1)])
    assert again.recovery.messages() == []
    assert contents(again) == contents(log)
    assert again.closed_segments() == log.closed_segments()
