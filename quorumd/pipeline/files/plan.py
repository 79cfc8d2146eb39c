"""A segment or a snapshot as ranges of a few MiB, split between batches; the end of its data; its damage.

The framing is what counts here: a batch that is whole but whose CRC is wrong stays in its range, where
the parser names it. What breaks the framing, or leaves a hole in the offsets, is named here, and the
ranges go on behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quorumd.pipeline.files.index import BatchStart, split_points
from quorumd.pipeline.files.replicas import LogSegment, Snapshot
from quorumd.pipeline.parse.origin import ChunkOrigin, DamagedBatch
from quorumd.storage.batch_walk import BatchCursor, header_at, reason_of, walk
from quorumd.storage.errors import StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.reader import FileTail, TailKind
from quorumd.storage.torn_tail import Tail, examine_tail, has_unwritten_sector
from quorumd.wire.batch_header import BATCH_OVERHEAD, BatchHeader
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.sequence_check import offset_problem
from quorumd.wire.snapshot_records import SNAPSHOT_BATCH_BYTES_MAX

RANGE_BYTES = 8 << 20
_PAUSE_S = 0.05
_PAUSES_MAX = 20
"""A running node writes at one place at a time: a file with more bad places than this is damaged."""


class FileRange(NamedTuple):
    """Whole batches: `size_bytes` from `origin.position` in `origin.file`. It can be pickled.

    Of a segment, offsets `start_offset` .. `end_offset` (exclusive) without a hole. Of a snapshot the
    records are at any offsets below its end.
    """

    origin: ChunkOrigin
    size_bytes: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The content of a file: ranges in its order, offsets `start_offset` .. `end_offset` (exclusive).

    `tail` is what lies behind the data; an unfinished write (TORN) and zeros are no damage. Each of
    `damages` names a place where no batch is, or where another one should be; a batch with a wrong CRC
    is only among them if nothing sound follows it at once.
    """

    path: Path
    ranges: tuple[FileRange, ...]
    start_offset: int
    end_offset: int
    tail: FileTail
    damages: tuple[DamagedBatch, ...]


def plan_segment(
    segment: LogSegment,
    *,
    range_bytes: int = RANGE_BYTES,
    by_index: bool = True,
    fs: FileSystem | None = None,
) -> FilePlan:
    """Plans a segment. `by_index`: a closed one whose offset index is sound is not walked through, so
    damage within a range is left to its reader.

    A range has at most `range_bytes`, unless a single batch has more, or no index entry is there. Raises
    StorageError if the file can't be read; a running node may have deleted it.
    """
    fs = fs or RealFileSystem()
    origin = ChunkOrigin(segment.replica_id, segment.storage_id, str(segment.path))
    with _opened(fs, segment.path) as handle:
        cutter = _RangeBuilder(origin, segment.base_offset, range_bytes)
        walk = _SegmentWalk(fs, handle, segment, cutter)
        if by_index and not segment.may_be_unfinished:
            walk.jump()
        tail = walk.run()
    return FilePlan(
        path=segment.path,
        ranges=tuple(cutter.ranges),
        start_offset=segment.base_offset,
        end_offset=cutter.end_offset,
        tail=tail,
        damages=tuple(cutter.damages),
    )


def plan_snapshot(snapshot: Snapshot, *, range_bytes: int = RANGE_BYTES) -> FilePlan:
    """Plans a snapshot. Raises StorageError if the file can't be read."""
    fs = RealFileSystem()
    end = snapshot.end_offset
    origin = ChunkOrigin(
        snapshot.replica_id, snapshot.storage_id, str(snapshot.path), snapshot_end=end
    )
    with _opened(fs, snapshot.path) as handle:
        cutter = _RangeBuilder(origin, 0, range_bytes)
        tail = _walk_snapshot(fs, handle, cutter)
    return FilePlan(
        path=snapshot.path,
        ranges=tuple(each._replace(start_offset=0, end_offset=end) for each in cutter.ranges),
        start_offset=0,
        end_offset=end,
        tail=tail,
        damages=tuple(cutter.damages),
    )


