"""The simulated disk, clause by clause: what is read, what is durable, what survives."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from quorumd.storage.filesystem import read_file, replace_file
from simulation.machines.disk import ProcessKilled, SimDisk
from simulation.machines.disk_image import Survival
from tests.simulation.disk_helpers import FILE, disk_with, put, write

SYNCS = ["fsync", "fdatasync"]


def outcomes(survival: Survival | None, change: Callable[[SimDisk], object]) -> set[bytes]:
    """What FILE may hold after `change` to 2048 durable bytes "o" and a power loss."""
    found = set()
    for seed in range(300):
        disk = disk_with(b"o" * 2048, seed=seed)
        change(disk)
        disk.power_loss(survival)
        found.add(disk.contents(FILE))
    return found


# --- two images


@pytest.mark.parametrize("sync", SYNCS)
def test_written_bytes_are_read_at_once_and_durable_after_a_sync(sync: str) -> None:
    disk = disk_with(b"old")
    handle = write(disk, 1, b"new")
    assert disk.pread(handle, 10, 0) == b"onew"
    getattr(disk, sync)(handle)
    disk.pwritev(handle, [b"lost"], 0)
    assert disk.pread(handle, 10, 0) == b"lost"
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == read_file(disk, FILE) == b"onew"


@pytest.mark.parametrize("sync", SYNCS)
def test_a_size_is_durable_after_a_sync(sync: str) -> None:
    disk = disk_with(b"abcdef")
    handle = disk.open(FILE, writable=True)
    disk.truncate(handle, 2)
    disk.truncate(handle, 4)
    getattr(disk, sync)(handle)
    disk.truncate(handle, 0)
    assert disk.size(handle) == 0
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == b"ab\0\0"


def test_names_are_durable_after_a_sync_of_their_directory() -> None:
    for is_synced in (False, True):
        disk = SimDisk(Random(1))
        for name in ("gone", "before"):
            put(disk, Path("/", name), name.encode())
        disk.fsync(write(disk, 0, b"new", Path("/new")))
        disk.rename(Path("/before"), Path("/after"))
        disk.unlink(Path("/gone"))
        disk.mkdir(Path("/directory"))
        assert disk.listdir(Path("/")) == ["after", "directory", "new"]
        if is_synced:
            disk.fsync_directory(Path("/"))
        disk.power_loss(Survival.NONE)
        expected = ["after", "directory", "new"] if is_synced else ["before", "gone"]
        assert disk.listdir(Path("/")) == expected
        assert disk.exists(Path("/directory")) == is_synced
        assert disk.contents(Path("/after" if is_synced else "/before")) == b"before"


def test_names_are_durable_in_their_own_directory_only() -> None:
    disk = SimDisk(Random(1))
    disk.mkdir(Path("/a"))
    disk.mkdir(Path("/a/b"))
    disk.fsync_directory(Path("/"))
    disk.power_loss(Survival.NONE)
    assert disk.listdir(Path("/")) == ["a"]
    assert disk.listdir(Path("/a")) == []
    disk.mkdir(Path("/a/c"))
    disk.mkdir(Path("/d"))
    disk.fsync_directory(Path("/a"))
    disk.power_loss(Survival.NONE)
    assert disk.listdir(Path("/")) == ["a"]
    assert disk.listdir(Path("/a")) == ["c"]


def test_a_rename_may_survive_without_the_content_or_the_content_without_the_rename() -> None:
    disk = disk_with(b"old")
    write(disk, 0, b"new", Path("/file.tmp"))
    disk.rename(Path("/file.tmp"), FILE)
    disk.fsync_directory(Path("/"))
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == b""

    disk = disk_with(b"old")
    disk.fsync(write(disk, 0, b"new", Path("/file.tmp")))
    disk.fsync_directory(Path("/"))
    disk.rename(Path("/file.tmp"), FILE)
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == b"old"
    assert disk.contents(Path("/file.tmp")) == b"new"


def test_a_handle_outlives_the_name() -> None:
    disk = disk_with(b"old")
    handle = write(disk, 0, b"new")
    disk.rename(FILE, Path("/other"))
    disk.pwritev(handle, [b"er"], 3)
    assert disk.contents(Path("/other")) == b"newer"
    disk.unlink(Path("/other"))
    assert disk.pread(handle, 9, 0) == b"newer"
    assert disk.listdir(Path("/")) == []


def test_a_rename_stays_within_its_directory() -> None:
    disk = disk_with(b"old")
    disk.mkdir(Path("/d"))
    with pytest.raises(OSError, match="/d/file") as failure:
        disk.rename(FILE, Path("/d/file"))
    assert failure.value.errno == errno.EXDEV
    assert disk.files() == [FILE]


def test_a_replaced_file_is_the_old_or_the_new_one_whenever_the_machine_dies() -> None:
    for seed in range(200):
        disk = disk_with(b"old", seed=seed)
        disk.crash_after(1 + seed % 8)
        is_done = False
        with suppress(ProcessKilled):
            replace_file(disk, FILE, b"new" * 400)
            is_done = True
        disk.power_loss()
        assert disk.contents(FILE) in ([b"new" * 400] if is_done else [b"old", b"new" * 400])


# --- the end of a process


def test_a_crash_keeps_the_cache_and_makes_nothing_durable() -> None:
    disk = disk_with(b"old")
    write(disk, 0, b"new")
    write(disk, 0, b"", Path("/created"))
    disk.crash()
    assert disk.contents(FILE) == b"new"
    assert disk.exists(Path("/created"))
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == b"old"
    assert not disk.exists(Path("/created"))


def end_by_crash(disk: SimDisk) -> None:
    disk.crash()


def end_by_power_loss(disk: SimDisk) -> None:
    disk.power_loss()


def end_by_wipe(disk: SimDisk) -> None:
    disk.wipe()
    put(disk, FILE, b"")


def end_by_restore(disk: SimDisk) -> None:
    disk.restore(disk.snapshot())


@pytest.mark.parametrize("end", [end_by_crash, end_by_power_loss, end_by_wipe, end_by_restore])
def test_handles_and_locks_end_with_the_life(end: Callable[[SimDisk], None]) -> None:
    disk = disk_with(b"old")
    first, second = disk.open(FILE, writable=True), disk.open(FILE)
    assert disk.try_lock(first)
    assert disk.try_lock(first)
    assert not disk.try_lock(second)
    process = disk.process_id()
    disk.fail_next("open")
    disk.crash_after(20)
    end(disk)
    assert disk.process_id() > process
    assert disk.try_lock(disk.open(FILE))
    with pytest.raises(OSError, match=r"Bad file descriptor") as failure:
        disk.pread(first, 1, 0)
    assert failure.value.errno == errno.EBADF
    calls = disk.calls
    disk.close(first)
    assert disk.calls == calls
    for _ in range(30):
        disk.exists(FILE)


def test_a_lock_ends_with_its_handle() -> None:
    disk = disk_with(b"old")
    first, second = disk.open(FILE), disk.open(FILE)
    assert disk.try_lock(first)
    disk.close(first)
    assert disk.try_lock(second)


def overwrite_twice(disk: SimDisk) -> None:
    write(disk, 256, b"1" * 512)
    write(disk, 512, b"2" * 512)


def test_nothing_or_everything_survives() -> None:
    both = b"o" * 256 + b"1" * 256 + b"2" * 512 + b"o" * 1024
    assert outcomes(Survival.NONE, overwrite_twice) == {b"o" * 2048}
    assert outcomes(Survival.ALL, overwrite_twice) == {both}


def test_writes_survive_in_order_up_to_a_sector() -> None:
    assert outcomes(Survival.PREFIX, overwrite_twice) == {
        b"o" * 2048,
        b"o" * 256 + b"1" * 256 + b"o" * 1536,
        b"o" * 256 + b"1" * 512 + b"o" * 1280,
        b"o" * 256 + b"1" * 256 + b"2" * 512 + b"o" * 1024,
    }


def test_any_sectors_survive_each_with_a_prefix_of_its_writes() -> None:
    first = [b"o" * 512, b"o" * 256 + b"1" * 256]
    second = [b"o" * 512, b"1" * 256 + b"o" * 256, b"2" * 512]
    found = outcomes(Survival.SECTORS, overwrite_twice)
    assert found == {a + b + b"o" * 1024 for a in first for b in second}


def test_any_pages_survive_whole() -> None:
    found = outcomes(Survival.PAGES, lambda disk: write(disk, 0, b"n" * 12288))
    address_map = {
        tuple(data[at : at + 4096] for at in range(0, len(data), 4096)) for data in found
    }
    new = b"n" * 4096
    zeros = bytes(4096)
    old = b"o" * 2048
    assert address_map == {
        (old,),
        (new,),
        (old + bytes(2048), new),
        (new, new),
        (old + bytes(2048), zeros, new),
        (old + bytes(2048), new, new),
        (new, zeros, new),
        (new, new, new),
        # The size survived and the last pages didn't.
        (old + bytes(2048), zeros, zeros),
        (old + bytes(2048), new, zeros),
        (new, zeros, zeros),
        (new, new, zeros),
    }


def cut_and_write(disk: SimDisk) -> None:
    handle = write(disk, 0, b"1" * 512)
    disk.truncate(handle, 600)
    disk.pwritev(handle, [b"2" * 512], 512)


@pytest.mark.parametrize("survival", [Survival.PREFIX, Survival.SECTORS])
def test_what_was_written_after_a_truncation_survives_only_with_it(survival: Survival) -> None:
    for data in outcomes(survival, cut_and_write):
        if len(data) == 2048:
            assert b"2" not in data
        else:
            assert data[600:] in (b"", b"2" * 424, bytes(424))
            assert len(data) in (600, 1024)
    assert any(b"2" in data for data in outcomes(survival, cut_and_write))
    assert {len(data) for data in outcomes(survival, cut_and_write)} == {600, 1024, 2048}


def test_how_changes_survive_is_drawn_for_each_file() -> None:
    found = set()
    noted: set[str] = set()
    for seed in range(1000):
        disk = disk_with(b"o" * 1024, seed=seed)
        put(disk, Path("/other"), b"o" * 1024)
        write(disk, 0, b"n" * 1024)
        write(disk, 0, b"n" * 1024, Path("/other"))
        disk.power_loss()
        found.add((disk.contents(FILE), disk.contents(Path("/other"))))
        noted.update(name for _, name, path, _, _ in disk.log if path == FILE)
    states = [a + b for a in (b"o" * 512, b"n" * 512) for b in (b"o" * 512, b"n" * 512)]
    assert found == {(one, other) for one in states for other in states}
    assert noted >= {f"--- survives: {survival.value}" for survival in Survival}


@pytest.mark.parametrize("survival", [None, Survival.PREFIX, Survival.SECTORS, Survival.PAGES])
def test_a_prefix_of_the_changes_of_names_survives(survival: Survival | None) -> None:
    found = set()
    for seed in range(100):
        disk = disk_with(seed=seed)
        disk.mkdir(Path("/d"))
        disk.rename(FILE, Path("/renamed"))
        disk.unlink(Path("/renamed"))
        disk.power_loss(survival)
        found.add(tuple(disk.listdir(Path("/"))))
    assert found == {("file",), ("d", "file"), ("d", "renamed"), ("d",)}


# --- whole directories, and books


def test_a_wiped_disk_is_empty_for_good() -> None:
    disk = disk_with(b"old", path=Path("/file"))
    disk.wipe()
    assert disk.listdir(Path("/")) == []
    disk.power_loss(Survival.ALL)
    assert disk.files() == []
    assert disk.used_bytes == 0


def test_a_snapshot_brings_back_what_was_read_durably_and_on_any_disk() -> None:
    disk = disk_with(b"old")
    disk.mkdir(Path("/d"))
    write(disk, 0, b"new")
    write(disk, 0, b"below" + bytes(5000), Path("/d/e"))
    snapshot = disk.snapshot()
    write(disk, 0, b"newer")
    disk.unlink(Path("/d/e"))
    for other in (disk, SimDisk(Random(2))):
        other.restore(snapshot)
        write(other, 0, b"more")
        other.mkdir(Path("/d/lost"))
        other.mkdir(Path("/lost"))
        other.power_loss(Survival.NONE)
        assert other.files() == [Path("/d/e"), FILE]
        assert other.listdir(Path("/")) == ["d", "file"]
        assert other.contents(FILE) == b"new"
        assert other.contents(Path("/d/e")) == b"below" + bytes(5000)
        put(other, FILE, b"newest")


def test_calls_are_counted_and_the_last_ones_told() -> None:
    disk = SimDisk(Random(1))
    for _ in range(40):
        disk.exists(FILE)
    handle = write(disk, 7, b"new")
    disk.fail_next("size")
    with pytest.raises(OSError, match="/file"):
        disk.size(handle)
    damage = disk.flip_bit()
    assert damage is None
    assert disk.calls == 43
    assert disk.op_counts == {"exists": 40, "open": 1, "pwritev": 1, "size": 1}
    assert len(disk.log) == 30
    disk.power_loss(Survival.NONE)
    assert list(disk.log)[-6:] == [
        (41, "open", FILE, -1, -1),
        (42, "pwritev", FILE, 7, 3),
        (43, "size", FILE, -1, -1),
        (43, "--- EIO by size", FILE, -1, -1),
        (43, "--- power loss", None, -1, -1),
        (43, "--- survives: none", Path("/"), -1, -1),
    ]
