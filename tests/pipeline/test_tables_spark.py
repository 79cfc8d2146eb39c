"""The tables filled by Spark from a live quorum: held against plain Python over the same log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import quorumd.pipeline as pipeline
from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.tables.history import voters_after
from quorumd.pipeline.tables.ingest import IngestProgress, StreamingIngest, run_once
from quorumd.pipeline.tables.manifests import newest, read_chain
from quorumd.pipeline.tables.origin import LogOrigin, check_origin
from quorumd.pipeline.tables.output import held_output
from quorumd.pipeline.tables.reading import NotInTables
from quorumd.raft.types import uuid_to_text
from quorumd.storage.meta_properties import random_storage_id
from quorumd.wire.records import Record
from tests.pipeline.filling import append
from tests.pipeline.test_source_cleaned import SETTINGS, CleanedLog
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load
from tests.support.voters import add_voter, remove_voter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(600)]

State = dict[bytes, tuple[bytes, int]]


def origin(cluster: Cluster) -> LogOrigin:
    return LogOrigin(cluster.bootstrap, None)


def records(first_ms: int) -> list[Record]:
    """Keys that come, change, go and come back; one record has no key."""
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"k%d" % (i * i % 11), None if i % 7 == 3 else b"v%d" % i) for i in range(60)
    ]
    pairs.insert(30, (None, b"no key"))
    return [
        Record(timestamp=first_ms + i, key=key, value=value) for i, (key, value) in enumerate(pairs)
    ]


def state_by_hand(log: Sequence[Record], end: int) -> State:
    state: State = {}
    for record in log:
        if record.offset >= end or record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = (record.value, record.offset)
    return state


def state_of(frame: DataFrame) -> State:
    return {bytes(row.key): (bytes(row.value), row.offset) for row in frame.collect()}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Voters 1 to 3, and 4 to become one: without quorum.voters, so that voters may change."""
    cluster = Cluster(tmp_path_factory.mktemp("members") / "quorum", observers=1)
    cluster.folder.mkdir(parents=True)
    ids = {node: uuid_to_text(random_storage_id()) for node in cluster.voters}
    voters = ",".join(f"{node}@{cluster.address(node)}:{ids[node]}" for node in ids)
    servers = ",".join(map(cluster.address, cluster.voters))
    for node in cluster.ids:
        cluster.write_config(node, {"quorum.bootstrap.servers": servers})
        path = cluster.config_path(node)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("quorum.voters:")))
        cluster.format_one(node, *(["--initial-voters", voters] if node in ids else []))
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.kill_all()


def test_leaders_voters_and_the_state_of_any_moment_are_those_of_the_quorum(
    spark: SparkSession, members: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    first_ms = int(time.time() * 1000)
    log = append(members, records(first_ms))
    with held_output(folder) as output:
        assert check_origin(origin(members), output.last) == log[-1].offset + 1
        follower = StreamingIngest(
            spark, origin(members), output, interval_s=0, available_now=True, offsets_per_batch=25
        )
        shown: list[IngestProgress] = []
        follower.run(shown.append, pytest.fail)
    assert len(read_chain(folder, "log")) > 2
    assert newest(folder, "state") is not None

    old = members.wait_leader()
    storage_ids = {node: members.status(node)["storage_id"] for node in members.ids}
    members.kill(old)
    new = members.wait_leader(other_than=old)
    members.start(old)
    members.wait_ready()
    assert add_voter(members, 4).error_code == 0
    assert remove_voter(members, old, storage_ids[old]).error_code == 0
    # Times ascend with offsets, beyond those that the nodes have written.
    log += append(members, records(int(time.time() * 1000) + 60_000))
    with held_output(folder) as output:
        check_origin(origin(members), output.last)
        run_once(spark, origin(members), output)
        # Nothing new: nothing is written.
        manifests = len(read_chain(folder, "log"))
        run_once(spark, origin(members), output)
        assert len(read_chain(folder, "log")) == manifests

    end = log[-1].offset + 1
    rows = pipeline.read_table(spark, folder, "records").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(end))
    data = [row for row in rows if row.control_type is None]
    assert [(row.offset, row.value and bytes(row.value)) for row in data] == [
        (record.offset, record.value) for record in log
    ]

    _check_leaders(spark, folder, old, new, storage_ids)
    _check_voters(spark, folder, members, old, storage_ids)
    _check_history(spark, folder, log)
    middle = log[70]
    for wanted in (0, log[20].offset, log[60].offset, middle.offset, end - 1):
        found = state_of(pipeline.state_as_of(spark, folder, offset=wanted))
        assert found == state_by_hand(log, wanted + 1), f"as of offset {wanted}"
    assert state_of(pipeline.read_table(spark, folder, "state")) == state_by_hand(log, end)
    moment = datetime.fromtimestamp(middle.timestamp / 1000, UTC)
    for time_given, stop in (
        (moment, middle.offset + 1),
        (moment - timedelta(milliseconds=1), middle.offset),
        (moment + timedelta(days=1), end),
    ):
        found = state_of(pipeline.state_as_of(spark, folder, time=time_given))
        assert found == state_by_hand(log, stop), f"as of {time_given}"
    with pytest.raises(NotInTables, match=f"as of offsets 0 to {end - 1}, not as of {end}"):
        pipeline.state_as_of(spark, folder, offset=end)


