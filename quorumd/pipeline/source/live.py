"""The log of a live quorum: on the driver what is committed, on executors the rows of a range.

Reads as a consumer does, from the leader, and only what was committed when the range was planned:
the same range always gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.files import Snapshot
from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.source.offset_range import (
    LESS_STRICT,
    LogBounds,
    OffsetRange,
    SnapshotRange,
    replaced_snapshot,
    split_offsets,
)
from quorumd.pipeline.source.options import Options
from quorumd.pipeline.source.quorum import BelowLogStart, SnapshotReplaced, SyncQuorum
from quorumd.pipeline.source.snapshot_split import first_in_both, snapshot_split
from quorumd.raft.types import SnapshotId

OFFSETS_MAX = 200_000
"""The most that one task reads, in offsets."""


class LiveView:
    """The driver's view of a quorum."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._quorum = SyncQuorum(options.servers, options.timeout_ms, options.security)

    def bounds(self, reaching: int | None = None) -> list[LogBounds]:
        start, end, snapshot = self._quorum.bounds(reaching)
        # The batches of a snapshot are not those that were in the log.
        if snapshot is None or self._options.table == "batches":
            return [LogBounds("", start, end)]
        return [LogBounds("", start, end, snapshot)]

    def end(self, reaching: int | None = None) -> int:
        return self._quorum.end(reaching)

    def offset_lookup(self, bounds: LogBounds) -> Callable[[int], int | None]:
        def first_since(timestamp_ms: int) -> int | None:
            in_log = self._quorum.offset_at(timestamp_ms)
            if bounds.snapshot is None:
                return in_log
            with _downloaded(self._quorum, bounds.snapshot, self._options) as file:
                return first_in_both(file, bounds.start, in_log, timestamp_ms)

        return first_since

    def splits(
        self, ranges: Sequence[tuple[LogBounds, OffsetRange]]
    ) -> list[LiveLogSplit | LiveSnapshotSplit]:
        found: list[LiveLogSplit | LiveSnapshotSplit] = []
        for _, offsets in ranges:
            if offsets.snapshot_range is not None:
                found.append(LiveSnapshotSplit(offsets.snapshot_range))
            splits_min = self._options.min_partitions or 1
            pairs = split_offsets(offsets.log_start, offsets.log_end, splits_min, OFFSETS_MAX)
            found += [LiveLogSplit(start, end) for start, end in pairs]
        return found

    def close(self) -> None:
        self._quorum.close()


@dataclass(frozen=True, slots=True)
class LiveLogSplit:
    """Offsets `start` to `end` (exclusive) of the log."""

    start: int
    end: int

    def read(self, options: Options) -> Iterator[pa.RecordBatch]:
        """The rows. Raises LogUnreachable, DataLost, DamagedBatch."""
        offset = self.start
        with SyncQuorum(options.servers, options.timeout_ms, options.security) as quorum:
            while offset < self.end:
                try:
                    fetched = quorum.fetch(offset)
                except BelowLogStart as error:
                    if options.fail_on_data_loss:
                        raise DataLost(
                            f"offset {offset} was deleted while it was read: the log begins at "
                            f"{error.log_start_offset} now. {LESS_STRICT}"
                        ) from None
                    offset = error.log_start_offset
                    continue
                position, last = fetched.batches[-1]
                chunk = fetched.data[: position + last.size_bytes]
                # The client has checked the CRCs: damaged bytes are fetched once more.
                parsed = parse(
                    options.parsed_table,
                    chunk,
                    offset,
                    self.end,
                    ChunkOrigin(),
                    crc_is_checked=True,
                )
                for rows in parsed:
                    yield _without_position(rows) if options.table == "batches" else rows
                offset = last.next_offset


@dataclass(frozen=True, slots=True)
class LiveSnapshotSplit:
    """A range of offsets in the quorum's snapshot."""

    snapshot_range: SnapshotRange

    def read(self, options: Options) -> Iterator[pa.RecordBatch]:
        """The rows, by key. Raises LogUnreachable, DataLost, DamagedBatch."""
        wanted = self.snapshot_range
        with (
            SyncQuorum(options.servers, options.timeout_ms, options.security) as quorum,
            _downloaded(quorum, wanted.snapshot, options) as file,
        ):
            yield from snapshot_split(options.parsed_table, file, wanted).read(options)


@contextmanager
def _downloaded(quorum: SyncQuorum, wanted: SnapshotId, options: Options) -> Iterator[Snapshot]:
    """A snapshot as a file; a newer one if loss is allowed. Raises LogUnreachable, DataLost."""
    try:
        with quorum.downloaded(wanted, or_newer=not options.fail_on_data_loss) as file:
            yield file
    except SnapshotReplaced as error:
        raise replaced_snapshot(wanted, error.found) from None


def _without_position(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without the place of their batch in a Fetch response, which differs from one to the next."""
    at = rows.schema.get_field_index("position")
    field = rows.schema.field(at)
    return rows.set_column(at, field, pa.nulls(rows.num_rows, field.type))
