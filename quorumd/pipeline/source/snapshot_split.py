"""The rows of a snapshot, of those records that are not in the log any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from quorumd.pipeline.files import FileRange, Snapshot, plan_snapshot, read_rows
from quorumd.pipeline.parse.columns import TIME_MS_MAX
from quorumd.pipeline.schemas import TIMESTAMP
from quorumd.pipeline.source.offset_range import SnapshotRange
from quorumd.pipeline.source.options import CONTROL_RECORDS
from quorumd.raft.types import SnapshotId
from quorumd.storage.reader import LogFile
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import iter_records
from quorumd.wire.snapshot_records import OFFSET_HEADER

if TYPE_CHECKING:
    from pathlib import Path

    from quorumd.pipeline.source.options import Options

_OFFSET_HEADER = OFFSET_HEADER.decode()


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    """Ranges of a snapshot file, and offsets `start` to `end` (exclusive) to take out of them."""

    ranges: tuple[FileRange, ...]
    start: int
    end: int

    def read(self, options: Options) -> Iterator[pa.RecordBatch]:
        """The rows, by key. Raises DamagedBatch, StorageError."""
        for each in self.ranges:
            yield from read_rows(options.parsed_table, each, self.start, self.end)


def snapshot_split(table: str, snapshot: Snapshot, wanted: SnapshotRange) -> SnapshotSplit:
    """The pieces to read of a snapshot file. Raises DamagedBatch, StorageError."""
    plan = plan_snapshot(snapshot)
    if plan.damages:
        raise plan.damages[0]
    start, end = wanted.start, wanted.end
    if table in ("control", CONTROL_RECORDS) or not _has_offset_headers(snapshot.path):
        start, end = (0, snapshot.end_offset) if wanted.with_unplaced else (0, 0)
    return SnapshotSplit(plan.ranges, start, end)


def first_in_both(
    snapshot: Snapshot, log_start: int, in_log: int | None, timestamp_ms: int
) -> int | None:
    """The first offset that is not older, in a log that begins at `log_start` with this snapshot before it.

    `in_log` is the first one in the log, None if all are older there. Records without an offset header,
    which lie together at the end of a snapshot, stand before the log's first record, not between others.
    Reads the snapshot. Raises DamagedBatch, StorageError.
    """
    if timestamp_ms > TIME_MS_MAX:
        return in_log
    whole = SnapshotRange(SnapshotId(snapshot.end_offset, snapshot.epoch), 0, log_start, True)
    split = snapshot_split("records", snapshot, whole)
    time = pa.scalar(timestamp_ms * 1000, pa.int64()).cast(TIMESTAMP)
    first = None
    for each in split.ranges:
        for rows in read_rows("records", each, split.start, split.end):
            found = rows.filter(pc.greater_equal(rows["timestamp"], time))
            if found.num_rows:
                offset = pc.min(found["offset"]).as_py()
                first = offset if first is None else min(first, offset)
    if first is None or first < log_start:
        return in_log if first is None else first
    return in_log if in_log is not None and in_log > log_start else log_start - 1


def _has_offset_headers(path: Path) -> bool:
    """True if the records of this snapshot say which offsets they had: Kafka's don't.

    A damaged batch says nothing: it is told as damage by who reads it.
    """
    for batch in LogFile(path).batches():
        if batch.header.is_control or not batch.crc_is_valid:
            continue
        with suppress(CorruptBatch):
            for record in iter_records(batch.data):
                return bool(record.headers) and record.headers[-1][0] == _OFFSET_HEADER
    return True
