"""The code of storage/ on simulated disks: a whole life, many short ones, and the same ones again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from quorumd.storage.directory import RESERVE_BYTES, Directory, format_directory, open_directory
from quorumd.storage.errors import DirectoryLocked, DiskFailed, DiskFull
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.log import Log
from quorumd.storage.quorum_state import QuorumState
from simulation.machines.disk import DiskFaults, ProcessKilled, SimDisk
from tests.storage.helpers import append, batch, contents, fill, open_log

ROOT = Path("/srv/quorumd/data")
STORAGE_ID = UUID("3a2b1c0d-4e5f-4a6b-8c7d-9e8f7a6b5c4d")


def formatted(seed: int = 1) -> SimDisk:
    disk = SimDisk(Random(seed))
    format_directory(disk, ROOT, node_id=1, storage_id=STORAGE_ID, cluster_id="c")
    return disk


def opened(fs: FileSystem) -> tuple[Directory, Log]:
    directory = open_directory(fs, ROOT, node_id=1)
    return directory, open_log(fs, directory.log_directory, segment_bytes=2000)


def test_a_node_lives_on_it() -> None:
    disk = formatted()
    directory, log = opened(disk)
    assert disk.used_bytes > RESERVE_BYTES
    with pytest.raises(DirectoryLocked, match=str(disk.process_id())):
        open_directory(disk, ROOT, node_id=1)
    fill(log, range(60), value_bytes=100)
    assert len([path for path in disk.files() if path.suffix == ".log"]) > 4
    log.truncate_cache(20)
    assert log.truncate(20) == 20
    fill(log, range(20, 25), epoch=2)
    directory.save_quorum_state(QuorumState(leader_epoch=2))
    before = contents(log)
    log.close()
    directory.close()

    directory, log = opened(disk)
    assert directory.begin() == QuorumState(leader_epoch=2)
    assert contents(log) == before
    assert log.recovery.messages() == []
    disk.power_loss()

    directory, log = opened(disk)
    assert contents(log) == before


def live(disk: SimDisk, synced: int) -> int:
    """Opens what there is, appends until something goes wrong; returns the synced end offset."""
    with suppress(ProcessKilled, DiskFailed, DiskFull):
        directory, log = opened(disk)
        assert log.log_end_offset >= synced
        synced = log.log_end_offset
        while True:
            directory.save_quorum_state(QuorumState(applied_offset=synced))
            data = batch(synced, count=3, value_bytes=disk.calls % 400)
            append(log, data, synced, synced + 3)
            synced += 3
    return synced


@pytest.mark.parametrize("seed", range(15))
def test_synced_records_outlive_kills_power_losses_and_a_full_disk(seed: int) -> None:
    random = Random(seed)
    disk = formatted(seed)
    disk.faults = DiskFaults(short_write=0.1)
    synced = 0
    for _ in range(12):
        disk.crash_after(random.randrange(1, 400))
        disk.capacity_bytes = disk.used_bytes + random.choice([2_000_000, 5000])
        synced = live(disk, synced)
        if random.random() < 0.5:
            disk.crash()
        else:
            disk.power_loss()
    disk.capacity_bytes = None
    _, log = opened(disk)
    assert log.log_end_offset >= synced > 0


def digest_of_some_lives() -> str:
    """Everything that a run with all faults left behind, as one number."""
    disk = formatted(7)
    disk.faults = DiskFaults(write_error=0.003, sync_error=0.003, short_write=0.1)
    parts: list[object] = []
    for process in range(20):
        disk.crash_after(300 + process)
        # Not held to what was synced before: the checks are other tests'.
        parts += [
            live(disk, 0),
            *disk.log,
            disk.flip_bit("*.index"),
            disk.stale_sector("*.index"),
        ]
        disk.power_loss()
        parts += [(str(path), disk.contents(path)) for path in disk.files()]
    parts += [disk.calls, sorted(disk.op_counts.items()), disk.used_bytes]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@pytest.mark.long
def test_the_same_seed_gives_the_same_run_under_any_hash_seed() -> None:
    program = f"import {__name__} as lives; print(lives.digest_of_some_lives())"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert digests == [digest_of_some_lives()] * 2
