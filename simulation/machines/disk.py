"""One machine's disk in memory, with everything that a disk, a kernel or a kill does to storage/.

`SimDisk` is a `quorumd.storage.filesystem.FileSystem`. The same random and the same calls give the same
results. What is modelled:

**Two images.** A file has bytes that processes read (the page cache) and bytes that are durable;
`fsync` and `fdatasync` of the file make the first the second, sizes included. A directory has names
likewise: creations, renames, unlinks and mkdirs are durable after `fsync_directory` of the directory
they happened in. Names point to inodes: a renamed file keeps what was and wasn't synced of it, and
an open handle outlives the name. Files only are renamed, within their directory.

**The end of a process.** `crash` is kill -9: handles and locks are gone, the page cache stays, what
was not durable still isn't. `power_loss` also loses un-synced changes: how is drawn anew for each
file and directory. `wipe` and `restore` end a process too. The next process uses the same SimDisk.

* NONE, ALL: nothing or everything survives.
* PREFIX: changes survive in order, the last write of them up to a sector boundary.
* SECTORS, PAGES: each 512-byte sector or 4096-byte page that was written is as it was before or
  after any of the writes to it, whatever became of the others. A truncation is an exception: writes
  after it survive only with it. The file ends behind the last byte that survived, or where it ended
  in the cache; bytes never written are zeros.
* Changes of names survive as a prefix in all three.

**Kills.** `crash_after(n)`: the n-th call from then on raises `ProcessKilled` without an effect; a
pwritev as often with a part of its bytes written, up to all of them. All calls but `is_deleted` count,
also those that only read. `on_call` may raise it likewise. From then on the process is dead: its calls raise
`ProcessKilled` without an effect, until `crash` or `power_loss`. Only `close` does nothing instead,
then and for handles of an earlier process, since finally clauses and generators call it late.

**Errors**, by the rates of `DiskFaults` or once by `fail_next`: a call that fails has no effect. A
failed fsync or fdatasync is worse: what was written since the last good one is clean from then on
and lost, while reads go on to show it; the next sync succeeds without it. Reads show the durable
bytes after `drop_cached` or a power loss. Sizes (truncations and extensions) are not lost but stay
un-synced. Here lost is what was written, not the page around it. Source: Rebello et al., Can
Applications Recover from fsync Failures?, USENIX ATC 2020. A failed fsync_directory leaves the
changes un-synced.

**A full disk.** With `capacity_bytes`, a write takes the bytes for which there is space; none is
ENOSPC. Counted are the sizes of all files that have a name, zeros included; overwriting needs no
space, nor do names. An extending truncate needs it as well.

**Short writes**: a pwritev takes fewer bytes than it was given, but at least one.

**Damage at rest** hits durable bytes without un-synced changes on them, never the zeros that a file
ends with, and what a process reads as well as what is durable: `flip_bit`, `stale_sector` (a lost
write), `misplace_sector`. `flip_read` instead flips a bit of what one pread returns.

Not modelled: time, permissions, links, space taken by unlinked files that are open, lost directory
entries after an fsync_directory, kernels that make a rename durable with an fsync of the file.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random

from quorumd.storage.filesystem import Buffer
from simulation.machines.disk_damage import Damage, flip_bit, misplace_sector, stale_sector
from simulation.machines.disk_image import SECTOR_BYTES, Directory, File, Node, Survival

LOGGED_CALLS = 30
_ZEROS = bytes(1 << 20)
_SURVIVALS = tuple(Survival)


class ProcessKilled(BaseException):
    """The process is gone at this call. Not an Exception: nothing may catch it and go on."""


@dataclass(slots=True, kw_only=True)
class DiskFaults:
    """Probabilities per call, 0.0 to 1.0. The errors are EIO."""

    read_error: float = 0.0
    write_error: float = 0.0
    sync_error: float = 0.0
    """Of fsync and fdatasync."""
    short_write: float = 0.0
    flip_read: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files of a disk as they were read at some moment. Never changes."""

    root: Directory


@dataclass(slots=True)
class _Opened:
    path: Path
    file: File
    is_writable: bool


