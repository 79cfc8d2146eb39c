"""A file system in memory that forgets, fills up and fails.

What is modelled: written bytes survive a crash for certain only after fdatasync or fsync of their
file; creations, renames and deletions only after fsync of their directory. `crash` decides what
happens to the rest:

* LOSE: nothing of it survives. KEEP: all of it does (the process died, the machine did not).
* PREFIX: writes to a file survive in order up to some sector, directory changes up to some change.
* SECTORS: each 512-byte sector survives as it was after any of the un-synced writes, or before them.
  PAGES: likewise for 4096 bytes. A file is as long as its last byte that survived.

Beside that: power loss at any call that changes something, ENOSPC by capacity, errors by name of the
call, short writes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from random import Random

from quorumd.storage.filesystem import Buffer

SECTOR_BYTES = 512


class PowerLoss(BaseException):
    """Not an Exception: nothing may catch it and go on."""


class Survival(Enum):
    LOSE = "lose"
    KEEP = "keep"
    PREFIX = "prefix"
    SECTORS = "sectors"
    PAGES = "pages"


_BLOCK_BYTES = {Survival.SECTORS: SECTOR_BYTES, Survival.PAGES: 4096}


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytes(data)
        # (position, bytes) for a write, (size, None) for a truncation, since the last sync.
        self.unsynced: list[tuple[int, bytes | None]] = []

    def apply(self, at: int, data: bytes | None) -> None:
        _apply(self.data, at, data)
        self.unsynced.append((at, data))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.unsynced.clear()

    def after_crash(self, survival: Survival, random: Random) -> bytes:
        data = bytearray(self.durable)
        changes = self.unsynced
        if survival is Survival.LOSE:
            changes = []
        elif survival is Survival.PREFIX and changes:
            last = random.randrange(len(changes))
            at, written = changes[last]
            changes = changes[:last]
            if written is not None:
                kept = random.randrange(0, len(written) + SECTOR_BYTES, SECTOR_BYTES)
                changes = [*changes, (at, written[: max(0, kept - at % SECTOR_BYTES)])]
        elif survival in _BLOCK_BYTES:
            changes = list(_surviving_blocks(changes, _BLOCK_BYTES[survival], random))
        for at, written in changes:
            _apply(data, at, written)
        return bytes(data)


def _apply(data: bytearray, at: int, written: bytes | None) -> None:
    if written is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
    elif written:
        data.extend(bytes(max(0, at - len(data))))
        data[at : at + len(written)] = written


def _surviving_blocks(
    changes: list[tuple[int, bytes | None]], block_bytes: int, random: Random
) -> Iterator[tuple[int, bytes | None]]:
    """A block has its first few changes, as it is written whole; a file may get shorter or not."""
    kept: dict[int, int] = {}
    for number, (at, written) in enumerate(changes):
        if written is None:
            if random.random() < 0.5:
                yield at, None
            continue
        end = at + len(written)
        begin = at
        while begin < end:
            block = begin // block_bytes
            stop = min(end, (block + 1) * block_bytes)
            # Of those that change this block; every other time all of them.
            if block not in kept:
                kept[block] = random.choice([len(changes), random.randrange(len(changes))])
            if number < kept[block]:
                yield begin, written[begin - at : stop - at]
            begin = stop


class FaultyFileSystem:
    """See the module. `calls` counts the calls that change something."""

    def __init__(self, files: dict[Path, bytes] | None = None) -> None:
        self._live: dict[Path, _File] = {path: _File(data) for path, data in (files or {}).items()}
        self._durable = dict(self._live)
        self._directories: set[Path] = {Path("/")}
        self._durable_directories: set[Path] = {Path("/")}
        # (name that goes, name that comes, what it names) since the last sync of the directory.
        self._changes: dict[Path, list[tuple[Path | None, Path | None, _File | None]]] = {}
        self._handles: dict[int, tuple[Path, _File]] = {}
        self._next_handle = 3
        self._locked: dict[int, _File] = {}
        self.calls = 0
        self.crash_at: int | None = None
        self.before_change: Callable[[int], object] = lambda call: None
        """Called with the number of a call, before anything changes."""
        self.capacity_bytes: int | None = None
        self.write_bytes_max: int | None = None
        self.errors: dict[str, int] = {}
        self.log: list[str] = []
        for path in self._live:
            self._directories.update(path.parents)
            self._durable_directories.update(path.parents)

    # --- faults

    def _change(self, call: str) -> None:
        self.calls += 1
        self.log.append(call)
        if self.crash_at is not None and self.calls >= self.crash_at:
            raise PowerLoss
        self.before_change(self.calls)
        self._fail_if_asked(call)

    def _fail_if_asked(self, call: str) -> None:
        if call in self.errors:
            raise OSError(self.errors[call], f"{call} was told to fail")

    def crash(self, survival: Survival, random: Random) -> FaultyFileSystem:
        """The file system as the next life finds it."""
        names = dict(self._durable)
        directories = set(self._durable_directories)
        for changes in self._changes.values():
            kept = len(changes)
            if survival is Survival.LOSE:
                kept = 0
            elif survival is not Survival.KEEP:
                kept = random.randint(0, len(changes))
            for change in changes[:kept]:
                _apply_change(names, directories, change)
        after = FaultyFileSystem()
        after._directories = set(directories)
        after._durable_directories = set(directories)
        for path, file in names.items():
            if path.parent in directories:
                after._live[path] = _File(file.after_crash(survival, random))
        after._durable = dict(after._live)
        return after

    def contents(self, path: Path) -> bytes:
        return bytes(self._live[path].data)

    def put(self, path: Path, data: bytes) -> None:
        """Replaces a file behind everybody's back, durably."""
        self._live[path] = self._durable[path] = _File(data)

    def remove(self, path: Path) -> None:
        del self._live[path]
        self._durable.pop(path, None)

    def flip(self, path: Path, at: int, mask: int = 1) -> None:
        """Damages one byte."""
        file = self._live[path]
        file.data[at] ^= mask
        file.durable = bytes(file.data)

    # --- FileSystem

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        self._fail_if_asked("open")
        if path not in self._live:
            if not create or path.parent not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._change("create")
            file = _File()
            self._live[path] = file
            self._note(path.parent, None, path, file)
        if writable:
            self._fail_if_asked("open for writing")
        self._next_handle += 1
        self._handles[self._next_handle] = path, self._live[path]
        return self._next_handle

    def close(self, handle: int) -> None:
        del self._handles[handle]
        self._locked.pop(handle, None)

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    def pread(self, handle: int, size: int, at: int) -> bytes:
        self._fail_if_asked("pread")
        return bytes(self._handles[handle][1].data[at : at + size])

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        self._change("pwritev")
        file = self._handles[handle][1]
        data = b"".join(buffers)
        if self.write_bytes_max is not None:
            data = data[: self.write_bytes_max]
        if self.capacity_bytes is not None:
            used = sum(len(found.data) for found in self._live.values())
            fits = len(file.data) + max(0, self.capacity_bytes - used) - at
            if fits <= 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            data = data[:fits]
        file.apply(at, data)
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        self._change("truncate")
        self._handles[handle][1].apply(size, None)

    def size(self, handle: int) -> int:
        return len(self._handles[handle][1].data)

    def fdatasync(self, handle: int) -> None:
        self._change("fdatasync")
        self._handles[handle][1].sync()

    def fsync(self, handle: int) -> None:
        self._change("fsync")
        self._handles[handle][1].sync()

    def fsync_directory(self, path: Path) -> None:
        self._change("fsync_directory")
        for change in self._changes.pop(path, []):
            _apply_change(self._durable, self._durable_directories, change)

    def is_deleted(self, handle: int) -> bool:
        return self._handles[handle][1] not in self._live.values()

    def drop_cached(self, handle: int) -> None:
        assert handle in self._handles

    def rename(self, source: Path, target: Path) -> None:
        self._change("rename")
        file = self._live.pop(source)
        self._live[target] = file
        self._note(target.parent, source, target, file)

    def unlink(self, path: Path) -> None:
        self._change("unlink")
        if path not in self._live:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        del self._live[path]
        self._note(path.parent, path, None, None)

    def listdir(self, path: Path) -> list[str]:
        if path in self._live:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return sorted(
            found.name
            for found in {*self._live, *self._directories}
            if found.parent == path != found
        )

    def mkdir(self, path: Path) -> None:
        self._change("mkdir")
        self._directories.add(path)
        self._note(path.parent, None, path, None)

    def exists(self, path: Path) -> bool:
        self._fail_if_asked("exists")
        return path in self._live or path in self._directories

    def try_lock(self, handle: int) -> bool:
        file = self._handles[handle][1]
        if any(found is file for other, found in self._locked.items() if other != handle):
            return False
        self._locked[handle] = file
        return True

    def try_record_lock(self, handle: int) -> bool:
        return handle in self._handles

    def process_id(self) -> int:
        return 4711

    def _note(
        self, directory: Path, gone: Path | None, new: Path | None, file: _File | None
    ) -> None:
        self._changes.setdefault(directory, []).append((gone, new, file))


def _apply_change(
    names: dict[Path, _File],
    directories: set[Path],
    change: tuple[Path | None, Path | None, _File | None],
) -> None:
    gone, new, file = change
    if gone is not None:
        names.pop(gone, None)
    if new is not None and file is not None:
        names[new] = file
    elif new is not None:
        directories.add(new)
