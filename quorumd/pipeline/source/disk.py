"""The logs in directories: on the driver their offsets, on executors the rows of ranges of their files.

A node may run beside it, and is not disturbed. Which of a log's last records are committed, its files
don't say: a batch read takes all that is there, a stream what every one of the directories has.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from quorumd.pipeline.errors import DataLost, LogUnreachable
from quorumd.pipeline.files import (
    RANGE_BYTES,
    FilePlan,
    FileRange,
    LogSegment,
    Replica,
    Snapshot,
    find_replicas,
    first_offset_since,
    plan_segment,
    read_rows,
)
from quorumd.pipeline.source.offset_range import (
    LESS_STRICT,
    LogBounds,
    OffsetRange,
    replaced_snapshot,
    split_offsets,
)
from quorumd.pipeline.source.options import Options
from quorumd.pipeline.source.snapshot_split import SnapshotSplit, first_in_both, snapshot_split
from quorumd.raft.types import SnapshotId

if TYPE_CHECKING:
    import pyarrow as pa

TASK_BYTES = 32 << 20
"""About the most that one task reads."""
TASKS_MIN = 4
"""Of a log that is long enough for several."""
_RANGE_BYTES_MIN = 64 << 10


class DiskView:
    """The driver's view of one or several directories."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._replicas: dict[str, Replica] = {}
        self._plans: dict[tuple[Path, int], FilePlan] = {}
        self._bounds: list[LogBounds] = []

    def bounds(self, reaching: int | None = None) -> list[LogBounds]:
        # The last segment is walked through, which costs time: its bounds are read once a batch.
        ends = [bounds.end for bounds in self._bounds]
        if reaching is None or not ends or min(ends) < reaching:
            self._replicas = {str(replica.path): replica for replica in self._find()}
            self._plans.clear()
            self._bounds = [self._bounds_of(*each) for each in self._replicas.items()]
        return self._bounds

    def end(self, reaching: int | None = None) -> int:
        return min(bounds.end for bounds in self.bounds())

    def offset_lookup(self, bounds: LogBounds) -> Callable[[int], int | None]:
        replica = self._replicas[bounds.label]

        def first_since(timestamp_ms: int) -> int | None:
            in_log = first_offset_since(replica.segments, timestamp_ms)
            if bounds.snapshot is None:
                return in_log
            snapshot = self._snapshot(replica, bounds.snapshot)
            return first_in_both(snapshot, bounds.start, in_log, timestamp_ms)

        return first_since

    def splits(
        self, ranges: Sequence[tuple[LogBounds, OffsetRange]]
    ) -> list[LogSplit | SnapshotSplit]:
        found: list[LogSplit | SnapshotSplit] = []
        for bounds, offsets in ranges:
            replica = self._replicas[bounds.label]
            if offsets.snapshot_range is not None:
                snapshot = self._snapshot(replica, offsets.snapshot_range.snapshot)
                found.append(
                    snapshot_split(self._options.parsed_table, snapshot, offsets.snapshot_range)
                )
            found += self._log_splits(replica, offsets)
        return found

    def close(self) -> None:
        """No file stays open."""

    def _find(self) -> list[Replica]:
        """The replicas that are meant. Raises LogUnreachable, StorageError."""
        options = self._options
        paths: list[str] = []
        for text in options.paths:
            as_is = not glob.has_magic(text) or Path(text).exists()
            matches = [text] if as_is else sorted(glob.glob(text))
            if not matches:
                raise LogUnreachable(f"path={text}: nothing matches. Is it right?")
            paths += matches
        replicas = find_replicas(paths)
        wanted = options.replica
        if wanted is None:
            return replicas
        chosen = [replica for replica in replicas if replica.replica_id == wanted]
        if not chosen:
            there = ", ".join(f"{each.label} ({each.path})" for each in replicas)
            raise LogUnreachable(f"replica={wanted}: there is no such replica, only {there}")
        return chosen

    def _bounds_of(self, label: str, replica: Replica) -> LogBounds:
        newest = replica.snapshots[-1] if replica.snapshots else None
        if not replica.segments:
            assert newest is not None, "a replica has one or the other"
            start = end = newest.end_offset
        else:
            start = replica.segments[0].base_offset
            end = self._plan(replica.segments[-1]).end_offset
        # The batches of a snapshot are not those that were in the log.
        if newest is None or not start or self._options.table == "batches":
            return LogBounds(label, start, end)
        return LogBounds(label, start, end, SnapshotId(newest.end_offset, newest.epoch))

    def _snapshot(self, replica: Replica, wanted: SnapshotId) -> Snapshot:
        """Raises DataLost if there are only others by now, unless loss is allowed."""
        for snapshot in replica.snapshots:
            if (snapshot.end_offset, snapshot.epoch) == wanted:
                return snapshot
        if not replica.snapshots:
            raise replaced_snapshot(wanted, None)
        newest = replica.snapshots[-1]
        if self._options.fail_on_data_loss:
            raise replaced_snapshot(wanted, SnapshotId(newest.end_offset, newest.epoch))
        return newest

    def _log_splits(self, replica: Replica, offsets: OffsetRange) -> list[LogSplit]:
        splits_min = self._options.min_partitions or TASKS_MIN
        ranges = self._ranges(replica, offsets, RANGE_BYTES)
        total = sum(each.size_bytes for each in ranges)
        if self._options.min_partitions and len(ranges) < splits_min:
            ranges = self._ranges(replica, offsets, max(_RANGE_BYTES_MIN, total // splits_min))
        groups = _grouped(ranges, max(splits_min, -(-total // TASK_BYTES)))
        return [LogSplit(tuple(group), offsets.log_start, offsets.log_end) for group in groups]

    def _ranges(self, replica: Replica, offsets: OffsetRange, range_bytes: int) -> list[FileRange]:
        """The parts of segment files that hold these offsets.

        Unless loss is allowed, raises DamagedBatch if there are places without batches, and DataLost if
        a segment is missing.
        """
        found: list[FileRange] = []
        for segment in replica.segments:
            is_before = segment.next_base is not None and segment.next_base <= offsets.log_start
            if is_before or segment.base_offset >= offsets.log_end:
                continue
            plan = self._plan(segment, range_bytes)
            if plan.damages and self._options.fail_on_data_loss:
                raise plan.damages[0]
            found += plan.ranges
        start, end = offsets.log_start, offsets.log_end
        found = [each for each in found if each.start_offset < end and each.end_offset > start]
        if self._options.fail_on_data_loss:
            _check_no_hole(replica, found, start, end)
        return found

    def _plan(self, segment: LogSegment, range_bytes: int = RANGE_BYTES) -> FilePlan:
        key = segment.path, range_bytes
        if key not in self._plans:
            self._plans[key] = plan_segment(segment, range_bytes=range_bytes)
        return self._plans[key]


@dataclass(frozen=True, slots=True)
class LogSplit:
    """Ranges of segments, and offsets `start` to `end` (exclusive) to take out of them."""

    ranges: tuple[FileRange, ...]
    start: int
    end: int

    def read(self, options: Options) -> Iterator[pa.RecordBatch]:
        """The rows. Raises DamagedBatch, StorageError."""
        for each in self.ranges:
            yield from read_rows(options.parsed_table, each, self.start, self.end)


def _check_no_hole(replica: Replica, ranges: Sequence[FileRange], start: int, end: int) -> None:
    for each in ranges:
        if each.start_offset > start:
            break
        start = each.end_offset
    if start < end:
        after = min(
            (each.start_offset for each in ranges if each.start_offset > start), default=end
        )
        raise DataLost(
            f"{replica.path}: offsets {start} to {after} (exclusive) are missing, a segment perhaps. Take "
            f"them from another replica. {LESS_STRICT}"
        )


def _grouped(ranges: Sequence[FileRange], groups: int) -> list[Sequence[FileRange]]:
    """Neighbours together, so many groups, or one for each range if there are fewer."""
    edges = [edge for edge, _ in split_offsets(0, len(ranges), groups, len(ranges))]
    return [ranges[at:to] for at, to in pairwise([*edges, len(ranges)])]
