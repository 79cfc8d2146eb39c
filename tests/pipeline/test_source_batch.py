"""spark.read.format("quorumd"): from a live quorum and from its files, the rows that were written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition

from pyspark_quorumd import DefaultSource
from quorumd.pipeline import register
from quorumd.pipeline.errors import DataLost, PipelineError, plain_message
from quorumd.pipeline.parse import DamagedBatch
from quorumd.pipeline.schemas import TABLES
from quorumd.pipeline.source.batch import QuorumdReader
from quorumd.pipeline.source.columns import spark_schema
from quorumd.pipeline.source.options import parse_options
from quorumd.storage.errors import StorageError
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from quorumd.wire.records import Record, build_batch, read_header
from tests.pipeline.filling import append, as_records, some_records
from tests.support.live_cluster import Cluster
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

pytestmark = pytest.mark.timeout(300)


def load(spark: SparkSession, **given: object) -> DataFrame:
    """Options with `_` for dots."""
    options = {name.replace("_", "."): str(value) for name, value in given.items()}
    return spark.read.format("quorumd").options(**options).load()


def records(frame: DataFrame) -> list[Record]:
    return as_records(row.asDict() for row in frame.orderBy("offset").collect())


def test_a_batch_read_brings_what_was_written(spark: SparkSession, quorum: Cluster) -> None:
    written = append(quorum, some_records(200))
    first = written[0].offset
    frame = load(spark, bootstrap_servers=quorum.bootstrap, startingOffsets=first)
    assert records(frame) == written
    assert [field.name for field in frame.schema] == TABLES["records"].names
    kafka = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert frame.columns[:7] == kafka
    row = frame.where("key is not null").first()
    assert row is not None
    assert (row.topic, row.partition, row.timestampType) == ("__cluster_metadata", 0, 0)
    assert row.epoch >= 1
    assert row.batch_base_offset <= row.offset
    assert (row.control_type, row.replica_id, row.storage_id) == (None, None, None)


def test_spark_finds_the_source_by_itself_and_knows_it_when_registered(
    spark: SparkSession, quorum: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is registered in one session is not known in another one.
    fresh = spark.newSession()
    assert load(fresh, path=quorum.storage_dir(1)).columns == TABLES["records"].names

    class ByHand(DefaultSource):
        """Not in any module that Spark looks into."""

        @classmethod
        def name(cls) -> str:
            return "quorumd_by_hand"

    monkeypatch.setattr("pyspark_quorumd.DefaultSource", ByHand)
    reader = fresh.read.format("quorumd_by_hand").option("path", str(quorum.storage_dir(1)))
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        reader.load()
    register(fresh)
    assert reader.load().columns == TABLES["records"].names


def test_a_range_is_chosen_by_offset_time_and_columns(spark: SparkSession, quorum: Cluster) -> None:
    written = append(quorum, some_records(50, first=1_000_000))
    first = written[0].offset
    ranged = load(
        spark,
        kafka_bootstrap_servers=quorum.bootstrap,
        startingOffsets=f'{{"__cluster_metadata":{{"0":{first + 1}}}}}',
        endingOffsets=first + 41,
        minPartitions=4,
    )
    assert records(ranged) == written[1:41]
    assert ranged.rdd.getNumPartitions() == 4
    timed = spark.read.format("quorumd").schema("offset long, value binary")
    timed = timed.option("bootstrap.servers", quorum.bootstrap)
    timed = timed.option("startingTimestamp", str(written[10].timestamp))
    timed = timed.option("endingTimestamp", str(written[12].timestamp))
    rows = [tuple(row) for row in timed.load().orderBy("offset").collect()]
    assert rows == [(each.offset, each.value) for each in written[10:12]]


def test_headers_and_control_records_can_be_left_out(spark: SparkSession, quorum: Cluster) -> None:
    written = append(quorum, some_records(10))
    every = load(spark, bootstrap_servers=quorum.bootstrap)
    end = written[-1].offset + 1
    counts = "count(*), count(control_type), count(headers)"
    of_all = every.where(f"offset < {end}").selectExpr(*counts.split(", ")).first()
    chosen = load(
        spark,
        bootstrap_servers=quorum.bootstrap,
        includeHeaders="false",
        includeControl="false",
        endingOffsets=end,
    )
    count, controls, headers = of_all
    assert controls > 0
    assert headers > 0
    assert tuple(chosen.selectExpr(*counts.split(", ")).first()) == (count - controls, 0, 0)


def test_the_tables_of_files_are_those_of_the_quorum(spark: SparkSession, quorum: Cluster) -> None:
    append(quorum, some_records(100))
    quorum.wait_converged()
    nodes = f"{quorum.folder}/node-[123]"
    for table, offset in (("records", "offset"), ("batches", "base_offset"), ("control", "offset")):
        live = load(spark, bootstrap_servers=quorum.bootstrap, table=table)
        files = load(spark, path=nodes, table=table)
        own = ["replica_id", "storage_id", "file", "position"]
        expected = live.drop(*own).orderBy(offset).collect()
        assert len(expected) > 0
        columns = [name for name in files.columns if name not in own]
        found: dict[int, list[Any]] = {node: [] for node in quorum.ids}
        for row in files.orderBy(offset).select("replica_id", *columns).collect():
            found[row.replica_id].append(row[1:])
        for node in quorum.ids:
            assert found[node] == [tuple(row) for row in expected], f"{table} of node {node}"
    only = load(spark, path=nodes, replica=2).select("replica_id", "storage_id").distinct()
    (row,) = only.collect()
    assert row.replica_id == 2
    assert row.storage_id is not None


def failure(reader: DataFrameReader, **given: object) -> str:
    """What a read that fails says, in one line."""
    with pytest.raises(PySparkException) as caught:
        reader.options(
            **{name.replace("_", "."): str(each) for name, each in given.items()}
        ).load().count()
    said = plain_message(caught.value)
    assert "\n" not in said
    return said


def test_what_is_wrong_is_said_in_one_line(spark: SparkSession, quorum: Cluster) -> None:
    here = quorum.bootstrap
    read = spark.read.format("quorumd")
    assert "did you mean startingOffsets?" in failure(
        read, bootstrap_servers=here, startingOffset="1"
    )
    (port,) = free_ports(1)
    read = spark.read.format("quorumd")
    given = {"bootstrap_servers": f"127.0.0.1:{port}", "timeoutMs": 300}
    assert "connection refused" in failure(read, **given)
    read = spark.read.format("quorumd").schema("offset string")
    assert "has the type bigint, not string" in failure(read, bootstrap_servers=here)


def write_segments(folder: Path, *batches: bytes) -> None:
    """A log with a batch in each segment, as its header has it."""
    log = folder / PARTITION_DIRECTORY
    log.mkdir(parents=True)
    for batch in batches:
        log_path(log, read_header(batch).base_offset).write_bytes(batch)


def some_batch(base_offset: int) -> bytes:
    """Three records."""
    records = [Record(timestamp=1, value=b"%d" % (base_offset + i)) for i in range(3)]
    return build_batch(records, base_offset=base_offset, epoch=1)


def offsets(**given: object) -> list[int]:
    """What a batch read of files brings, without Spark around it."""
    options = parse_options({name: str(value) for name, value in given.items()})
    reader = QuorumdReader(options, spark_schema("records"))
    rows = [rows for each in reader.partitions() for rows in reader.read(each)]
    return [offset for batch in rows for offset in batch["offset"].to_pylist()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "{tmp}/nowhere"}, "there is no such directory"),
        ({"path": "{tmp}/other"}, "there is no log in this directory"),
        ({"path": "{tmp}/node-*"}, "nothing matches"),
        ({"path": "{tmp}/log", "replica": "7"}, "there is no such replica"),
        ({"path": "{tmp}/log", "startingOffsets": "7"}, "holds offsets 0 to 3 (exclusive)"),
    ],
)
def test_a_path_that_is_wrong_is_said_to_be_so(
    tmp_path: Path, given: dict[str, str], said: str
) -> None:
    write_segments(tmp_path / "log", some_batch(0))
    (tmp_path / "other").mkdir()
    with pytest.raises((PipelineError, StorageError)) as caught:
        offsets(**{name: value.format(tmp=tmp_path) for name, value in given.items()})
    assert said in str(caught.value)


def test_a_damaged_batch_is_named_and_not_read(tmp_path: Path) -> None:
    damaged = bytearray(some_batch(0))
    damaged[-2] ^= 1
    write_segments(tmp_path, bytes(damaged), some_batch(3))
    with pytest.raises(DamagedBatch) as caught:
        offsets(path=tmp_path)
    assert "offset 0" in str(caught.value)
    assert "00000000000000000000.log" in str(caught.value)
    assert offsets(path=tmp_path, startingOffsets=3) == [3, 4, 5]


def test_a_missing_segment_is_named_unless_loss_is_allowed(tmp_path: Path) -> None:
    write_segments(tmp_path, some_batch(0), some_batch(6))
    with pytest.raises(DataLost, match=r"offsets 3 to 6 \(exclusive\) are missing"):
        offsets(path=tmp_path)
    assert offsets(path=tmp_path, startingOffsets=6) == [6, 7, 8]
    assert offsets(path=tmp_path, failOnDataLoss="false") == [0, 1, 2, 6, 7, 8]


def test_an_empty_range_has_no_rows(tmp_path: Path) -> None:
    write_segments(tmp_path, some_batch(0))
    assert offsets(path=tmp_path, startingOffsets=3) == []
    reader = QuorumdReader(parse_options({"path": str(tmp_path)}), spark_schema("records"))
    assert list(reader.read(InputPartition(None))) == [], "what Spark asks for then"


def test_files_are_split_into_as_many_tasks_as_are_asked_for(tmp_path: Path) -> None:
    records = [Record(timestamp=1, value=b"x" * 9_000)] * 10
    batches = [build_batch(records, base_offset=10 * i, epoch=1) for i in range(10)]
    write_segments(tmp_path, b"".join(batches))
    for wanted in (1, 2, 5):
        options = parse_options({"path": str(tmp_path), "minPartitions": str(wanted)})
        assert len(QuorumdReader(options, spark_schema("records")).partitions()) >= wanted
        assert offsets(path=tmp_path, minPartitions=wanted) == list(range(100))
