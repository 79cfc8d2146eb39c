"""Deleting segments so that, whatever the step at which power fails, a start finds a sound log.

A segment at either end of the log may go. Its three files are deleted together, `.log` first, and
durably before the next segment's: otherwise there could be a gap.

A log is emptied from the newest segment down, which leaves a shorter log at each step. The last file
is cut to nothing and renamed, not deleted and made anew: there is always a segment, and a full disk
is no obstacle. What is left at any step does not hold what the snapshot at the new start stands for,
so that `quorumd.storage.recovery` begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quorumd.storage import layout
from quorumd.storage.errors import from_os_error
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.segment import fsync_failed


def remove_segment(fs: FileSystem, directory: Path, base_offset: int) -> None:
    """Deletes the files of a segment, durably. Raises DiskFailed."""
    log_path = layout.log_path(directory, base_offset)
    indexes = _index_paths(directory, base_offset)
    try:
        _unlink(fs, (log_path, *indexes))
        fs.fsync_directory(directory)
    except OSError as error:
        raise fsync_failed(error, log_path) from error


def empty_log(fs: FileSystem, directory: Path, end_offset: int) -> None:
    """Leaves one empty segment that begins at `end_offset`, and no epochs, durably.

    May be repeated. The snapshot that ends there must be durable. Needs no space unless there is no
    segment at all. Raises DiskFull, DiskFailed.
    """
    try:
        bases = layout.segment_bases(fs.listdir(directory)) or [end_offset]
    except OSError as error:
        raise from_os_error(error, directory, "emptying the log") from error
    while len(bases) > 1:
        remove_segment(fs, directory, bases.pop())
    path = layout.log_path(directory, end_offset)
    oldest = layout.log_path(directory, bases[0])
    try:
        handle = fs.open(oldest, writable=True, create=True)
    except OSError as error:
        raise from_os_error(error, oldest, "emptying the log") from error
    try:
        try:
            fs.truncate(handle, 0)
            fs.fsync(handle)
        finally:
            fs.close(handle)
        _unlink(fs, (*_index_paths(directory, bases[0]), directory / layout.EPOCH_CHECKPOINT))
        if oldest != path:
            fs.rename(oldest, path)
        fs.fsync_directory(directory)
    except OSError as error:
        raise fsync_failed(error, oldest) from error


def _index_paths(directory: Path, base_offset: int) -> tuple[Path, Path]:
    return (
        layout.index_path(directory, base_offset),
        layout.time_index_path(directory, base_offset),
    )


def _unlink(fs: FileSystem, paths: Sequence[Path]) -> None:
    for path in paths:
        if fs.exists(path):
            fs.unlink(path)
