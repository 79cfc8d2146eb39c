"""The disk thread's side of the log: place, roll, sync, truncate, delete, reset.

Order of what reaches the disk, each step durable before the next:

* write: a new epoch's entry in leader-epoch-checkpoint, then the bytes (durable after `sync`).
* roll: the full segment synced and cut to its data, its two indexes, the new empty segment, then its
  bytes.
* truncate: segments above from the newest down (.log first, then its indexes), the one that becomes
  active cut, leader-epoch-checkpoint.
* delete: segments from the oldest up, leader-epoch-checkpoint.
* reset: quorumd.storage.segment_removal.

After a crash between any two of them `quorumd.storage.recovery` finds a log that ends where the last sync
or later left it, or part way through a truncation or deletion, at a batch; or a reset to finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quorumd.storage import layout
from quorumd.storage.batch_walk import BATCH_BYTES_MAX, reason_of, walk
from quorumd.storage.epoch_checkpoint import EpochStart, epochs_from, save_epochs
from quorumd.storage.errors import DamagedLog, DiskFull, from_os_error
from quorumd.storage.filesystem import Buffer, FileSystem
from quorumd.storage.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, SegmentIndex
from quorumd.storage.segment import (
    RELATIVE_OFFSET_MAX,
    ActiveFile,
    Segment,
    fsync_failed,
    write_indexes,
)
from quorumd.storage.segment_reads import seek
from quorumd.storage.segment_removal import empty_log, remove_segment
from quorumd.storage.segment_table import SegmentTable
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import iter_headers, read_header
from quorumd.wire.sequence_check import epoch_problem, offset_problem


@dataclass(slots=True)
class ChunkSummary:
    """Epoch and timestamps of a chunk whose caller knows them already, which saves walking through it.

    `epoch` is that of every batch; `max_timestamp` (ms) the greatest of their headers, and
    `max_timestamp_offset` the last offset of the first batch that has it.
    """

    epoch: int
    max_timestamp: int
    max_timestamp_offset: int


@dataclass(slots=True)
class Chunk:
    """Whole batches with offsets `base_offset` .. `end_offset` (exclusive), one behind the other."""

    data: Buffer
    base_offset: int
    end_offset: int
    summary: ChunkSummary | None = None


class _Entry(NamedTuple):
    """An offset entry to be made, and the greatest timestamp of the run before that batch."""

    position: int
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int


class _Run:
    """Bytes that go into one segment with one write, and what the indexes get to know of them.

    Nothing of it counts before it is written, so it can be dropped at any time.
    """

    def __init__(self, segment: Segment, index: SegmentIndex) -> None:
        self.segment = segment
        self.index = index
        self.buffers: list[Buffer] = []
        self.position = segment.size_bytes
        self.end_offset = segment.end_offset
        self.epochs: list[EpochStart] = []
        self.entries: list[_Entry] = []
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.due_above = index.due_above
        self._interval_bytes = index.interval_bytes

    def add_entry(self, position: int, last_offset: int) -> None:
        """Adds an entry where the index is due: a batch whose timestamp is not noted yet."""
        self.entries.append(
            _Entry(position, last_offset, self.max_timestamp, self.max_timestamp_offset)
        )
        self.due_above = position + self._interval_bytes

    def note_timestamp(self, max_timestamp: int, offset: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = offset

    def add_to_index(self) -> None:
        index = self.index
        for position, last_offset, max_timestamp, offset in self.entries:
            index.note_timestamp(max_timestamp, offset)
            index.add_entry(position, last_offset)
        index.note_timestamp(self.max_timestamp, self.max_timestamp_offset)


class LogWriter:
    """Writes to the last segment of a table. Used by one thread at a time."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        table: SegmentTable,
        epochs: Sequence[EpochStart],
        *,
        segment_bytes: int,
        index_interval_bytes: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._table = table
        self._segment_bytes = segment_bytes
        self._index_interval_bytes = index_interval_bytes
        self.epochs = tuple(epochs)
        active = table.active
        self._file = ActiveFile(fs, active.path, active.size_bytes, segment_bytes, create=False)

    # --- writing

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Places chunks behind each other, with one write unless a segment gets full.

        Raises DiskFull, after which nothing of them is in the log; ValueError if a chunk does not
        continue the log or is no whole batches, likewise; DiskFailed.
        """
        end_offset = self._table.end_offset
        try:
            run = self._new_run()
            for chunk in chunks:
                run = self._place(run, chunk)
            self._flush(run)
        except (DiskFull, ValueError):
            # A part may have gone into the segment that was full.
            self.truncate(end_offset)
            raise

    def _new_run(self) -> _Run:
        active = self._table.active
        return _Run(active, _index_of(active))

    def _place(self, run: _Run, chunk: Chunk) -> _Run:
        data, base_offset, end_offset = chunk.data, chunk.base_offset, chunk.end_offset
        if base_offset != run.end_offset or end_offset <= base_offset:
            raise ValueError(
                f"records {base_offset} .. {end_offset} do not continue the log at {run.end_offset}"
            )
        size = len(data)
        if not self._fits(run, size, end_offset):
            return self._place_by_batch(run, chunk)
        if chunk.summary is None:
            self._note_all(run, data)
        else:
            self._note_summary(run, data, chunk.summary, end_offset)
        if run.end_offset != end_offset:
            raise ValueError(f"the batches end at offset {run.end_offset} instead of {end_offset}")
        run.buffers.append(data)
        run.position += size
        return run

    def _fits(self, run: _Run, size: int, end_offset: int) -> bool:
        relative = end_offset - run.segment.base_offset
        return run.position + size <= self._segment_bytes and relative <= RELATIVE_OFFSET_MAX

    def _place_by_batch(self, run: _Run, chunk: Chunk) -> _Run:
        """Splits a chunk where the segment gets full; a batch larger than a segment gets its own."""
        view = memoryview(chunk.data)
        at = 0
        for position, header in iter_headers(chunk.data):
            at = position + header.size_bytes
            if run.position and not self._fits(run, header.size_bytes, header.next_offset):
                self._flush(run)
                self._roll()
                run = self._new_run()
            self._note_all(run, view[position:at])
            run.buffers.append(view[position:at])
            run.position += header.size_bytes
        if at != len(chunk.data) or run.end_offset != chunk.end_offset:
            raise ValueError(f"bytes {at} .. {len(chunk.data)} of a chunk are no whole batch")
        return run

    def _note_summary(
        self, run: _Run, data: Buffer, summary: ChunkSummary, end_offset: int
    ) -> None:
        if summary.epoch != self._last_epoch(run):
            self._note_epoch(run, summary.epoch, run.end_offset)
        if run.position > run.due_above:
            run.add_entry(run.position, read_header(data).last_offset)
        run.note_timestamp(summary.max_timestamp, summary.max_timestamp_offset)
        run.end_offset = end_offset

    def _note_all(self, run: _Run, data: Buffer) -> None:
        """Walks through the headers: once per batch, so everything that can be is kept local."""
        end = 0
        next_offset = run.end_offset
        last_epoch = self._last_epoch(run)
        for at, header in iter_headers(data):
            base_offset, size, epoch, _, _, delta, _, max_timestamp, _, _, _, _ = header
            if base_offset != next_offset or delta < 0 or size > BATCH_BYTES_MAX:
                problem = offset_problem(header, next_offset) or f"a batch of {size} bytes"
                raise ValueError(f"{problem}: it does not continue the log")
            if epoch != last_epoch:
                self._note_epoch(run, epoch, base_offset)
                last_epoch = epoch
            next_offset += delta + 1
            if run.position + at > run.due_above:
                run.add_entry(run.position + at, next_offset - 1)
            if max_timestamp > run.max_timestamp:
                run.note_timestamp(max_timestamp, next_offset - 1)
            end = at + size
        if end != len(data):
            raise ValueError(f"bytes {end} .. {len(data)} of a chunk are no whole batch")
        run.end_offset = next_offset

    def _last_epoch(self, run: _Run) -> int | None:
        known = run.epochs or self.epochs
        return known[-1].epoch if known else None

    def _note_epoch(self, run: _Run, epoch: int, base_offset: int) -> None:
        problem = epoch_problem(epoch, self._last_epoch(run))
        if problem:
            raise ValueError(f"{problem}, at offset {base_offset}: it does not continue the log")
        run.epochs.append(EpochStart(epoch, base_offset))

    def _flush(self, run: _Run) -> None:
        if not run.buffers:
            return
        if run.epochs:
            # If the write fails the file names an epoch too many: it is rebuilt from the log then.
            save_epochs(self._fs, self._directory, (*self.epochs, *run.epochs))
        self._file.write(run.buffers, run.position - self._file.size_bytes)
        if run.epochs:
            self.epochs = (*self.epochs, *run.epochs)
        segment, index = run.segment, run.index
        with self._table.lock:
            run.add_to_index()
            segment.max_timestamp = index.max_timestamp
            segment.max_timestamp_offset = index.max_timestamp_offset
            segment.size_bytes = run.position
            segment.end_offset = run.end_offset

    def _roll(self) -> None:
        """Closes the active segment and begins the next one. After DiskFull nothing has changed."""
        full = self._table.active
        index = self._finished_index(full)
        self._file.cut(full.size_bytes)
        write_indexes(self._fs, full, index)
        path = layout.log_path(self._directory, full.end_offset)
        try:
            self._open_file(path, 0, create=True)
        except DiskFull:
            self._unlink([path])
            raise
        with self._table.changing() as segments:
            full.index = None
            entries = len(index.offsets), len(index.times)
            self._table.index_bytes[full.base_offset] = (
                entries[0] * OFFSET_ENTRY_BYTES + entries[1] * TIME_ENTRY_BYTES
            )
            segments.append(self._new_segment(full.end_offset))

    def _finished_index(self, segment: Segment) -> SegmentIndex:
        """The index of a segment that is about to be closed. Readers use it until then."""
        index = _index_of(segment)
        with self._table.lock:
            index.finish()
        return index

    def _open_file(self, path: Path, size_bytes: int, *, create: bool = False) -> None:
        """The file to write to from now on; if it cannot be opened that stays the one before."""
        file = ActiveFile(self._fs, path, size_bytes, self._segment_bytes, create=create)
        self._file.close()
        self._file = file

    def _new_segment(self, base_offset: int) -> Segment:
        return new_segment(self._directory, base_offset, self._index_interval_bytes)

    # --- the rest

    def prepare(self) -> None:
        """When there is nothing to do: writes zeros ahead. Not durable before the next `sync`."""
        self._file.prepare()

    def sync(self) -> None:
        """Makes everything written durable. Raises DiskFailed."""
        self._file.sync()

    def truncate(self, offset: int) -> int:
        """Durably drops everything from the batch that contains `offset`; returns the new end."""
        if offset >= self._table.end_offset:
            return self._table.end_offset
        while self._table.active.base_offset > offset:
            self._drop_active()
        end_offset = self._cut_active(offset)
        self._keep_epochs(entry for entry in self.epochs if entry.start_offset < end_offset)
        return end_offset

    def _keep_epochs(self, entries: Iterable[EpochStart]) -> None:
        epochs = tuple(entries)
        if epochs == self.epochs:
            return
        self.epochs = epochs
        # Freeing space must not need space; the next start rebuilds the file.
        with suppress(DiskFull):
            save_epochs(self._fs, self._directory, epochs)

    def _drop_active(self) -> None:
        with self._table.changing() as segments:
            dropped = segments.pop()
            del self._table.index_bytes[segments[-1].base_offset]
            self._table.generation += 1
        self._unlink([dropped.path, dropped.index_path, dropped.time_index_path])
        active = self._table.active
        self._open_file(active.path, active.size_bytes)

    def _cut_active(self, offset: int) -> int:
        segment = self._table.active
        fs = self._fs
        try:
            handle = fs.open(segment.path)
            try:
                position, header = seek(fs, handle, self._table.view_at(offset), offset)
                end_offset = header.base_offset
                index = self._cut_index(handle, segment, position, end_offset)
            finally:
                fs.close(handle)
        except CorruptBatch as error:
            raise DamagedLog(
                f"can't truncate: {reason_of(error)}",
                path=segment.path,
                position=error.position,
                offset=offset,
            ) from error
        except OSError as error:
            raise from_os_error(error, segment.path, "reading") from error
        with self._table.changing():
            self._table.generation += 1
            segment.index = index
            segment.size_bytes = position
            segment.end_offset = end_offset
            segment.max_timestamp = index.max_timestamp
            segment.max_timestamp_offset = index.max_timestamp_offset
        self._file.cut(position)
        self._unlink([segment.index_path, segment.time_index_path])
        return end_offset

    def _cut_index(
        self, handle: int, segment: Segment, position: int, end_offset: int
    ) -> SegmentIndex:
        """The index of the active segment as of `position`; a closed one's is built anew."""
        with self._table.lock:
            index = segment.index
            resume = 0 if index is None else index.cut(position, end_offset)
        if index is None:
            index = SegmentIndex(segment.base_offset, self._index_interval_bytes)
        for at, header in walk(self._fs, handle, resume, position):
            with self._table.lock:
                index.add(at, header.last_offset, header.max_timestamp)
        return index

    def delete_before(self, offset: int) -> int:
        """Durably deletes the closed segments that end at or below `offset`; returns the log start.

        Raises DiskFailed.
        """
        while (base_offset := self._drop_oldest(offset)) is not None:
            remove_segment(self._fs, self._directory, base_offset)
        start_offset = self._table.start_offset
        is_empty = start_offset == self._table.end_offset
        self._keep_epochs(() if is_empty else epochs_from(self.epochs, start_offset))
        return start_offset

    def _drop_oldest(self, offset: int) -> int | None:
        """Takes the oldest segment out of the table if it is to go; returns its first offset."""
        with self._table.changing() as segments:
            if len(segments) == 1 or segments[0].end_offset > offset:
                return None
            self._table.generation += 1
            base_offset = segments.pop(0).base_offset
            del self._table.index_bytes[base_offset]
        return base_offset

    def reset(self, end_offset: int) -> None:
        """Durably drops everything; the log begins and ends at `end_offset`. Raises DiskFailed."""
        segment = self._new_segment(end_offset)
        with self._table.changing() as segments:
            self._table.generation += 1
            segments[:] = [segment]
            self._table.index_bytes.clear()
        self.epochs = ()
        empty_log(self._fs, self._directory, end_offset)
        self._open_file(segment.path, 0)

    def _unlink(self, paths: Sequence[Path]) -> None:
        """Deletes what is there, in this order, each durable before the next."""
        for path in paths:
            try:
                if self._fs.exists(path):
                    self._fs.unlink(path)
                    self._fs.fsync_directory(self._directory)
            except OSError as error:
                raise fsync_failed(error, path) from error

    def close(self) -> None:
        """Cuts the active segment to its data, syncs it and puts its indexes on disk."""
        segment = self._table.active
        try:
            self._file.cut(segment.size_bytes)
            # Indexes follow from the log.
            with suppress(DiskFull):
                write_indexes(self._fs, segment, self._finished_index(segment))
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Closes the file and nothing else, after a failure."""
        self._file.close()


def new_segment(directory: Path, base_offset: int, index_interval_bytes: int) -> Segment:
    """An empty segment, not on disk yet."""
    return Segment(
        base_offset,
        layout.log_path(directory, base_offset),
        0,
        base_offset,
        index=SegmentIndex(base_offset, index_interval_bytes),
    )


def _index_of(active: Segment) -> SegmentIndex:
    assert active.index is not None, "the active segment has its index in memory"
    return active.index