@contextmanager
def _opened(fs: FileSystem, path: Path) -> Iterator[int]:
    """A handle. Raises StorageError for every OSError."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        raise StorageError(
            "there is no such file any more",
            path=path,
            remedy="A running node deletes old segments and snapshots: look again",
        ) from None
    except OSError as error:
        raise from_os_error(error, path, "opening") from error
    try:
        yield handle
    except OSError as error:
        raise from_os_error(error, path, "reading") from error
    finally:
        fs.close(handle)


class _RangeBuilder:
    """Groups batches, given in order, into ranges."""

    def __init__(self, origin: ChunkOrigin, base_offset: int, range_bytes: int) -> None:
        self._origin = origin
        self.range_bytes = range_bytes
        self._begin = 0
        self._begin_offset = base_offset
        self.position = 0
        """Behind the last batch."""
        self.end_offset = base_offset
        """One past the last offset."""
        self.expected: int | None = base_offset
        """The offset that has to come next, None behind damage."""
        self.ranges: list[FileRange] = []
        self.damages: list[DamagedBatch] = []

    def add(self, position: int, header: BatchHeader) -> None:
        if header.base_offset < 0:
            self.close()
            self.damage(f"a batch with the offset {header.base_offset}")
            self.skip_to(position + header.size_bytes)
            return
        if self.expected is not None and header.base_offset != self.expected:
            self.close()
            self.damage(offset_problem(header, self.expected))
            self.expected = None
        if self.expected is None:
            self._begin, self._begin_offset = position, header.base_offset
        elif position + header.size_bytes - self._begin > self.range_bytes:
            self.close()
        self.position = position + header.size_bytes
        self.expected = self.end_offset = max(header.next_offset, header.base_offset + 1)

    def jump(self, cut: BatchStart) -> None:
        """Takes for granted what is before a cut."""
        self.position = cut.position
        self.expected = self.end_offset = cut.offset
        self.close()

    def rewind(self) -> None:
        """Forgets what is in no range yet."""
        self.position = self._begin
        self.expected = self.end_offset = self._begin_offset

    def close(self) -> None:
        """Ends the range behind the last batch, if there is one in it."""
        if self.position > self._begin:
            origin = self._origin._replace(position=self._begin)
            size = self.position - self._begin
            self.ranges.append(FileRange(origin, size, self._begin_offset, self.end_offset))
        self._begin, self._begin_offset = self.position, self.end_offset

    def skip_to(self, position: int) -> None:
        """Continues after damage; the next offset is unknown."""
        self.position = self._begin = position
        self.expected = None

    def damage(self, what: str) -> None:
        """Behind the last batch."""
        offset = self.end_offset if self.expected is None else self.expected
        self.damages.append(DamagedBatch(what, offset, self._origin.file, self.position))


class _SegmentWalk:
    """Goes through a segment; by headers as far as that goes, else with every CRC verified."""

    def __init__(
        self, fs: FileSystem, handle: int, segment: LogSegment, cutter: _RangeBuilder
    ) -> None:
        self._fs = fs
        self._handle = handle
        self._segment = segment
        self._cutter = cutter
        # Taken once: what a running node appends meanwhile is not read.
        self._size = fs.size(handle)
        self._epoch = 0
        self._verify = segment.may_be_unfinished

    def jump(self) -> None:
        """Takes what the offset index says of a closed segment, up to its last entry of use."""
        segment, cutter = self._segment, self._cutter
        path, base_offset = segment.path, segment.base_offset
        for cut in split_points(self._fs, self._handle, path, base_offset, cutter.range_bytes):
            cutter.jump(cut)

    def run(self) -> FileTail:
        """To the end of the data; what lies behind it. Raises OSError."""
        cutter, size = self._cutter, self._size
        examined_at = -1
        pauses = 0
        while True:
            reason = self._walk()
            if cutter.position == size:
                cutter.close()
                return FileTail(TailKind.NONE, size, 0)
            if not self._verify:
                # The batch to blame may be an earlier one, with a wrong size.
                self._verify = True
                cutter.rewind()
                continue
            tail = self._examine()
            kind = self._kind(tail)
            if kind is TailKind.DAMAGE:
                is_new = self._segment.may_be_unfinished and examined_at != cutter.position
                if is_new and pauses < _PAUSES_MAX:
                    # A running node may be writing just here.
                    examined_at = cutter.position
                    pauses += 1
                    time.sleep(_PAUSE_S)
                    continue
                if self._go_on(tail, reason):
                    continue
            cutter.close()
            text = tail.describe(reason) if kind in (TailKind.DAMAGE, TailKind.TORN) else ""
            return FileTail(kind, cutter.position, size - cutter.position, text)

    def _walk(self) -> str:
        """Adds batches up to where none is; why there is none."""
        start, end = self._cutter.position, self._size
        try:
            for position, header in walk(
                self._fs, self._handle, start, end, verify_crc=self._verify
            ):
                if header.base_offset != self._cutter.expected:
                    if self._is_half_written(position):
                        return "the header of the last batch is half written"
                    if not self._verify:
                        return "a hole"
                self._cutter.add(position, header)
                self._epoch = max(self._epoch, header.epoch)
        except CorruptBatch as error:
            return reason_of(error)
        return "the last batch is short"

    def _is_half_written(self, position: int) -> bool:
        """No CRC covers the offset, so a batch without its first sector can seem valid."""
        expected = self._cutter.expected
        if not self._segment.may_be_unfinished or expected is None:
            return False
        return has_unwritten_sector(self._fs, self._handle, position, position + 1, expected)

    def _examine(self) -> Tail:
        cutter = self._cutter
        start, end = cutter.position, self._size
        return examine_tail(
            self._fs,
            self._handle,
            start,
            end,
            cutter.end_offset,
            epoch=self._epoch,
            is_closed=not self._segment.may_be_unfinished,
        )

    def _kind(self, tail: Tail) -> TailKind:
        if self._segment.may_be_unfinished and not tail.damage:
            return TailKind.TORN if tail.torn_bytes else TailKind.ZEROS
        return TailKind.DAMAGE

    def _go_on(self, tail: Tail, reason: str) -> bool:
        """Behind damage, or over a batch of which only the contents are wrong. False if nothing is."""
        cutter = self._cutter
        header = self._framed(tail)
        if header is not None:
            cutter.add(cutter.position, header)
            return True
        cutter.close()
        cutter.damage(tail.describe(reason))
        if tail.valid_after is None:
            return False
        cutter.skip_to(tail.valid_after)
        return True

    def _framed(self, tail: Tail) -> BatchHeader | None:
        """The header at hand, if what is behind the batch bears out its size and its offsets."""
        position = self._cutter.position
        header = header_at(self._fs, self._handle, position)
        if header is None:
            return None
        end = position + header.size_bytes
        next_offset = None
        if end == tail.valid_after:
            following = header_at(self._fs, self._handle, end)
            next_offset = None if following is None else following.base_offset
        elif end == self._size:
            next_offset = self._segment.next_base
        return header if header.next_offset == next_offset else None


def _walk_snapshot(fs: FileSystem, handle: int, cutter: _RangeBuilder) -> FileTail:
    size = fs.size(handle)
    cursor = BatchCursor(
        fs,
        handle,
        size,
        batch_bytes_max=SNAPSHOT_BATCH_BYTES_MAX,
        window_bytes=BATCH_OVERHEAD,
    )
    while cutter.position < size:
        position = cutter.position
        try:
            header = cursor.read_header(position)
        except CorruptBatch as error:
            cutter.close()
            cutter.damage(reason_of(error))
            return FileTail(TailKind.DAMAGE, position, size - position, reason_of(error))
        cutter.add(position, header)
    cutter.close()
    return FileTail(TailKind.NONE, size, 0)
