"""Errors of a storage directory: all that storage/ raises on purpose.

Each text says what happened, in which file, and what to do next. `exit_code` is what the daemon
ends with if the error reaches it.
"""

from __future__ import annotations

import errno
from pathlib import Path

EXIT_FAILED = 1
EXIT_DAMAGED = 3

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_MISPLACED = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ESPIPE, errno.EEXIST})
_REMEDIES = {
    errno.EMFILE: "Raise the limit of open files (ulimit -Hn, LimitNOFILE)",
    errno.ENFILE: "Raise the limit of open files of the whole system (sysctl fs.file-max)",
    errno.ENOMEM: "Leave this process more memory (ulimit -v, MemoryMax)",
    errno.EFBIG: "Raise the limit of the size of files (ulimit -f, LimitFSIZE)",
    errno.ENAMETOOLONG: "Choose a shorter path",
}
"""What the disk has no part in."""


class StorageError(Exception):
    """Base: `what` happened, `path` is the file or directory, `remedy` says what to do next."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, path: Path, remedy: str) -> None:
        super().__init__(f"{path}: {what}. {remedy}")
        self.what = what
        self.path = path
        self.remedy = remedy


class NotFormatted(StorageError):
    """There is no meta.properties: `quorumd format` was not run, or the path is wrong."""


class AlreadyFormatted(StorageError):
    """`format` on a directory that has a meta.properties or a log."""


class ForeignDirectory(StorageError):
    """The directory belongs to another node or another cluster."""


class DirectoryLocked(StorageError):
    """Another process has the directory open."""


class ReadOnlyDirectory(StorageError):
    """The file system refuses to write: read-only, or no permission."""


class Misplaced(StorageError):
    """Something was put, linked or mounted where a file or a directory belongs."""

    exit_code = EXIT_DAMAGED


class DiskFull(StorageError):
    """No space left, or a quota reached. Nothing of the refused write is in the log."""


class DiskFailed(StorageError):
    """A read, write or fsync failed. After a failed fsync it is unknown what is on the disk: the
    process has to end, and the call is never repeated."""


class OffsetNotInLog(Exception):
    """An offset that the log doesn't hold. The bounds are the log's, the end is exclusive."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside {log_start_offset} .. {log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class DamagedLog(StorageError):
    """Bytes on disk that no crash explains. Nothing was changed.

    `position` is in bytes from the start of `path`, `offset` the first log offset that is in doubt;
    each is None where it makes no sense.
    """

    exit_code = EXIT_DAMAGED

    def __init__(
        self,
        what: str,
        *,
        path: Path,
        remedy: str = "",
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        places = []
        if position is not None:
            places.append(f"byte {position}")
        if offset is not None:
            places.append(f"offset {offset}")
        place = f" (at {', '.join(places)})" if places else ""
        super().__init__(what + place, path=path, remedy=remedy or RESTORE)
        self.what = what
        self.position = position
        self.offset = offset


class DamagedFile(DamagedLog):
    """A small file (meta.properties, quorum-state.json) that can't be read or contradicts itself."""


class DamagedSnapshot(StorageError):
    """A snapshot that is of no use here, on disk or as it was received: not whole, not a file that
    can be read, another one than its name says, or of a later version.

    `position` is in bytes from the start of `path`: the batch that is wrong.
    """

    exit_code = EXIT_DAMAGED

    def __init__(self, what: str, *, path: Path, position: int, remedy: str = "") -> None:
        super().__init__(f"{what} (at byte {position})", path=path, remedy=remedy or RESTORE)
        self.what = what
        self.position = position


class UnsuitableOffset(StorageError):
    """No snapshot can end there: the log does not hold that offset, or no batch ends at it."""


RESTORE = (
    "Nothing was changed. Keep a copy of the directory and check the disk, then format a new directory"
    " (without --bootstrap): its node copies the log from the quorum. Never put an old copy in its"
    " place: a voter that forgets what it promised can cost committed records"
)


def is_misplaced(error: OSError) -> bool:
    """True if something else lies where a file or a directory belongs: see Misplaced."""
    return error.errno in _MISPLACED


def from_os_error(error: OSError, path: Path, doing: str) -> StorageError:
    """The StorageError for a failed call; `doing` reads like "writing".

    `path` may be a directory: the error then names the file in it, if the call did.
    """
    if isinstance(error.filename, (str, Path)) and path in Path(error.filename).parents:
        path = Path(error.filename)
    what = f"{doing} failed: {error.strerror or error}"
    if error.errno in _FULL:
        return DiskFull(what, path=path, remedy="Free space on this disk; nothing was lost")
    if error.errno in _FORBIDDEN:
        return ReadOnlyDirectory(
            what, path=path, remedy="Check the mount options, and who owns it and what is above it"
        )
    if is_misplaced(error):
        return Misplaced(
            what,
            path=path,
            remedy="Put the file or directory that belongs there back, no old copy of it, or correct"
            " the path",
        )
    first = _REMEDIES.get(error.errno or 0, "Check the disk and the kernel log")
    return DiskFailed(what, path=path, remedy=f"{first}, then start again")
