"""Reading log files without owning them: any segment, snapshot or directory, ours or Kafka's.

Writes nothing, takes no lock, and is safe beside a running node: what is half written or written
ahead at the end of a file is reported as its tail, not as an error. Decides nothing about offsets
and epochs either: a tool that prints or compares wants to see what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from quorumd.storage import layout
from quorumd.storage.batch_walk import BATCH_BYTES_MAX, SNAPSHOT_BATCH_BYTES_MAX, reason_of
from quorumd.storage.errors import StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.torn_tail import examine_tail
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BATCH_OVERHEAD, BatchHeader, crc_is_valid, read_header

_WINDOW_BYTES = 1 << 20


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
    """What follows the last whole batch: nothing, zeros written ahead (perhaps with the mark that
    ends a write), an unfinished write, or bytes that no power failure explains."""

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
            # Taken once: what a running node appends meanwhile is not looked at.
            yield from self._walk(handle, self._fs.size(handle))
        except OSError as error:
            raise from_os_error(error, self.path, "reading") from error
        finally:
            self._fs.close(handle)

    def _walk(self, handle: int, end: int) -> Iterator[FoundBatch]:
        place = _Place(self.base_offset or 0)
        while True:
            yield from self._walk_on(handle, end, place)
            tail = self._tail(handle, end, place)
            is_clean = tail.kind in (TailKind.NONE, TailKind.ZEROS)
            if is_clean or _is_unchanged(self._fs, handle, place):
                self.tail = tail
                return
            # A running node has written here since.

    def _walk_on(self, handle: int, end: int, place: _Place) -> Iterator[FoundBatch]:
        """The batches from a place, which moves along, to where none can be made out."""
        fs = self._fs
        batch_bytes_max = SNAPSHOT_BATCH_BYTES_MAX if self.snapshot_id else BATCH_BYTES_MAX
        position = place.position
        window = b""
        window_at = position
        while position < end:
            at = position - window_at
            if len(window) - at < BATCH_OVERHEAD:
                window_at, at = position, 0
                window = fs.pread(handle, min(_WINDOW_BYTES, end - position), position)
            try:
                header = read_header(window, at)
            except CorruptBatch as error:
                place.stop(reason_of(error), window[at : at + BATCH_OVERHEAD])
                return
            if header.size_bytes > min(end - position, batch_bytes_max):
                reason = f"a batch of {header.size_bytes} bytes where {end - position} are left"
                place.stop(reason, window[at : at + BATCH_OVERHEAD])
                return
            is_whole = at + header.size_bytes <= len(window)
            is_valid = is_whole and crc_is_valid(window, at, header)
            if not is_whole or (at and not is_valid):
                # What was read ahead may be older than what a running node has written since.
                window_at, at = position, 0
                size = min(max(_WINDOW_BYTES, header.size_bytes), end - position)
                window = fs.pread(handle, size, position)
                if len(window) < header.size_bytes:
                    place.stop("the file got shorter", window[:BATCH_OVERHEAD])
                    return
                is_valid = crc_is_valid(window, at, header)
            yield FoundBatch(position, header, window[at : at + header.size_bytes], is_valid)
            position += header.size_bytes
            place.move(position, header)

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
    """How far a walk has come, and what it saw where it stopped."""

    def __init__(self, next_offset: int) -> None:
        self.position = 0
        self.next_offset = next_offset
        self.epoch = 0
        self.reason = ""
        self.seen = b""

    def move(self, position: int, header: BatchHeader) -> None:
        self.position = position
        self.next_offset = max(self.next_offset, header.next_offset)
        self.epoch = max(self.epoch, header.epoch)

    def stop(self, reason: str, seen: bytes) -> None:
        self.reason = reason
        self.seen = seen


def _is_unchanged(fs: FileSystem, handle: int, place: _Place) -> bool:
    return fs.pread(handle, len(place.seen), place.position) == place.seen


def find_files(path: Path, fs: FileSystem | None = None) -> list[LogFile]:
    """The files to read for a path: itself, or the snapshots and segments of a directory.

    A directory may be a partition's or the one above it (`storage.dir`, Kafka's metadata.log.dir).
    Snapshots come first, each kind by offset. Raises StorageError if there is nothing to read.
    """
    fs = fs or RealFileSystem()
    if not fs.exists(path):
        raise _not_readable(FileNotFoundError(2, "there is no such file or directory"), path)
    try:
        names = fs.listdir(path)
    except NotADirectoryError:
        return [LogFile(path, fs)]
    except OSError as error:
        raise from_os_error(error, path, "reading the directory") from error
    if layout.PARTITION_DIRECTORY in names:
        return find_files(path / layout.PARTITION_DIRECTORY, fs)
    snapshots = [name for name in names if layout.parse_snapshot_name(name)]
    segments = [name for name in names if layout.parse_segment_name(name) and name.endswith(".log")]
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
