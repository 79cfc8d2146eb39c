"""One segment of the log: what is known of it, and the writer of the last one.

A segment is `<first offset>.log`, record batches back to back. The last one is active: its file is
filled with written zeros ahead of the data, in steps, so that fdatasync has data to write and no
metadata; behind the data is the marker of quorumd.storage.write_marker; its indexes are in memory only. A
closed segment is cut to its data, synced, its indexes on disk, and never changes, except that a
truncation makes it active again. Knows no epochs and no thread; offsets and order are checked by
the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quorumd.storage.errors import DiskFailed, DiskFull, from_os_error
from quorumd.storage.filesystem import Buffer, FileSystem, replace_file, write_all
from quorumd.storage.index import SegmentIndex
from quorumd.storage.layout import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from quorumd.storage.write_marker import MARKER_BYTES, build_marker

ZERO_STEP_BYTES: Final = 256 << 10
"""So much is written ahead. More makes the sync behind it longer, less makes more of them change metadata."""
SYNCS_UNCHECKED: Final = 64
"""After so many syncs, and whenever there is nothing to do, it is asked whether the file is still there."""
_ZEROS: Final = bytes(ZERO_STEP_BYTES)
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
"""Offsets in indexes are int32 relative to the first offset of the segment."""


@dataclass(slots=True)
class Segment:
    """A segment as the log knows it. `end_offset` is exclusive, `size_bytes` the data's end.

    `max_timestamp` is -1 in an empty segment; `max_timestamp_offset` is the last offset of the first
    batch that has it. `index` is None once the segment is closed: then the indexes are on disk.
    """

    base_offset: int
    path: Path
    size_bytes: int
    end_offset: int
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    index: SegmentIndex | None = None

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    @property
    def time_index_path(self) -> Path:
        return self.path.with_suffix(TIME_INDEX_SUFFIX)


class ActiveFile:
    """The file of the active segment, open for writing. `size_bytes` is where its data ends.

    A file that is opened must be durable as far as `size_bytes`.
    """

    def __init__(
        self, fs: FileSystem, path: Path, size_bytes: int, segment_bytes: int, *, create: bool
    ) -> None:
        """Opens it; with `create` as a new file, durably in its directory. Raises StorageError."""
        self._fs = fs
        self._path = path
        self._segment_bytes = segment_bytes
        self.size_bytes = self._synced_bytes = size_bytes
        self._syncs = 0
        try:
            self._handle = fs.open(path, writable=True, create=create)
            try:
                if create:
                    fs.fsync(self._handle)
                    fs.fsync_directory(path.parent)
                self._zeros_end = fs.size(self._handle)
            except OSError:
                fs.close(self._handle)
                raise
        except OSError as error:
            raise from_os_error(error, path, "opening") from error

    def write(self, buffers: Sequence[Buffer], total_bytes: int) -> None:
        """Writes behind the data, not yet durably.

        Raises DiskFull, after which the file is as before, or DiskFailed.
        """
        end = self.size_bytes + total_bytes
        try:
            if end + MARKER_BYTES > self._zeros_end:
                self._fill_zeros(end)
            marker = build_marker(self._synced_bytes, end)
            write_all(self._fs, self._handle, [*buffers, marker], self.size_bytes)
        except OSError as error:
            failure = from_os_error(error, self._path, "writing")
            if isinstance(failure, DiskFull):
                self.cut(self.size_bytes)
            raise failure from error
        self.size_bytes = end

    def prepare(self) -> None:
        """Writes the next zeros if less than half a step is left, so that `write` needn't.

        Raises DiskFailed.
        """
        self._check_name()
        if self._zeros_end - self.size_bytes >= ZERO_STEP_BYTES // 2:
            return
        if self._zeros_end >= self._segment_bytes:
            return
        try:
            self._fill_zeros(self._zeros_end + 1)
        except OSError as error:
            failure = from_os_error(error, self._path, "writing zeros ahead")
            if not isinstance(failure, DiskFull):
                raise failure from error
            self.cut(self.size_bytes)

    def _fill_zeros(self, end: int) -> None:
        at = self._zeros_end
        # The marker must fit, even where that makes the file longer than a segment.
        target = max(end + MARKER_BYTES, min(end + ZERO_STEP_BYTES, self._segment_bytes))
        left = target - at
        zeros: list[Buffer] = [_ZEROS] * (left // len(_ZEROS))
        zeros.append(memoryview(_ZEROS)[: left % len(_ZEROS)])
        write_all(self._fs, self._handle, zeros, at)
        self._zeros_end = target

    def sync(self) -> None:
        """Makes what was written durable. Raises DiskFailed, after which nothing may be relied on."""
        if self._synced_bytes == self.size_bytes:
            return
        try:
            self._fs.fdatasync(self._handle)
        except OSError as error:
            # Never DiskFull: whatever the reason, pages may be lost that a second fsync won't miss.
            raise fsync_failed(error, self._path) from error
        self._synced_bytes = self.size_bytes
        self._syncs += 1
        if self._syncs % SYNCS_UNCHECKED == 0:
            self._check_name()

    def _check_name(self) -> None:
        """What is written to a deleted file is lost with the process, however well it is synced."""
        if self._fs.is_deleted(self._handle):
            raise DiskFailed(
                "the file was deleted while this node ran",
                path=self._path,
                remedy="What was in the directory is lost, as with a lost disk: replace this node's as one",
            )

    def cut(self, size_bytes: int) -> None:
        """Ends the file at `size_bytes`, durably. Raises DiskFailed.

        What stays is durable before the file ends there: a file that ends with a batch is whole.
        """
        if size_bytes > self._synced_bytes:
            self.sync()
        try:
            self._fs.truncate(self._handle, size_bytes)
            self._fs.fsync(self._handle)
        except OSError as error:
            raise fsync_failed(error, self._path) from error
        self.size_bytes = self._synced_bytes = self._zeros_end = size_bytes

    def close(self) -> None:
        self._fs.close(self._handle)


def fsync_failed(error: OSError, path: Path) -> DiskFailed:
    """The error for a failed sync: fatal, also if the disk is merely full."""
    return DiskFailed(
        f"making data durable failed: {error.strerror or error}",
        path=path,
        remedy="What is on this disk is uncertain: check it and the kernel log, then start again",
    )


def write_indexes(fs: FileSystem, segment: Segment, index: SegmentIndex) -> None:
    """Puts both finished indexes of a closed segment on disk. Raises as `replace_file` does."""
    replace_file(fs, segment.index_path, index.offsets.to_bytes())
    replace_file(fs, segment.time_index_path, index.times.to_bytes())
