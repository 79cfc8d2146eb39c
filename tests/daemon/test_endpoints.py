"""Voters that come back at other addresses than the log names: only configuration was changed."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_cluster import Cluster, running
from tests.support.load import Load
from tests.support.ports import free_port, free_ports

QUICK = {"quorum.fetch.timeout.ms": 1000, "quorum.election.timeout.ms": 500}
SOON_S = 30.0
"""Without a rule that finds them the voters would wait for ever; on an idle machine it takes 2 to 5 s."""


class Movable(Cluster):
    """Nodes whose listeners can move. A node's configuration is the former one until it is written anew."""

    def move(self, node: int, port: int) -> None:
        """Where the node listens after its next start with a new configuration."""
        self._ports[node] = port

    def bootstrap_of(self, *nodes: int) -> dict[str, object]:
        """Keys that name these nodes where they are now."""
        return {"quorum.bootstrap.servers": ",".join(map(self.address, nodes))}

    def without_voters(self, node: int) -> None:
        """Take quorum.voters out of the node's configuration."""
        path = self.config_path(node)
        lines = path.read_text().splitlines()
        path.write_text("\n".join(x for x in lines if not x.startswith("quorum.voters")) + "\n")

    def sees_everybody(self) -> bool:
        """No node takes another one's process for gone."""
        seen = [voter for node in self.voters for voter in self.status(node)["voters"]]
        return not any(voter["unreachable"] for voter in seen)

    def is_led(self, *nodes: int, by: int) -> Callable[[], bool]:
        """True once these nodes follow that leader."""
        return lambda: all(self.status(node)["leader_id"] == by for node in nodes)


@pytest.fixture
def cluster(folder: Path) -> Iterator[Movable]:
    """Three formatted nodes that are ready, with a few records."""
    with running(Movable(folder, settings=QUICK)) as made:
        write(made)
        yield made


def write(cluster: Cluster, count: int = 50) -> None:
    """Acknowledged records, which must all be there, also those of before."""
    with Load(cluster) as load:
        load.wait_progress(count)
        load.stop()
    cluster.assert_same_logs()
    load.assert_nothing_lost()


def values(cluster: Cluster, node: int) -> list[bytes | None]:
    return [record.value for record in cluster.records(node)]


def assert_alive(cluster: Cluster, before: list[bytes | None]) -> None:
    """There is a leader soon, all follow it, what was there stays, and new records are committed."""
    leader = cluster.wait_leader(timeout_s=SOON_S)
    cluster.wait_ready(timeout_s=SOON_S)
    assert cluster.status(leader)["voters"]
    write(cluster)
    for node in cluster.voters:
        assert values(cluster, node)[: len(before)] == before


def lead(cluster: Movable, node: int) -> None:
    """Have this node lead, by taking leadership from every other that has it."""
    while (leader := cluster.wait_leader()) != node:
        cluster.restart(leader)
        cluster.wait_ready()


@contextlib.contextmanager
def mute_listener(port: int) -> Iterator[None]:
    """Accepts connections at a port, and never answers."""
    with socket.create_server(("127.0.0.1", port)):
        yield


@contextlib.contextmanager
def black_hole(port: int) -> Iterator[None]:
    """Drops whoever connects to a port: its queue of connections is full."""
    with socket.socket() as server, contextlib.ExitStack() as filling:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(0)
        for _ in range(2):
            client = filling.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield


def test_a_voter_that_moved_is_found_and_leads_if_it_must(cluster: Movable) -> None:
    """Only its own configuration is another."""
    cluster.stop(1)
    cluster.move(1, free_port())
    cluster.write_config(1)
    cluster.start(1)
    cluster.wait_ready(timeout_s=SOON_S)
    assert_alive(cluster, values(cluster, 1))
    cluster.kill(2)
    cluster.kill(3)
    cluster.start(2)
    lead(cluster, 1)
    cluster.start(3)
    assert_alive(cluster, values(cluster, 1))
    # Who starts now may know the leader's address from the other follower only.
    cluster.restart(2)
    assert cluster.is_led(2, by=1)()
    cluster.kill(1)
    cluster.wait_leader(other_than=1, timeout_s=SOON_S)


