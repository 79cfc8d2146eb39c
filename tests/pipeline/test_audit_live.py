"""The audit beside running nodes: under load, after leader changes, truncations and cleaning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quorumd.pipeline.audit import FindingKind
from tests.support.audited import assert_audited
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import put, take
from tests.support.load import PRODUCE, PRODUCE_VERSION, Load, produce_message
from tests.support.raw_client import RawClient, frame, request

EAGER = {
    "log.segment.bytes": 8192,
    "log.max.batch.bytes": 4096,
    "snapshot.max.new.record.bytes": 20_000,
    "retention.bytes": 0,
    "quorum.fetch.timeout.ms": 2000,
    "quorum.election.timeout.ms": 300,
    "quorum.request.timeout.ms": 500,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that take snapshots all the time and keep little history."""
    with running_cluster(tmp_path_factory.mktemp("quorum"), settings=EAGER) as running:
        yield running


@pytest.fixture(autouse=True)
def all_run_again(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.resume_all()
    cluster.start()
    cluster.wait_ready()


def log_starts(cluster: Cluster) -> list[int]:
    return [cluster.status(node)["log_start_offset"] for node in cluster.ids]


def test_nothing_is_invented_while_writers_write_and_history_is_deleted(cluster: Cluster) -> None:
    put(cluster, 500)
    with Load(cluster, value_bytes=500) as load:
        for _ in range(8):
            load.wait_progress(20)
            assert_audited(cluster)
        cluster.wait_for(lambda: all(log_starts(cluster)), "history that all have deleted")
    starts = [each.start_offset for each in assert_audited(cluster).replicas]
    assert min(starts) > 0


def test_a_quorum_after_kills_and_leader_changes_is_sound(cluster: Cluster) -> None:
    with Load(cluster) as load:
        for _ in range(2):
            load.wait_progress()
            old = cluster.wait_leader()
            cluster.kill(old)
            assert_audited(cluster)
            cluster.wait_leader()
            load.wait_progress()
            cluster.start(old)
            cluster.wait_ready(old)
    cluster.kill_all()
    found = assert_audited(cluster)
    assert found.passes == 1


def test_what_a_cut_off_leader_has_alone_is_no_damage(cluster: Cluster) -> None:
    put(cluster, 20, first=10_000)
    cluster.wait_converged()
    old = cluster.wait_leader()
    others = [node for node in cluster.ids if node != old]
    for node in others:
        cluster.kill(node)
    end = cluster.status(old)["log_end_offset"]
    with RawClient(cluster.port(old)) as client:
        client.send(frame(request(PRODUCE, PRODUCE_VERSION, produce_message([b"alone"], 30_000))))
        cluster.wait_for(
            lambda: any(record.value == b"alone" for record in cluster.records(old)), "an append"
        )
        cluster.kill(old)
    cluster.start(*others)
    cluster.wait_leader()
    put_to_others(cluster, others)
    found = assert_audited(cluster)
    notes = {each.kind: each for each in found.findings}
    assert notes[FindingKind.UNCOMMITTED_TAIL].offset == end
    assert notes[FindingKind.UNCOMMITTED_TAIL].replicas == (f"replica {old}",)
    cluster.start(old)
    cluster.wait_ready(old)
    cluster.wait_converged()
    after = assert_audited(cluster)
    assert FindingKind.UNCOMMITTED_TAIL not in {each.kind for each in after.findings}


def put_to_others(cluster: Cluster, nodes: list[int]) -> None:
    """A committed record or more."""
    before = cluster.status(nodes[0])["high_watermark"]
    put(cluster, 5, first=20_000)
    cluster.wait_for(lambda: cluster.status(nodes[0])["high_watermark"] > before, "a commit")


def test_snapshots_of_a_cleaned_log_are_held_against_what_is_left(cluster: Cluster) -> None:
    put(cluster, 100, first=30_000)
    for node in cluster.ids:
        take(cluster, node)
    put(cluster, 10, first=40_000)
    found = assert_audited(cluster)
    assert all(each.replica.snapshots for each in found.replicas)
