"""The driver's view of directories: how far all of them are, and which of their files are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.files import find_replicas
from quorumd.pipeline.parse import DamagedBatch
from quorumd.pipeline.source.disk import DiskView
from quorumd.pipeline.source.offset_range import LogBounds, OffsetRange, SnapshotRange
from quorumd.pipeline.source.options import parse_options
from quorumd.pipeline.source.snapshot_split import first_in_both, snapshot_split
from quorumd.raft.types import SnapshotId
from quorumd.storage.layout import log_path, partition_directory, snapshot_path
from quorumd.wire.control_records import SnapshotFooter, SnapshotHeader, encode_control_batch
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch
from tests.pipeline import planting

TIME_MS = 1_700_000_000_000


def some_batch(base_offset: int) -> bytes:
    """Three records."""
    records = [Record(timestamp=TIME_MS + base_offset + i, value=b"v") for i in range(3)]
    return build_batch(records, base_offset=base_offset, epoch=1)


def log_with(folder: Path, *batches: int) -> Path:
    """A segment for each."""
    log = partition_directory(folder)
    log.mkdir(parents=True)
    for base_offset in batches:
        log_path(log, base_offset).write_bytes(some_batch(base_offset))
    return log


def view_of(folder: Path, **given: str) -> DiskView:
    return DiskView(parse_options({"path": str(folder), **given}))


def offsets(view: DiskView, start: int, end: int) -> list[int]:
    (bounds,) = view.bounds()
    splits = view.splits([(bounds, OffsetRange(None, start, end))])
    rows = (rows for split in splits for rows in split.read(view._options))
    return [offset for batch in rows for offset in batch["offset"].to_pylist()]


def test_all_have_reached_where_the_shortest_ends(tmp_path: Path) -> None:
    for name, batches in (("a", (0, 3)), ("b", (0,)), ("c", (0, 3, 6))):
        log_with(tmp_path / name, *batches)
    view = view_of(tmp_path)
    assert [bounds.end for bounds in view.bounds()] == [6, 3, 9]
    assert view.end() == 3


def test_a_directory_with_the_characters_of_a_wildcard_is_found_as_it_is(tmp_path: Path) -> None:
    log_with(tmp_path / "node[1]", 0, 3)
    log_with(tmp_path / "node1", 0)
    assert view_of(tmp_path / "node[1]").end() == 6
    assert view_of(tmp_path / "node[0-9]").end() == 3


def test_the_end_is_looked_for_again_unless_what_was_found_goes_far_enough(tmp_path: Path) -> None:
    log = log_with(tmp_path, 0)
    view = view_of(tmp_path)
    assert view.end() == 3
    log_path(log, 3).write_bytes(some_batch(3))
    assert [bounds.end for bounds in view.bounds(reaching=3)] == [3]
    assert [bounds.end for bounds in view.bounds(reaching=4)] == [6]
    log_path(log, 3).write_bytes(some_batch(3) + some_batch(6))
    assert [bounds.end for bounds in view.bounds()] == [9], "of a file that has grown"


@pytest.mark.parametrize(
    ("start", "end"), [(0, 9), (0, 3), (1, 2), (3, 6), (4, 8), (5, 6), (8, 9), (9, 9)]
)
def test_a_range_begins_and_ends_anywhere_in_its_segments(
    tmp_path: Path, start: int, end: int
) -> None:
    log_with(tmp_path, 0, 3, 6)
    assert offsets(view_of(tmp_path), start, end) == list(range(start, end))


def test_damage_beside_a_range_is_not_looked_at(tmp_path: Path) -> None:
    log = log_with(tmp_path, 0, 3, 6)
    for base_offset in (0, 6):
        log_path(log, base_offset).write_bytes(b"no batch" * 20)
    view = view_of(tmp_path)
    view._bounds = [LogBounds(str(tmp_path), 0, 9)]
    view._replicas = {str(tmp_path): find_replicas([tmp_path])[0]}
    replica = view._replicas[str(tmp_path)]
    (split,) = view._log_splits(replica, OffsetRange(None, 3, 6))
    assert (split.start, split.end) == (3, 6)
    with pytest.raises(DamagedBatch):
        view._log_splits(replica, OffsetRange(None, 2, 6))


# -- with a snapshot before the log


def kafkas_snapshot(folder: Path, snapshot_id: SnapshotId, *times: int) -> None:
    """Its records do not say which offsets they had."""
    records = [Record(timestamp=TIME_MS + at, value=b"v") for at in times]
    control = {"epoch": snapshot_id.epoch, "timestamp_ms": TIME_MS}
    end = len(records) + 1
    data = encode_control_batch([SnapshotHeader()], base_offset=0, **control)
    data += build_batch(records, base_offset=1, epoch=snapshot_id.epoch)
    data += encode_control_batch([SnapshotFooter()], base_offset=end, **control)
    snapshot_path(partition_directory(folder), snapshot_id).write_bytes(data)


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_snapshot_that_was_replaced_is_read_if_loss_is_allowed(
    tmp_path: Path, strict: str
) -> None:
    log_with(tmp_path, 6)
    kafkas_snapshot(tmp_path, SnapshotId(7, 1), 1)
    view = view_of(tmp_path, failOnDataLoss=strict)
    (bounds,) = view.bounds()
    assert (bounds.start, bounds.snapshot) == (6, SnapshotId(7, 1))
    former = SnapshotRange(SnapshotId(6, 1), 0, 6, True)
    ranges = [(bounds, OffsetRange(former, 6, 9))]
    if strict == "true":
        with pytest.raises(DataLost, match="snapshot 6-1 was replaced by 7-1"):
            view.splits(ranges)
    else:
        split, *_ = view.splits(ranges)
        assert [len(rows) for rows in split.read(view._options)] == [1]


@pytest.mark.parametrize(("with_unplaced", "count"), [(True, 2), (False, 0)])
def test_records_without_an_offset_are_those_of_the_snapshots_end(
    tmp_path: Path, with_unplaced: bool, count: int
) -> None:
    log_with(tmp_path, 6)
    kafkas_snapshot(tmp_path, SnapshotId(7, 1), 1, 2)
    (replica,) = find_replicas([tmp_path])
    wanted = SnapshotRange(SnapshotId(7, 1), 0, 6, with_unplaced)
    split = snapshot_split("records", replica.snapshots[0], wanted)
    rows = list(split.read(parse_options({"path": str(tmp_path)})))
    assert sum(len(pa.RecordBatch.from_pylist(each.to_pylist())) for each in rows) == count


def test_damage_of_a_snapshots_first_record_is_told_as_damage(tmp_path: Path) -> None:
    log_with(tmp_path, 6)
    kafkas_snapshot(tmp_path, SnapshotId(7, 1), 1)
    (replica,) = find_replicas([tmp_path])
    (snapshot,) = replica.snapshots
    _, records, _ = planting.batches(snapshot.path)
    planting.write(snapshot.path, records.position + BATCH_OVERHEAD, b"\x7f")
    wanted = SnapshotRange(SnapshotId(7, 1), 0, 6, True)
    split = snapshot_split("records", snapshot, wanted)
    with pytest.raises(DamagedBatch, match="the CRC does not match"):
        list(split.read(parse_options({"path": str(tmp_path)})))


@pytest.mark.parametrize(
    ("log_start", "in_log", "first"),
    [(6, None, 5), (6, 6, 5), (6, 8, 8), (9, 9, 8), (9, 11, 11)],
)
def test_a_time_of_a_record_without_an_offset_stands_before_the_log(
    tmp_path: Path, log_start: int, in_log: int | None, first: int
) -> None:
    """The snapshot ends at 10, within the log or at its first record."""
    log_with(tmp_path, log_start)
    kafkas_snapshot(tmp_path, SnapshotId(10, 1), 1, 5)
    (replica,) = find_replicas([tmp_path])
    assert first_in_both(replica.snapshots[0], log_start, in_log, TIME_MS + 5) == first
    assert first_in_both(replica.snapshots[0], log_start, in_log, TIME_MS + 6) == in_log