@pytest.mark.parametrize(
    ("ends", "is_named_by"),
    [(Cluster.stop, "quorum.voters"), (Cluster.kill, "quorum.bootstrap.servers")],
    ids=["quorum.voters", "quorum.bootstrap.servers"],
)
def test_all_voters_move_at_once(
    cluster: Movable, ends: Callable[[Cluster, int], Any], is_named_by: str
) -> None:
    before = values(cluster, 1)
    for node in cluster.voters:
        ends(cluster, node)
    for node, port in zip(cluster.voters, free_ports(3), strict=True):
        cluster.move(node, port)
    for node in cluster.voters:
        if is_named_by == "quorum.voters":
            cluster.write_config(node)
        else:
            cluster.write_config(node, cluster.bootstrap_of(*cluster.voters))
            cluster.without_voters(node)
    cluster.start()
    assert_alive(cluster, before)
    leader = cluster.wait_leader()
    cluster.kill(leader)
    cluster.wait_leader(other_than=leader, timeout_s=SOON_S)


@pytest.mark.parametrize("hole", [mute_listener, black_hole])
def test_all_voters_move_and_their_old_addresses_swallow_what_is_sent(
    cluster: Movable, hole: Callable[[int], contextlib.AbstractContextManager[None]]
) -> None:
    before = values(cluster, 1)
    cluster.stop_all()
    old = [cluster.port(node) for node in cluster.voters]
    for node, port in zip(cluster.voters, free_ports(3), strict=True):
        cluster.move(node, port)
    for node in cluster.voters:
        cluster.write_config(node, cluster.bootstrap_of(*cluster.voters))
        cluster.without_voters(node)
    with contextlib.ExitStack() as holes:
        for port in old:
            holes.enter_context(hole(port))
        cluster.start()
        assert_alive(cluster, before)
        cluster.restart(cluster.wait_leader())
        assert_alive(cluster, before)


@pytest.mark.parametrize("third", ["runs on", "restarts", "knows only bootstrap servers"])
def test_two_voters_exchange_their_addresses(cluster: Movable, third: str) -> None:
    before = values(cluster, 1)
    cluster.stop(1)
    cluster.stop(2)
    one, two = cluster.port(1), cluster.port(2)
    cluster.move(1, two)
    cluster.move(2, one)
    cluster.write_config(1)
    cluster.write_config(2)
    if third == "knows only bootstrap servers":
        cluster.write_config(3, cluster.bootstrap_of(1, 2))
        cluster.without_voters(3)
    if third != "runs on":
        cluster.stop(3)
    cluster.start()
    assert_alive(cluster, before)
    for node in (1, 2):
        lead(cluster, node)
        assert_alive(cluster, before)
    cluster.wait_for(cluster.sees_everybody, "every process is seen", SOON_S)


def test_a_voter_at_an_address_of_a_bootstrap_server_is_asked_for_its_vote(
    cluster: Movable,
) -> None:
    """Two of three are left, both moved, and one of them is named nowhere but among the others'
    bootstrap servers."""
    before = values(cluster, 1)
    cluster.stop_all()
    for node, port in zip(cluster.voters, free_ports(3), strict=True):
        cluster.move(node, port)
    for node in (1, 2):
        cluster.write_config(node, cluster.bootstrap_of(3, 2, 1))
        cluster.without_voters(node)
        cluster.start(node)
    leader = cluster.wait_leader(timeout_s=SOON_S)
    cluster.wait_for(cluster.is_led(1, 2, by=leader), "both know it", SOON_S)
    assert values(cluster, leader)[: len(before)] == before


def test_a_voter_whose_directory_was_copied_is_seen_to_run_twice(cluster: Movable) -> None:
    leader = cluster.wait_leader()
    copied = next(node for node in cluster.voters if node != leader)
    cluster.stop(copied)
    found = {"node.id": copied, "quorum.bootstrap.servers": cluster.bootstrap}
    twin = Cluster(cluster.folder / "twin", size=0, observers=1, settings={**QUICK, **found})
    twin.folder.mkdir()
    twin.write_config(1)
    shutil.copytree(cluster.storage_dir(copied), twin.storage_dir(1))
    try:
        cluster.start(copied)
        twin.start(1)
        told = f"voter ({copied}, "
        cluster.wait_for(
            lambda: any(
                told in text and "both copies run" in text
                for text in cluster.status(cluster.wait_leader())["warnings"]
            ),
            "the leader to warn",
        )
    finally:
        twin.kill_all()