class SimDisk:
    """See the module.

    `faults`, `capacity_bytes` (None: no limit) and `on_call` may be changed at any time. `on_call`
    gets the name and the path of each call before it has an effect. `calls` counts the calls of all
    processes, `op_counts` by name; `log` has the last of them as (number, name, path, position, bytes).
    """

    def __init__(
        self, random: Random, faults: DiskFaults | None = None, *, capacity_bytes: int | None = None
    ) -> None:
        self.faults = faults or DiskFaults()
        self.capacity_bytes = capacity_bytes
        self.on_call: Callable[[str, Path | None], None] | None = None
        self.calls = 0
        self.op_counts: Counter[str] = Counter()
        self.log: deque[tuple[int, str, Path | None, int, int]] = deque(maxlen=LOGGED_CALLS)
        self.is_dead = False
        self._random = random
        self._root = Directory()
        self._opened: dict[int, _Opened] = {}
        self._next_handle = self._first_handle = 3
        self._process_number = 1
        # With any of these a call checks more.
        self._crash_in: int | None = None
        self._failures: dict[str, int] = {}

    # --- what happens to the machine

    def crash_after(self, calls: int) -> None:
        """Kills the process at the `calls`-th call from now, 1 being the next one."""
        assert calls >= 1, "the next call is number 1"
        self._crash_in = calls

    def fail_next(self, call: str, number: int = errno.EIO) -> None:
        """Lets the next call of this name in this process fail with an errno."""
        self._failures[call] = number

    def heal(self) -> None:
        """Nothing that was armed or set happens any more; what was done stays done."""
        self.faults = DiskFaults()
        self.capacity_bytes = None
        self.on_call = None
        self._crash_in = None
        self._failures.clear()

    def crash(self) -> None:
        """The process is killed; the machine goes on."""
        self._note("--- crash")
        self._end_process()

    def power_loss(self, survival: Survival | None = None) -> None:
        """The machine loses power. `survival` is drawn for each file and directory if not given."""
        self._note("--- power loss")
        self._lose_power(self._root, Path("/"), survival)
        self._end_process()

    def _lose_power(self, node: Node, path: Path, survival: Survival | None) -> None:
        if node.pending:
            survival_here = survival or self._random.choice(_SURVIVALS)
            self._note(f"--- survives: {survival_here.value}", path)
            node.lose_power(survival_here, self._random)
        elif isinstance(node, File):
            node.drop_cached()
        if isinstance(node, Directory):
            for name, child in sorted(node.names.items()):
                self._lose_power(child, path / name, survival)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self._note("--- wipe")
        self._root = Directory()
        self._end_process()

    def snapshot(self) -> Snapshot:
        """A copy of all files as they are read now."""
        return Snapshot(self._root.clone())

    def digest(self) -> str:
        """A hash of all files as they are read now, names and sizes included."""
        hashed = blake2b(digest_size=16)
        for path, file in self._root.walk():
            hashed.update(f"{path} {file.cached.size} ".encode())
            hashed.update(bytes(file.cached.head).rstrip(b"\0"))
        return hashed.hexdigest()

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces everything by a copy of a snapshot, durably; it may be another disk's."""
        self._note("--- restore")
        self._root = snapshot.root.clone()
        self._end_process()

    def _end_process(self) -> None:
        self._opened.clear()
        self._first_handle = self._next_handle
        self._process_number += 1
        self._crash_in = None
        self._failures.clear()
        self.is_dead = False

    # --- damage

    def flip_bit(self, pattern: str = "*") -> Damage | None:
        """Flips a bit of a file whose whole path matches `pattern`, as `*/meta.properties` does.

        None if there is nothing to hit, as with the others.
        """
        return self._damaged(flip_bit(self._root, pattern, self._random))

    def stale_sector(self, pattern: str = "*") -> Damage | None:
        """A lost write: a sector is as before the last synced write to it, or zeros."""
        return self._damaged(stale_sector(self._root, pattern, self._random))

    def misplace_sector(self, pattern: str = "*") -> Damage | None:
        """A sector has the content of another one, of the same or another matching file."""
        return self._damaged(misplace_sector(self._root, pattern, self._random))

    def _damaged(self, damage: Damage | None) -> Damage | None:
        if damage is not None:
            self._note(f"--- {damage.kind.value}", damage.path, damage.position, damage.size)
        return damage

    # --- what tests and reports ask

    @property
    def used_bytes(self) -> int:
        """The sizes of all files."""
        return sum(file.cached.size for _, file in self._root.walk())

    def files(self) -> list[Path]:
        """Every file that has a name, sorted by path."""
        return [Path(path) for path, _ in self._root.walk()]

    def names(self, directory: Path) -> list[str]:
        """The names of the files in a directory, sorted; none if there is no such directory."""
        node = self._find(directory)
        names = node.names if isinstance(node, Directory) else {}
        return sorted(name for name, found in names.items() if isinstance(found, File))

    def unsynced_files(self) -> list[Path]:
        """The files that a power loss may change."""
        return [Path(path) for path, file in self._root.walk() if file.pending]

    def contents(self, path: Path) -> bytes:
        """Bytes that a process reads from a file; no call, so nothing fails or counts."""
        file = self._file(path)
        return file.cached.read(0, file.cached.size)

    def _note(self, what: str, path: Path | None = None, at: int = -1, size: int = -1) -> None:
        self.log.append((self.calls, what, path, at, size))

    # --- before each call

    def _enter(self, name: str, path: Path | None, at: int = -1, size: int = -1) -> None:
        """Counts a call. Raises what was armed for it, or what `on_call` raises."""
        self.calls += 1
        self.op_counts[name] += 1
        self.log.append((self.calls, name, path, at, size))
        if self.is_dead:
            raise ProcessKilled
        if self.on_call is not None:
            self._tell(self.on_call, name, path)
        if self._crash_in is not None:
            self._crash_in -= 1
            if not self._crash_in:
                self._die()
                raise ProcessKilled
        if self._failures and name in self._failures:
            raise self._error(self._failures.pop(name), name, path)

    def _tell(
        self, on_call: Callable[[str, Path | None], None], name: str, path: Path | None
    ) -> None:
        try:
            on_call(name, path)
        except ProcessKilled:
            self._die()
            raise

    def _die(self) -> None:
        self._note("--- killed")
        self.is_dead = True
        self._opened.clear()

    def _error(self, number: int, name: str, path: Path | None) -> OSError:
        self._note(f"--- {errno.errorcode.get(number, number)} by {name}", path)
        where = (str(path),) if path is not None else ()
        return OSError(number, os.strerror(number), *where)

    def _fail_by(self, rate: float, name: str, path: Path) -> None:
        if rate and self._random.random() < rate:
            raise self._error(errno.EIO, name, path)

    def _of(self, handle: int) -> _Opened:
        opened = self._opened.get(handle)
        if opened is not None:
            return opened
        if self.is_dead:
            raise ProcessKilled
        raise self._error(errno.EBADF, f"handle {handle}", None)

    def _find(self, path: Path) -> Node | None:
        names = path.parts
        assert names[:1] == ("/",), f"{path} is not absolute"
        node: Node | None = self._root
        for name in names[1:]:
            node = node.names.get(name) if isinstance(node, Directory) else None
        return node

    def _file(self, path: Path) -> File:
        node = self._find(path)
        if node is None:
            raise self._error(errno.ENOENT, "lookup", path)
        if isinstance(node, Directory):
            raise self._error(errno.EISDIR, "lookup", path)
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._find(path)
        if node is None:
            raise self._error(errno.ENOENT, "lookup", path)
        if isinstance(node, File):
            raise self._error(errno.ENOTDIR, "lookup", path)
        return node

    # --- FileSystem: files

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        self._enter("open", path)
        if create and self._find(path) is None:
            self._directory(path.parent).change(None, path.name, File())
        handle = self._next_handle
        self._opened[handle] = _Opened(path, self._file(path), writable)
        self._next_handle += 1
        return handle

    def close(self, handle: int) -> None:
        if self.is_dead or 0 <= handle < self._first_handle:
            return
        self._enter("close", self._of(handle).path)
        del self._opened[handle]

    def pread(self, handle: int, size: int, at: int) -> bytes:
        opened = self._of(handle)
        self._enter("pread", opened.path, at, size)
        self._fail_by(self.faults.read_error, "pread", opened.path)
        data = opened.file.cached.read(at, size)
        if data and self.faults.flip_read and self._random.random() < self.faults.flip_read:
            return self._flipped(data, opened.path, at)
        return data

    def _flipped(self, data: bytes, path: Path, at: int) -> bytes:
        flipped = bytearray(data)
        place = self._random.randrange(len(data))
        flipped[place] ^= 1 << self._random.randrange(8)
        self._note("--- bit flipped in what was read", path, at + place, 1)
        return bytes(flipped)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        opened = self._of(handle)
        data = _joined(buffers)
        size = data if isinstance(data, int) else len(data)
        try:
            self._enter("pwritev", opened.path, at, size)
        except ProcessKilled:
            if opened.is_writable and size and self._random.random() < 0.5:
                size = min(self._random.randint(1, size), self._space(opened.file, at, size))
                self._write(opened.file, at, data, size)
            raise
        self._fail_by(self.faults.write_error, "pwritev", opened.path)
        if not opened.is_writable:
            raise self._error(errno.EBADF, "pwritev", opened.path)
        if self.faults.short_write and size > 1 and self._random.random() < self.faults.short_write:
            size = _whole_sectors(at, self._random.randrange(1, size)) or size
        if self.capacity_bytes is not None and size:
            space = self._space(opened.file, at, size)
            size = size if size <= space else _whole_sectors(at, space)
            if size <= 0:
                raise self._error(errno.ENOSPC, "pwritev", opened.path)
        self._write(opened.file, at, data, size)
        return size

    def _write(self, file: File, at: int, data: bytes | int, size: int) -> None:
        if size <= 0:
            return
        if isinstance(data, int):
            file.change(at, size)
        else:
            file.change(at, data if size == len(data) else data[:size])

    def _space(self, file: File, at: int, size: int) -> int:
        """Number of `size` bytes that fit at byte `at`; not above 0 if none does."""
        if self.capacity_bytes is None or at + size <= file.cached.size:
            return size
        return min(size, file.cached.size - at + max(0, self.capacity_bytes - self.used_bytes))

    def truncate(self, handle: int, size: int) -> None:
        opened = self._of(handle)
        self._enter("truncate", opened.path, size)
        if not opened.is_writable:
            raise self._error(errno.EINVAL, "truncate", opened.path)
        if size > opened.file.cached.size and self._space(opened.file, 0, size) < size:
            raise self._error(errno.ENOSPC, "truncate", opened.path)
        opened.file.change(size, None)

    def size(self, handle: int) -> int:
        opened = self._of(handle)
        self._enter("size", opened.path)
        return opened.file.cached.size

    def fdatasync(self, handle: int) -> None:
        self._sync("fdatasync", handle)

    def fsync(self, handle: int) -> None:
        self._sync("fsync", handle)

    def _sync(self, name: str, handle: int) -> None:
        opened = self._of(handle)
        try:
            self._enter(name, opened.path)
            self._fail_by(self.faults.sync_error, name, opened.path)
        except OSError:
            opened.file.lose_writes()
            raise
        opened.file.sync()

    def is_deleted(self, handle: int) -> bool:
        opened = self._of(handle)
        return self._find(opened.path) is not opened.file

    def drop_cached(self, handle: int) -> None:
        opened = self._of(handle)
        self._enter("drop_cached", opened.path)
        opened.file.drop_cached()

    def try_lock(self, handle: int) -> bool:
        opened = self._of(handle)
        self._enter("try_lock", opened.path)
        holder = opened.file.locked_by
        if holder != handle and holder in self._opened:
            return False
        opened.file.locked_by = handle
        return True

    def try_record_lock(self, handle: int) -> bool:
        return handle in self._opened

    # --- FileSystem: names

    def fsync_directory(self, path: Path) -> None:
        self._enter("fsync_directory", path)
        self._directory(path).sync()

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename", source)
        file = self._file(source)
        if source.parent != target.parent:
            raise self._error(errno.EXDEV, "rename", target)
        if isinstance(self._find(target), Directory):
            raise self._error(errno.EISDIR, "rename", target)
        self._directory(source.parent).change(source.name, target.name, file)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        self._file(path)
        self._directory(path.parent).change(path.name, None, None)

    def listdir(self, path: Path) -> list[str]:
        self._enter("listdir", path)
        return sorted(self._directory(path).names)

    def mkdir(self, path: Path) -> None:
        self._enter("mkdir", path)
        if self._find(path) is not None:
            raise self._error(errno.EEXIST, "mkdir", path)
        self._directory(path.parent).change(None, path.name, Directory())

    def exists(self, path: Path) -> bool:
        self._enter("exists", path)
        return self._find(path) is not None

    def process_id(self) -> int:
        self._enter("process_id", None)
        return 1000 + self._process_number


def _whole_sectors(at: int, size: int) -> int:
    """The largest size up to this one that ends where a sector does: file systems stop nowhere else."""
    return max(0, (at + size) // SECTOR_BYTES * SECTOR_BYTES - at)


def _joined(buffers: Sequence[Buffer]) -> bytes | int:
    """All bytes; or how many there are if they are zeros, found without touching them twice."""
    size = sum(map(len, buffers))
    if size >= SECTOR_BYTES and all(map(_ZEROS.startswith, buffers)):
        return size
    if len(buffers) == 1 and isinstance(buffers[0], bytes):
        return buffers[0]
    return b"".join(buffers)
