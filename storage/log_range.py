"""The batches between two offsets of a partition directory, read from its segment files alone.

Takes no lock and needs no Log: for a process of its own beside a running node. All that is read was
committed, so it never changes while it is read; later appends of a running node are not read.
Every batch is checked: CRC, offset, epoch. Segments below the first offset are not opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from quorumd.storage import layout
from quorumd.storage.batch_walk import (
    CHUNK_BYTES,
    SEEK_WINDOW_BYTES,
    BatchCursor,
    Batches,
    reason_of,
    walk,
)
from quorumd.storage.errors import DamagedLog, UnsuitableOffset, from_os_error
from quorumd.storage.filesystem import FileSystem, file_size
from quorumd.storage.index import indexed_position
from quorumd.storage.write_marker import LEADING_ZEROS
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BatchHeader
from quorumd.wire.sequence_check import segment_problem, sequence_problem

_SEEK_BATCHES = 1000


class RangeChunk(NamedTuple):
    """Some bytes, and the whole batches in them.

    There may be none: then work was done, and there is more.
    """

    data: bytes
    batches: Batches


class LogRange:
    """Offsets `start_offset` .. `end_offset` (exclusive); a batch has to begin at either.

    `epoch` is that of the batch before, -1 if there is none.
    """

    def __init__(
        self, fs: FileSystem, directory: Path, start_offset: int, end_offset: int, epoch: int
    ) -> None:
        """Raises UnsuitableOffset if the segments can't hold the range, DamagedLog if one is missing."""
        self._fs = fs
        self._directory = directory
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._next_offset = start_offset
        self._epoch = None if epoch < 0 else epoch
        self._handle = -1
        bases = _segment_bases(fs, directory)
        if not bases or end_offset <= bases[0]:
            raise self._unsuitable(f"the log begins at offset {bases[0] if bases else 0}")
        if start_offset < bases[0]:
            raise DamagedLog(
                f"the log begins at offset {bases[0]} and no snapshot holds what was before",
                path=layout.log_path(directory, bases[0]),
                offset=start_offset,
            )
        first = bisect_right(bases, start_offset) - 1
        self._bases = [base for base in bases[first:] if base < end_offset]
        self._last_base = bases[-1]
        self.size_bytes = sum(map(self._file_bytes, self._bases))
        """About as much will be read: the files from first to last."""
        self.read_bytes = 0

    def chunks(self) -> Generator[RangeChunk, None, None]:
        """All batches, in chunks of some hundred KiB. Raises UnsuitableOffset, DamagedLog, DiskFailed."""
        try:
            for base_offset in self._bases:
                yield from self._segment_chunks(base_offset)
        finally:
            self.close()
        if self._next_offset < self._end_offset:
            raise self._unsuitable(f"the log ends at offset {self._next_offset}")

    def close(self) -> None:
        """Lets go of the open segment; a second time is no harm."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._fs.close(handle)

    # --- one segment

    def _segment_chunks(self, base_offset: int) -> Iterator[RangeChunk]:
        path = layout.log_path(self._directory, base_offset)
        before_bytes = self.read_bytes
        try:
            self._handle = self._fs.open(path)
            size = self._fs.size(self._handle)
            position = 0
            if base_offset < self._next_offset == self._start_offset:
                position = yield from self._seek(path, base_offset, size)
            elif problem := segment_problem(base_offset, self._next_offset):
                raise DamagedLog(problem, path=path, offset=min(base_offset, self._next_offset))
            cursor = BatchCursor(self._fs, self._handle, size, window_bytes=CHUNK_BYTES)
            while self._next_offset < self._end_offset and position < size:
                try:
                    data, batches = cursor.read_chunk(position)
                except CorruptBatch as error:
                    if base_offset == self._last_base and self._is_unwritten(position):
                        break
                    raise self._damaged(path, position, error) from error
                chunk = RangeChunk(data, self._in_sequence(path, position, batches))
                at, last = chunk.batches[-1]
                position += at + last.size_bytes
                self.read_bytes = before_bytes + position
                yield chunk
            self.close()
        except OSError as error:
            raise from_os_error(error, path, "reading") from error
        self.read_bytes = before_bytes + size

    def _is_unwritten(self, position: int) -> bool:
        """True behind the data of a segment that is written to."""
        return not self._fs.pread(self._handle, LEADING_ZEROS, position).strip(b"\0")

    def _in_sequence(self, path: Path, position: int, batches: Batches) -> Batches:
        """Batches of the range, at least one. Runs once per batch, so what is rare is decided elsewhere."""
        next_offset, end_offset, epoch = self._next_offset, self._end_offset, self._epoch
        for number, (at, header) in enumerate(batches):
            base_offset, _, its_epoch, _, _, delta, _, _, _, _, _, _ = header
            its_end = base_offset + delta + 1
            if (
                base_offset != next_offset
                or its_epoch != epoch
                or not next_offset < its_end <= end_offset
            ):
                self._next_offset, self._epoch = next_offset, epoch
                if next_offset == end_offset:
                    return batches[:number]
                try:
                    self._check_sequence(path, header, position + at)
                except CorruptBatch as error:
                    raise self._damaged(path, position + at, error) from error
                epoch = its_epoch
            next_offset = its_end
        self._next_offset, self._epoch = next_offset, epoch
        return batches

    def _check_sequence(self, path: Path, header: BatchHeader, position: int) -> None:
        """Lets a batch that begins a new epoch pass. Raises CorruptBatch or UnsuitableOffset for others."""
        problem = sequence_problem(header, self._next_offset, self._epoch)
        if problem:
            raise CorruptBatch(problem)
        if header.next_offset > self._end_offset:
            raise self._unsuitable(
                f"offset {self._end_offset} is inside the batch {header.base_offset} .."
                f" {header.last_offset} of {path.name}, byte {position}"
            )

    def _seek(self, path: Path, base_offset: int, size: int) -> Generator[RangeChunk, None, int]:
        """The position of the batch at the start offset, by headers alone; pauses now and then."""
        wanted = self._start_offset
        problem = CorruptBatch(f"no batch begins at offset {wanted}, where the snapshot ends")
        index_path = layout.index_path(self._directory, base_offset)
        hint = indexed_position(self._fs, index_path, base_offset, wanted, size)
        for start in dict.fromkeys((hint, 0)):
            next_offset, end = -1, start
            batches = walk(self._fs, self._handle, start, size, window_bytes=SEEK_WINDOW_BYTES)
            try:
                for count, (position, header) in enumerate(batches, 1):
                    if header.base_offset == wanted:
                        return position
                    if header.next_offset > wanted:
                        break
                    next_offset, end = header.next_offset, position + header.size_bytes
                    if count % _SEEK_BATCHES == 0:
                        yield RangeChunk(b"", [])
            except CorruptBatch as error:
                problem = error
            if next_offset == wanted:
                return end
        raise self._damaged(path, 0, problem)

    # --- errors

    def _damaged(self, path: Path, position: int, error: CorruptBatch) -> DamagedLog:
        return DamagedLog(
            f"damaged since it was written: {reason_of(error)}",
            path=path,
            position=position + error.position,
            offset=self._next_offset,
        )

    def _unsuitable(self, why: str) -> UnsuitableOffset:
        return UnsuitableOffset(
            f"no snapshot can end at offset {self._end_offset}: {why}",
            path=self._directory,
            remedy="Choose the end of a committed batch",
        )

    def _file_bytes(self, base_offset: int) -> int:
        path = layout.log_path(self._directory, base_offset)
        try:
            return file_size(self._fs, path)
        except OSError as error:
            raise from_os_error(error, path, "reading") from error


def _segment_bases(fs: FileSystem, directory: Path) -> list[int]:
    try:
        names = fs.listdir(directory)
    except OSError as error:
        raise from_os_error(error, directory, "reading the directory") from error
    return layout.segment_bases(names)
