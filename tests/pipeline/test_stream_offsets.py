"""The offsets of a stream, as Spark asks for them: of a log that is whole, and of one with a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.source.columns import spark_schema
from quorumd.pipeline.source.offset_range import LogBounds, OffsetRange, SnapshotRange
from quorumd.pipeline.source.options import parse_options
from quorumd.pipeline.source.stream import QuorumdStreamReader
from quorumd.raft.types import SnapshotId

SNAPSHOT = SnapshotId(60, 2)
CLEANED = LogBounds("", 40, 100, SNAPSHOT)
WHOLE = LogBounds("", 0, 100)


class FixedView:
    """A log whose bounds a test sets."""

    def __init__(self, bounds: LogBounds) -> None:
        self.log = bounds

    def bounds(self, reaching: int | None = None) -> list[LogBounds]:
        return [self.log]

    def end(self, reaching: int | None = None) -> int:
        return self.log.end

    def offset_lookup(self, bounds: LogBounds) -> Callable[[int], int | None]:
        return lambda timestamp_ms: None

    def splits(self, ranges: Sequence[tuple[LogBounds, OffsetRange]]) -> list[Any]:
        return [offsets for _, offsets in ranges]

    def close(self) -> None: ...


def stream(bounds: LogBounds, **given: str) -> tuple[QuorumdStreamReader, FixedView]:
    options = parse_options({"bootstrap.servers": "a:1", **given})
    reader, view = QuorumdStreamReader(options, spark_schema(options.table)), FixedView(bounds)
    reader._view = view
    return reader, view


def ranges(reader: QuorumdStreamReader, start: dict[str, Any], end: int) -> list[Any]:
    return [partition.value for partition in reader.partitions(start, {"offset": end})]


def test_a_stream_goes_on_by_offsets_as_far_as_its_limits_allow() -> None:
    reader, view = stream(WHOLE, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == {"offset": 0}
    assert reader.latestOffset(start, ReadMaxRows(30)) == {"offset": 30}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"offset": 100}
    assert reader.latestOffset({"offset": 100}, ReadAllAvailable()) == {"offset": 100}
    assert ranges(reader, {"offset": 100}, 100) == []
    assert ranges(reader, {"offset": 30}, 100) == [OffsetRange(None, 30, 100)]
    reader.prepareForTriggerAvailableNow()
    view.log = LogBounds("", 0, 200)
    assert reader.latestOffset(start, ReadAllAvailable()) == {"offset": 100}
    assert reader.reportLatestOffset() == {"offset": 200}
    view.log = LogBounds("", 0, 80)
    assert reader.latestOffset(start, ReadAllAvailable()) == {"offset": 80}


def test_a_snapshot_is_read_at_once_and_what_a_limit_counts_begins_behind_it() -> None:
    reader, _ = stream(CLEANED, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == {"offset": 0, "state": {"": [60, 2, 40]}}
    assert reader.latestOffset(start, ReadMaxRows(30)) == {"offset": 70}
    assert ranges(reader, start, 70) == [
        OffsetRange(SnapshotRange(SNAPSHOT, 0, 40, True), 40, 70),
    ]


def test_the_snapshot_that_a_stream_begins_with_stays_the_same_as_long_as_the_log_goes_on_there() -> (
    None
):
    reader, view = stream(CLEANED, startingOffsets="earliest")
    start = reader.initialOffset()
    pinned = [OffsetRange(SnapshotRange(SNAPSHOT, 0, 40, True), 40, 70)]
    for bounds in (LogBounds("", 40, 100, SnapshotId(90, 3)), LogBounds("", 10, 100)):
        view.log = bounds
        assert ranges(reader, start, 70) == pinned
    view.log = LogBounds("", 41, 100, SnapshotId(90, 3))
    with pytest.raises(DataLost, match="offset 40 has been deleted"):
        ranges(reader, start, 70)
