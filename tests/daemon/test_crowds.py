"""Idle clients that hold every place, and come back when turned away: voters and others get through."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.commands import quorumctl
from tests.support.crowd import crowd
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load

ELECTED_S = 8.0


@pytest.mark.parametrize(("limit", "per_node"), [(16, 200), (1000, 1300)])
def test_a_new_leader_is_elected_and_commits_at_nodes_full_of_idle_clients(
    folder: Path, limit: int, per_node: int
) -> None:
    with running_cluster(folder, settings={"max.connections": limit}) as cluster:
        old = cluster.wait_leader()
        others = [node for node in cluster.ids if node != old]
        with crowd([cluster.port(node) for node in cluster.ids], per_node):
            cluster.wait_for(lambda: all(is_full(cluster, n, limit) for n in others), "full nodes")
            epoch = cluster.status(old)["epoch"]
            killed_s = time.monotonic()
            cluster.kill(old)
            elected = cluster.wait_leader(other_than=old, timeout_s=ELECTED_S)
            assert time.monotonic() - killed_s < ELECTED_S
            with Load(cluster, writers=1) as load:
                load.wait_progress(20, timeout_s=15.0)
            status = cluster.status(elected)
            assert status["leader_id"] == elected
            assert status["epoch"] <= epoch + 2, "it was not elected again and again"
            assert status["connections"]["client"] <= limit
            assert status["connections"]["peer"] >= 1
            described = quorumctl("describe", "-b", cluster.address(elected))
            assert described.code == 0, described.text
            cluster.start(old)
            cluster.wait_ready(old)


def is_full(cluster: Cluster, node: int, limit: int) -> bool:
    clients: int = cluster.status(node)["connections"]["client"]
    return clients >= min(limit, 500)
