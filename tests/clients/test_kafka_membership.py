"""Kafka's own tools change the voters of a live quorum."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.jvm import TOOLS, Command, run_all
from tests.support.live_cluster import Cluster
from tests.support.load import Load
from tests.support.voters import voters_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

UNKNOWN = "JEXY6aqzQY-32P5TStzaFg"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Voters 1 to 3 without quorum.voters, and observer 4."""
    cluster = Cluster(tmp_path_factory.mktemp("grown"), observers=1)
    try:
        cluster.format()
        cluster.start()
        cluster.wait_ready()
        for node in cluster.ids:
            cluster.write_config(node, {"quorum.bootstrap.servers": cluster.bootstrap})
            path = cluster.config_path(node)
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if not line.startswith("quorum.voters")))
            cluster.restart(node)
            cluster.wait_ready()
        yield cluster
    finally:
        cluster.kill_all()


def tool(
    cluster: Cluster, *arguments: str, way: str = "--bootstrap-controller"
) -> subprocess.CompletedProcess[str]:
    command = Command(f"{TOOLS}.MetadataQuorumCommand", (way, cluster.bootstrap, *arguments))
    (done,) = run_all([command])
    return done


def add(cluster: Cluster, node: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """As an operator does on the host of the node: the tool reads its configuration and its disk."""
    properties = folder / f"{node}.properties"
    properties.write_text(
        f"process.roles=controller\nnode.id={node}\nlog.dirs={cluster.storage_dir(node)}\n"
        f"listeners=CONTROLLER://{cluster.address(node)}\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
    )
    return tool(cluster, "--command-config", str(properties), "add-controller")


def remove(
    cluster: Cluster, node: int, storage_id: str, **more: str
) -> subprocess.CompletedProcess[str]:
    options = ("--controller-id", str(node), "--controller-directory-id", storage_id)
    return tool(cluster, "remove-controller", *options, **more)


def storage_id(cluster: Cluster, node: int) -> str:
    return str(cluster.status(node)["storage_id"])


def test_an_observer_is_added_and_voters_are_removed_the_leader_too(
    grown: Cluster, tmp_path: Path
) -> None:
    with Load(grown) as load:
        load.wait_progress()
        done = add(grown, 4, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Added controller 4 with directory id {storage_id(grown, 4)}" in done.stdout
        assert sorted(voters_of(grown, 1).values()) == [1, 2, 3, 4]
        again = add(grown, 4, tmp_path)
        assert again.returncode == 1
        assert "is a voter already" in again.stdout + again.stderr

        leader = grown.wait_leader()
        follower = min(set(grown.ids) - {leader})
        removed = storage_id(grown, follower)
        done = remove(grown, follower, removed, way="--bootstrap-server")
        assert done.returncode == 0, done.stdout + done.stderr
        assert follower not in voters_of(grown, leader).values()

        done = remove(grown, leader, storage_id(grown, leader))
        assert done.returncode == 0, done.stdout + done.stderr
        new = grown.wait_leader(other_than=leader)
        load.wait_progress()
        assert sorted(voters_of(grown, new).values()) == sorted(set(grown.ids) - {leader, follower})
    grown.wait_ready()
    grown.assert_same_logs()
    load.assert_nothing_lost(*grown.ids)


def test_who_is_no_voter_is_not_removed_and_the_tool_says_who_votes(grown: Cluster) -> None:
    done = remove(grown, 9, UNKNOWN)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert f"replica (9, {UNKNOWN}) is not a voter: the voters are (" in said
    node = grown.wait_leader()
    done = remove(grown, node, UNKNOWN)
    assert done.returncode == 1
    assert f"replica ({node}, {UNKNOWN}) is not a voter" in done.stdout + done.stderr
