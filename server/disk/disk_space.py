"""How much room there is on the file system of a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class DiskSpace(NamedTuple):
    """Bytes of a file system; `free_bytes` without what is reserved for root."""

    free_bytes: int
    size_bytes: int


def disk_space(directory: Path) -> DiskSpace | None:
    """None if the file system does not say. May take long on a disk that hangs."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
