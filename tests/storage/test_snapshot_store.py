"""The snapshots of a directory: found, read, copied piece by piece, completed, deleted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.storage import snapshot_store
from quorumd.storage.errors import DamagedSnapshot, DiskFailed, DiskFull
from quorumd.storage.layout import (
    is_known_name,
    is_part,
    parse_snapshot_name,
    part_path,
    run_path,
    snapshot_path,
)
from quorumd.storage.snapshot_file import SnapshotWriter, verify_snapshot
from quorumd.storage.snapshot_store import PositionOutOfRange, SnapshotNotFound, SnapshotStore
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss, Survival
from tests.storage.helpers import DIRECTORY, START_MS, empty_disk

FIRST = SnapshotId(100, 1)
SECOND = SnapshotId(200, 3)


def contents(snapshot_id: SnapshotId) -> bytes:
    fs = empty_disk()
    path = snapshot_path(DIRECTORY, snapshot_id)
    SnapshotWriter(fs, path, snapshot_id, START_MS, (), ()).finish()
    return fs.contents(path)


def disk_with(*snapshots: SnapshotId) -> FaultyFileSystem:
    fs = empty_disk()
    for snapshot_id in snapshots:
        fs.put(snapshot_path(DIRECTORY, snapshot_id), contents(snapshot_id))
    return fs


def opened(fs: FaultyFileSystem) -> SnapshotStore:
    store = SnapshotStore(fs, DIRECTORY)
    store.open()
    return store


def copy(store: SnapshotStore, snapshot_id: SnapshotId = SECOND, piece_bytes: int = 50) -> None:
    data = contents(snapshot_id)
    for at in range(0, len(data), piece_bytes):
        store.write_part(snapshot_id, at, memoryview(data)[at : at + piece_bytes])


# Names


def test_names_are_those_of_kafka() -> None:
    name = "00000000000000000100-0000000001.checkpoint"
    assert snapshot_path(DIRECTORY, FIRST) == DIRECTORY / name
    assert part_path(DIRECTORY, FIRST) == DIRECTORY / f"{name}.part"
    assert parse_snapshot_name(name) == FIRST


def test_what_a_start_deletes_is_told_from_all_else() -> None:
    parts = [
        part_path(DIRECTORY, FIRST).name,
        run_path(DIRECTORY, 100, 12).name,
        "00000000000000000100-0000000001-8213718.checkpoint.part",
    ]
    assert all(is_part(name) and is_known_name(name) for name in parts)
    assert all(parse_snapshot_name(name) is None for name in parts)
    others = ["notes.part", "00000000000000000100.log", snapshot_path(DIRECTORY, FIRST).name]
    assert not any(is_part(name) for name in others)


# Complete ones


def test_snapshots_are_found_in_order_and_anything_else_is_not() -> None:
    fs = disk_with(SECOND, FIRST)
    fs.put(part_path(DIRECTORY, SnapshotId(300, 3)), b"")
    fs.put(DIRECTORY / "00000000000000000000.log", b"")
    store = SnapshotStore(fs, DIRECTORY)
    assert [facts.id for facts in store.open()] == [FIRST, SECOND]
    assert store.ids == [FIRST, SECOND]
    assert store.damaged == []
    assert store.facts(SECOND).last_contained_log_timestamp == START_MS


def test_a_damaged_one_is_left_out_and_named() -> None:
    fs = disk_with(FIRST, SECOND)
    path = snapshot_path(DIRECTORY, FIRST)
    fs.put(path, contents(FIRST)[:-1])
    store = SnapshotStore(fs, DIRECTORY)
    assert [facts.id for facts in store.open()] == [SECOND]
    assert store.ids == [SECOND]
    assert [error.path for error in store.damaged] == [path]
    assert fs.exists(path)


def test_any_piece_of_a_snapshot_can_be_read() -> None:
    store = opened(disk_with(FIRST))
    data = contents(FIRST)
    assert store.size_bytes(FIRST) == len(data)
    for position in range(len(data)):
        assert store.read(FIRST, position, 10) == data[position : position + 10]
    assert store.read(FIRST, 0, 1 << 30) == data


@pytest.mark.parametrize("position", [-1, len(contents(FIRST)), 1 << 40])
def test_a_position_outside_is_refused(position: int) -> None:
    store = opened(disk_with(FIRST))
    with pytest.raises(PositionOutOfRange) as caught:
        store.read(FIRST, position, 1)
    assert (caught.value.position, caught.value.size_bytes) == (position, len(contents(FIRST)))


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.read(SECOND, 0, 1),
        lambda store: store.size_bytes(SECOND),
        lambda store: store.facts(SECOND),
        lambda store: store.delete(SECOND),
        lambda store: store.verify_part(SECOND),
        lambda store: list(store.part_batches(SECOND)),
        lambda store: store.complete_part(SECOND),
    ],
)
def test_what_is_not_there_is_not_found(use: Callable[[SnapshotStore], object]) -> None:
    with pytest.raises(SnapshotNotFound, match="end offset 200, epoch 3"):
        use(opened(disk_with(FIRST)))


def test_a_file_that_somebody_deleted_is_not_found() -> None:
    fs = disk_with(FIRST)
    store = opened(fs)
    fs.remove(snapshot_path(DIRECTORY, FIRST))
    with pytest.raises(SnapshotNotFound):
        store.read(FIRST, 0, 1)
    with pytest.raises(SnapshotNotFound):
        store.size_bytes(FIRST)


def test_a_deleted_snapshot_stays_deleted() -> None:
    fs = disk_with(FIRST, SECOND)
    store = opened(fs)
    store.delete(FIRST)
    assert store.ids == [SECOND]
    assert opened(fs.crash(Survival.LOSE, Random(1))).ids == [SECOND]


# Parts


def test_a_part_becomes_a_snapshot_that_survives() -> None:
    fs = disk_with(FIRST)
    store = opened(fs)
    copy(store)
    assert store.ids == [FIRST]
    assert store.verify_part(SECOND).id == SECOND
    assert b"".join(store.part_batches(SECOND)) == contents(SECOND)
    store.complete_part(SECOND)
    assert store.ids == [FIRST, SECOND]
    after = fs.crash(Survival.LOSE, Random(1))
    assert opened(after).ids == [FIRST, SECOND]
    verify_snapshot(after, snapshot_path(DIRECTORY, SECOND), SECOND)
    assert fs.open_handles == 0


def test_a_part_that_somebody_else_wrote_is_completed() -> None:
    fs = disk_with()
    fs.put(part_path(DIRECTORY, SECOND), contents(SECOND))
    store = opened(fs)
    store.complete_part(SECOND)
    assert store.ids == [SECOND]


def test_to_complete_it_twice_is_no_harm() -> None:
    store = opened(disk_with())
    copy(store)
    store.complete_part(SECOND)
    store.complete_part(SECOND)
    assert store.ids == [SECOND]


@pytest.mark.parametrize("survival", list(Survival))
def test_power_is_lost_at_any_moment_and_a_named_snapshot_is_whole(survival: Survival) -> None:
    calls = disk_with(FIRST).calls
    for crash_at in range(1, 100):
        fs = disk_with(FIRST)
        fs.crash_at = calls + crash_at
        is_complete = False
        try:
            store = opened(fs)
            copy(store)
            store.complete_part(SECOND)
            is_complete = True
        except PowerLoss:
            pass
        after = fs.crash(survival, Random(crash_at))
        store = opened(after)
        assert store.damaged == []
        assert store.ids in ([FIRST], [FIRST, SECOND])
        for snapshot_id in store.ids:
            verify_snapshot(after, snapshot_path(DIRECTORY, snapshot_id), snapshot_id)
        if is_complete:
            assert store.ids == [FIRST, SECOND]
            return
    raise AssertionError("it never completes")


def test_a_part_is_written_from_its_start_to_its_end() -> None:
    fs = disk_with()
    store = opened(fs)
    with pytest.raises(PositionOutOfRange):
        store.write_part(SECOND, 5, b"x")
    store.write_part(SECOND, 0, b"12345")
    for position in (4, 6):
        with pytest.raises(PositionOutOfRange):
            store.write_part(SECOND, position, b"x")
    store.write_part(SECOND, 5, b"67")
    assert fs.contents(part_path(DIRECTORY, SECOND)) == b"1234567"
    store.write_part(SECOND, 0, b"anew")
    assert fs.contents(part_path(DIRECTORY, SECOND)) == b"anew"
    assert fs.open_handles == 0


def test_after_a_full_disk_the_same_piece_is_written_again() -> None:
    fs = disk_with()
    store = opened(fs)
    data = contents(SECOND)
    store.write_part(SECOND, 0, data[:50])
    fs.capacity_bytes = 60
    with pytest.raises(DiskFull):
        store.write_part(SECOND, 50, data[50:])
    assert fs.contents(part_path(DIRECTORY, SECOND)) == data[:50]
    fs.capacity_bytes = None
    store.write_part(SECOND, 50, data[50:])
    store.verify_part(SECOND)


@pytest.mark.parametrize("call", ["fsync", "fsync_directory"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_final(call: str, number: int) -> None:
    fs = disk_with()
    store = opened(fs)
    copy(store)
    fs.errors[call] = number
    with pytest.raises(DiskFailed):
        store.complete_part(SECOND)
    assert store.ids == []


def test_a_long_part_is_synced_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_store, "SYNC_STEP_BYTES", 100)
    fs = disk_with()
    copy(opened(fs), piece_bytes=30)
    assert fs.log.count("fdatasync") == len(contents(SECOND)) // 100
    fs.errors["fdatasync"] = errno.ENOSPC
    with pytest.raises(DiskFailed):
        opened(fs).write_part(SECOND, 0, bytes(100))


def test_a_part_that_is_damaged_is_not_a_snapshot() -> None:
    fs = disk_with()
    store = opened(fs)
    copy(store)
    fs.flip(part_path(DIRECTORY, SECOND), 80)
    with pytest.raises(DamagedSnapshot, match=r"\.part: not a whole snapshot"):
        store.verify_part(SECOND)


def test_a_part_that_was_begun_anew_since_it_was_verified_is_not_a_snapshot() -> None:
    store = opened(disk_with())
    store.write_part(SECOND, 0, contents(SECOND)[:50])
    with pytest.raises(DamagedSnapshot, match=r"\.part: not a whole snapshot"):
        list(store.part_batches(SECOND))


def test_parts_are_dropped_alone_or_with_all_else_that_a_build_has_left() -> None:
    fs = disk_with(FIRST)
    store = opened(fs)
    copy(store)
    store.drop_part(SECOND)
    store.drop_part(SECOND)
    copy(store)
    for number in (0, 11):
        fs.put(run_path(DIRECTORY, SECOND.end_offset, number), b"")
    others = [DIRECTORY / "mine.part", run_path(DIRECTORY, 7, 0), part_path(DIRECTORY, FIRST)]
    for path in others:
        fs.put(path, b"")
    store.drop_build(SECOND.end_offset)
    names = sorted([snapshot_path(DIRECTORY, FIRST).name, *(path.name for path in others)])
    assert fs.listdir(DIRECTORY) == names
    store.drop_part(FIRST)
    assert part_path(DIRECTORY, FIRST).name not in fs.listdir(DIRECTORY)
    assert not fs.crash(Survival.LOSE, Random(1)).exists(run_path(DIRECTORY, 200, 11))


def test_one_that_is_of_no_use_after_all_is_left_out() -> None:
    store = opened(disk_with(FIRST, SECOND))
    damage = DamagedSnapshot("foreign", path=store.path(FIRST), position=0)
    store.quarantine(FIRST, damage)
    assert store.ids == [SECOND]
    assert store.damaged == [damage]
    with pytest.raises(SnapshotNotFound):
        store.read(FIRST, 0, 1)
