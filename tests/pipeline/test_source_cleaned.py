"""A log whose beginning a snapshot has replaced: what is left of it first, then the log itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.source.batch import QuorumdReader
from quorumd.pipeline.source.columns import spark_schema
from quorumd.pipeline.source.options import parse_options
from quorumd.pipeline.source.stream import QuorumdStreamReader
from quorumd.raft.types import SnapshotId
from quorumd.wire.records import Record
from tests.pipeline.filling import append, as_records, some_records
from tests.pipeline.planting import as_kafka_writes_it, snapshots
from tests.support import live_snapshots
from tests.support.live_cluster import Cluster, running_cluster

SETTINGS = {
    "log.segment.bytes": 16 << 10,
    "log.max.batch.bytes": 8 << 10,
    "retention.bytes": 0,
    "snapshot.max.new.record.bytes": 1 << 40,
}
ALL = ReadAllAvailable()

Given = dict[str, str]


class CleanedLog:
    """A quorum of one node, what was written to it, and where its log begins since it was cleaned."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.written: list[Record] = []
        self.log_start = 0
        self.snapshot = SnapshotId(0, 0)
        self.grow()

    def grow(self) -> None:
        """More records, a snapshot, and no segment that it stands for; then a few records more."""
        first = len(self.written)
        once = [
            each._replace(key=b"once %d" % (first + i), value=b"%d" % i)
            for i, each in enumerate(some_records(10))
        ]
        self.written += append(self.cluster, once)
        self.written += append(self.cluster, some_records(300, first=first, value=b"x" * 200))
        before = self.log_start
        self.snapshot = live_snapshots.take(self.cluster, 1)
        self.log_start = self.cluster.wait_for(
            lambda: max(0, self.cluster.status(1)["log_start_offset"] - before), "a later log start"
        )
        self.log_start += before
        self.written += append(self.cluster, some_records(20, first=first + 300))

    def left(self, start: int = 0) -> list[Record]:
        """What can still be read from an offset on: of what is deleted the newest of each key."""
        newest = {each.key: each for each in self.written if each.offset < self.snapshot.end_offset}
        state = [each for each in newest.values() if each.key and each.value is not None]
        return sorted(
            (each for each in state if start <= each.offset < self.log_start),
            key=lambda each: each.offset,
        ) + [each for each in self.written if each.offset >= max(start, self.log_start)]


@pytest.fixture
def young_log(tmp_path: Path) -> Iterator[CleanedLog]:
    """One whose snapshots nobody has copied: for a while these are kept, with all that follows."""
    with running_cluster(tmp_path / "young", size=1, settings=SETTINGS) as cluster:
        yield CleanedLog(cluster)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanedLog]:
    folder = tmp_path_factory.mktemp("cleaned")
    with running_cluster(folder, size=1, settings=SETTINGS) as cluster:
        yield CleanedLog(cluster)


@pytest.fixture(params=["live", "files"])
def given(log: CleanedLog, request: pytest.FixtureRequest) -> Given:
    """The same log, asked for over the network and read from its files."""
    live, files = kinds_of(log)
    return live if request.param == "live" else files


def kinds_of(log: CleanedLog) -> tuple[Given, Given]:
    cluster = log.cluster
    return {"bootstrap.servers": cluster.bootstrap}, {"path": str(cluster.storage_dir(1))}


def batch(given: Given, table: str = "records", **more: object) -> list[dict[str, Any]]:
    """The rows of a batch read, without Spark around it."""
    texts = {name: str(value) for name, value in more.items()}
    reader = QuorumdReader(parse_options({**given, "table": table, **texts}), spark_schema(table))
    return rows_of(reader.partitions(), reader.read)


@contextmanager
def stream(given: Given, **more: object) -> Iterator[QuorumdStreamReader]:
    """The driver's part of a stream."""
    texts = {name: str(value) for name, value in more.items()}
    start = {} if "startingTimestamp" in texts else {"startingOffsets": "earliest"}
    options = parse_options({**start, **given, **texts})
    reader = QuorumdStreamReader(options, spark_schema("records"))
    try:
        yield reader
    finally:
        reader.stop()


def rows_of(
    partitions: list[InputPartition], read: Callable[[InputPartition], Iterator[Any]]
) -> list[dict[str, Any]]:
    return [row for each in partitions for rows in read(each) for row in rows.to_pylist()]


def records(rows: list[dict[str, Any]]) -> list[Record]:
    """Those that clients wrote, by offset."""
    found = as_records([row for row in rows if row["control_type"] is None])
    return sorted(found, key=lambda record: record.offset)


def test_the_state_comes_first_and_then_the_log(log: CleanedLog, given: Given) -> None:
    assert 0 < log.log_start < log.snapshot.end_offset
    rows = batch(given)
    assert records(rows) == log.left()
    assert len(log.left()) < len(log.written)
    assert any(each.offset < log.log_start for each in log.left()), "there is a state"
    offsets = [row["offset"] for row in rows if row["offset"] >= log.log_start]
    assert offsets == sorted(offsets), "the log is in order"
    assert len(offsets) == len(set(offsets)), "and each record once"


def test_control_records_of_the_snapshot_stand_at_its_end(log: CleanedLog, given: Given) -> None:
    rows = batch(given, table="control")
    types = {row["type_name"] for row in rows if row["offset"] == log.snapshot.end_offset - 1}
    assert {"SnapshotHeader", "KRaftVoters"} <= types
    assert [
        row for row in batch(given, table="batches") if row["base_offset"] < log.log_start
    ] == []


