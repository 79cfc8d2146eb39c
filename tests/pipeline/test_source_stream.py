"""spark.readStream.format("quorumd"): in order, each record once, over restarts and leader changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorumd.pipeline.errors import plain_message
from tests.pipeline.filling import append, some_records
from tests.support.live_cluster import Cluster
from tests.support.load import Load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.timeout(300)

WAIT_S = 120
TRIES = 4
SLOW_WORKER = "Python worker failed to connect back"


class Collected:
    """What a stream has brought, batch after batch: a batch that comes again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, bytes | None]]] = {}

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.orderBy("offset").select("offset", "value").collect()
        self.batches[batch_id] = [
            (row.offset, None if row.value is None else bytes(row.value)) for row in rows
        ]

    @property
    def rows(self) -> list[tuple[int, bytes | None]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def run_available(
    spark: SparkSession, collected: Collected, checkpoint: Path, **given: object
) -> list[dict[str, Any]]:
    """Everything that is there now; returns the progress of each batch.

    Again from the checkpoint, if Spark's workers do not start within its ten seconds: others use the machine.
    """
    done: list[dict[str, Any]] = []
    for tries_left in reversed(range(TRIES)):
        query = start(spark, collected, checkpoint, availableNow=True, **given)
        try:
            assert query.awaitTermination(WAIT_S), "it goes on"
            break
        except Exception as error:
            if not tries_left or SLOW_WORKER not in str(error):
                raise
        finally:
            done += [dict(each) for each in query.recentProgress if each["numInputRows"]]
    return done


def start(
    spark: SparkSession,
    collected: Collected,
    checkpoint: Path,
    *,
    availableNow: bool = False,  # noqa: N803 (Spark's name)
    **given: object,
) -> StreamingQuery:
    options = {name.replace("_", "."): str(value) for name, value in given.items()}
    frame = spark.readStream.format("quorumd").options(**options).load()
    writer = frame.writeStream.foreachBatch(collected.take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    trigger = {"availableNow": True} if availableNow else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start()


def test_a_backlog_comes_in_ranges_and_a_restart_goes_on_behind_them(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    written = append(quorum, some_records(100))
    given = {
        "bootstrap_servers": quorum.bootstrap,
        "startingOffsets": written[0].offset,
        "maxOffsetsPerTrigger": 40,
    }
    collected = Collected()
    progress = run_available(spark, collected, tmp_path / "checkpoint", **given)
    assert [len(rows) for rows in collected.batches.values()] == [40, 40, 20]
    assert collected.rows == [(each.offset, each.value) for each in written]
    # The first batch knew how far behind it was.
    assert f'"offset": {written[-1].offset + 1}' in str(progress[0]["sources"][0]["latestOffset"])
    assert f'"offset": {written[40].offset}' in str(progress[0]["sources"][0]["endOffset"])

    written += append(quorum, some_records(10))
    run_available(spark, collected, tmp_path / "checkpoint", **given)
    assert [len(rows) for rows in collected.batches.values()] == [40, 40, 20, 10]
    assert collected.rows == [(each.offset, each.value) for each in written]


def test_a_stream_survives_the_leader_and_loses_and_doubles_nothing(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    collected = Collected()
    with Load(quorum) as load:
        load.wait_progress(20)
        first = min(each.offset for each in load.acknowledged)
        query = start(
            spark,
            collected,
            tmp_path / "checkpoint",
            bootstrap_servers=quorum.bootstrap,
            startingOffsets=first,
            minPartitions=2,
        )
        try:
            quorum.wait_for(lambda: collected.rows, "a first batch", WAIT_S)
            leader = quorum.wait_leader()
            quorum.kill(leader)
            load.wait_progress(20)
            quorum.start(leader)
            load.stop()
            end = max(each.offset for each in load.acknowledged)
            quorum.wait_for(
                lambda: query.exception() or collected.rows[-1][0] >= end, "all of it", WAIT_S
            )
        finally:
            query.stop()
        assert query.exception() is None
    offsets = [offset for offset, _ in collected.rows]
    assert offsets == list(range(first, offsets[-1] + 1))
    found = dict(collected.rows)
    later = [each for each in load.acknowledged if each.offset >= first]
    assert all(found[each.offset] == each.value for each in later)


def test_a_stream_of_a_quorum_that_is_gone_ends_with_a_clear_message(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    collected = Collected()
    given = {"bootstrap_servers": quorum.bootstrap, "timeoutMs": 1000}
    append(quorum, some_records(1))
    query = start(spark, collected, tmp_path / "checkpoint", startingOffsets="earliest", **given)
    quorum.wait_for(lambda: collected.rows, "a first batch", WAIT_S)
    quorum.kill_all()
    with pytest.raises(Exception) as caught:  # noqa: PT011 (whatever Spark makes of it)
        query.awaitTermination(WAIT_S)
    assert "no leader responded within 1 s" in plain_message(caught.value)
    # Nothing was lost by it: the same checkpoint goes on.
    quorum.start()
    quorum.wait_ready()
    written = append(quorum, some_records(3))
    run_available(spark, collected, tmp_path / "checkpoint", **given)
    assert [value for _, value in collected.rows[-3:]] == [each.value for each in written]


def test_a_stream_of_files_brings_what_all_replicas_have(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    written = append(quorum, some_records(30))
    quorum.wait_converged()
    collected = Collected()
    given = {
        "path": f"{quorum.storage_dir(1)},{quorum.storage_dir(2)}",
        "startingOffsets": written[0].offset,
        "maxOffsetsPerTrigger": 20,
    }
    run_available(spark, collected, tmp_path / "checkpoint", **given)
    twice = [(each.offset, each.value) for each in written for _ in range(2)]
    assert collected.rows == twice
    assert [len(rows) for rows in collected.batches.values()] == [40, 20]


def test_options_of_a_batch_read_are_refused(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (whatever Spark makes of it)
        run_available(
            spark,
            Collected(),
            tmp_path / "checkpoint",
            bootstrap_servers=quorum.bootstrap,
            endingOffsets=5,
        )
    assert "a stream goes on" in plain_message(caught.value)
