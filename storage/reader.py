"""Reading log files without owning them: any segment, snapshot or directory, ours or Kafka's.

Writes nothing, takes no lock, and is safe beside a running node: what is half written or written
ahead at the end of a file is reported as its tail, not as an error. Decides nothing about offsets
and epochs either: a tool that prints or compares wants to see what is there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from quorumd.storage import layout
from quorumd.storage.batch_walk import BATCH_BYTES_MAX, BatchCursor, reason_of
from quorumd.storage.errors import StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.torn_tail import examine_tail
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BatchHeader
from quorumd.wire.snapshot_records import SNAPSHOT_BATCH_BYTES_MAX


class FoundBatch(NamedTuple):
    """A whole batch. `position` is in bytes from the start of the file, `data` the whole batch.

    With `crc_is_valid` False the contents are not to be trusted. Records and control records:
    `quorumd.wire.records.iter_records(data)`, `quorumd.wire.control_records.decode_control_batch(data)`.
    """

    position: int
    header: BatchHeader
    data: bytes
    crc_is_valid: bool


class TailKind(Enum):
    """The kind of bytes behind the last whole batch: none, zeros written ahead (perhaps with the marker of
    the last write), an unfinished write, or bytes that no power failure explains."""

    NONE = "none"
    ZEROS = "zeros"
    TORN = "torn"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class FileTail:
    """`size_bytes` from `position` to the end of the file; `reason` says what is wrong, or is ""."""

    kind: TailKind
    position: int
    size_bytes: int
    reason: str = ""


class LogFile:
    """One `.log` or `.checkpoint` file. `base_offset` is what its name says, None for other names."""

    def __init__(self, path: Path, fs: FileSystem | None = None) -> None:
        self.path = path
        self._fs = fs or RealFileSystem()
        segment = layout.parse_segment_name(path.name)
        self.base_offset = segment[0] if segment else None
        self.snapshot_id = layout.parse_snapshot_name(path.name)
        self.tail: FileTail | None = None

    def batches(self) -> Iterator[FoundBatch]:
        """Every whole batch; afterwards `tail` says what is behind the last one.

        A batch with a wrong CRC is yielded as such and the walk goes on behind it. It ends where no
        batch can be made out. Raises StorageError if the file can't be read.
        """
        self.tail = None
        try:
            handle = self._fs.open(self.path)
        except OSError as error:
            raise _not_readable(error, self.path) from error
        try:
            # Taken once: what a running node appends meanwhile is not read.
            yield from self._walk(handle, self._fs.size(handle))
        except OSError as error:
            raise from_os_error(error, self.path, "reading") from error
        finally:
            self._fs.close(handle)

    def _walk(self, handle: int, end: int) -> Iterator[FoundBatch]:
        place = _Place(self.base_offset or 0)
        batch_bytes_max = SNAPSHOT_BATCH_BYTES_MAX if self.snapshot_id else BATCH_BYTES_MAX
        cursor = BatchCursor(self._fs, handle, end, batch_bytes_max=batch_bytes_max)
        while True:
            yield from _walk_on(cursor, end, place)
            tail = self._tail(handle, end, place)
            is_clean = tail.kind in (TailKind.NONE, TailKind.ZEROS)
            if is_clean or not cursor.has_changed(place.position):
                self.tail = tail
                return
            # A running node has written here since.

    def _tail(self, handle: int, end: int, place: _Place) -> FileTail:
        position, reason = place.position, place.reason
        size = end - position
        if size == 0:
            return FileTail(TailKind.NONE, position, 0)
        tail = examine_tail(self._fs, handle, position, end, place.next_offset, epoch=place.epoch)
        if tail.torn_bytes == 0:
            return FileTail(TailKind.ZEROS, position, size)
        kind = TailKind.DAMAGE if tail.damage else TailKind.TORN
        return FileTail(kind, position, size, tail.describe(reason))


class _Place:
    """Progress of a walk, and the reason why it goes no further."""

    def __init__(self, next_offset: int) -> None:
        self.position = 0
        self.next_offset = next_offset
        self.epoch = 0
        self.reason = ""

    def move(self, header: BatchHeader) -> None:
        self.position += header.size_bytes
        self.next_offset = max(self.next_offset, header.next_offset)
        self.epoch = max(self.epoch, header.epoch)


def _walk_on(cursor: BatchCursor, end: int, place: _Place) -> Iterator[FoundBatch]:
    """The batches from a place, which moves along, to where none can be made out."""
    while place.position < end:
        try:
            header, data, is_valid = cursor.read(place.position)
        except CorruptBatch as error:
            place.reason = reason_of(error)
            return
        yield FoundBatch(place.position, header, data, is_valid)
        place.move(header)


def find_files(path: Path, fs: FileSystem | None = None) -> list[LogFile]:
    """The files to read for a path: itself, or the snapshots and segments of a directory.

    A directory may be a partition's or the one above it (`storage.dir`, Kafka's metadata.log.dir).
    Snapshots come first, each kind by offset. Raises StorageError if there is nothing to read.
    """
    fs = fs or RealFileSystem()
    try:
        if not fs.exists(path):
            raise FileNotFoundError(errno.ENOENT, "there is no such file or directory")
        names = fs.listdir(path)
    except NotADirectoryError:
        return [LogFile(path, fs)]
    except OSError as error:
        raise _not_readable(error, path) from error
    if layout.PARTITION_DIRECTORY in names:
        return find_files(path / layout.PARTITION_DIRECTORY, fs)
    snapshots = [name for name in names if layout.parse_snapshot_name(name)]
    segments = [name for name in names if layout.parse_log_name(name) is not None]
    if not snapshots and not segments:
        raise StorageError(
            "no segments (<20 digits>.log) and no snapshots in this directory",
            path=path,
            remedy=f"Name a segment, a {layout.PARTITION_DIRECTORY} directory or the one above it",
        )
    return [LogFile(path / name, fs) for name in (*sorted(snapshots), *sorted(segments))]


def _not_readable(error: OSError, path: Path) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError("there is no such file", path=path, remedy="Correct the path")
    return from_os_error(error, path, "opening")
