"""From plaintext to TLS and back, node by node and under load: no append fails, and none is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.builds import Build, build
from bench.common import ROOT
from quorumd.server.model.topic import METADATA
from quorumd.server.translate.elections import VOTE
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from tests.support.live_cluster import running
from tests.support.majority import MajorityWatch
from tests.support.raw_client import Hungup, RawClient
from tests.support.secure_cluster import PLAIN, SECURE, Appending, SecureCluster

OBSERVERS = (4,)
QUICK = {"quorum.fetch.timeout.ms": 1500, "quorum.election.timeout.ms": 700}
WITHOUT_MAJORITY_S = 10.0
"""An election takes a fraction of it, even beside other tests."""
RESIGNED = "a majority has not fetched for too long"

BEFORE_TLS = "735e486"
"""The last commit whose nodes know no TLS."""


class OlderCluster(SecureCluster):
    """Three voters of a release that knows no TLS; each is one of this release from its first roll on."""

    def __init__(self, folder: Path, older: Build) -> None:
        super().__init__(folder, settings=QUICK, step="plaintext")
        self._release = older
        self.older = set(self.ids)

    def format_one(self, node: int, *options: str) -> None:
        command = [*self._release.command, "format", "--config", str(self.config_path(node))]
        environ = {**os.environ, **self._release.environ}
        subprocess.run([*command, *options], env=environ, check=True, stdout=subprocess.DEVNULL)

    def start(self, *nodes: int) -> None:
        for node in nodes or self.ids:
            if node in self.older:
                release = self._release
                self.start_with(node, command=release.command, environ=release.environ)
            else:
                super().start(node)

    def roll(self, step: str, *nodes: int) -> None:
        if step != "plaintext":
            self.older -= {*(nodes or self.ids)}
        super().roll(step, *nodes)

    def roll_back(self) -> None:
        """Every node is one of the release before again."""
        for node in self.ids:
            self.older.add(node)
            super().roll("plaintext", node)


@pytest.fixture(scope="module")
def release_before() -> Iterator[Build]:
    look = ["git", "-C", str(ROOT), "cat-file", "-e", f"{BEFORE_TLS}:./pyproject.toml"]
    if subprocess.run(look, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip(f"this is no clone that has {BEFORE_TLS}, the last commit without TLS")
    with build(BEFORE_TLS) as older:
        yield older


@pytest.fixture
def plaintext(folder: Path) -> Iterator[SecureCluster]:
    """Three voters and an observer without TLS."""
    with running(SecureCluster(folder, observers=1, settings=QUICK, step="plaintext")) as cluster:
        yield cluster


def protocols(cluster: SecureCluster) -> dict[int, list[int]]:
    """By node, who is said to be in plaintext still."""
    return {node: cluster.status(node)["plaintext_peers"] for node in cluster.ids}


def wait_endpoints(cluster: SecureCluster, ports: Mapping[str, Callable[[int], int]]) -> None:
    """Until the log of every node has these listeners of each voter, and no others."""
    wanted = {
        voter: {f"{name}://127.0.0.1:{port(voter)}" for name, port in ports.items()}
        for voter in cluster.voters
    }

    def logged() -> list[dict[int, set[str]]]:
        voters = (cluster.status(node)["voters"] for node in cluster.ids)
        return [{each["id"]: {*each["endpoints"]} for each in known} for known in voters]

    cluster.wait_for(lambda: all(each == wanted for each in logged()), f"{[*ports]} in all logs")


def assert_majority(cluster: SecureCluster, majority: MajorityWatch) -> None:
    """No leader missed its followers, and none was missed for longer than an election takes."""
    assert [node for node in cluster.ids if RESIGNED in cluster.output(node)] == []
    assert majority.longest_without_s < WITHOUT_MAJORITY_S


def hangs_up_on_a_vote(port: int) -> bool:
    """In the name of each node."""
    return all(vote_of(node, port) is None for node in (1, 2, 3))


def vote_of(node: int, port: int) -> VoteResponse | None:
    """What a pre-vote in this node's name is answered with; None if the connection is closed instead."""
    asked = VoteRequestPartition(replica_id=node, replica_epoch=1, pre_vote=True)
    topic = VoteRequestTopic(topic_name=METADATA.name, partitions=(asked,))
    with RawClient(port) as client:
        try:
            return client.ask(VOTE, 2, VoteRequest(topics=(topic,)), VoteResponse)
        except Hungup:
            return None


