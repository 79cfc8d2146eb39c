"""A quorumd node observes a quorum of real Kafka controllers: it copies their metadata log, live.

All tests share one quorum, and each has an observer of its own; one follows from the first record on.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import log_path
from quorumd.storage.quorum_state import QuorumState, save_quorum_state
from tests.support.commands import quorumctl
from tests.support.kafka_controller import CLUSTER_ID
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import KafkaObserver, observing
from tests.support.kafka_quorum import KafkaQuorum, batches_of, wait_for, wait_same_batches
from tests.support.kafka_tools import run_tool

pytestmark = [requires_java, pytest.mark.timeout(240)]


def assert_copy(observer: KafkaObserver, kafka: KafkaQuorum) -> None:
    """What every controller that runs has committed is there, byte for byte."""
    observer.wait_committed(observer.status()["log_start_offset"] + 1)  # a batch after the snapshot
    end = observer.status()["high_watermark"]
    for controller in kafka.controllers.values():
        if controller.is_running:
            wait_same_batches(observer.log_folder, controller.log_folder, end)


def test_it_follows_live_and_is_listed_by_kafkas_own_tool(
    kafka: KafkaQuorum, first: KafkaObserver
) -> None:
    status = first.status()
    assert (status["role"], status["log_owner"], status["cluster_id"]) == (
        "observer",
        "kafka",
        CLUSTER_ID,
    )
    assert [voter["id"] for voter in status["voters"]] == [1, 2, 3]
    start = kafka.wait_committed()
    first.wait_committed(start + 4)  # records that come while it watches
    assert_copy(first, kafka)

    listed = run_tool(
        "org.apache.kafka.tools.MetadataQuorumCommand",
        *("--bootstrap-controller", kafka.bootstrap, "describe", "--replication"),
    )
    assert listed.returncode == 0, listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines()]
    (own,) = [row for row in rows if row and row[0] == str(first.node_id)]
    assert own[-1] == "Observer"
    assert own[1] == status["storage_id"]
    assert int(own[2]) >= start


def test_the_metrics_are_those_of_the_real_quorum(kafka: KafkaQuorum, first: KafkaObserver) -> None:
    seen = kafka.describe()
    assert seen is not None
    first.wait_committed(seen.high_watermark)
    assert first.metric("raft_manager_current_leader") == seen.leader_id
    assert first.metric("raft_manager_current_epoch") == seen.leader_epoch
    assert first.metric("raft_manager_high_watermark") >= seen.high_watermark
    assert first.metric("raft_manager_number_of_voters") == 3
    assert first.metric("quorumd_missing_records") == 0


@pytest.mark.parametrize("asked", ["a controller", "the observer"])
def test_quorumctl_describes_the_real_quorum(
    kafka: KafkaQuorum, first: KafkaObserver, asked: str
) -> None:
    at = kafka.bootstrap if asked == "a controller" else first.address
    done = quorumctl("describe", "--status", "--output", "json", "--bootstrap-server", at)
    assert done.code == 0, done.text
    described = json.loads(done.out)
    seen = kafka.describe()
    assert seen is not None
    assert (described["cluster_id"], described["leader_id"]) == (CLUSTER_ID, seen.leader_id)
    done = quorumctl("describe", "--replication", "--bootstrap-server", at)
    assert done.code == 0, done.text
    assert f"{first.node_id} " in done.out


def test_a_kafka_leader_does_not_make_a_voter_of_an_observer(
    kafka: KafkaQuorum, first: KafkaObserver
) -> None:
    done = quorumctl(
        *("add-voter", "--replica-id", first.node_id, "--bootstrap-server", kafka.bootstrap),
        *("--endpoint", f"CONTROLLER://{first.address}"),
    )
    assert done.code != 0
    assert "doesn't support the finalized version" in done.err
    seen = kafka.describe()
    assert seen is not None
    assert [voter.replica_id for voter in seen.current_voters] == [1, 2, 3]


def test_records_that_a_lost_leader_had_not_committed_are_cut_off(
    kafka: KafkaQuorum, first: KafkaObserver
) -> None:
    leader = kafka.wait_leader()
    followers = [node for node in kafka.controllers if node != leader]
    for node in followers:
        kafka.controllers[node].suspend()
    ahead = first.cluster.wait_for(lambda: _ahead(first), "records that are not committed")
    kafka.kill(leader)
    for node in followers:
        kafka.controllers[node].resume()
    kafka.wait_leader(other_than=leader)
    first.wait_committed(kafka.wait_committed())
    assert first.metric("quorumd_truncated_records_total") > 0, f"was at {ahead}"
    assert_copy(first, kafka)
    kafka.start(leader)
    assert_copy(first, kafka)


def _ahead(observer: KafkaObserver) -> int | None:
    """Its log end, if it has two records or more that are not known to be committed."""
    status = observer.status()
    end: int = status["log_end_offset"]
    return end if end >= status["high_watermark"] + 2 else None


def test_it_goes_on_after_it_was_killed_and_after_it_was_stopped(
    kafka: KafkaQuorum, first: KafkaObserver
) -> None:
    for end in (first.kill, first.stop):
        before = first.status()["high_watermark"]
        end()
        wait_for(lambda since=before: kafka.wait_committed() > since + 1, "new records")
        first.start()
        first.wait_committed(kafka.wait_committed())
        assert_copy(first, kafka)
    assert first.status()["log_start_offset"] == 0


def test_a_new_observer_begins_with_kafkas_snapshot(
    kafka: KafkaQuorum, first: KafkaObserver, tmp_path: Path
) -> None:
    leader = kafka.controllers[kafka.wait_leader()]
    wait_for(lambda: _snapshots(leader.log_folder), "a snapshot of Kafka's")
    with observing(tmp_path / "node", kafka.bootstrap, node_id=91) as observer:
        observer.wait_committed(kafka.wait_committed())
        start = observer.status()["log_start_offset"]
        assert start > 0
        (copied,) = _snapshots(observer.log_folder)
        assert copied.read_bytes() == (leader.log_folder / copied.name).read_bytes()
        assert_copy(observer, kafka)
        assert "taking a snapshot" not in observer.output

        observer.kill()
        observer.start()
        observer.wait_committed(kafka.wait_committed())
        assert observer.status()["log_start_offset"] == start
        assert_copy(observer, kafka)
    assert quorumctl("verify", observer.storage_dir).code == 0


def _snapshots(log_folder: Path) -> list[Path]:
    return sorted(
        path for path in log_folder.glob("*.checkpoint") if not path.name.startswith("0" * 20)
    )


def wait_cleaned(kafka: KafkaQuorum) -> None:
    """Returns when no controller has its first segment any more."""

    def cleaned() -> bool:
        return all(
            min(each.log_folder.glob("*.log")).name > f"{0:020d}.log"
            for each in kafka.controllers.values()
        )

    wait_for(cleaned, "Kafka to delete its first segments", timeout_s=100)


def test_who_was_down_past_kafkas_cleaning_begins_anew_and_says_what_is_dropped(
    kafka: KafkaQuorum, first: KafkaObserver, tmp_path: Path
) -> None:
    """The snapshot comes in pieces of 500 bytes."""
    wait_cleaned(kafka)
    settings = {"snapshot.bandwidth.bytes.per.second": 1000, "retention.ms": 1000}
    late = KafkaObserver(tmp_path / "node", kafka.bootstrap, node_id=94, settings=settings)
    batches = sorted(batches_of(first.log_folder).items())[:6]
    end = batches[-1][0]
    late.log_folder.mkdir(exist_ok=True)
    log_path(late.log_folder, 0).write_bytes(b"".join(data for _, data in batches[:-1]))
    state = QuorumState(leader_epoch=1, applied_offset=end)
    save_quorum_state(RealFileSystem(), late.log_folder, state)
    try:
        late.start()
        late.wait_committed(kafka.wait_committed())
        status = late.status()
        assert status["log_start_offset"] > end
        (copied,) = _snapshots(late.log_folder)
        assert copied.stat().st_size > 2 * 500
        late.cluster.wait_logged(1, f"offsets 0 to {end} are dropped")
        assert [text for text in status["warnings"] if "retention" in text]
        assert_copy(late, kafka)
    finally:
        late.cluster.kill_all()


def test_it_keeps_history_that_kafka_deletes(kafka: KafkaQuorum, first: KafkaObserver) -> None:
    wait_cleaned(kafka)
    status = first.wait_committed(kafka.wait_committed())
    assert status["log_start_offset"] == 0
    assert status["snapshots"]["count"] == 0
    assert_copy(first, kafka)


def test_two_hours_of_idle_records_are_copied_in_a_minute(tmp_path: Path) -> None:
    """An idle controller writes a NoOp record each 500 ms; here it does so each ms."""
    quick = {"metadata.max.idle.interval.ms": "1", "controller.quorum.append.linger.ms": "0"}
    kafka = KafkaQuorum(tmp_path / "kafka", size=1, extra=quick)
    kafka.format()
    observer = KafkaObserver(tmp_path / "node", kafka.bootstrap, node_id=95)
    hours = 2 * 3600 * 2
    try:
        observer.launch()
        kafka.start()
        wait_for(lambda: kafka.wait_committed() > hours, "idle records", timeout_s=150)
        observer.wait_ready()
        status = observer.wait_committed(kafka.wait_committed())
        assert status["log_start_offset"] == 0
        assert status["unknown"] == {}
        assert_copy(observer, kafka)
    finally:
        observer.cluster.kill_all()
        kafka.kill()
