"""Nodes beside the first voters: observers, replaced disks, disks formatted by mistake, strangers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import quorumctl
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load

QUICK = {"quorum.fetch.timeout.ms": 600, "quorum.election.timeout.ms": 300}
FAILED = 1


def replication(cluster: Cluster) -> list[dict[str, Any]]:
    """What `quorumctl describe --replication` says, voters and observers."""
    done = quorumctl("describe", "--replication", "-b", cluster.bootstrap, "--output", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    return [*told["voters"], *told["observers"]]


def without(cluster: Cluster, node: int, key: str, extra: Mapping[str, object]) -> None:
    """Take a key out of a node's configuration, and add others."""
    path = cluster.config_path(node)
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}:")]
    lines += [f"{name}: {value}" for name, value in extra.items()]
    path.write_text("\n".join(lines) + "\n")


def problems(cluster: Cluster, node: int) -> str:
    return "; ".join(cluster.status(node)["problems"])


# -- observers


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters that run; nodes 4 and 5 are formatted observers that do not."""
    cluster = Cluster(tmp_path_factory.mktemp("observed"), observers=2, settings=QUICK)
    try:
        cluster.format()
        without(cluster, 5, "quorum.voters", {"quorum.bootstrap.servers": cluster.address(1)})
        cluster.start(*cluster.voters)
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.kill_all()


def test_observers_copy_the_log_from_nothing_while_it_is_written(observed: Cluster) -> None:
    with Load(observed) as load:
        load.wait_progress(200)
        observed.start(4, 5)
        observed.wait_ready(4, 5)
        load.wait_progress()
        rows = {row["replica_id"]: row["status"] for row in replication(observed)}
        assert rows[4] == rows[5] == "Observer"
        assert sorted(rows.values()) == ["Follower", "Follower", "Leader", "Observer", "Observer"]
        assert observed.status(4)["role"] == observed.status(5)["role"] == "observer"
        # The leader goes; the observers find the next one, the one with a bootstrap server only too.
        old = observed.wait_leader()
        observed.kill(old)
        new = observed.wait_leader(other_than=old)
        load.wait_progress(50)
        for node in (4, 5):
            observed.wait_for(lambda n=node: observed.status(n)["leader_id"] == new, "the leader")
        observed.start(old)
        observed.wait_ready()
        load.stop()
    observed.assert_same_logs()
    load.assert_nothing_lost(*observed.ids)


def test_observers_neither_vote_nor_count(observed: Cluster) -> None:
    """Two observers and one voter are no majority of three voters."""
    observed.start()
    observed.wait_ready()
    for node in (2, 3):
        observed.kill(node)
    observed.wait_for(lambda: observed.status(1)["role"] != "leader", "no leader")
    for node in (1, 4, 5):
        observed.wait_for(lambda n=node: not observed.is_ready(n), "not ready")
    text = observed.wait_for(lambda: problems(observed, 1), "words")
    assert "a majority is needed" in text or "does not respond" in text
    assert observed.leader() is None
    observed.start(2)
    observed.wait_leader()
    observed.start()
    observed.wait_ready()


# -- lost disks


@pytest.fixture
def quorum(folder: Path) -> Iterator[Cluster]:
    with running_cluster(folder, settings=QUICK) as cluster:
        yield cluster


def test_a_replaced_disk_comes_back_as_an_observer_and_does_not_vote(quorum: Cluster) -> None:
    with Load(quorum) as load:
        load.wait_progress()
        old_id = quorum.status(3)["storage_id"]
        quorum.kill(3)
        quorum.new_disk(3)
        quorum.start(3)
        quorum.wait_ready(3)
        load.wait_progress()
        status = quorum.status(3)
        assert status["role"] == "observer"
        assert status["storage_id"] != old_id
        rows = replication(quorum)
        three = {row["replica_uuid"]: row["status"] for row in rows if row["replica_id"] == 3}
        assert three == {old_id: "Follower", status["storage_id"]: "Observer"}
        # Without the third vote two are needed, and one with an observer is not enough.
        load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost()
        quorum.kill(2)
        quorum.wait_for(lambda: quorum.status(1)["role"] != "leader", "no leader")
        quorum.wait_for(lambda: not quorum.is_ready(3), "not ready")
        assert quorum.leader() is None
        quorum.start(2)
        quorum.wait_leader()
        quorum.wait_ready()


def test_two_lost_disks_that_are_formatted_with_bootstrap_destroy_nothing_on_the_third(
    quorum: Cluster,
) -> None:
    """The mistake that --bootstrap warns of: the empty two are a majority by id."""
    with Load(quorum) as load:
        load.wait_progress()
    quorum.assert_same_logs()
    before = quorum.log_bytes(1)
    for node in (2, 3):
        quorum.kill(node)
        quorum.new_disk(node, "--bootstrap")
    # While node 1 leads, the two would just follow it; alone it gives up soon.
    quorum.wait_for(lambda: quorum.status(1)["role"] != "leader", "node 1 alone")
    quorum.start(2, 3)
    said = "everything below"

    def one_says_so() -> bool:
        status = quorum.status(1)
        return said in "; ".join(status["problems"]) or said in status["last_report"]

    quorum.wait_for(one_says_so, "node 1 says what is wrong")
    text = problems(quorum, 1)
    assert "is committed" in text
    assert "Check whether the other voters lost their disks" in text
    assert not quorum.is_ready(1)
    quorum.wait_logged(1, said)
    assert quorum.log_bytes(1)[: len(before)] == before
    # And nobody can write to the empty two: what is acknowledged there would be lost later.
    with Load(quorum, writers=2) as hopeless:
        quorum.wait_for(lambda: hopeless.failures > 5, "refusals")
    assert hopeless.acknowledged == []
    for node in (2, 3):
        assert not quorum.is_ready(node)
    # The way back: the two join the old quorum with empty disks, and the third is restored elsewhere.
    load.assert_nothing_lost(1)


# -- other clusters


def test_a_node_of_another_cluster_ends_with_what_to_do_and_disturbs_nobody(folder: Path) -> None:
    cluster = Cluster(folder, observers=1, settings=QUICK)
    try:
        cluster.format()
        cluster.new_disk(4, "--cluster-id", "another-cluster")
        cluster.start(*cluster.voters)
        cluster.wait_ready()
        with Load(cluster) as load:
            load.wait_progress()
            failures = load.failures
            cluster.start(4)
            ended = cluster.wait_exit(4)
            load.wait_progress()
            assert load.failures == failures
    finally:
        cluster.kill_all()
    assert ended.exit_code == FAILED
    assert "is another cluster than another-cluster" in ended.output
    assert "Check quorum.voters, or format a new directory for that cluster" in ended.output
    assert "Traceback" not in ended.output


def test_a_voter_of_another_cluster_ends_with_what_to_do_and_disturbs_nobody(
    quorum: Cluster,
) -> None:
    with Load(quorum) as load:
        load.wait_progress()
        if quorum.wait_leader() == 3:
            quorum.stop(3)
        else:
            quorum.kill(3)
        quorum.new_disk(3, "--cluster-id", "another-cluster", "--bootstrap")
        load.wait_progress()
        quorum.start(3)
        ended = quorum.wait_exit(3)
        load.wait_progress()
    assert ended.exit_code == FAILED
    assert "is another cluster than another-cluster" in ended.output


def test_a_formatted_cluster_id_reaches_every_node(folder: Path) -> None:
    cluster = Cluster(folder, settings=QUICK)
    try:
        cluster.format()
        for node in cluster.ids:
            cluster.new_disk(node, "--bootstrap", *(["--cluster-id", "mine"] if node == 2 else []))
        cluster.start()
        cluster.wait_ready()
        for node in cluster.ids:
            has_it: Callable[[], bool] = lambda n=node: (  # noqa: E731  # a name for its type
                "cluster.id=mine" in (cluster.storage_dir(n) / "meta.properties").read_text()
            )
            cluster.wait_for(has_it, "the cluster id on disk")
    finally:
        cluster.kill_all()
