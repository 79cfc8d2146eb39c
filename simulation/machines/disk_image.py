"""The files and directories of a simulated disk: what is read, what is durable, what is between.

An image keeps the zeros that a file ends with as a number, not as bytes: segments are filled with
zeros ahead of their data, and the reserve is nothing but zeros. Un-synced changes are kept in order
and applied to the durable image by a sync, so that a sync costs what was written, not the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import TypeAlias

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_REMEMBERED = 8
"""Overwrites of which a file remembers what was there before, for `older`."""

Content = bytes | int | None
"""Content that a change puts at its position: bytes, a number of zeros, or None for the end of the file."""

Change = tuple[int, Content]


class Survival(Enum):
    """Un-synced changes of a file that survive a power loss; for names, see `Directory`."""

    NONE = "none"
    ALL = "all"
    PREFIX = "prefix"
    """In order, up to some change; a write in the middle of it up to a sector boundary."""
    SECTORS = "sectors"
    """Each 512-byte sector as it was after any of the changes to it, whatever the others did."""
    PAGES = "pages"
    """Likewise for 4096-byte pages."""


class _Image:
    """`size` bytes: `head`, and zeros behind it."""

    __slots__ = ("head", "size")

    def __init__(self, head: bytearray | None = None, size: int = 0) -> None:
        self.head = bytearray() if head is None else head
        self.size = size

    def apply(self, at: int, content: Content) -> None:
        head = self.head
        if content is None:
            del head[at:]
            self.size = at
            return
        if isinstance(content, bytes):
            if at > len(head):
                head.extend(bytes(at - len(head)))
            end = at + len(content)
            head[at:end] = content
        else:
            end = at + content
            if end < len(head):
                head[at:end] = bytes(content)
            else:
                del head[at:]
        if end > self.size:
            self.size = end

    def read(self, at: int, size: int) -> bytes:
        end = min(at + size, self.size)
        if end <= at:
            return b""
        data = bytes(memoryview(self.head)[at:end])
        missing = end - at - len(data)
        return data + bytes(missing) if missing else data

    def copy(self) -> _Image:
        return _Image(self.head[:], self.size)


class File:
    """An inode. `cached` is what a process reads; `durable` with `pending` applied is the same,
    unless `has_lost` says that a failed sync dropped writes that are still in the cache."""

    __slots__ = ("_replaced", "cached", "durable", "has_lost", "locked_by", "pending")

    def __init__(self) -> None:
        self.cached = _Image()
        self.durable = _Image()
        self.pending: list[Change] = []
        self.has_lost = False
        self.locked_by = -1
        # (position, what was there, number of bytes) of the last changes made durable.
        self._replaced: deque[tuple[int, bytes, int]] = deque(maxlen=_REMEMBERED)

    def change(self, at: int, content: Content) -> None:
        """Change what is read; on disk only after a sync."""
        self.cached.apply(at, content)
        self.pending.append((at, content))

    def sync(self) -> None:
        """Make all changes durable."""
        durable = self.durable
        for at, content in self.pending:
            if content is not None:
                size = content_bytes(content)
                before = bytes(durable.head[at : at + size]) if at < len(durable.head) else b""
                self._replaced.append((at, before, size))
            durable.apply(at, content)
        self.pending.clear()

    def lose_writes(self) -> None:
        """A sync failed: pages that it didn't write count as clean. Sizes are not in those pages."""
        if not self.pending:
            return
        self.has_lost = True
        self.pending = [change for change in self.pending if change[1] is None]
        self.pending.append((self.cached.size, None))

    def drop_cached(self) -> None:
        """Clean pages are read from the disk again."""
        if not self.has_lost:
            return
        self.cached = self.durable.copy()
        for at, content in self.pending:
            self.cached.apply(at, content)
        self.has_lost = False

    def lose_power(self, survival: Survival, random: Random) -> None:
        """Keep of the changes what survives."""
        if survival is Survival.ALL:
            self.sync()
        elif survival is Survival.PREFIX:
            self._keep_prefix(random)
        elif survival is not Survival.NONE:
            self._keep_blocks(SECTOR_BYTES if survival is Survival.SECTORS else PAGE_BYTES, random)
        self.pending.clear()
        self.cached = self.durable.copy()
        self.has_lost = False

    def _keep_prefix(self, random: Random) -> None:
        last = random.randrange(len(self.pending))
        for at, content in self.pending[:last]:
            self.durable.apply(at, content)
        at, content = self.pending[last]
        if content is None:
            return
        end = at + content_bytes(content)
        boundaries = [*range(at - at % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES)]
        stop = random.choice([at, *boundaries, end])
        if stop > at:
            self.durable.apply(at, part_of(content, 0, stop - at))

    def _keep_blocks(self, block_bytes: int, random: Random) -> None:
        """Keeps blocks at random; those behind a change of the file's end survive only if it does."""
        cuts = [index for index, (_, content) in enumerate(self.pending) if content is None]
        kept = random.choice([*cuts, len(self.pending)])
        run: list[Change] = []
        for at, content in self.pending[:kept]:
            if content is None:
                self._keep_blocks_of(run, block_bytes, random)
                run = []
                self.durable.apply(at, None)
            else:
                run.append((at, content))
        self._keep_blocks_of(run, block_bytes, random)

    def _keep_blocks_of(self, writes: list[Change], block_bytes: int, random: Random) -> None:
        size = self.durable.size
        parts: dict[int, list[Change]] = {}
        for at, content in writes:
            length = content_bytes(content)
            size = max(size, at + length)
            for block in range(at // block_bytes, (at + length - 1) // block_bytes + 1):
                begin = max(at, block * block_bytes)
                stop = min(at + length, (block + 1) * block_bytes)
                part = part_of(content, begin - at, stop - at)
                parts.setdefault(block, []).append((begin, part))
        for block in sorted(parts):
            # A block is written whole, so of its changes a prefix survives, not any subset.
            kept = random.randint(0, len(parts[block]))
            for begin, content in parts[block][:kept]:
                self.durable.apply(begin, content)
        if random.random() < 0.5:
            self.durable.size = max(size, self.durable.size)

    def clean_sectors(self) -> list[tuple[int, int]]:
        """(begin, end) of the durable sectors that no un-synced change touches.

        The zeros that the file ends with are left out.
        """
        limit = len(self.durable.head)
        dirty: set[int] = set()
        for at, content in self.pending:
            if content is None:
                limit = min(limit, at)
            else:
                last = (at + content_bytes(content) - 1) // SECTOR_BYTES
                dirty.update(range(at // SECTOR_BYTES, last + 1))
        return [
            (begin, min(begin + SECTOR_BYTES, limit))
            for begin in range(0, limit, SECTOR_BYTES)
            if begin // SECTOR_BYTES not in dirty
        ]

    def older(self, begin: int, end: int) -> bytes | None:
        """Bytes `begin` .. `end` without the last synced write to them; None if not remembered."""
        for at, before, size in reversed(self._replaced):
            if at < end and begin < at + size:
                data = bytearray(self.durable.read(begin, end - begin))
                first, stop = max(at, begin), min(at + size, end)
                data[first - begin : stop - begin] = before.ljust(size, b"\0")[
                    first - at : stop - at
                ]
                return bytes(data)
        return None

    def damage(self, at: int, data: bytes) -> None:
        """Replaces durable bytes, as if they had also left the cache."""
        assert at + len(data) <= min(self.durable.size, self.cached.size)
        self.durable.apply(at, data)
        self.cached.apply(at, data)

    def clone(self) -> File:
        """A file with what is read from this one, all of it durable."""
        file = File()
        file.cached = self.cached.copy()
        file.durable = self.cached.copy()
        return file


Node: TypeAlias = "File | Directory"
NameChange: TypeAlias = "tuple[str | None, str | None, Node | None]"
"""The name that goes, the name that comes, what the latter is the name of."""


class Directory:
    """Names, durable names, and the changes between the two."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        self.pending: list[NameChange] = []

    def change(self, gone: str | None, come: str | None, node: Node | None) -> None:
        """Remove the name `gone`, and give `node` the name `come`; on disk only after a sync."""
        change = gone, come, node
        _rename(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        """Make all changes of names durable."""
        for change in self.pending:
            _rename(self.durable, change)
        self.pending.clear()

    def lose_power(self, survival: Survival, random: Random) -> None:
        """Of the changes of names a prefix survives, whatever sectors they are in."""
        kept = {Survival.NONE: 0, Survival.ALL: len(self.pending)}.get(survival)
        if kept is None:
            kept = random.randint(0, len(self.pending))
        for change in self.pending[:kept]:
            _rename(self.durable, change)
        self.names = dict(self.durable)
        self.pending.clear()

    def walk(self, path: str = "") -> Iterator[tuple[str, File]]:
        """Every file below, with its path from here, by name."""
        for name, node in sorted(self.names.items()):
            if isinstance(node, File):
                yield f"{path}/{name}", node
            else:
                yield from node.walk(f"{path}/{name}")

    def clone(self) -> Directory:
        """All below as it is read, all of it durable."""
        directory = Directory()
        directory.names = {name: node.clone() for name, node in self.names.items()}
        directory.durable = dict(directory.names)
        return directory


def _rename(names: dict[str, Node], change: NameChange) -> None:
    gone, come, node = change
    if gone is not None:
        names.pop(gone, None)
    if come is not None and node is not None:
        names[come] = node


def content_bytes(content: Content) -> int:
    """Number of bytes of a content."""
    assert content is not None
    return content if isinstance(content, int) else len(content)


def part_of(content: Content, begin: int, end: int) -> bytes | int:
    """The bytes of a content from `begin` to `end`."""
    assert content is not None
    return end - begin if isinstance(content, int) else content[begin:end]
