"""Batches to write and logs to write them to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Protocol, TypeVar

from quorumd.raft.types import SnapshotId
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import FileSystem, write_all
from quorumd.storage.layout import part_path, snapshot_path
from quorumd.storage.log import Log
from quorumd.storage.recovery import BatchObserver
from quorumd.wire.records import Record, build_batch, iter_headers
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss

DIRECTORY = Path("/data/__cluster_metadata-0")
START_MS = 1_700_000_000_000


class Told(Protocol):
    """What runs on a disk, and knows at each moment what must be there after a power loss."""

    def run(self, fs: FaultyFileSystem) -> None: ...


Story = TypeVar("Story", bound=Told)


def batch(
    base_offset: int,
    *,
    count: int = 1,
    epoch: int = 1,
    timestamp: int | None = None,
    value_bytes: int = 10,
    codec: int = 0,
    is_control: bool = False,
) -> bytes:
    """Offsets from `base_offset`; one ms between records unless a timestamp is given."""
    records = [
        Record(
            timestamp=START_MS + base_offset + i if timestamp is None else timestamp,
            key=b"key",
            value=bytes([65 + (base_offset + i) % 26]) * value_bytes,
        )
        for i in range(count)
    ]
    return build_batch(
        records, base_offset=base_offset, epoch=epoch, codec=codec, is_control=is_control
    )


def empty_disk() -> FaultyFileSystem:
    """A faulty file system on which DIRECTORY is there, durably."""
    fs = FaultyFileSystem()
    for path in (DIRECTORY.parent, DIRECTORY):
        fs.mkdir(path)
        fs.fsync_directory(path.parent)
    return fs


def crash_points(run: Callable[[FaultyFileSystem], object]) -> Iterator[int]:
    """The number of each call that `run` makes on an empty disk, and one more."""
    fs = empty_disk()
    before = fs.calls
    run(fs)
    yield from range(before + 1, fs.calls + 2)


def crash(fs: FaultyFileSystem, at: int, run: Callable[[FaultyFileSystem], object]) -> None:
    """Run until the power is lost at call `at`."""
    fs.crash_at = at
    with suppress(PowerLoss):
        run(fs)


def at_losses(
    story: Story, points: Collection[int], look: Callable[[int, Story, FaultyFileSystem], object]
) -> None:
    """Each of these `crash_points` of a story in one run: `look` gets its number, a copy of the story as it
    is, and the disk, for `FaultyFileSystem.crash`, which changes nothing of it: the story goes on behind."""
    fs = empty_disk()
    failures: list[Exception] = []

    def on_change(call: int) -> None:
        if call in points:
            try:
                look(call, deepcopy(story), fs)
            except Exception as error:
                # Nothing of what runs may take it for an error of the disk.
                failures.append(error)
                raise PowerLoss from error

    fs.before_change = on_change
    with suppress(PowerLoss):
        story.run(fs)
        on_change(fs.calls + 1)
    for failure in failures:
        raise failure


def open_log(
    fs: FileSystem,
    directory: Path = DIRECTORY,
    *,
    segment_bytes: int = 1 << 20,
    tail_cache_bytes: int = 1 << 20,
    index_interval_bytes: int = 4096,
    committed_offset: int = 0,
    snapshots: Sequence[SnapshotId] = (),
    observe: BatchObserver | None = None,
) -> Log:
    return Log.open(
        fs,
        directory,
        segment_bytes=segment_bytes,
        tail_cache_bytes=tail_cache_bytes,
        index_interval_bytes=index_interval_bytes,
        committed_offset=committed_offset,
        snapshots=snapshots,
        observe=observe,
    )


def undamaged(error: StorageError) -> None:
    """For a reader of a log that nobody damages."""
    raise AssertionError(error)


def append(log: Log, data: bytes, base_offset: int, end_offset: int) -> None:
    """Both halves of an append, durable."""
    log.append(data, base_offset, end_offset)
    log.write(data, base_offset, end_offset)
    log.sync()


def fill(log: Log, offsets: Sequence[int], *, epoch: int = 1, value_bytes: int = 10) -> None:
    """One batch of one record for each offset, each synced on its own."""
    for offset in offsets:
        append(log, batch(offset, epoch=epoch, value_bytes=value_bytes), offset, offset + 1)


def put_snapshot(
    fs: FileSystem, end_offset: int, epoch: int, directory: Path = DIRECTORY
) -> SnapshotId:
    """A complete snapshot, durably: a log looks only at its name. Returns its id."""
    snapshot = SnapshotId(end_offset, epoch)
    part = part_path(directory, snapshot)
    handle = fs.open(part, writable=True, create=True)
    try:
        write_all(fs, handle, [b"a snapshot"], 0)
        fs.fsync(handle)
    finally:
        fs.close(handle)
    fs.rename(part, snapshot_path(directory, snapshot))
    fs.fsync_directory(directory)
    return snapshot


def reset(log: Log, end_offset: int) -> None:
    """Both halves of a reset."""
    log.reset_cache(end_offset)
    log.reset(end_offset)


def contents(log: Log) -> bytes:
    """Everything that was written, read segment by segment."""
    parts = []
    offset = log.log_start_offset
    end = log.written_end_offset
    while offset < end:
        data = log.read(offset, 1 << 30, end)
        parts.append(data)
        offset = last_end(data)
    return b"".join(parts)


def last_end(data: bytes) -> int:
    end = -1
    for _, header in iter_headers(data):
        end = header.next_offset
    return end
