"""Sorted runs of keys and values in temporary files: written once, then read from the start and merged.

For more than fits in memory. A run is a sequence of blocks, each some keys in ascending order and their
values. Its file is never synced, and means nothing after a crash. A large value is kept out of its
block, which has a reference in its place: so a merge of many runs holds little of each of them, and only
the value that is wanted in the end is read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from quorumd.storage.errors import DiskFailed, from_os_error
from quorumd.storage.filesystem import Buffer, FileSystem, write_all
from quorumd.wire.keyed_records import REFERENCE_BYTES

BLOCK_BYTES = 64 << 10
"""Bytes that a block should have."""
LARGE_BYTES = 64 << 10
"""Values above this are kept out of the blocks."""

# A block is a CRC of all that follows: number of keys, lengths of keys and values, keys, values.
_CRC = Struct("=I")
_COUNT = Struct("=I")
_REFERENCE = Struct("=IQI")
_SORT_KEYS = 4096
_SORT_SAMPLE = 64


class Block(NamedTuple):
    """Keys in ascending order and their values.

    A value is empty or has more than `REFERENCE_BYTES`; with just as many it is a reference.
    """

    keys: list[bytes]
    values: list[bytes]


Load = Callable[[bytes], bytes]
"""Gives the value that a reference stands for."""


class Run:
    """One run and its file. Methods raise DiskFull or another StorageError.

    `number` is in references to it; `level` is its user's.
    """

    def __init__(self, fs: FileSystem, path: Path, number: int, level: int) -> None:
        """A new and empty one; a file that is there is written over."""
        self._fs = fs
        self._path = path
        self.number = number
        self.level = level
        self.size_bytes = 0
        self._positions = array("Q")
        self._handle = -1
        try:
            self._handle = fs.open(path, writable=True, create=True)
            fs.truncate(self._handle, 0)
        except OSError as error:
            self.close()
            raise self._failed(error, "writing") from error

    def write(self, block: Block, load: Load) -> None:
        """Appends a block; its keys are above those before."""
        values = block.values
        sizes = list(map(len, values))
        if max(sizes) > LARGE_BYTES or REFERENCE_BYTES in sizes:
            values = [
                self._kept_out(value, load)
                if size > LARGE_BYTES or size == REFERENCE_BYTES
                else value
                for value, size in zip(values, sizes, strict=True)
            ]
            sizes = list(map(len, values))
        lengths = array("I", [*map(len, block.keys), *sizes])
        count = _COUNT.pack(len(values))
        body = b"".join((count, lengths.tobytes(), *block.keys, *values))
        self._positions.append(self.size_bytes)
        self._append([_CRC.pack(crc32c(body)), body])
        self._positions.append(self.size_bytes)

    def _kept_out(self, value: bytes, load: Load) -> bytes:
        if len(value) == REFERENCE_BYTES:
            value = load(value)
        position = self.size_bytes
        self._append([value, _CRC.pack(crc32c(value))])
        return _REFERENCE.pack(self.number, position, len(value))

    def _append(self, buffers: Sequence[Buffer]) -> None:
        try:
            write_all(self._fs, self._handle, buffers, self.size_bytes)
        except OSError as error:
            raise self._failed(error, "writing") from error
        self.size_bytes += sum(map(len, buffers))

    def blocks(self) -> Iterator[Block]:
        """Every block, as it was written."""
        for at in range(0, len(self._positions), 2):
            start, end = self._positions[at : at + 2]
            data = self._read(start, end - start)
            body = memoryview(data)[_CRC.size :]
            self._check(data.startswith(_CRC.pack(crc32c(body))), start)
            (count,) = _COUNT.unpack_from(body)
            lengths_at = _CRC.size + _COUNT.size
            first = lengths_at + 8 * count
            ends = accumulate(array("I", data[lengths_at:first]), initial=first)
            fields = [data[begin:end] for begin, end in pairwise(ends)]
            yield Block(fields[:count], fields[count:])

    def load(self, reference: bytes) -> bytes:
        """The value that was kept out of a block of this run."""
        _, position, size = _REFERENCE.unpack(reference)
        data = self._read(position, size + _CRC.size)
        value = data[:size]
        self._check(data[size:] == _CRC.pack(crc32c(value)), position)
        return value

    def _read(self, position: int, size: int) -> bytes:
        try:
            data = self._fs.pread(self._handle, size, position)
        except OSError as error:
            raise self._failed(error, "reading") from error
        self._check(len(data) == size, position)
        return data

    def _check(self, is_right: bool, position: int) -> None:
        if not is_right:
            raise DiskFailed(
                f"byte {position} of a temporary file is not as it was written a moment ago",
                path=self._path,
                remedy="Check the disk and the memory of this machine",
            )

    def _failed(self, error: OSError, doing: str) -> Exception:
        return from_os_error(error, self._path, f"{doing} a temporary file")

    def close(self) -> None:
        """Lets go of the file; a second time is no harm."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._fs.close(handle)

    def delete(self) -> None:
        """Removes the file."""
        self.close()
        try:
            self._fs.unlink(self._path)
        except OSError as error:
            raise self._failed(error, "deleting") from error


