"""Kills, errors, short writes and a full disk: what a simulated disk does to its callers."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quorumd.storage.filesystem import FileSystem, read_file, write_all
from simulation.machines.disk import DiskFaults, ProcessKilled, SimDisk
from simulation.machines.disk_image import Survival
from tests.simulation.disk_helpers import FILE, disk_with, put, write

SYNCS = ["fsync", "fdatasync"]


# --- kills


def test_the_nth_call_of_any_kind_kills_before_it_has_an_effect() -> None:
    disk = disk_with(b"old")
    calls = disk.calls
    disk.crash_after(4)
    disk.exists(FILE)
    handle = disk.open(FILE, writable=True)
    assert disk.pread(handle, 9, 0) == b"old"
    with pytest.raises(ProcessKilled):
        disk.truncate(handle, 0)
    assert disk.calls == calls + 4
    assert disk.is_dead
    disk.crash()
    assert not disk.is_dead
    assert read_file(disk, FILE) == b"old"


def test_a_kill_in_a_pwritev_leaves_nothing_or_a_part() -> None:
    lengths = set()
    for seed in range(400):
        disk = disk_with(seed=seed)
        handle = disk.open(FILE, writable=True)
        disk.crash_after(1)
        with pytest.raises(ProcessKilled):
            disk.pwritev(handle, [b"ab", b"cd"], 0)
        data = disk.contents(FILE)
        assert b"abcd".startswith(data)
        lengths.add(len(data))
        disk.power_loss(Survival.NONE)
        assert disk.contents(FILE) == b""
    assert lengths == {0, 1, 2, 3, 4}


def test_a_dead_process_has_no_effect_and_its_close_is_quiet() -> None:
    disk = disk_with(b"old")
    handle = disk.open(FILE, writable=True)
    disk.crash_after(1)
    with pytest.raises(ProcessKilled):
        disk.fsync(handle)
    disk.close(handle)
    dead_calls: list[Callable[[], object]] = [
        lambda: disk.pwritev(handle, [b"x"], 0),
        lambda: disk.fsync(handle),
        lambda: disk.unlink(FILE),
        lambda: disk.mkdir(Path("/d")),
        lambda: disk.open(Path("/e"), create=True),
        lambda: disk.rename(FILE, Path("/f")),
    ]
    for call in dead_calls:
        with pytest.raises(ProcessKilled):
            call()
    assert disk.files() == [FILE]
    assert disk.contents(FILE) == b"old"


def test_a_hook_sees_each_call_before_its_effect_and_may_kill() -> None:
    disk = disk_with(b"old")
    seen: list[tuple[str, Path | None, bool]] = []

    def on_call(name: str, path: Path | None) -> None:
        seen.append((name, path, FILE in disk.files()))
        if name == "unlink":
            raise ProcessKilled

    disk.on_call = on_call
    disk.process_id()
    with pytest.raises(ProcessKilled):
        disk.unlink(FILE)
    assert seen == [("process_id", None, True), ("unlink", FILE, True)]
    assert disk.is_dead
    disk.crash()
    assert disk.exists(FILE)
    disk.heal()
    seen.clear()
    disk.unlink(FILE)
    assert not seen


# --- errors


def test_an_armed_error_comes_once_and_without_an_effect() -> None:
    disk = disk_with(b"old")
    handle = disk.open(FILE, writable=True)
    disk.fail_next("pwritev", errno.EROFS)
    disk.fail_next("rename")
    assert disk.pread(handle, 3, 0) == b"old"
    with pytest.raises(OSError, match="/file") as failure:
        disk.pwritev(handle, [b"new"], 0)
    assert failure.value.errno == errno.EROFS
    with pytest.raises(OSError, match="/file") as failure:
        disk.rename(FILE, Path("/other"))
    assert failure.value.errno == errno.EIO
    assert disk.contents(FILE) == b"old"
    assert disk.pwritev(handle, [b"new"], 0) == 3


@pytest.mark.parametrize(
    ("faults", "calls"),
    [
        (DiskFaults(read_error=0.5), ["pread"]),
        (DiskFaults(write_error=0.5), ["pwritev"]),
        (DiskFaults(sync_error=0.5), ["fsync", "fdatasync"]),
    ],
)
def test_a_rate_hits_its_calls_and_no_others(faults: DiskFaults, calls: list[str]) -> None:
    disk = disk_with(b"old")
    disk.faults = faults
    handle = disk.open(FILE, writable=True)
    failed = dict.fromkeys(["pread", "pwritev", "fsync", "fdatasync", "size"], 0)
    for _ in range(200):
        for name, arguments in (
            ("pread", (handle, 1, 0)),
            ("pwritev", (handle, [b"x"], 0)),
            ("fsync", (handle,)),
            ("fdatasync", (handle,)),
            ("size", (handle,)),
        ):
            try:
                getattr(disk, name)(*arguments)
            except OSError:
                failed[name] += 1
    assert [name for name, count in failed.items() if count] == calls
    assert all(60 < failed[name] < 140 for name in calls)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("is_drawn", [False, True])
def test_after_a_failed_sync_the_next_one_succeeds_and_what_was_written_is_lost(
    sync: str, is_drawn: bool
) -> None:
    disk = disk_with(b"old")
    handle = write(disk, 0, b"new")
    if is_drawn:
        disk.faults.sync_error = 1.0
    else:
        disk.fail_next(sync)
    with pytest.raises(OSError, match="/file"):
        getattr(disk, sync)(handle)
    disk.faults.sync_error = 0.0
    disk.fsync(handle)
    assert disk.pread(handle, 9, 0) == b"new"
    disk.crash()
    handle = disk.open(FILE, writable=True)
    disk.fsync(handle)
    assert disk.pread(handle, 9, 0) == b"new"
    disk.pwritev(handle, [b"!"], 2)
    disk.drop_cached(handle)
    assert disk.pread(handle, 9, 0) == b"ol!"
    disk.fsync(handle)
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == b"ol!"


def test_a_power_loss_shows_what_a_failed_sync_lost() -> None:
    for is_synced_again in (False, True):
        disk = disk_with(b"old")
        handle = write(disk, 0, b"new")
        disk.fail_next("fsync")
        with pytest.raises(OSError, match="/file"):
            disk.fsync(handle)
        if is_synced_again:
            disk.fsync(handle)
        disk.power_loss(Survival.ALL)
        assert disk.contents(FILE) == b"old"


def test_a_failed_sync_loses_bytes_but_no_sizes() -> None:
    disk = disk_with(b"old and longer")
    handle = disk.open(FILE, writable=True)
    disk.truncate(handle, 2)
    disk.pwritev(handle, [b"new"], 2)
    disk.fail_next("fsync")
    with pytest.raises(OSError, match="/file"):
        disk.fsync(handle)
    assert disk.contents(FILE) == b"olnew"
    snapshot = disk.snapshot()
    disk.drop_cached(handle)
    assert disk.contents(FILE) == b"ol\0\0\0"
    disk.power_loss(Survival.NONE)
    assert disk.contents(FILE) == b"old and longer"
    disk.restore(snapshot)
    assert disk.contents(FILE) == b"olnew"


def test_a_failed_directory_sync_loses_nothing() -> None:
    disk = SimDisk(Random(1))
    disk.mkdir(Path("/d"))
    disk.fail_next("fsync_directory")
    with pytest.raises(OSError, match="Input/output"):
        disk.fsync_directory(Path("/"))
    assert disk.exists(Path("/d"))
    disk.fsync_directory(Path("/"))
    disk.power_loss(Survival.NONE)
    assert disk.exists(Path("/d"))


def test_writes_are_short_but_never_empty_and_end_with_a_sector() -> None:
    fs: FileSystem
    taken = set()
    disk = disk_with()
    disk.faults = DiskFaults(short_write=0.5)
    fs = disk
    handle = disk.open(FILE, writable=True)
    for _ in range(100):
        taken.add(disk.pwritev(handle, [b"a", bytes(1799)], 100))
    assert taken == {412, 924, 1436, 1800}
    disk.faults.short_write = 1.0
    assert disk.pwritev(handle, [b"a"], 0) == 1
    write_all(fs, handle, [b"many", bytes(5000), b"bytes"], 0)
    assert disk.contents(FILE) == b"many" + bytes(5000) + b"bytes"


# --- a full disk


def test_a_full_disk_takes_what_fits_and_overwriting_needs_no_space() -> None:
    disk = disk_with(b"12345")
    put(disk, Path("/other"), bytes(1000))
    assert disk.used_bytes == 1005
    disk.capacity_bytes = 1600
    handle = disk.open(FILE, writable=True)
    assert disk.pwritev(handle, [b"abc", bytes(700)], 4) == 508
    assert disk.contents(FILE) == b"1234abc" + bytes(505)
    with pytest.raises(OSError, match="No space") as failure:
        disk.pwritev(handle, [b"x" * 100], 512)
    assert failure.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        disk.truncate(handle, 601)
    disk.capacity_bytes = 10
    assert disk.pwritev(handle, [b"overwrit"], 0) == 8
    disk.unlink(Path("/other"))
    assert disk.used_bytes == 512
    disk.capacity_bytes = 1030
    assert disk.pwritev(handle, [bytes(5000)], 512) == 512
    disk.capacity_bytes = None
    assert disk.pwritev(handle, [b"x" * 50], 1024) == 50
    disk.truncate(handle, 100)
    assert disk.used_bytes == 100


def test_long_zeros_are_cheap() -> None:
    zeros = bytes(1 << 20)
    disk = SimDisk(Random(1))
    tracemalloc.start()
    try:
        handle = disk.open(FILE, writable=True, create=True)
        write_all(disk, handle, [zeros, zeros, memoryview(zeros)[:5000]], 0)
        disk.pwritev(handle, [b"data"], 0)
        disk.fsync(handle)
        disk.fsync_directory(Path("/"))
        disk.restore(disk.snapshot())
        disk.power_loss()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert disk.used_bytes == (2 << 20) + 5000
    assert disk.contents(FILE) == b"data" + bytes((2 << 20) + 4996)
