"""The log of one partition: segments on disk, a cache of the newest bytes, one writer.

Three kinds of threads use it:

* the event loop appends (`append`, `truncate_cache`, `reset_cache`) and reads what is cached
  (`read_cached`); it never waits for the disk;
* one disk thread carries the same changes out in the same order (`write`, `truncate`, `reset`),
  makes them durable (`sync`), and deletes the oldest segments (`delete_before`);
* any thread reads from disk (`read`, `scan_headers`, lookups by time).

So the log has two ends: `log_end_offset`, what was appended, and `written_end_offset`, what has
reached the files. What is between them is in the cache and never evicted. Neither is durable: only
what `sync` returned is.

It has one start, `log_start_offset`, which every thread sees alike and which only grows, segment by
segment, each time before the files below it go. `delete_before` moves it at any moment from the disk
thread; so a second look may find it higher, in the event loop too, and a read below it, also of
what is cached, is OffsetNotInLog from that moment on. `reset_cache` moves it for all threads at
once: until the disk thread has come to `reset`, nothing is read from disk. After a crash it may be
lower again: files whose deletion was not durable are back.

What orders the threads: the table of segments has a lock. All else that they share is plain attributes,
each with one writer, whose writes the interpreter's lock makes visible in the order of the program:

| attribute | written by | what readers rely on |
|---|---|---|
| `_end_offset` | event loop | nothing: an old value bounds a read as well |
| `_resets_waiting`, `_reset` | event loop | a reset is queued before it counts; `_reset` is one tuple |
| `_truncations_done`, `_resets_done` | disk thread | counted after the table has the new end |
| `LogWriter.epochs` | disk thread | a tuple; an append replaces it before the table has the new end |
| `FailureLatch.failure` | either | set once, never taken back |

Where threads run without that lock (a free-threaded build) these need the table's lock on both sides.

The caller gives offsets and epochs; this class insists that they continue the log. What is on disk,
in which order, and what a start makes of it: quorumd.storage.log_writer, quorumd.storage.recovery and
docs/storage-format.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from quorumd.raft.types import SnapshotId
from quorumd.storage import segment_reads, time_lookup
from quorumd.storage.epoch_checkpoint import EpochStart
from quorumd.storage.errors import (
    DamagedLog,
    DiskFailed,
    OffsetNotInLog,
    StorageError,
    from_os_error,
)
from quorumd.storage.failure_latch import FailureLatch
from quorumd.storage.filesystem import Buffer, FileSystem
from quorumd.storage.log_writer import Chunk, ChunkSummary, LogWriter, new_segment
from quorumd.storage.recovery import BatchObserver, Recovered, recover
from quorumd.storage.recovery_report import RecoveryReport
from quorumd.storage.segment import ActiveFile
from quorumd.storage.segment_reads import TimestampAndOffset
from quorumd.storage.segment_table import ClosedSegment, SegmentTable
from quorumd.storage.tail_cache import TailCache
from quorumd.wire.records import BatchHeader, read_header

__all__ = ["Chunk", "ChunkSummary", "ClosedSegment", "Log", "RecoveryReport", "TimestampAndOffset"]

T = TypeVar("T")

SEGMENT_BYTES_MAX: Final = (1 << 31) - 1
"""Positions in indexes are int32."""


class Log:
    """See the module. Made by `Log.open`."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        recovered: Recovered,
        *,
        segment_bytes: int,
        tail_cache_bytes: int,
        index_interval_bytes: int,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self.recovery: RecoveryReport = recovered.report
        self._control_offsets = recovered.control_offsets
        self._table = SegmentTable(recovered.segments, recovered.index_bytes)
        self._writer = LogWriter(
            fs,
            directory,
            self._table,
            recovered.epochs,
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
        )
        self._cache = TailCache(tail_cache_bytes)
        self._end_offset = self._table.end_offset
        self._truncations_asked = 0
        self._truncations_done = 0
        # Written by the event loop: the number of the last reset, and where the log begins by it.
        self._reset = (0, 0)
        self._resets_waiting: deque[int] = deque()
        self._resets_done = 0
        self._latch = FailureLatch()

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: Path,
        *,
        segment_bytes: int,
        tail_cache_bytes: int,
        index_interval_bytes: int = 4096,
        committed_offset: int = 0,
        snapshots: Sequence[SnapshotId] = (),
        observe: BatchObserver | None = None,
    ) -> Log:
        """Recovers the log in an existing directory and opens it for writing.

        `committed_offset`: an end offset (exclusive) known to be committed; a log that ends below it
        is damaged. `snapshots`: (end offset, epoch) of those in the directory that the caller found
        sound and of this log. What the newest of them stands for is not read; a log that does not
        hold that is emptied, and begins at its end. `observe` gets the header of every batch that ends
        above it, in order, CRC verified: one pass less than `scan_headers` afterwards. Raises
        DamagedLog, also if a snapshot is needed that was not given, or another StorageError.
        """
        if not 0 < segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be 1 .. {SEGMENT_BYTES_MAX}")
        recovered = recover(
            fs,
            directory,
            index_interval_bytes=index_interval_bytes,
            committed_offset=committed_offset,
            snapshots=snapshots,
            observe=observe,
        )
        if not recovered.segments:
            first = new_segment(directory, 0, index_interval_bytes)
            ActiveFile(fs, first.path, 0, segment_bytes, create=True).close()
            recovered.segments.append(first)
        return cls(
            fs,
            directory,
            recovered,
            segment_bytes=segment_bytes,
            tail_cache_bytes=tail_cache_bytes,
            index_interval_bytes=index_interval_bytes,
        )

    # --- bounds

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read; any thread. See the module."""
        reset_to = self._unfinished_reset()
        return self._table.start_offset if reset_to is None else reset_to

    @property
    def log_end_offset(self) -> int:
        """Exclusive end of what was appended."""
        return self._end_offset

    @property
    def written_end_offset(self) -> int:
        """Exclusive end of what `write` has put into the files; any thread."""
        reset_to = self._unfinished_reset()
        return self._table.end_offset if reset_to is None else reset_to

    @property
    def size_bytes(self) -> int:
        """The size of the log on disk but for the zeros written ahead; any thread."""
        return self._table.size_bytes if self._unfinished_reset() is None else 0

    def closed_segments(self) -> list[ClosedSegment]:
        """The segments that `delete_before` could delete, ascending; any thread, no disk access."""
        return self._table.closed() if self._unfinished_reset() is None else []

    @property
    def epochs(self) -> list[EpochStart]:
        """(epoch, start offset) of every epoch among what was written, from the log start on."""
        return list(self._writer.epochs) if self._unfinished_reset() is None else []

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch written, 0 in an empty log."""
        epochs = self.epochs
        return epochs[-1].epoch if epochs else 0

    def _unfinished_reset(self) -> int | None:
        """Offset at which the log begins by a reset that the disk thread has not carried out yet."""
        number, end_offset = self._reset
        return end_offset if self._resets_done < number else None

    # --- event loop

    def append(self, data: Buffer, base_offset: int, end_offset: int) -> None:
        """Takes whole stamped batches; they can be read from now on. `write` must follow.

        `data` is kept, not copied. Raises ValueError if it does not begin at the log end.
        """
        if self._latch.failure is not None:
            self._latch.refuse()
        if base_offset != self._end_offset or end_offset <= base_offset:
            raise ValueError(
                f"records {base_offset} .. {end_offset} do not continue the log at"
                f" {self._end_offset}"
            )
        self._cache.append(base_offset, end_offset, data, self._evictable_end_offset())
        self._end_offset = end_offset

    def _evictable_end_offset(self) -> int:
        # Until the disk thread has truncated or reset, its end says nothing about chunks appended
        # since. The order matters: it sets the end before it counts that as done.
        if self._truncations_done < self._truncations_asked or self._resets_done < self._reset[0]:
            return 0
        return self._table.end_offset

    def truncate_cache(self, offset: int) -> int:
        """The event loop's half of `truncate`, which must follow; returns the new log end.

        That is `offset`, or the start of the batch that contains it. Reads the disk only if
        `offset` is neither cached nor the start of an epoch. Raises ValueError outside the log, DiskFailed,
        DamagedLog.
        """
        self._latch.check()
        if not self.log_start_offset <= offset <= self._end_offset:
            raise ValueError(
                f"can't truncate {self.log_start_offset} .. {self._end_offset} to {offset}"
            )
        end_offset = self._batch_start(offset)
        self._truncations_asked += 1
        self._cache.truncate(end_offset)
        self._end_offset = end_offset
        return end_offset

    def reset_cache(self, end_offset: int) -> None:
        """The event loop's half of `reset`, which must follow: empty at once, and begins there.

        Raises ValueError below the log start, DiskFailed.
        """
        self._latch.check()
        if end_offset < self.log_start_offset:
            raise ValueError(
                f"can't reset a log that starts at {self.log_start_offset} to {end_offset}"
            )
        self._resets_waiting.append(end_offset)
        self._reset = (self._reset[0] + 1, end_offset)
        self._cache.truncate(0)
        self._end_offset = end_offset

    def _batch_start(self, offset: int) -> int:
        if offset in (self._end_offset, self.log_start_offset):
            return offset
        # The cache comes first: where truncations wait for the disk, what is written is outdated.
        cached = self._cache.batch_start(offset)
        if cached is not None:
            return cached
        if any(entry.start_offset == offset for entry in self._writer.epochs):
            return offset
        view = self._table.view_at(offset)
        try:
            with closing(
                segment_reads.headers_from(self._fs, view, offset, verify_crc=False)
            ) as headers:
                return next((header.base_offset for _, header in headers), offset)
        except OSError as error:
            raise from_os_error(error, view.path, "reading") from error

    def read_cached(self, offset: int, max_bytes: int, end_offset: int) -> list[Buffer] | None:
        """As `read`, in several buffers and without copying; None if `offset` is not in memory."""
        last, start = self._end_offset, self.log_start_offset
        if not start <= offset <= last:
            raise OffsetNotInLog(offset, start, last)
        if offset >= end_offset or offset == last:
            return []
        return self._cache.read(offset, max_bytes, end_offset)

    def unwritten(self) -> list[Buffer]:
        """Appended batches that may not have reached the files yet, ascending, for a search by time."""
        return self._cache.chunks_from(self._evictable_end_offset())

    # --- disk thread

    def write(
        self, data: Buffer, base_offset: int, end_offset: int, summary: ChunkSummary | None = None
    ) -> None:
        """Puts one appended chunk into the files; see `write_many`."""
        self.write_many((Chunk(data, base_offset, end_offset, summary),))

    def write_many(self, chunks: Sequence[Chunk]) -> None:
        """Puts appended chunks into the files, with one call for all unless a segment gets full.

        Costs nothing per batch for a chunk of one batch or one with a summary; otherwise batch
        headers are walked through. Raises DiskFull: nothing of the chunks is in the files and the
        same call may be repeated. After any other StorageError the log refuses everything.
        """
        try:  # a `with` block costs a tenth of all that it takes to write
            self._latch.check()
            self._writer.write(chunks)
        except StorageError as error:
            self._latch.note(error)
            raise

    def sync(self) -> int:
        """Makes everything written durable; returns its end offset (exclusive).

        A failure is final: it raises DiskFailed, and so does everything after it.
        """
        try:
            self._latch.check()
            end_offset = self._table.end_offset
            self._writer.sync()
        except StorageError as error:
            self._latch.note(error)
            raise
        return end_offset

    def prepare(self) -> None:
        """For an idle moment: writes zeros ahead, so that `write` finds them there."""
        with self._latch:
            self._writer.prepare()

    def truncate(self, offset: int) -> int:
        """Durably removes the batch that contains `offset` and all after it; returns the new end.

        Everything appended before must have been written. Raises ValueError outside the log.
        """
        with self._latch:
            if not self._table.start_offset <= offset <= self._table.end_offset:
                raise ValueError(
                    f"can't truncate {self._table.start_offset} .. {self._table.end_offset} to"
                    f" {offset}"
                )
            end_offset = self._writer.truncate(offset)
            self._truncations_done += 1
        if self._truncations_asked < self._truncations_done:
            # The caller has no event loop: one thread does both halves.
            self._cache.truncate(end_offset)
            self._truncations_asked = self._truncations_done
            self._end_offset = end_offset
        return end_offset

    def reset(self, end_offset: int) -> None:
        """Durably drops everything; the log starts and ends at `end_offset`.

        A snapshot that ends there must be durable: a start that finds the job half done finishes it.
        Needs no space. To repeat it at once does nothing. Raises DiskFailed, ValueError unless
        `reset_cache` was called.
        """
        with self._latch:
            if not self._resets_waiting or self._resets_waiting[0] != end_offset:
                if self._table.start_offset == self._table.end_offset == end_offset:
                    return
                raise ValueError(f"a reset to {end_offset} that the event loop does not know of")
            self._writer.reset(end_offset)
            self._resets_waiting.popleft()
            self._resets_done += 1

    def delete_before(self, offset: int) -> int:
        """Durably deletes closed segments that end at or below `offset`; returns the log start.

        A snapshot that ends there or later must be durable. Syncs the directory once for each
        segment. Raises DiskFailed.
        """
        with self._latch:
            return self._writer.delete_before(offset)

    def close(self) -> None:
        """A clean stop: the last segment is cut to its data, everything synced. Ends all use."""
        if self._latch.failure is not None:
            self._writer.abandon()
            return
        with self._latch:
            self._writer.close()
        closed = DiskFailed("the log is closed", path=self.directory, remedy="Open it again")
        self._latch.failure = closed

    # --- any thread

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Batches from the one that contains `offset`, up to `end_offset` (exclusive), from disk.

        Whole batches, up to `max_bytes` but at least one, of one segment; all is verified.
        b"" if nothing ends at or below `end_offset`, or if `offset` is not written yet. Raises
        OffsetNotInLog, also if the log start has overtaken the read, DamagedLog, DiskFailed.
        """
        self._latch.check()
        return self._unless_overtaken(lambda: self._read(offset, max_bytes, end_offset))

    def _read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        start_offset, written_end_offset, view = self._table.location_of(offset)
        reset_to = self._unfinished_reset()
        if reset_to is not None:
            start_offset = written_end_offset = reset_to
        log_end_offset = max(self._end_offset, written_end_offset)
        if not start_offset <= offset <= log_end_offset:
            # The bounds that were compared: meanwhile the log may have grown.
            raise OffsetNotInLog(offset, start_offset, log_end_offset)
        if offset >= end_offset or offset >= written_end_offset:
            return b""
        # Taken after the view: the epochs of what is written are known before its end is.
        epochs = self._writer.epochs
        return segment_reads.read_batches(self._fs, view, offset, max_bytes, end_offset, epochs)

    def scan_headers(self, from_offset: int | None = None) -> Generator[BatchHeader]:
        """Headers of all written batches from the one that contains `from_offset`, CRC verified.

        Reads everything from there on: meant for a start, before the disk thread runs. A caller that stops
        early closes it. Raises OffsetNotInLog if a truncation, deletion or reset gets in the way,
        DamagedLog, DiskFailed.
        """
        generation = self._table.generation
        start = self.log_start_offset if from_offset is None else from_offset
        views = self._table.views_from(start) if self._unfinished_reset() is None else []
        for view in views:
            first = max(start, view.base_offset)
            try:
                with closing(
                    segment_reads.headers_from(self._fs, view, first, verify_crc=True)
                ) as headers:
                    for _, header in headers:
                        yield header
            except (DamagedLog, OSError) as error:
                if self._table.generation != generation:
                    bounds = self.log_start_offset, self._end_offset
                    raise OffsetNotInLog(first, *bounds) from error
                if isinstance(error, OSError):
                    raise from_os_error(error, view.path, "reading") from error
                raise

    def control_batches(self) -> Iterator[bytes]:
        """The control batches that were in the log when it was opened, in order, CRC verified.

        Without those below the end of the newest snapshot that was given. Raises DamagedLog,
        DiskFailed.
        """
        for offset in self._control_offsets:
            if self.log_start_offset <= offset < self.written_end_offset:
                data = self.read(offset, 1, self._table.end_offset)
                if not data or read_header(data).base_offset != offset:
                    raise DamagedLog(
                        "a control batch was there a moment ago, and cannot be read now",
                        path=self._table.view_at(offset).path,
                        offset=offset,
                    )
                yield data

    def offset_for_timestamp(
        self, timestamp_ms: int, end: int, *, start: int = 0, unwritten: Sequence[Buffer] = ()
    ) -> TimestampAndOffset | None:
        """The first record below `end` with this timestamp or a later one, in the files or in `unwritten`.

        Only in segments that end above `start`, the log start once queued deletions are done. A
        compressed batch that does not unpack counts as empty. Raises DamagedLog, DiskFailed.
        """
        asked = self._fs, self._table, timestamp_ms, (start, end), self._one_batch, unwritten
        return self._look_up(lambda: time_lookup.first_at_or_after(*asked))

    def offset_of_max_timestamp(
        self, end: int, *, start: int = 0, unwritten: Sequence[Buffer] = ()
    ) -> TimestampAndOffset | None:
        """The first record with the greatest timestamp, in the same range; raises the same."""
        asked = self._fs, self._table, (start, end), self._one_batch, unwritten
        return self._look_up(lambda: time_lookup.first_with_greatest(*asked))

    def _look_up(
        self, search: Callable[[], TimestampAndOffset | None]
    ) -> TimestampAndOffset | None:
        return self._unless_overtaken(
            lambda: search() if self._unfinished_reset() is None else None
        )

    def _one_batch(self, offset: int) -> bytes:
        data = self.read(offset, 1, self._table.end_offset)
        if not data:
            raise OffsetNotInLog(offset, self.log_start_offset, self._end_offset)
        return data

    def _unless_overtaken(self, read: Callable[[], T]) -> T:
        """Reads again where segments have changed or gone meanwhile, which explains any trouble."""
        while True:
            generation, reset = self._table.generation, self._reset
            try:
                return read()
            except (DamagedLog, OffsetNotInLog):
                if self._table.generation == generation and self._reset == reset:
                    raise
            except OSError as error:
                if self._table.generation == generation:
                    path = Path(error.filename) if error.filename else self.directory
                    raise from_os_error(error, path, "reading") from error