def test_an_offset_that_is_gone_is_an_error_unless_loss_is_allowed(
    log: CleanedLog, given: Given
) -> None:
    gone = log.log_start - 10
    with pytest.raises(DataLost) as caught:
        batch(given, startingOffsets=gone)
    assert f"offset {gone} has been deleted" in str(caught.value)
    assert str(log.snapshot.end_offset) in str(caught.value)
    assert records(batch(given, startingOffsets=gone, failOnDataLoss="false")) == log.left(gone)
    assert records(batch(given, startingOffsets=log.log_start)) == log.left(log.log_start)


def test_a_time_is_looked_for_in_the_state_too(log: CleanedLog, given: Given) -> None:
    state = [each for each in log.left() if each.offset < log.log_start]
    first, second = state[0], state[1]
    for mark in (first, state[len(state) // 2], log.left(log.log_start)[0], log.written[-1]):
        rows = batch(given, startingTimestamp=mark.timestamp)
        assert records(rows) == log.left(mark.offset)
        rows = batch(given, endingTimestamp=mark.timestamp)
        assert records(rows) == [each for each in log.left() if each.offset < mark.offset]
    assert records(batch(given, startingTimestamp=0)) == log.left()
    assert batch(given, endingTimestamp=0) == []
    assert first.timestamp < second.timestamp, "a record between them may be gone"
    rows = batch(given, startingTimestamp=first.timestamp + 1, endingTimestamp=second.timestamp + 1)
    assert records(rows) == [second]


def test_a_stream_begins_at_a_time_in_the_state(log: CleanedLog, given: Given) -> None:
    mark = log.left()[5]
    with stream(given, startingTimestamp=mark.timestamp) as reader:
        start = reader.initialOffset()
        assert start["offset"] == mark.offset < log.log_start
        found = records(
            rows_of(reader.partitions(start, reader.latestOffset(start, ALL)), reader.read)
        )
    assert found == log.left(mark.offset)


def test_a_state_without_offsets_stands_before_the_log(log: CleanedLog, tmp_path: Path) -> None:
    """As in a directory of Kafka's own controllers: their snapshots do not say where a record was."""
    copy = tmp_path / "copy"
    shutil.copytree(log.cluster.storage_dir(1), copy)
    in_log = log.left(log.log_start)
    time_ms = in_log[-1].timestamp
    as_kafka_writes_it(snapshots(copy)[-1], b"state", time_ms)
    given = {"path": str(copy)}
    all_values = [b"state", *(each.value for each in in_log)]

    def values(**times: object) -> list[bytes | None]:
        rows = batch(given, "records", **times)
        return [row["value"] for row in rows if row["control_type"] is None]

    assert values() == all_values
    assert values(startingTimestamp=0) == all_values
    assert values(endingTimestamp=0) == []
    middle = in_log[5]
    assert values(startingTimestamp=middle.timestamp) == [each.value for each in in_log[5:]]
    assert values(endingTimestamp=middle.timestamp) == [each.value for each in in_log[:5]]


def test_a_stream_begins_with_the_state_in_one_piece(log: CleanedLog, given: Given) -> None:
    with stream(given, maxOffsetsPerTrigger=7) as reader:
        start = reader.initialOffset()
        assert list(start["state"].values()) == [[*log.snapshot, log.log_start]]
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert end == {"offset": log.log_start + 7}
        found = records(rows_of(reader.partitions(start, end), reader.read))
        assert found == [each for each in log.left() if each.offset < log.log_start + 7]
        after = reader.latestOffset(end, ReadMaxRows(7))
        assert after == {"offset": log.log_start + 14}
        found = records(rows_of(reader.partitions(end, after), reader.read))
    assert [each.offset for each in found] == list(range(log.log_start + 7, log.log_start + 14))


def test_a_range_that_was_planned_brings_the_same_again(given: Given) -> None:
    with stream(given) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        first = rows_of(reader.partitions(start, end), reader.read)
        assert rows_of(reader.partitions(start, end), reader.read) == first


def test_a_range_that_was_planned_and_is_gone_is_an_error(young_log: CleanedLog) -> None:
    planned = []
    for given in kinds_of(young_log):
        with stream(given) as reader:
            start = reader.initialOffset()
            planned.append((given, start, reader.latestOffset(start, ALL)))
    young_log.grow()  # The log begins later now than where the planned ranges go on behind the state.
    for given, start, end in planned:
        with stream(given) as reader, pytest.raises(DataLost, match="has been deleted"):
            rows_of(reader.partitions(start, end), reader.read)
        with stream(given, failOnDataLoss="false") as reader:
            found = records(rows_of(reader.partitions(start, end), reader.read))
        assert found == [each for each in young_log.left() if each.offset < end["offset"]]


def test_a_stream_that_was_overtaken_is_told(log: CleanedLog, given: Given) -> None:
    with stream(given, timeoutMs=300) as reader:
        behind = {"offset": log.log_start - 5}
        end = reader.latestOffset(behind, ALL)
        with pytest.raises(DataLost, match="new checkpoint"):
            reader.partitions(behind, end)
        with pytest.raises(DataLost, match="formatted anew"):
            reader.latestOffset({"offset": end["offset"] + 1}, ALL)