def _check_leaders(
    spark: SparkSession, folder: Path, old: int, new: int, storage_ids: Mapping[int, str]
) -> None:
    rows = pipeline.read_table(spark, folder, "leadership").orderBy("epoch").collect()
    leaders = [(row.leader_id, row.storage_id) for row in rows]
    assert (old, storage_ids[old]) in leaders
    assert leaders.index((old, storage_ids[old])) < leaders.index((new, storage_ids[new]))
    for before, after in pairwise(rows):
        assert (before.to_offset, before.to_time) == (after.from_offset, after.from_time)
        assert before.epoch < after.epoch
    assert rows[0].from_offset == 0
    assert rows[-1].to_offset is None
    assert {each.id for each in rows[-1].granting_voters} <= set(storage_ids)
    assert len(rows[-1].granting_voters) >= 2


def _check_voters(
    spark: SparkSession,
    folder: Path,
    members: Cluster,
    removed: int,
    storage_ids: Mapping[int, str],
) -> None:
    rows = pipeline.read_table(spark, folder, "voter_sets").orderBy("offset").collect()
    told = [(row.change, row.voter_id, row.storage_id) for row in rows]
    assert [each[:2] for each in told[:3]] == [("ADD", 1), ("ADD", 2), ("ADD", 3)]
    changes = [each for each in told[3:] if each[0] != "UPDATE"]
    assert changes == [
        ("ADD", 4, storage_ids[4]),
        ("REMOVE", removed, storage_ids[removed]),
    ]
    after = voters_after([row.asDict(recursive=True) for row in rows])
    assert dict(list(after)) == {node: storage_ids[node] for node in storage_ids if node != removed}
    (added,) = [row for row in rows if (row.change, row.voter_id) == ("ADD", 4)]
    (endpoint,) = added.endpoints
    assert (endpoint.host, endpoint.port) == ("127.0.0.1", members.port(4))


def _check_history(spark: SparkSession, folder: Path, log: Sequence[Record]) -> None:
    expected = []
    previous: dict[bytes, int] = {}
    for record in log:
        if record.key is None:
            continue
        before = previous.pop(record.key, None)
        change = "DELETE" if record.value is None else "CREATE" if before is None else "UPDATE"
        expected.append((record.offset, record.key, change, before))
        if record.value is not None:
            previous[record.key] = record.offset
    rows = pipeline.read_table(spark, folder, "key_history").orderBy("offset").collect()
    assert expected == [
        (row.offset, bytes(row.key), row.change, row.previous_offset) for row in rows
    ]


def test_a_follower_survives_a_leader_killed_in_mid_stream(
    spark: SparkSession, quorum: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    with Load(quorum, writers=2) as load, held_output(folder) as output:
        follower = StreamingIngest(
            spark, origin(quorum), output, interval_s=0, offsets_per_batch=200
        )
        killed_at: list[int] = []

        def show(progress: IngestProgress) -> None:
            if not killed_at:
                quorum.kill(quorum.wait_leader())
                killed_at.append(progress.log_end_offset)
            elif progress.end_offset > killed_at[0]:
                follower.stop()

        follower.run(show, lambda text: None)
        load.stop()
        quorum.start()
        quorum.wait_ready()
        end = quorum.wait_converged()
        run_once(spark, origin(quorum), output)
    rows = pipeline.read_table(spark, folder, "records").select("offset", "value").collect()
    assert sorted(row.offset for row in rows) == list(range(end))
    found = {row.offset: row.value and bytes(row.value) for row in rows}
    assert all(found[each.offset] == each.value for each in load.acknowledged)


def test_a_log_that_begins_with_a_snapshot_is_known_from_there_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    with running_cluster(tmp_path / "quorum", size=1, settings=SETTINGS) as cluster:
        cleaned = CleanedLog(cluster)
        with held_output(folder) as output:
            run_once(spark, origin(cluster), output)
        known_from = cleaned.snapshot.end_offset - 1
        changes = pipeline.read_table(spark, folder, "voter_sets").collect()
        voters = voters_after([row.asDict(recursive=True) for row in changes])
        assert list(voters) == [(1, cluster.status(1)["storage_id"])], "the snapshot tells"
        end = cleaned.written[-1].offset + 1
        rows = pipeline.read_table(spark, folder, "records").where("control_type is null")
        assert sorted(row.offset for row in rows.collect()) == [
            each.offset for each in cleaned.left()
        ]
        for wanted in (known_from, known_from + 7, end - 1):
            found = state_of(pipeline.state_as_of(spark, folder, offset=wanted))
            assert found == state_by_hand(cleaned.written, wanted + 1), f"as of offset {wanted}"
        with pytest.raises(NotInTables, match="a snapshot had replaced the log"):
            pipeline.state_as_of(spark, folder, offset=known_from - 1)
        cleaned.grow()
        with held_output(folder) as output, pytest.raises(DataLost, match="has been deleted"):
            check_origin(origin(cluster), output.last)
