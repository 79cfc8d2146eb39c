"""Offsets of a log that can be read, and those that a query reads. No socket, no file, no Spark.

A log may begin above offset 0: what stood before is deleted then, and the newest snapshot holds what is
left of it, each record with the offset that it had. So a range below the log's start is read from the
snapshot, and all the rest from the log: every record that there is, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from quorumd.pipeline.errors import BadOption, DataLost
from quorumd.pipeline.source.options import EARLIEST, LATEST, Options, Position
from quorumd.raft.types import SnapshotId

LESS_STRICT = "failOnDataLoss=false reads what is there"

OffsetLookup = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class LogBounds:
    """One log from `start` to `end` (exclusive), and the newest snapshot if `start` is not 0.

    `label` distinguishes replicas: the replica's directory, "" for a live quorum.
    """

    label: str
    start: int
    end: int
    snapshot: SnapshotId | None = None

    @property
    def earliest(self) -> int:
        """First offset of its rows, those of the snapshot included."""
        return 0 if self.snapshot is not None else self.start

    def __str__(self) -> str:
        return f"{self.label or 'the log'} holds offsets {self.start} to {self.end} (exclusive)"


class SnapshotRange(NamedTuple):
    """The records of a snapshot that were at offsets `start` to `end` (exclusive).

    `with_unplaced`: also control records, and records without an offset header, as in Kafka's snapshots.
    They count as being at the last offset of the snapshot.
    """

    snapshot: SnapshotId
    start: int
    end: int
    with_unplaced: bool


class OffsetRange(NamedTuple):
    """Offsets `log_start` to `log_end` (exclusive) of the log, after a range of a snapshot if that is set."""

    snapshot_range: SnapshotRange | None
    log_start: int
    log_end: int


def batch_range(options: Options, bounds: LogBounds, offset_at: OffsetLookup) -> OffsetRange:
    """The offsets of this log that a batch query reads. Raises BadOption, DataLost."""
    starting = options.starting or Position(EARLIEST)
    if starting == Position(LATEST):
        raise BadOption("startingOffsets=latest: a batch read has to begin before the end")
    ending = options.ending or Position(LATEST)
    if ending == Position(EARLIEST):
        raise BadOption("endingOffsets=earliest: a batch read has to end behind the beginning")
    start = start_offset(options, starting, [bounds], offset_at)
    end = bounds.end
    if ending.timestamp_ms is not None:
        found = offset_at(ending.timestamp_ms)
        end = bounds.end if found is None else found
    elif ending.offset >= 0:
        if ending.offset > bounds.end and options.fail_on_data_loss:
            raise DataLost(f"endingOffsets={ending.offset}: {bounds}. {LESS_STRICT}")
        end = ending.offset
    return offset_range(bounds, start, end, strict=is_strict(options, bounds, start))


def start_offset(
    options: Options, starting: Position, logs: Sequence[LogBounds], offset_at: OffsetLookup
) -> int:
    """The offset where to begin, as an offset of all these logs. Raises BadOption, DataLost."""
    first = min(bounds.earliest for bounds in logs)
    end = min(bounds.end for bounds in logs)
    if starting.timestamp_ms is not None:
        found = offset_at(starting.timestamp_ms)
        if found is None and not options.latest_without_timestamp:
            raise BadOption(
                f"startingTimestamp={starting.timestamp_ms}: no record is that new. "
                "startingOffsetsByTimestampStrategy=latest begins at the end then."
            )
        return end if found is None else found
    if starting.offset == EARLIEST:
        return first
    if starting.offset == LATEST:
        return end
    if starting.offset > end and options.fail_on_data_loss:
        shortest = min(logs, key=lambda bounds: bounds.end)
        raise DataLost(f"startingOffsets={starting.offset}: {shortest}. {LESS_STRICT}")
    return min(starting.offset, end)


def is_strict(options: Options, bounds: LogBounds, start: int) -> bool:
    """True if it is an error that a query that begins at `start` begins below the log's start.

    Not where it is to begin with the snapshot: `earliest`, or a time that a record in it has.
    """
    is_time = options.starting is not None and options.starting.timestamp_ms is not None
    begins_with_snapshot = start == bounds.earliest or (is_time and bounds.snapshot is not None)
    return options.fail_on_data_loss and not begins_with_snapshot


def offset_range(bounds: LogBounds, start: int, end: int, *, strict: bool) -> OffsetRange:
    """Offsets `start` to `end` (exclusive) of this log, deleted offsets from its snapshot.

    Raises DataLost with `strict` if they begin below the log's start.
    """
    if start < bounds.start and strict:
        raise deleted_offset(start, bounds)
    end = min(end, bounds.end)
    below = min(bounds.start, end)
    from_snapshot = None
    if bounds.snapshot is not None and start < below:
        from_snapshot = SnapshotRange(
            bounds.snapshot, start, below, end >= bounds.snapshot.end_offset
        )
    return OffsetRange(from_snapshot, max(start, bounds.start), end)


def deleted_offset(offset: int, bounds: LogBounds) -> DataLost:
    """The error for an offset that is not in the log any more."""
    kept = (
        f"the snapshot {bounds.snapshot} holds what is left of the others"
        if bounds.snapshot
        else "there is no snapshot"
    )
    return DataLost(
        f"offset {offset} has been deleted: {bounds}, {kept}. {LESS_STRICT}; "
        "startingOffsets=earliest, with a new checkpoint if it is a stream, begins with the snapshot."
    )


def replaced_snapshot(wanted: SnapshotId, found: SnapshotId | None) -> DataLost:
    """The error for a snapshot that is gone."""
    return DataLost(
        f"the snapshot {wanted} was replaced by {found} before it was read. Run the query again; a "
        f"stream, of which this was the beginning, with a new checkpoint. {LESS_STRICT}"
    )


def split_offsets(start: int, end: int, splits_min: int, offsets_max: int) -> list[tuple[int, int]]:
    """[start, end) as at least `splits_min` ranges of about the same size, none above `offsets_max`.

    No range is empty, so there are fewer if there are fewer offsets.
    """
    count = end - start
    if count <= 0:
        return []
    splits = min(count, max(splits_min, -(-count // offsets_max)))
    edges = [start + count * i // splits for i in range(splits + 1)]
    return list(pairwise(edges))
