"""Observer and witness beside a real Kafka controller whose authorizer denies them what they ask.

Kafka's own processes end then (error 31, CLUSTER_AUTHORIZATION_FAILED).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kafka.test_tls import OBSERVER, WITNESS, pem_of_kafka, pem_of_ours
from tests.support.authority import Authority
from tests.support.client_files import ClientFiles
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum, wait_same_batches
from tests.support.kafka_tools import run_tool

pytestmark = [requires_java, pytest.mark.timeout(240)]


class Denied(NamedTuple):
    """A controller that grants nothing but to itself, two nodes that ask it, and a super user's file."""

    kafka: KafkaQuorum
    nodes: dict[int, KafkaObserver]
    super_user: Path

    def refusals(self, node: int) -> list[str]:
        """What an operator reads of it in the node's /status."""
        warnings = self.nodes[node].status()["warnings"]
        return [text for text in warnings if "CLUSTER_AUTHORIZATION_FAILED" in text]

    def grant(self, node: int) -> None:
        """The right to ask, as Kafka's operators give it."""
        done = run_tool(
            "org.apache.kafka.tools.AclCommand",
            *("--bootstrap-controller", self.kafka.bootstrap),
            *("--command-config", str(self.super_user), "--add", "--cluster"),
            *("--allow-principal", f"User:CN=node-{node}", "--operation", "ClusterAction"),
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def denied(tmp_path: Path) -> Iterator[Denied]:
    authority = Authority(tmp_path / "certificates")
    kafka = KafkaQuorum(tmp_path / "kafka", size=1)
    kafka.controllers[1].extra = {
        **pem_of_kafka(authority, 1),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=node-1",
    }
    files = ClientFiles(tmp_path / "client", authority)
    super_user = files.properties(files.client_keys("node-1"))
    kafka.format()
    nodes = {}
    with ExitStack() as stack:
        stack.callback(kafka.kill)
        for node, more in ((WITNESS, {"quorum.witness": "true"}), (OBSERVER, {})):
            settings = {**pem_of_ours(authority, node), **more}
            nodes[node] = KafkaObserver(
                tmp_path / f"ours-{node}", kafka.bootstrap, node_id=node, settings=settings
            )
            stack.callback(nodes[node].cluster.kill_all)
        kafka.start()
        yield Denied(kafka, nodes, super_user)


def test_a_node_that_is_denied_says_so_goes_on_and_follows_once_it_is_granted(
    denied: Denied,
) -> None:
    for each in denied.nodes.values():
        each.launch()
    for node, each in denied.nodes.items():
        each.cluster.wait_for(partial(denied.refusals, node), f"node {node} to say what it lacks")
    for node, each in denied.nodes.items():
        (text,) = denied.refusals(node)
        assert "give this node's principal the right to CLUSTER_ACTION there" in text
        assert not each.cluster.is_ready(1)
    denied.grant(OBSERVER)
    denied.nodes[OBSERVER].wait_ready()
    assert denied.refusals(OBSERVER) == []
    assert denied.refusals(WITNESS), "each by its own principal"
    denied.grant(WITNESS)
    denied.nodes[WITNESS].wait_ready()
    end = denied.nodes[OBSERVER].status()["high_watermark"]
    for node, each in denied.nodes.items():
        each.wait_committed(end)
        wait_same_batches(each.log_folder, denied.kafka.controllers[1].log_folder, end)
        assert denied.refusals(node) == []
        assert each.cluster.running() == (1,)
