"""Spark's own Kafka source, unmodified, on a quorum: the same rows as ours, batch and streaming."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from quorumd.pipeline.errors import plain_message
from tests.pipeline.filling import append, some_records
from tests.pipeline.spark_kafka_jars import has_spark_kafka_source
from tests.support.live_cluster import TOPIC, Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

WAIT_S = 120


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    if not has_spark_kafka_source():
        pytest.skip("Maven (mvn) is missing: it fetches Spark's Kafka source")


def both(quorum: Cluster, first: int) -> dict[str, dict[str, str]]:
    """Format and options of the two sources for the same records."""
    common = {
        "kafka.bootstrap.servers": quorum.bootstrap,
        "startingOffsets": f'{{"{TOPIC}":{{"0":{first}}}}}',
        "includeHeaders": "true",
    }
    return {
        "kafka": {**common, "subscribe": TOPIC},
        "quorumd": {**common, "includeControl": "false"},
    }


def rows(frame: DataFrame) -> list[Any]:
    columns = [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    return frame.select(*columns).orderBy("offset").collect()


def test_a_batch_read_of_both_sources_is_the_same(spark: SparkSession, quorum: Cluster) -> None:
    written = append(quorum, some_records(150))
    found = {
        name: rows(spark.read.format(name).options(**options).load())
        for name, options in both(quorum, written[0].offset).items()
    }
    assert found["kafka"] == found["quorumd"]
    assert [row.offset for row in found["kafka"]] == [each.offset for each in written]


def test_a_stream_of_both_sources_is_the_same(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    written = append(quorum, some_records(60))
    found = {}
    for name, options in both(quorum, written[0].offset).items():
        frame = spark.readStream.format(name).options(**options, maxOffsetsPerTrigger=25).load()
        writer = frame.writeStream.format("memory").queryName(f"stream_{name}")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        found[name] = rows(spark.table(f"stream_{name}"))
        counts = [progress["numInputRows"] for progress in query.recentProgress]
        assert [count for count in counts if count] == [25, 25, 10]
    assert found["kafka"] == found["quorumd"]
    assert [row.offset for row in found["kafka"]] == [each.offset for each in written]


def test_rows_are_appended_by_kafkas_format_and_ours_says_so(
    spark: SparkSession, quorum: Cluster
) -> None:
    lines = [(b"k%d" % i, b"v%d" % i) for i in range(20)]
    frame = spark.createDataFrame(lines, "key binary, value binary").coalesce(1)
    options = {"bootstrap.servers": quorum.bootstrap}
    with pytest.raises(PySparkException) as refused:
        frame.write.format("quorumd").options(**options).mode("append").save()
    said = plain_message(refused.value)
    assert said.startswith('format("quorumd") only reads')
    assert 'format("kafka")' in said
    end = quorum.wait_converged()
    kafka = {"kafka.bootstrap.servers": quorum.bootstrap, "topic": TOPIC}
    frame.write.format("kafka").options(**kafka).save()
    found = spark.read.format("quorumd").options(**options, startingOffsets=str(end)).load()
    records = found.where("control_type is null").orderBy("offset").collect()
    assert [(bytes(row.key), bytes(row.value)) for row in records] == lines
