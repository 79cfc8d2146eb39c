"""Files on a simulated disk."""

from __future__ import annotations

from pathlib import Path
from random import Random

from quorumd.storage.filesystem import write_all
from simulation.machines.disk import SimDisk

FILE = Path("/file")


def disk_with(data: bytes = b"", *, path: Path = FILE, seed: int = 1) -> SimDisk:
    """A disk with one durable file."""
    disk = SimDisk(Random(seed))
    put(disk, path, data)
    return disk


def put(disk: SimDisk, path: Path, data: bytes) -> None:
    handle = disk.open(path, writable=True, create=True)
    disk.truncate(handle, 0)
    if data:
        write_all(disk, handle, [data], 0)
    disk.fsync(handle)
    disk.close(handle)
    disk.fsync_directory(path.parent)


def write(disk: SimDisk, at: int, data: bytes, path: Path = FILE) -> int:
    """Writes without a sync and leaves the file open."""
    handle = disk.open(path, writable=True, create=True)
    assert disk.pwritev(handle, [data], at) == len(data)
    return handle