@pytest.mark.parametrize("is_static", [True, False], ids=["quorum.voters", "bootstrap servers"])
def test_a_quorum_becomes_tls_and_plaintext_again_without_a_failed_append(
    plaintext: SecureCluster, is_static: bool
) -> None:
    cluster = plaintext
    # Nobody has a link to an observer, which could show that it is behind: it is the first one, and the last
    # one on the way back.
    assert cluster.ids[3:] == OBSERVERS
    if not is_static:
        cluster.is_static = False
        cluster.roll("plaintext")
    moved, back = cluster.secure_client(), Appending(cluster.bootstrap)
    with MajorityWatch(cluster) as majority, ExitStack() as moving:
        with Appending(cluster.bootstrap) as appending:
            cluster.roll("plaintext first")
            wait_endpoints(cluster, {PLAIN: cluster.port, SECURE: cluster.secure_ports.__getitem__})
            appending.wait_progress()
            cluster.roll("TLS first", *OBSERVERS, 1)
            cluster.wait_for(lambda: protocols(cluster)[1] == [2, 3], "node 1 knows who is behind")
            assert [text for text in cluster.status(1)["warnings"] if "in plaintext still" in text]
            cluster.roll("TLS first", 2, 3)
            cluster.wait_for(lambda: not any(protocols(cluster).values()), "nobody is behind")
            appending.wait_progress()
            for node in cluster.ids:
                assert hangs_up_on_a_vote(cluster.port(node)), "raft requests in plaintext are over"
            moving.enter_context(moved)
            for load in (moved, appending):
                load.wait_progress()
        cluster.roll("TLS")
        wait_endpoints(cluster, {SECURE: cluster.secure_ports.__getitem__})
        moved.wait_progress()
        cluster.roll("TLS first")
        with back:
            for load in (back, moved):
                load.wait_progress()
            moving.close()
            cluster.roll("plaintext first")
            back.wait_progress()
            cluster.roll("plaintext")
            back.wait_progress()
    assert_majority(cluster, majority)
    cluster.assert_same_logs()
    for load in (appending, moved, back):
        load.assert_nothing_lost(cluster)


def test_a_quorum_that_loses_a_node_half_way_goes_on_after_all_were_down(
    plaintext: SecureCluster,
) -> None:
    """One node is rolled, one is behind, one is lost: each of the two needs the other's vote."""
    cluster = plaintext
    cluster.roll("plaintext first")
    cluster.roll("TLS first", *OBSERVERS, 1)
    with Appending(cluster.bootstrap) as appending:
        appending.wait_progress()
        cluster.kill(3)
        appending.wait_progress()
    for _ in range(3):
        for node in (1, 2):
            cluster.kill(node)
        cluster.start(1, 2)
        cluster.wait_ready(1, 2)
        with Appending(",".join(map(cluster.address, (1, 2)))) as again:
            again.wait_progress()
        cluster.assert_same_logs()
        again.assert_nothing_lost(cluster)
    cluster.start(3)
    cluster.roll("TLS first", 2, 3)
    cluster.assert_same_logs()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_static", [True, False], ids=["quorum.voters", "bootstrap servers"])
def test_nodes_of_the_release_before_become_tls_and_are_what_they_were_again(
    folder: Path, release_before: Build, is_static: bool
) -> None:
    with running(OlderCluster(folder, release_before)) as cluster:
        assert "listeners" not in cluster.status(1), "it knows no TLS"
        if not is_static:
            cluster.is_static = False
            cluster.roll("plaintext")
        with (
            MajorityWatch(cluster) as majority,
            Appending(cluster.bootstrap) as appending,
        ):
            for node in cluster.ids:
                cluster.roll("plaintext first", node)
                appending.wait_progress()
            cluster.roll("TLS first")
            cluster.wait_for(lambda: not any(protocols(cluster).values()), "nobody is behind")
            appending.wait_progress()
            cluster.roll("plaintext first")
            cluster.roll_back()
            appending.wait_progress()
        cluster.assert_same_logs()
        appending.assert_nothing_lost(cluster)
        assert_majority(cluster, majority)
