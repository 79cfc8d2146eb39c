"""Beside controllers of older and later Kafka versions a node observes, and votes as a witness.

KAFKA_VERSIONS=4.0.0,4.2.0 in the environment names others than the suite does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import quorumctl
from tests.support.kafka_jars import OTHER_VERSIONS, requires_java
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum, wait_for, wait_same_batches
from tests.support.kafka_writes import alter_quota

pytestmark = [requires_java, pytest.mark.timeout(240)]

WITNESS = 90
VERSIONS = os.environ.get("KAFKA_VERSIONS", ",".join(OTHER_VERSIONS)).split(",")


@pytest.mark.parametrize("version", VERSIONS)
def test_controllers_of_another_version_are_observed_and_survive_a_loss_by_a_witness(
    version: str, tmp_path: Path
) -> None:
    kafka = KafkaQuorum(tmp_path / "kafka", size=2)
    for each in kafka.controllers.values():
        each.version = version
    settings = {"quorum.witness": "true"}
    node = KafkaObserver(tmp_path / "node", kafka.bootstrap, node_id=WITNESS, settings=settings)
    kafka.format()
    try:
        node.launch()
        kafka.start()
        lost = kafka.wait_leader()
        node.wait_ready()
        assert node.status()["role"] == "observer"
        node.wait_committed(kafka.wait_committed())
        wait_same_batches(
            node.log_folder, kafka.controllers[lost].log_folder, kafka.wait_committed()
        )

        at = ("--bootstrap-server", kafka.bootstrap)
        # Controllers answer clients once the first records are committed.
        asked = ("describe", "--replication", *at)
        described = wait_for(
            lambda: done if (done := quorumctl(*asked)).code == 0 else None, "an answer"
        )
        assert f"\n{WITNESS} " in described.out, described.text
        endpoint = ("--endpoint", f"CONTROLLER://{node.address}")
        done = quorumctl("add-voter", "--replica-id", WITNESS, *endpoint, *at)
        assert done.code == 0, done.text
        wait_for(lambda: node.status()["role"] == "follower", "the witness to vote")

        kafka.kill(lost)
        leader = kafka.wait_leader(other_than=lost)
        assert wait_for(lambda: alter_quota(kafka.controllers[leader].port, "after."), "a write")
        kafka.start(lost)
        end = kafka.wait_committed()
        for each in kafka.controllers.values():
            wait_same_batches(node.log_folder, each.log_folder, end)
        assert not node.status()["unknown"]
    finally:
        node.cluster.kill_all()
        kafka.kill()