def run_of(reference: bytes) -> int:
    """The number of the run that has the value."""
    number: int = _REFERENCE.unpack(reference)[0]
    return number


# --- merging


class Newest(NamedTuple):
    """Keys in ascending order, and the newest value of each."""

    keys: list[bytes]
    values: dict[bytes, bytes]


class _Cursor:
    """Position of a merge in one of its sources."""

    __slots__ = ("at", "block", "blocks")

    def __init__(self, blocks: Iterator[Block], first: Block) -> None:
        self.blocks = blocks
        self.block = first
        self.at = 0


def merge(sources: Sequence[Iterator[Block]]) -> Iterator[Newest]:
    """Everything in the sources, in order of the keys; a later source is newer than those before it."""
    cursors = [
        _Cursor(blocks, first) for blocks in sources if (first := next(blocks, None)) is not None
    ]
    while cursors:
        bound = min(cursor.block.keys[-1] for cursor in cursors)
        values: dict[bytes, bytes] = {}
        for cursor in cursors:
            keys, at = cursor.block.keys, cursor.at
            cursor.at = end = bisect_right(keys, bound, at)
            values.update(zip(keys[at:end], cursor.block.values[at:end], strict=True))
        yield Newest(sorted(values), values)
        del values
        cursors = [cursor for cursor in cursors if _advance(cursor)]


def _advance(cursor: _Cursor) -> bool:
    """To the next block, where one is done. False at the end of the source."""
    if cursor.at < len(cursor.block.keys):
        return True
    following = next(cursor.blocks, None)
    if following is None:
        return False
    cursor.block, cursor.at = following, 0
    return True


# --- sorting


def sorted_parts(keys: Sequence[bytes]) -> Generator[None, None, list[list[bytes]]]:
    """Sorts in steps of a few ms, with a pause behind each: lists of some thousand keys, in order.

    Sorted chunks are divided at the same keys, which a sample of them gives; what lies between two of
    these is sorted on its own.
    """
    chunks = []
    for at in range(0, len(keys), _SORT_KEYS):
        chunks.append(sorted(keys[at : at + _SORT_KEYS]))
        yield
    sample = sorted(key for chunk in chunks for key in chunk[::_SORT_SAMPLE])
    bounds = sample[_SORT_KEYS // _SORT_SAMPLE :: _SORT_KEYS // _SORT_SAMPLE]
    parts = []
    begins = [0] * len(chunks)
    for bound in (*bounds, None):
        part: list[bytes] = []
        for number, chunk in enumerate(chunks):
            begin = begins[number]
            end = len(chunk) if bound is None else bisect_right(chunk, bound, begin)
            part += chunk[begin:end]
            begins[number] = end
        if part:
            part.sort()
            parts.append(part)
        yield
    return parts
