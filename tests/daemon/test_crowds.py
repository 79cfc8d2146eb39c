"""Idle clients that hold every place, and come back when turned away: voters and others get through."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quorumd import KeyValueView, QuorumClient, Record
from quorumd.server.net.connection_slots import OPERATOR_MAX
from tests.support.commands import quorumctl
from tests.support.crowd import crowd
from tests.support.live_cluster import Cluster, limited_to, running_cluster
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


def test_a_node_with_few_files_serves_as_many_clients_as_fit_and_rolls_its_log(
    folder: Path,
) -> None:
    settings = {"log.segment.bytes": 4096, "log.max.batch.bytes": 1024}
    cluster = Cluster(folder, size=1, settings=settings)
    cluster.format()
    try:
        cluster.start_with(1, prefix=limited_to(1600))
        cluster.wait_ready()
        with crowd([cluster.port(1)], 1900):
            cluster.wait_for(lambda: is_full(cluster, 1, 64), "a full node")
            for _ in range(20):
                done = quorumctl("append", "x" * 500, "-b", cluster.address(1))
                assert done.code == 0, done.text
            assert cluster.status(1)["connections"]["client"] <= 64
            assert len(list(cluster.log_folder(1).glob("*.log"))) > 1
            cluster.wait_logged(1, "fewer clients are served than max.connections")
    finally:
        cluster.kill_all()


def is_full(cluster: Cluster, node: int, limit: int) -> bool:
    clients: int = cluster.status(node)["connections"]["client"]
    return clients >= min(limit, 500)


def test_no_program_on_a_nodes_host_displaces_another(folder: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with AsyncExitStack() as stack:

            async def enter(client: QuorumClient) -> KeyValueView:
                await stack.enter_async_context(client)
                return await stack.enter_async_context(KeyValueView(client))

            servers = cluster.bootstrap
            first = [QuorumClient(servers, client_id="quorumctl") for _ in range(OPERATOR_MAX)]
            views = [await enter(each) for each in first]
            await asyncio.sleep(1.1)  # by then they count as idle
            later = [QuorumClient(servers, client_id="quorumctl") for _ in range(4)]
            programs = [QuorumClient(servers) for _ in range(OPERATOR_MAX + 4)]
            views += [await enter(each) for each in (*later, *programs)]
            client = await stack.enter_async_context(QuorumClient(servers))
            for number in range(3):
                (offset,) = await client.append([Record(key=b"k", value=b"%d" % number)])
                for view in views:
                    await view.wait_for(offset)
            connections = cluster.status(cluster.wait_leader())["connections"]
            assert connections["client"] >= len(later) + len(programs)
            assert connections["operator"] == OPERATOR_MAX

    with running_cluster(folder, size=1) as cluster:
        asyncio.run(story(cluster))
        assert "why=displaced" not in cluster.logs()
