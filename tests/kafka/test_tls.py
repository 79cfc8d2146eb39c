"""Witness and observer beside real Kafka controllers whose listener is TLS, both sides with certificates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.authority import Authority
from tests.support.client_files import ClientFiles
from tests.support.commands import Done, quorumctl
from tests.support.kafka_controller import pem_keys
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum, wait_for, wait_same_batches

pytestmark = [requires_java, pytest.mark.timeout(240)]

WITNESS, OBSERVER = 90, 91
LATE_S = 5.0


class Secured(NamedTuple):
    """Two controllers, a witness and an observer that follow them, and what a client needs."""

    kafka: KafkaQuorum
    witness: KafkaObserver
    observer: KafkaObserver
    client: Path

    def quorumctl(self, *command: object) -> Done:
        at = ("--bootstrap-server", self.kafka.bootstrap, "--command-config", self.client)
        return quorumctl(*command, *at)

    def wait_equal(self) -> None:
        """The same bytes everywhere, up to what is committed now."""
        end = self.witness.status()["high_watermark"]
        self.observer.wait_committed(end)
        for controller in self.kafka.controllers.values():
            for ours in (self.witness, self.observer):
                wait_same_batches(ours.log_folder, controller.log_folder, end)


def pem_of_kafka(authority: Authority, node: int) -> dict[str, str]:
    """A controller's own properties."""
    return {
        "listener.security.protocol.map": "CONTROLLER:SSL",
        **pem_keys(authority, f"node-{node}"),
    }


def pem_of_ours(authority: Authority, node: int) -> dict[str, str]:
    """The same keys in controller.yaml, and whose certificate speaks for which node."""
    return {**pem_of_kafka(authority, node), "quorum.node.principals": "User:CN=node-{id}"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "certificates")
    kafka = KafkaQuorum(folder / "kafka", size=2)
    for node, controller in kafka.controllers.items():
        controller.extra = pem_of_kafka(authority, node)
    files = ClientFiles(folder / "client", authority)
    client = files.properties(files.client_keys())
    kafka.format()
    with ExitStack() as stack:
        stack.callback(kafka.kill)
        nodes = []
        for node, more in ((WITNESS, {"quorum.witness": "true"}), (OBSERVER, {})):
            settings = {**pem_of_ours(authority, node), **more}
            each = KafkaObserver(
                folder / f"ours-{node}", kafka.bootstrap, node_id=node, settings=settings
            )
            stack.callback(each.cluster.kill_all)
            each.launch()
            nodes.append(each)
        kafka.start()
        for each in nodes:
            each.wait_ready()
        yield Secured(kafka, *nodes, client)


def test_a_witness_joins_votes_and_acknowledges_by_mutual_tls(secured: Secured) -> None:
    kafka, witness = secured.kafka, secured.witness
    listener = f"CONTROLLER://{witness.address}"
    done = secured.quorumctl("add-voter", "--replica-id", WITNESS, "--endpoint", listener)
    assert done.code == 0, done.text
    wait_for(lambda: witness.status()["role"] == "follower", "the witness to vote")
    described = secured.quorumctl("describe", "--replication")
    assert f"{OBSERVER} " in described.out
    assert not witness.status()["plaintext_peers"]
    secured.wait_equal()

    lost = witness.status()["leader_id"]
    kafka.kill(lost)
    began = time.monotonic()
    (other,) = set(kafka.controllers) - {lost}
    wait_for(lambda: witness.status()["leader_id"] == other, "the other controller to lead")
    assert time.monotonic() - began < LATE_S
    # Only with the witness is anything committed.
    newest = secured.observer.status()["high_watermark"]
    secured.observer.wait_committed(newest + 3)
    kafka.start(lost)
    secured.wait_equal()


def test_whoever_has_no_certificate_is_told_nothing(secured: Secured) -> None:
    done = quorumctl("describe", "--bootstrap-server", secured.witness.address, "--timeout", 2)
    assert done.code == 1
    assert "TLS" in done.err
