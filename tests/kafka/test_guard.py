"""A node whose directory is formatted for a quorumd log has no part in a real Kafka quorum.

A record of its own would end every controller that reads it, for good.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumd.raft.types import uuid_from_text
from quorumd.storage.reader import find_files
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
)
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from tests.support.commands import quorumctl
from tests.support.kafka_controller import CLUSTER_ID
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum
from tests.support.live_cluster import TOPIC, Cluster
from tests.support.raw_client import RawClient

pytestmark = [requires_java, pytest.mark.timeout(120)]

STRANGER = 91
ADVICE = "quorumd format --kafka-log"


@contextmanager
def strange_node(folder: Path, kafka: KafkaQuorum, *, begins: bool) -> Iterator[Cluster]:
    """Started, formatted without --kafka-log: to join whoever is there, or to begin a quorum with them."""
    node = Cluster(folder, size=0, observers=1, settings={"node.id": STRANGER})
    folder.mkdir()
    named = ",".join(f"{i}@{each.address}" for i, each in kafka.controllers.items())
    bootstrap = {"quorum.bootstrap.servers": kafka.bootstrap, "quorum.auto.join": "true"}
    voters = {"quorum.voters": f"{named},{STRANGER}@{node.address(1)}"}
    node.write_config(1, voters if begins else bootstrap)
    node.format_one(1, "--cluster-id", CLUSTER_ID, *(["--bootstrap"] if begins else []))
    try:
        node.start(1)
        yield node
    finally:
        node.kill_all()


def wait_refusal(node: Cluster) -> None:
    """Returns when the node says what is wrong and what to do."""
    node.wait_for(lambda: ADVICE in str(node.status(1)["warnings"]), "the node to name the command")
    node.wait_logged(1, ADVICE)


def assert_has_no_part(node: Cluster, kafka: KafkaQuorum) -> None:
    """No record was copied, and Kafka's leader knows nothing of the node."""
    status = node.status(1)
    assert (status["ready"], status["leader_id"], status["log_end_offset"]) == (False, None, 0)
    seen = kafka.describe()
    assert seen is not None
    listed = {each.replica_id for each in (*seen.current_voters, *seen.observers)}
    assert listed
    assert STRANGER not in listed
    assert not [batch for file in find_files(node.log_folder(1)) for batch in file.batches()]


def test_a_node_that_bootstraps_from_controllers_follows_none_and_cannot_be_added(
    kafka: KafkaQuorum, tmp_path: Path
) -> None:
    with strange_node(tmp_path / "node", kafka, begins=False) as node:
        wait_refusal(node)
        done = quorumctl(
            *("add-voter", "--replica-id", STRANGER, "--bootstrap-server", kafka.bootstrap),
            *("--replica-uuid", node.status(1)["storage_id"]),
            *("--endpoint", f"CONTROLLER://{node.address(1)}"),
        )
        assert done.code, done.text
        assert_has_no_part(node, kafka)


def test_a_node_that_is_configured_beside_controllers_neither_campaigns_nor_votes(
    kafka: KafkaQuorum, tmp_path: Path
) -> None:
    """Formatted to begin a quorum with them: it would campaign, were they asked for their votes."""
    before = kafka.describe()
    assert before is not None
    with strange_node(tmp_path / "node", kafka, begins=True) as node:
        wait_refusal(node)
        assert_has_no_part(node, kafka)
        seen = kafka.describe()
        assert seen is not None
        assert (seen.leader_id, seen.leader_epoch) == (before.leader_id, before.leader_epoch)
        done = quorumctl("append", "x", "--bootstrap-server", node.address(1))
        assert done.code, done.text


def test_a_controllers_directory_is_refused_whether_it_runs_or_not(
    kafka: KafkaQuorum, tmp_path: Path
) -> None:
    leader = kafka.wait_leader()
    follower = next(each for node_id, each in kafka.controllers.items() if node_id != leader)
    theirs, stopped = follower.data_folder, tmp_path / "stopped"
    node = Cluster(tmp_path, size=1)
    follower.suspend()  # It has its locks, and begins no segment of its own meanwhile.
    try:
        shutil.copytree(theirs, stopped)
        for storage_dir, refusal in ((theirs, "such as a Kafka node"), (stopped, ADVICE)):
            before = {path: path.stat().st_ino for path in storage_dir.rglob("*.index")}
            assert before
            node.write_config(1, {"storage.dir": storage_dir})
            node.start_with(1)
            ended = node.wait_exit(1)
            assert ended.exit_code == 1, ended.output
            assert refusal in ended.output
            assert {path: path.stat().st_ino for path in storage_dir.rglob("*.index")} == before
    finally:
        follower.resume()
    kafka.wait_leader()


@pytest.mark.parametrize("software", ["apache-kafka-java", "somebody"])
def test_a_change_that_a_node_beside_kafka_is_asked_for_is_not_passed_on(
    kafka: KafkaQuorum, first: KafkaObserver, software: str
) -> None:
    """Kafka would take it for one of the node's own, past the access rights of who asked."""
    leader = kafka.wait_leader()
    (removed, *_) = set(kafka.controllers) - {leader}
    nowhere = AddRaftVoterRequestListener(name="CONTROLLER", host="", port=9)
    # An empty host ends a Kafka leader.
    add = AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout_ms=1000,
        voter_id=first.node_id,
        voter_directory_id=uuid_from_text(first.status()["storage_id"]),
        listeners=(nowhere,),
    )
    remove = RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        voter_id=removed,
        voter_directory_id=uuid_from_text(kafka.directory_ids[removed]),
    )
    of_log = AlterPartitionReassignmentsRequestTopic(
        name=TOPIC,
        partitions=(
            AlterPartitionReassignmentsRequestPartition(partition_index=0, replicas=(leader,)),
        ),
    )
    reassign = AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=(of_log,))
    hello = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    with RawClient(first.cluster.port(1)) as client:
        client.ask(18, 4, hello, ApiVersionsResponse)
        for key, version, request, answer in (
            (80, 1, add, AddRaftVoterResponse),
            (81, 0, remove, RemoveRaftVoterResponse),
        ):
            said: Any = client.ask(key, version, request, answer)
            assert said.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert f"replica {leader} leads" in said.error_message
        moved = client.ask(45, 0, reassign, AlterPartitionReassignmentsResponse)
        partition = moved.responses[0].partitions[0]
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert kafka.wait_leader() == leader
    seen = kafka.describe()
    assert seen is not None
    assert {voter.replica_id for voter in seen.current_voters} == set(kafka.controllers)
