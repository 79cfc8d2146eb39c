"""A log of seven segments in three epochs, and what the tests of snapshots do to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quorumd.storage.errors import DamagedLog
from quorumd.storage.layout import log_path
from quorumd.storage.log import Log
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, append, batch, open_log

SIZE = len(batch(0))
SEGMENT_BYTES = SIZE * 5


class CountingFileSystem(FaultyFileSystem):
    """Counts the bytes that are read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read: dict[str, int] = {}

    def pread(self, handle: int, size: int, at: int) -> bytes:
        data = super().pread(handle, size, at)
        name = self._handles[handle][0].name
        self.bytes_read[name] = self.bytes_read.get(name, 0) + len(data)
        return data


def record(offset: int) -> bytes:
    epoch = 1 if offset < 12 else 4 if offset < 25 else 6
    return batch(offset, epoch=epoch, is_control=offset in (3, 13, 31))


def seven_segments(record_at: Callable[[int], bytes] = record) -> CountingFileSystem:
    """Offsets 0 .. 33 in seven segments of five batches; epoch 1, 4 from 12 on, 6 from 25 on.

    Offsets 3, 13 and 31 are control batches. Or all that `record_at` gives.
    """
    disk = CountingFileSystem()
    for path in (DIRECTORY.parent, DIRECTORY):
        disk.mkdir(path)
        disk.fsync_directory(path.parent)
    log = reopen(disk)
    for offset in range(34):
        append(log, record_at(offset), offset, offset + 1)
    disk.bytes_read.clear()
    return disk


def everything(start: int, end: int) -> bytes:
    return b"".join(map(record, range(start, end)))


def reopen(fs: FaultyFileSystem, snapshots: Sequence[tuple[int, int]] = (), **settings: Any) -> Log:
    settings = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 1, **settings}
    return open_log(fs, snapshots=snapshots, **settings)


def refused(
    fs: FaultyFileSystem, what: str, snapshots: Sequence[tuple[int, int]] = (), **settings: Any
) -> DamagedLog:
    """Opening fails, says what is wrong, and changes nothing."""
    before = {name: fs.contents(DIRECTORY / name) for name in fs.listdir(DIRECTORY)}
    with pytest.raises(DamagedLog, match=what) as caught:
        reopen(fs, snapshots, **settings)
    assert {name: fs.contents(DIRECTORY / name) for name in fs.listdir(DIRECTORY)} == before
    assert "Nothing was changed" in str(caught.value)
    return caught.value


def flip(fs: FaultyFileSystem, base: int, number: int, at: int, mask: int = 1) -> None:
    """Damages a byte of a batch of a segment."""
    fs.flip(log_path(DIRECTORY, base), number * SIZE + at, mask)
