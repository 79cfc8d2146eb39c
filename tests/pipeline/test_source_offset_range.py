"""Which offsets are read of a log, be its beginning there or not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quorumd.pipeline.errors import BadOption, DataLost
from quorumd.pipeline.source.offset_range import (
    LogBounds,
    OffsetRange,
    SnapshotRange,
    batch_range,
    split_offsets,
    start_offset,
)
from quorumd.pipeline.source.options import EARLIEST, LATEST, Options, Position, parse_options
from quorumd.raft.types import SnapshotId

WHOLE = LogBounds("", 0, 100)
SNAPSHOT = SnapshotId(60, 2)
CLEANED = LogBounds("", 40, 100, SNAPSHOT)


def options(**given: str) -> Options:
    return parse_options({"bootstrap.servers": "a:1", **given})


def nothing_is_that_new(_: int) -> None:
    return None


def range_of(bounds: LogBounds, **given: str) -> OffsetRange:
    return batch_range(options(**given), bounds, nothing_is_that_new)


def test_a_batch_read_is_everything_unless_something_else_is_said() -> None:
    assert range_of(WHOLE) == OffsetRange(None, 0, 100)
    assert range_of(WHOLE, startingOffsets="7", endingOffsets="9") == OffsetRange(None, 7, 9)
    assert range_of(WHOLE, endingOffsets="100") == OffsetRange(None, 0, 100)
    assert range_of(WHOLE, startingOffsets="100") == OffsetRange(None, 100, 100)
    assert range_of(WHOLE, endingOffsets="0") == OffsetRange(None, 0, 0)


def test_what_is_deleted_comes_from_the_snapshot_and_the_rest_from_the_log() -> None:
    assert range_of(CLEANED) == OffsetRange(SnapshotRange(SNAPSHOT, 0, 40, True), 40, 100)
    assert range_of(CLEANED, startingOffsets="40") == OffsetRange(None, 40, 100)


def test_a_read_that_ends_within_the_state_says_nothing_of_what_came_later() -> None:
    assert range_of(CLEANED, endingOffsets="30") == OffsetRange(
        SnapshotRange(SNAPSHOT, 0, 30, False), 40, 30
    )
    assert range_of(CLEANED, endingOffsets="50") == OffsetRange(
        SnapshotRange(SNAPSHOT, 0, 40, False), 40, 50
    )
    for end, is_whole in (("59", False), ("60", True)):
        snapshot_range = range_of(CLEANED, endingOffsets=end).snapshot_range
        assert snapshot_range is not None
        assert snapshot_range.with_unplaced is is_whole


def test_an_offset_that_is_deleted_is_lost_unless_loss_is_allowed() -> None:
    with pytest.raises(DataLost, match=r"offset 7 has been deleted.*40 to 100.*snapshot 60-2"):
        range_of(CLEANED, startingOffsets="7")
    with pytest.raises(DataLost, match="there is no snapshot"):
        range_of(LogBounds("", 40, 100), startingOffsets="7")
    loose = range_of(CLEANED, startingOffsets="7", failOnDataLoss="false")
    assert loose == OffsetRange(SnapshotRange(SNAPSHOT, 7, 40, True), 40, 100)


def test_an_offset_beyond_the_end_is_lost_unless_loss_is_allowed() -> None:
    for side in ("startingOffsets", "endingOffsets"):
        with pytest.raises(DataLost, match=f"{side}=101: the log holds offsets 0 to 100"):
            range_of(WHOLE, **{side: "101"})
    assert range_of(WHOLE, startingOffsets="101", failOnDataLoss="false") == OffsetRange(
        None, 100, 100
    )
    assert range_of(WHOLE, endingOffsets="101", failOnDataLoss="false") == OffsetRange(None, 0, 100)


def test_a_batch_read_neither_begins_at_the_end_nor_ends_at_the_beginning() -> None:
    with pytest.raises(BadOption, match="startingOffsets=latest"):
        range_of(WHOLE, startingOffsets="latest")
    with pytest.raises(BadOption, match="endingOffsets=earliest"):
        range_of(WHOLE, endingOffsets="earliest")


def test_a_time_that_no_record_has_reached_is_an_error_or_the_end() -> None:
    with pytest.raises(BadOption, match="startingTimestamp=5: no record is that new"):
        range_of(WHOLE, startingTimestamp="5")
    at_end = options(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")
    assert batch_range(at_end, WHOLE, nothing_is_that_new) == OffsetRange(None, 100, 100)
    assert range_of(WHOLE, endingTimestamp="5") == OffsetRange(None, 0, 100)


def test_times_are_looked_up() -> None:
    given = options(startingTimestamp="5", endingTimestamp="8")
    assert batch_range(given, WHOLE, {5: 50, 8: 80}.get) == OffsetRange(None, 50, 80)


def test_a_time_that_a_deleted_record_had_is_lost_where_no_snapshot_has_it() -> None:
    given = options(startingTimestamp="5")
    with pytest.raises(DataLost, match="offset 30 has been deleted"):
        batch_range(given, LogBounds("", 40, 100), lambda _: 30)
    found = batch_range(given, CLEANED, lambda _: 30)
    assert found == OffsetRange(SnapshotRange(SNAPSHOT, 30, 40, True), 40, 100)


def test_several_logs_begin_at_the_first_and_end_where_all_have_arrived() -> None:
    behind = LogBounds("b", 10, 90)
    found = [
        start_offset(options(), Position(offset), [CLEANED, behind], nothing_is_that_new)
        for offset in (EARLIEST, LATEST)
    ]
    assert found == [0, 90]
    with pytest.raises(DataLost, match="b holds offsets 10 to 90"):
        start_offset(options(), Position(95), [CLEANED, behind], nothing_is_that_new)


@pytest.mark.parametrize(
    ("start", "end", "pieces", "most", "expected"),
    [
        (0, 10, 1, 100, [(0, 10)]),
        (0, 10, 3, 100, [(0, 3), (3, 6), (6, 10)]),
        (5, 7, 10, 100, [(5, 6), (6, 7)]),
        (0, 10, 1, 4, [(0, 3), (3, 6), (6, 10)]),
        (7, 7, 5, 100, []),
        (8, 7, 5, 100, []),
    ],
)
def test_a_range_is_cut_into_pieces_without_gap_or_overlap(
    start: int, end: int, pieces: int, most: int, expected: Sequence[tuple[int, int]]
) -> None:
    assert split_offsets(start, end, pieces, most) == expected
