"""The log of one partition: segments on disk, a cache of the newest bytes, one writer.

Three kinds of threads use it:

* the event loop appends (`append`, `truncate_cache`) and reads what is cached (`read_cached`); it
  never waits for the disk;
* one disk thread carries the same changes out in the same order (`write`, `truncate`) and makes
  them durable (`sync`);
* any thread reads from disk (`read`, `scan_headers`, lookups by time).

So the log has two ends: `log_end_offset`, what was appended, and `written_end_offset`, what has
reached the files. What is between them is in the cache and never evicted. Neither is durable: only
what `sync` returned is.

The caller gives offsets and epochs; this class insists that they continue the log. What is on disk,
in which order, and what a start makes of it: storage.log_writer, storage.recovery and
docs/storage-format.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from storage import segment_reads
from storage.epoch_checkpoint import EpochStart
from storage.errors import (
    DamagedLog,
    DiskFailed,
    DiskFull,
    OffsetOutOfRange,
    StorageError,
    from_os_error,
)
from storage.filesystem import Buffer, FileSystem
from storage.log_writer import Chunk, ChunkSummary, LogWriter, new_segment
from storage.recovery import Observer, Recovered, RecoveryReport, recover
from storage.segment import ActiveFile
from storage.segment_reads import RecordPlace
from storage.segment_table import SegmentTable, SegmentView
from storage.tail_cache import TailCache
from wire.records import BatchHeader, read_header

__all__ = ["Chunk", "ChunkSummary", "Log", "RecordPlace", "RecoveryReport"]

SEGMENT_BYTES_MAX = (1 << 31) - 1
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
        self._directory = directory
        self.recovery: RecoveryReport = recovered.report
        self._control_offsets = recovered.control_offsets
        self._table = SegmentTable(recovered.segments)
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
        self._failure: StorageError | None = None

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
        observe: Observer | None = None,
    ) -> Log:
        """Recovers the log in an existing directory and opens it for writing.

        `committed_offset`: an end offset (exclusive) known to be committed; a log that ends below it
        is damaged. `observe` gets the header of every batch, in order, CRC verified: one pass less
        than `scan_headers` afterwards. Raises DamagedLog or another StorageError.
        """
        if not 0 < segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be 1 .. {SEGMENT_BYTES_MAX}")
        recovered = recover(
            fs,
            directory,
            index_interval_bytes=index_interval_bytes,
            committed_offset=committed_offset,
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
        return self._table.start_offset

    @property
    def log_end_offset(self) -> int:
        """Exclusive end of what was appended."""
        return self._end_offset

    @property
    def written_end_offset(self) -> int:
        """Exclusive end of what `write` has put into the files."""
        return self._table.end_offset

    @property
    def epochs(self) -> list[EpochStart]:
        """(epoch, start offset) of every epoch among what was written."""
        return list(self._writer.epochs)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch written, 0 in an empty log."""
        epochs = self._writer.epochs
        return epochs[-1].epoch if epochs else 0

    # --- event loop

    def append(self, data: Buffer, base_offset: int, end_offset: int) -> None:
        """Takes whole stamped batches; they can be read from now on. `write` must follow.

        `data` is kept, not copied. Raises ValueError if it does not begin at the log end.
        """
        if self._failure is not None:
            self._refuse()
        if base_offset != self._end_offset or end_offset <= base_offset:
            raise ValueError(
                f"records {base_offset} .. {end_offset} do not continue the log at"
                f" {self._end_offset}"
            )
        self._cache.append(base_offset, end_offset, data, self._evictable_end_offset())
        self._end_offset = end_offset

    def _evictable_end_offset(self) -> int:
        # Until the disk thread has truncated, its end says nothing about chunks appended since. The
        # order matters: it sets the end before it counts the truncation as done.
        is_settled = self._truncations_done >= self._truncations_asked
        return self._table.end_offset if is_settled else 0

    def truncate_cache(self, offset: int) -> int:
        """The event loop's half of `truncate`, to be called first; returns the new log end.

        That is `offset`, or the start of the batch that contains it. Looks at the disk only if
        `offset` is neither cached nor the start of an epoch. Raises ValueError outside the log, DiskFailed,
        DamagedLog.
        """
        if self._failure is not None:
            self._refuse()
        if not self.log_start_offset <= offset <= self._end_offset:
            raise ValueError(
                f"can't truncate {self.log_start_offset} .. {self._end_offset} to {offset}"
            )
        end_offset = self._batch_start(offset)
        if end_offset < self._end_offset:
            self._truncations_asked += 1
            self._cache.truncate(end_offset)
            self._end_offset = end_offset
        return end_offset

    def _batch_start(self, offset: int) -> int:
        is_start = any(entry.start_offset == offset for entry in self._writer.epochs)
        if offset == self._end_offset or is_start or offset == self.log_start_offset:
            return offset
        cached = self._cache.batch_start(offset)
        if cached is not None:
            return cached
        view = self._table.view_at(offset)
        try:
            headers = segment_reads.headers_from(self._fs, view, offset, verify_crc=False)
            return next((header.base_offset for _, header in headers), offset)
        except OSError as error:
            raise from_os_error(error, view.path, "reading") from error

    def read_cached(self, offset: int, max_bytes: int, end_offset: int) -> list[Buffer] | None:
        """As `read`, in pieces and without copying; None if `offset` is not in memory."""
        if not self.log_start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self._end_offset)
        if offset >= end_offset or offset == self._end_offset:
            return []
        return self._cache.read(offset, max_bytes, end_offset)

    # --- disk thread

    def write(
        self,
        data: Buffer,
        base_offset: int,
        end_offset: int,
        summary: ChunkSummary | None = None,
    ) -> None:
        """Puts one appended chunk into the files; see `write_many`."""
        self.write_many((Chunk(data, base_offset, end_offset, summary),))

    def write_many(self, chunks: Sequence[Chunk]) -> None:
        """Puts appended chunks into the files, with one call for all unless a segment gets full.

        Costs nothing per batch for a chunk of one batch or one with a summary; otherwise batch
        headers are walked through. Raises DiskFull: nothing of the chunks is in the files and the
        same call may be repeated. After any other StorageError the log refuses everything.
        """
        with _Guard(self):
            self._writer.write(chunks)

    def sync(self) -> int:
        """Makes everything written durable; returns its end offset (exclusive).

        A failure is final: it raises DiskFailed, and so does everything after it.
        """
        with _Guard(self):
            end_offset = self._table.end_offset
            self._writer.sync()
        return end_offset

    def prepare(self) -> None:
        """For an idle moment: writes zeros ahead, so that `write` finds them there."""
        with _Guard(self):
            self._writer.prepare()

    def truncate(self, offset: int) -> int:
        """Durably removes the batch that contains `offset` and all after it; returns the new end.

        Everything appended before must have been written. Raises ValueError outside the log.
        """
        with _Guard(self):
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

    def close(self) -> None:
        """A clean stop: the last segment is cut to its data, everything synced. Ends all use."""
        if self._failure is not None:
            self._writer.abandon()
            return
        with _Guard(self):
            self._writer.close()
        self._failure = DiskFailed(
            "the log is closed", path=self._directory, remedy="Open it again"
        )

    # --- any thread

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Batches from the one that contains `offset`, up to `end_offset` (exclusive), from disk.

        Whole batches, up to `max_bytes` but at least one, of one segment; every CRC is verified.
        b"" if nothing ends at or below `end_offset`, or if `offset` is not written yet. Raises
        OffsetOutOfRange, DamagedLog, DiskFailed.
        """
        if self._failure is not None:
            self._refuse()
        while True:
            generation = self._table.generation
            written_end_offset = self._table.end_offset
            if not self.log_start_offset <= offset <= max(self._end_offset, written_end_offset):
                raise OffsetOutOfRange(offset, self.log_start_offset, self._end_offset)
            if offset >= end_offset or offset >= written_end_offset:
                return b""
            view = self._table.view_at(offset)
            try:
                return segment_reads.read_batches(self._fs, view, offset, max_bytes, end_offset)
            except (DamagedLog, FileNotFoundError) as error:
                # A truncation that came in between explains both.
                if self._table.generation == generation:
                    raise self._as_storage_error(error, view.path) from error

    def scan_headers(self, from_offset: int | None = None) -> Iterator[BatchHeader]:
        """Headers of all written batches from the one that contains `from_offset`, CRC verified.

        Reads everything from there on: meant for a start, before the disk thread runs. Raises
        DamagedLog, DiskFailed.
        """
        start = self.log_start_offset if from_offset is None else from_offset
        for view in self._table.views_from(start):
            try:
                for _, header in segment_reads.headers_from(
                    self._fs, view, max(start, view.base_offset), verify_crc=True
                ):
                    yield header
            except OSError as error:
                raise self._as_storage_error(error, view.path) from error

    def control_batches(self) -> Iterator[bytes]:
        """The control batches that were in the log when it was opened, in order, CRC verified.

        Raises DamagedLog, DiskFailed.
        """
        for offset in self._control_offsets:
            if offset < self._table.end_offset:
                data = self.read(offset, 1, self._table.end_offset)
                if not data or read_header(data).base_offset != offset:
                    raise DamagedLog(
                        "a control batch was there a moment ago, and cannot be read now",
                        path=self._table.view_at(offset).path,
                        offset=offset,
                    )
                yield data

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> RecordPlace | None:
        """The first record with this timestamp or a later one, among those written below `end_offset`.

        Compressed batches are unpacked; one that does not unpack counts as empty.
        """
        for view in self._views_below(end_offset):
            if view.max_timestamp < timestamp_ms:
                continue
            times = self._table.time_entries(view.base_offset)
            place = segment_reads.first_at_or_after(
                self._fs, view, timestamp_ms, end_offset, times, self._one_batch
            )
            if place is not None:
                return place
        return None

    def offset_of_max_timestamp(self, end_offset: int) -> RecordPlace | None:
        """The first record with the greatest timestamp among those written below `end_offset`."""
        best = (-1, -1)
        for view in self._views_below(end_offset):
            at_end = self._table.view_at(end_offset - 1) if view.end_offset > end_offset else view
            times = self._table.time_entries(view.base_offset)
            found = segment_reads.greatest_timestamp(self._fs, at_end, end_offset, times)
            if found[0] > best[0]:
                best = found
        if best[1] < 0:
            return None
        return segment_reads.record_with_timestamp(self._one_batch(best[1]), best[0])

    def _views_below(self, end_offset: int) -> list[SegmentView]:
        views = self._table.views_from(self.log_start_offset)
        return [view for view in views if view.base_offset < end_offset and view.size_bytes]

    def _one_batch(self, offset: int) -> bytes:
        return self.read(offset, 1, self._table.end_offset)

    # --- failures

    def _fail(self, error: StorageError) -> None:
        self._failure = error

    def _refuse(self) -> None:
        failure = self._failure
        assert failure is not None, "nothing has failed"
        raise DiskFailed(
            f"refused after an earlier failure ({failure})",
            path=failure.path,
            remedy=failure.remedy,
        )

    @staticmethod
    def _as_storage_error(error: Exception, path: Path) -> Exception:
        return from_os_error(error, path, "reading") if isinstance(error, OSError) else error


class _Guard:
    """Around each call of the disk thread: nothing after a failure, and a failure is remembered."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def __enter__(self) -> None:
        if self._log._failure is not None:
            self._log._refuse()

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, StorageError) and not isinstance(error, DiskFull):
            self._log._fail(error)
