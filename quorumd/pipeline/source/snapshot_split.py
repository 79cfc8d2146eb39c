"""The rows of a snapshot, of those records that are not in the log any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorumd.pipeline.files import FileRange, Snapshot, plan_snapshot, read_rows
from quorumd.pipeline.source.offset_range import SnapshotRange
from quorumd.pipeline.source.options import CONTROL_RECORDS
from quorumd.storage.reader import LogFile
from quorumd.wire.records import iter_records
from quorumd.wire.snapshot_records import OFFSET_HEADER

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

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
    """What to read of a snapshot file. Raises DamagedBatch, StorageError."""
    plan = plan_snapshot(snapshot)
    if plan.damages:
        raise plan.damages[0]
    start, end = wanted.start, wanted.end
    if table in ("control", CONTROL_RECORDS) or not _has_offset_headers(snapshot.path):
        start, end = (0, snapshot.end_offset) if wanted.with_unplaced else (0, 0)
    return SnapshotSplit(plan.ranges, start, end)


def _has_offset_headers(path: Path) -> bool:
    """Whether the records of this snapshot say which offsets they had: Kafka's don't."""
    for batch in LogFile(path).batches():
        if not batch.header.is_control:
            headers = next(iter_records(batch.data)).headers
            return bool(headers) and headers[-1][0] == _OFFSET_HEADER
    return True
