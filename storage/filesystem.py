"""The only module that touches a disk: a small interface, and the real one behind it.

Everything else in storage/ takes a `FileSystem`, so that tests can hand in one that loses writes,
fills up or fails. Calls are synchronous and raise OSError; nothing here retries.

Two rules of every caller: written bytes count only after `fdatasync` or `fsync` of their file, and
a creation, rename or deletion only after `fsync_directory` of its directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from quorumd.storage.errors import DiskFull, from_os_error
from quorumd.storage.layout import TEMPORARY_SUFFIX

Buffer = bytes | memoryview

IOV_MAX = 1024
"""The most buffers that one pwritev takes (Linux, UIO_MAXIOV)."""


class FileSystem(Protocol):
    """The part of an operating system that storage/ uses. Handles are small integers."""

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        """Opens a regular file, and nothing else; `create` makes an empty one if there is none.

        A link to what is not there is something else, and not missing.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, at: int) -> bytes:
        """Up to `size` bytes from byte `at`; fewer only at the end of the file."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        """Writes at byte `at` and returns how many bytes were taken, which may be fewer."""

    def truncate(self, handle: int, size: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def fdatasync(self, handle: int) -> None:
        """Makes the contents durable, and the size as far as reading them back needs it."""

    def fsync(self, handle: int) -> None:
        """`fdatasync`, and everything else about the file; used where a file got shorter."""

    def fsync_directory(self, path: Path) -> None: ...

    def is_deleted(self, handle: int) -> bool:
        """True if an open file has no name any more: what is in it is gone once it is closed."""

    def drop_cached(self, handle: int) -> None:
        """Forgets clean cached pages, so that the next read shows what the disk holds. A hint."""

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: Path) -> None: ...

    def exists(self, path: Path) -> bool:
        """Raises OSError where that can't be told, as below a directory that one may not enter."""

    def try_lock(self, handle: int) -> bool:
        """Takes the exclusive lock of an open file (flock); False if another process has it."""

    def try_record_lock(self, handle: int) -> bool:
        """The same for the locks of Java programs (fcntl), which flock does not see; needs `writable`."""

    def process_id(self) -> int:
        """The number that a lock file shows as its holder."""


class RealFileSystem:
    """The operating system's files."""

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        # Of a pipe the call would wait for who writes to it.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR if writable else os.O_RDONLY)
        try:
            handle = os.open(path, flags | (os.O_CREAT if create else 0), 0o644)
        except FileNotFoundError:
            if path.is_symlink():
                # The disk of what it names may not be mounted: nothing is missing here.
                raise OSError(
                    errno.ESPIPE, "It is a link to what is not there", str(path)
                ) from None
            raise
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            os.close(handle)
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            raise OSError(errno.ESPIPE, "Not a regular file", str(path))
        return handle

    def close(self, handle: int) -> None:
        os.close(handle)

    def pread(self, handle: int, size: int, at: int) -> bytes:
        data = os.pread(handle, size, at)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(handle, size - got, at + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    pwritev = staticmethod(os.pwritev)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    fdatasync = staticmethod(os.fdatasync)

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def fsync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def is_deleted(self, handle: int) -> bool:
        return os.fstat(handle).st_nlink == 0

    def drop_cached(self, handle: int) -> None:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def exists(self, path: Path) -> bool:
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def try_lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def try_record_lock(self, handle: int) -> bool:
        # Of the open file, not of the process: that lock would end as soon as anything here closes the file.
        whole_file = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, whole_file)
        except BlockingIOError:
            return False
        except OSError as error:
            # Systems that stand in for Linux, as gVisor does, may have none of these: flock has to do.
            if error.errno != errno.EINVAL:
                raise
        return True

    def process_id(self) -> int:
        return os.getpid()


def write_all(fs: FileSystem, handle: int, buffers: Sequence[Buffer], at: int) -> None:
    """Writes all buffers one behind the other from byte `at`, however little each call takes."""
    wanted = sum(map(len, buffers))
    if len(buffers) <= IOV_MAX and fs.pwritev(handle, buffers, at) == wanted:
        return
    # Rare (a signal, a nearly full disk, very many buffers): begin again with one buffer.
    rest = memoryview(b"".join(buffers))
    while rest:
        taken = fs.pwritev(handle, [rest], at)
        if taken <= 0:
            raise OSError(errno.EIO, "the file system took no bytes")
        rest = rest[taken:]
        at += taken


@contextmanager
def opened(fs: FileSystem, path: Path, *, writable: bool = False) -> Iterator[int]:
    """The handle of a file that is closed at the end. An OSError in between names the file.

    Calls that take a handle name none, and whoever asks about a whole directory does not know which failed.
    """
    handle = fs.open(path, writable=writable)
    try:
        yield handle
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        fs.close(handle)


def read_file(fs: FileSystem, path: Path) -> bytes:
    """The whole of a small file. Raises OSError."""
    with opened(fs, path) as handle:
        return fs.pread(handle, fs.size(handle), 0)


def file_size(fs: FileSystem, path: Path) -> int:
    """In bytes. Raises OSError."""
    with opened(fs, path) as handle:
        return fs.size(handle)


def replace_file(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replaces a small file atomically and durably: after a crash it holds the old bytes or `data`.

    Writes `<name>.tmp`, syncs it, renames it over the old file, syncs the directory. A crash leaves
    at most the .tmp file behind, which every opener of a directory deletes.
    Raises DiskFull (the old file is untouched), ReadOnlyDirectory, DiskFailed.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        handle = fs.open(temporary, writable=True, create=True)
        try:
            fs.truncate(handle, 0)
            write_all(fs, handle, [data], 0)
            fs.fsync(handle)
        finally:
            fs.close(handle)
        fs.rename(temporary, path)
        fs.fsync_directory(path.parent)
    except OSError as error:
        failure = from_os_error(error, path, "replacing the file")
        if isinstance(failure, DiskFull):
            _remove_quietly(fs, temporary)
        raise failure from error


def _remove_quietly(fs: FileSystem, path: Path) -> None:
    try:
        fs.unlink(path)
    except OSError:
        # The disk is full already; what stays is deleted at the next start.
        return
