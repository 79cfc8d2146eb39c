"""A real Kafka quorum that has lost every disk comes back from the directory of a node that observed it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from quorumd.testing import LocalQuorum
from tests.kafka.conftest import QUICK_SNAPSHOTS
from tests.support.authority import Authority
from tests.support.client_files import ClientFiles
from tests.support.commands import quorumctl
from tests.support.kafka_controller import KafkaController, pem_keys
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum, batches_of, wait_for, wait_same_batches
from tests.support.kafka_writes import alter_quota
from tests.support.ports import free_port

pytestmark = [requires_java, pytest.mark.timeout(240)]

TOPICS = {f"topic-{number}": str(100_000 + number) for number in range(5)}
"""By name: retention.ms."""
WAIT_S = 30.0
RECORD = b"somebody needs this"


def topics_of(broker: KafkaController) -> dict[str, str]:
    """The topics that a broker knows, and retention.ms of each."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    names = [name for name in admin.list_topics(timeout=WAIT_S).topics if not name.startswith("__")]
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    answers = admin.describe_configs(asked) if asked else {}
    return {
        resource.name: answer.result(WAIT_S)["retention.ms"].value
        for resource, answer in answers.items()
    }


def create(broker: KafkaController, topics: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    new = [
        NewTopic(name, num_partitions=2, replication_factor=1, config={"retention.ms": retention})
        for name, retention in topics.items()
    ]
    for answer in admin.create_topics(new).values():
        answer.result(WAIT_S)


def produce(broker: KafkaController, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic, RECORD)
    assert producer.flush(WAIT_S) == 0


def secured(broker: KafkaController, folder: Path) -> tuple[str, Path]:
    """Gives a broker a listener with TLS: its address, and the file with which a client uses it."""
    authority = Authority(folder / "certificates")
    address = f"127.0.0.1:{free_port()}"
    for key in ("listeners", "advertised.listeners"):
        broker.extra[key] += f",SECURE://{address}"
    broker.extra["listener.security.protocol.map"] += ",SECURE:SSL"
    broker.extra |= {
        **pem_keys(authority, "broker"),
        "inter.broker.listener.name": "PLAINTEXT",
    }
    broker.write_properties()
    files = ClientFiles(folder / "client", authority)
    return address, files.properties(files.client_keys())


def export(first: KafkaObserver, kafka: KafkaQuorum, node: int, *more: object) -> None:
    target = kafka.controllers[node].data_folder
    done = quorumctl("export-kafka", first.storage_dir, "--node-id", node, "--to", target, *more)
    assert done.code == 0, done.text


def test_three_wiped_controllers_come_back_with_every_topic_and_config(
    kafka: KafkaQuorum, first: KafkaObserver, tmp_path: Path
) -> None:
    broker = kafka.new_broker(11)
    try:
        broker.start()
        create(broker, TOPICS)
        wait_for(lambda: topics_of(broker) == TOPICS, "the topics at the broker")
        first.wait_committed(kafka.wait_committed())
        kafka.kill()
        refused = quorumctl("export-kafka", first.storage_dir, "--node-id", 1, "--dry-run")
        assert "a node runs on this directory" in refused.err
        first.stop()
        for node in kafka.controllers:
            kafka.wipe(node)
        shutil.copytree(first.storage_dir, tmp_path / "copy")

        for node in (1, 2):
            export(first, kafka, node)
        kafka.start(1, 2)
        leader = kafka.wait_leader()
        assert broker.is_running, broker.output.read_text()[-3000:]
        create(broker, {"after": "7"})
        wait_for(lambda: topics_of(broker) == {**TOPICS, "after": "7"}, "all topics")
        first.start()
        first.wait_committed(kafka.wait_committed())
        start = wait_same_batches(
            first.log_folder, kafka.controllers[leader].log_folder, kafka.wait_committed()
        )
        assert start == first.status()["log_start_offset"]

        # The third one later, from the same copy.
        first.stop()
        shutil.rmtree(first.storage_dir)
        shutil.copytree(tmp_path / "copy", first.storage_dir)
        refused = quorumctl(
            "export-kafka", first.storage_dir, "--node-id", 3, "--to", tmp_path / "3"
        )
        assert refused.code == 2, "the broker follows the restored quorum by now"
        assert f"broker {broker.address} is AHEAD" in refused.out
        export(first, kafka, 3, "--no-brokers")
        kafka.start(3)
        first.start()
        first.wait_committed(kafka.wait_committed())
        assert topics_of(broker) == {**TOPICS, "after": "7"}
    finally:
        broker.kill()


def test_a_broker_that_is_ahead_is_named_first_and_keeps_all_records_of_what_is_lost(
    tmp_path: Path,
) -> None:
    """The copy ends before a topic was made, and the broker has it, with a record in it."""
    kafka = KafkaQuorum(tmp_path / "kafka", size=1)
    kafka.format()
    broker = kafka.new_broker(12)
    secure, client = secured(broker, tmp_path)
    copy = KafkaObserver(tmp_path / "copy", kafka.bootstrap, node_id=90)
    try:
        copy.launch()
        kafka.start()
        broker.start()
        create(broker, {"early": "5"})
        copy.wait_committed(kafka.wait_committed())
        copy.stop()
        create(broker, {"late": "7"})
        wait_for(lambda: "late" in topics_of(broker), "the later topic")
        produce(broker, "late")
        kafka.kill()
        kafka.wipe(1)

        command = ("export-kafka", copy.storage_dir, "--node-id", 1)
        gone = f"127.0.0.1:{free_port()}"
        with LocalQuorum(nodes=1) as other:
            told = quorumctl(*command, "--brokers", other.servers, "--dry-run")
        assert "it belongs to another cluster" in told.out
        told = quorumctl(*command, "--brokers", secure, "--command-config", client, "--dry-run")
        assert re.search(rf"broker {secure} is AHEAD by \d+ offsets", told.out), told.text
        told = quorumctl(*command, "--brokers", secure, "--dry-run", "--timeout", 5)
        assert re.search(rf"broker {secure} is NOT KNOWN to survive: .*TLS", told.out), told.text
        told = quorumctl(*command, "--dry-run")  # those that the copy names
        assert re.search(rf"broker {broker.address} is AHEAD by \d+ offsets", told.out), told.text
        told = quorumctl(*command, "--dry-run", "--command-config", client)
        assert re.search(rf"broker {secure} is AHEAD by \d+ offsets", told.out), told.text
        assert "AHEAD" not in quorumctl(*command, "--dry-run", "--no-brokers").out
        brokers = ("--brokers", f"{broker.address},{gone}", "--timeout", 5)
        told = quorumctl(*command, *brokers, "--dry-run")
        assert told.code == 0, told.text
        assert re.search(rf"broker {broker.address} is AHEAD by \d+ offsets", told.out)
        assert f"broker {gone} is NOT KNOWN to survive" in told.out
        target = kafka.controllers[1].data_folder
        refused = quorumctl(*command, *brokers, "--to", target)
        assert refused.code == 2
        assert not target.exists()

        export(copy, kafka, 1, *brokers, "--accept-ahead")
        kafka.start()
        kafka.wait_leader()
        wait_for(lambda: not broker.is_running, "the end of the broker")
        assert "below the current high watermark" in broker.output.read_text()

        broker.start()
        wait_for(lambda: topics_of(broker).get("early") == "5", "what the copy has")
        assert "late" not in topics_of(broker)
        kept = [path.read_bytes() for path in broker.data_folder.glob("late-*-stray/*.log")]
        assert RECORD in b"".join(kept)
        create(broker, {"late": "9"})
        wait_for(lambda: topics_of(broker).get("late") == "9", "the topic, made again")

        copy.start()
        broker.suspend()
        copy.wait_committed(kafka.wait_committed() + 2)
        kafka.kill()
        copy.stop()
        broker.resume()
        told = quorumctl(*command, "--brokers", broker.address, "--to", tmp_path / "next")
        assert told.code == 0, told.text
        assert f"broker {broker.address} is not ahead" in told.out
    finally:
        broker.kill()
        copy.cluster.kill_all()
        kafka.kill()


def test_two_controllers_come_back_from_the_witness_that_alone_has_the_newest_record(
    tmp_path: Path,
) -> None:
    """The record was acknowledged by its leader and the witness, which did not hear that it is committed."""
    kafka = KafkaQuorum(tmp_path / "kafka", size=2)
    settings = {"quorum.witness": "true"}
    witness = KafkaObserver(tmp_path / "node", kafka.bootstrap, node_id=92, settings=settings)
    kafka.format()
    broker = kafka.new_broker(13)
    try:
        witness.launch()
        kafka.start()
        lost = kafka.wait_leader()
        witness.wait_ready()
        endpoint = ("--endpoint", f"CONTROLLER://{witness.address}")
        command = ("add-voter", "--replica-id", 92, *endpoint, "-b", kafka.bootstrap)
        wait_for(lambda: quorumctl(*command).code == 0, "the witness to be a voter")
        broker.start()
        create(broker, TOPICS)
        witness.wait_committed(kafka.wait_committed())
        (behind,) = set(kafka.controllers) - {lost}
        kafka.controllers[behind].suspend()
        assert alter_quota(kafka.controllers[lost].port, "newest.")
        broker.suspend()  # it would end, if it knew of that record and the copy did not
        kafka.kill()
        witness.kill()
        for node in kafka.controllers:
            kafka.wipe(node)

        for node in (1, 2):
            export(witness, kafka, node, "--no-brokers")
        kafka.start()
        kafka.wait_leader()
        broker.resume()
        witness.start()
        create(broker, {"after": "7"})
        wait_for(lambda: topics_of(broker) == {**TOPICS, "after": "7"}, "all topics")
        assert broker.is_running, broker.output.read_text()[-3000:]
        end = kafka.wait_committed()
        witness.wait_committed(end)
        for each in kafka.controllers.values():
            wait_same_batches(witness.log_folder, each.log_folder, end)
        assert b"newest." in b"".join(batches_of(witness.log_folder).values())
        assert witness.status()["role"] == "follower"

        # The restored quorum still survives the loss of its leader by the witness.
        lost = kafka.wait_leader()
        kafka.kill(lost)
        kafka.wait_leader(other_than=lost)
        create(broker, {"later": "8"})
    finally:
        broker.kill()
        witness.cluster.kill_all()
        kafka.kill()


def test_a_controller_comes_back_from_a_copy_that_begins_with_a_snapshot(tmp_path: Path) -> None:
    kafka = KafkaQuorum(tmp_path / "kafka", size=1, extra=QUICK_SNAPSHOTS)
    kafka.format()
    broker = kafka.new_broker(14)
    copy = KafkaObserver(tmp_path / "copy", kafka.bootstrap, node_id=93)
    try:
        kafka.start()
        broker.start()
        create(broker, TOPICS)
        leader = kafka.controllers[kafka.wait_leader()]
        behind = kafka.wait_committed()

        def has_snapshot() -> bool:
            ends = [int(path.name[:20]) for path in leader.log_folder.glob("*.checkpoint")]
            return max(ends, default=0) >= behind

        wait_for(has_snapshot, "a snapshot with the topics")
        copy.start()
        create(broker, {"behind": "9"})
        copy.wait_committed(kafka.wait_committed())
        assert copy.status()["log_start_offset"] >= behind
        kafka.kill()
        copy.stop()
        kafka.wipe(1)

        told = quorumctl("export-kafka", copy.storage_dir, "--node-id", 1, "--dry-run")
        assert f"broker {broker.address} is not ahead" in told.out, told.text
        export(copy, kafka, 1)
        kafka.start()
        kafka.wait_leader()
        create(broker, {"after": "7"})
        expected = {**TOPICS, "behind": "9", "after": "7"}
        wait_for(lambda: topics_of(broker) == expected, "all topics")
        assert broker.is_running, broker.output.read_text()[-3000:]
        copy.start()
        end = kafka.wait_committed()
        copy.wait_committed(end)
        start = wait_same_batches(copy.log_folder, leader.log_folder, end)
        assert start >= behind
    finally:
        broker.kill()
        copy.cluster.kill_all()
        kafka.kill()
