"""Damage that the simulated disk does to bytes at rest, and to what one read returns."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from simulation.machines.disk import DiskFaults, SimDisk
from simulation.machines.disk_damage import DamageKind
from simulation.machines.disk_image import Survival
from tests.simulation.disk_helpers import FILE, disk_with, put, write

LOG = Path("/data/log/00.log")
STATE = Path("/data/log/quorum-state.json")
META = Path("/data/meta.properties")


def data_directory(seed: int) -> SimDisk:
    disk = SimDisk(Random(seed))
    for path in (META.parent, LOG.parent):
        disk.mkdir(path)
        disk.fsync_directory(path.parent)
    put(disk, LOG, bytes(range(1, 251)) * 8)
    put(disk, STATE, b"state")
    put(disk, META, b"meta")
    return disk


def durable(disk: SimDisk, path: Path) -> bytes:
    """What is left after a power loss that takes something with it."""
    write(disk, 0, b"lost", path)
    disk.power_loss(Survival.NONE)
    return disk.contents(path)


def differences(before: bytes, after: bytes) -> list[int]:
    assert len(before) == len(after)
    return [at for at in range(len(before)) if before[at] != after[at]]


def test_a_flipped_bit_is_one_bit_in_the_cache_and_on_the_disk() -> None:
    hit = set()
    for seed in range(100):
        disk = data_directory(seed)
        before = {path: disk.contents(path) for path in disk.files()}
        damage = disk.flip_bit()
        assert damage is not None
        assert (damage.kind, damage.size) == (DamageKind.FLIPPED_BIT, 1)
        for path in disk.files():
            at = differences(before[path], disk.contents(path))
            assert at == ([damage.position] if path == damage.path else [])
        old, new = before[damage.path], disk.contents(damage.path)
        assert (old[damage.position] ^ new[damage.position]).bit_count() == 1
        assert durable(disk, damage.path) == new
        hit.add(damage.path)
    assert hit == {LOG, STATE, META}


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("*.log", {LOG}),
        ("*/quorum-state.json", {STATE}),
        ("*/meta.properties", {META}),
        ("/data/log/*", {LOG, STATE}),
        ("*.index", set()),
    ],
)
def test_damage_hits_only_what_matches(pattern: str, paths: set[Path]) -> None:
    hit = set()
    for seed in range(20):
        disk = data_directory(seed)
        for damage in (disk.flip_bit(pattern), disk.stale_sector(pattern)):
            assert (damage is None) == (not paths)
            hit.update([damage.path] if damage else [])
    assert hit == paths


def test_only_durable_bytes_that_are_not_about_to_change_are_hit() -> None:
    hit = set()
    for seed in range(300):
        disk = disk_with(b"x" * 512 * 4 + bytes(10_000), seed=seed)
        handle = write(disk, 512, b"y")
        disk.truncate(handle, 512 * 3)
        disk.pwritev(handle, [b"z" * 700], 512 * 3)
        for damage in (disk.flip_bit(), disk.stale_sector(), disk.misplace_sector()):
            if damage is not None:
                hit.add(damage.position // 512)
    assert hit == {0, 2}


def test_there_may_be_nothing_to_hit() -> None:
    disk = SimDisk(Random(1))
    write(disk, 0, b"not durable")
    assert disk.flip_bit() is disk.stale_sector() is disk.misplace_sector() is None
    put(disk, FILE, bytes(1000))
    assert disk.flip_bit() is disk.stale_sector() is disk.misplace_sector() is None
    put(disk, FILE, b"x" * 1024)
    assert disk.misplace_sector() is None


def test_a_stale_sector_lacks_the_last_write_or_everything() -> None:
    found = set()
    for seed in range(60):
        disk = disk_with(b"o" * 1024, seed=seed)
        handle = write(disk, 0, b"1" * 600)
        disk.fdatasync(handle)
        disk.pwritev(handle, [b"2" * 10], 100)
        disk.fdatasync(handle)
        damage = disk.stale_sector()
        assert damage is not None
        assert (damage.kind, damage.size) == (DamageKind.STALE_SECTOR, 512)
        data = disk.contents(FILE)
        found.add((damage.position, data))
        assert durable(disk, FILE) == data
    first = b"1" * 100 + b"2" * 10 + b"1" * 402
    second = b"1" * 88 + b"o" * 424
    assert found == {
        (0, b"1" * 512 + second),
        (0, bytes(512) + second),
        (512, first + b"o" * 512),
        (512, first + bytes(512)),
    }


def test_a_stale_sector_was_not_zeros_before() -> None:
    for seed in range(20):
        disk = disk_with(b"a" * 512 + bytes(512) + b"b" * 512, seed=seed)
        damage = disk.stale_sector()
        assert damage is not None
        assert damage.position != 512
        assert not any(disk.contents(FILE)[damage.position :][:512])


def test_a_misplaced_sector_is_another_one_cut_to_size() -> None:
    found = set()
    for seed in range(200):
        disk = disk_with(b"a" * 512 + b"b" * 512 + b"c" * 100, seed=seed)
        put(disk, Path("/other.log"), b"d" * 512)
        damage = disk.misplace_sector("/f*")
        assert damage is not None
        assert damage.path == FILE
        assert damage.kind is DamageKind.MISPLACED_SECTOR
        data = disk.contents(FILE)
        assert len(data) == 1124
        at = damage.position
        found.add((at, damage.size, data[at : at + damage.size]))
        rest = b"a" * 512 + b"b" * 512 + b"c" * 100
        assert data[:at] == rest[:at]
        assert data[at + damage.size :] == rest[at + damage.size :]
        assert durable(disk, FILE) == data
    assert found == {
        (0, 512, b"b" * 512),
        (0, 512, b"c" * 100 + bytes(412)),
        (512, 512, b"a" * 512),
        (512, 512, b"c" * 100 + bytes(412)),
        (1024, 100, b"a" * 100),
        (1024, 100, b"b" * 100),
    }


def test_a_flipped_read_is_right_the_next_time() -> None:
    disk = disk_with(b"old data")
    handle = disk.open(FILE)
    disk.faults = DiskFaults(flip_read=1.0)
    data = disk.pread(handle, 3, 4)
    assert len(differences(b"dat", data)) == 1
    assert disk.pread(handle, 3, 100) == b""
    disk.faults.flip_read = 0.0
    assert disk.pread(handle, 3, 4) == b"dat"
