"""A file system in memory that tells what it was asked to change or forget, in order and by short names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from quorumd.storage.filesystem import Buffer
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY


class JournalFileSystem(FaultyFileSystem):
    """`journal` has lines such as "write 5.log"; what makes a temporary file is left out.

    `on_change` is called with each line before the change is made, also while it is not asked for, and
    may raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[str] = []
        self.on_change: Callable[[str], None] = lambda line: None
        for path in (DIRECTORY.parent, DIRECTORY):
            self.mkdir(path)
            self.fsync_directory(path.parent)
        self.journal.clear()

    def take(self) -> list[str]:
        """What came since the last call."""
        taken, self.journal = self.journal, []
        return taken

    def _tell(self, verb: str, path: Path) -> None:
        if path.name.endswith(".tmp"):
            return
        base, dot, suffix = path.name.partition(".")
        name = f"{int(base)}{dot}{suffix}" if base.isdigit() else path.name
        line = f"{verb} {name}"
        self.on_change(line)
        self.journal.append(line)

    def _path(self, handle: int) -> Path:
        return self._handles[handle][0]

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        if create and path not in self._live:
            self._tell("create", path)
        return super().open(path, writable=writable, create=create)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        self._tell("write" if any(map(any, buffers)) else "zeros", self._path(handle))
        return super().pwritev(handle, buffers, at)

    def truncate(self, handle: int, size: int) -> None:
        self._tell("cut", self._path(handle))
        super().truncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        self._tell("sync", self._path(handle))
        super().fdatasync(handle)

    def fsync(self, handle: int) -> None:
        self._tell("sync", self._path(handle))
        super().fsync(handle)

    def fsync_directory(self, path: Path) -> None:
        self.on_change("sync names")
        super().fsync_directory(path)
        self.journal.append("sync names")

    def drop_cached(self, handle: int) -> None:
        self._tell("forget", self._path(handle))
        super().drop_cached(handle)

    def rename(self, source: Path, target: Path) -> None:
        self._tell("replace" if source.suffix == ".tmp" else "rename to", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._tell("delete", path)
        super().unlink(path)
