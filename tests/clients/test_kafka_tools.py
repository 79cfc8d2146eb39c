"""Kafka's own tools ask a live quorum and read the files it leaves."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumd.wire.messages.describe_quorum import DescribeQuorumResponsePartition
from tests.clients.adapters import CLIENTS
from tests.clients.jvm import TOOLS
from tests.support.kafka_tools import run_tool
from tests.support.live_cluster import TOPIC, Cluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

QUORUM = f"{TOOLS}.MetadataQuorumCommand"
TOPICS = f"{TOOLS}.TopicCommand"
DUMP = f"{TOOLS}.DumpLogSegments"
UPGRADE = ("upgrade", "--feature", "kraft.version=1")
RECORDS, RECORD_BYTES = 30, 500_000
# Younger than anything else in the log, and within what a node takes of the future.
FIRST_MS = int(time.time() * 1000) + 3_000_000


@pytest.fixture(scope="module")
def written(cluster: Cluster) -> list[int]:
    """Offsets of enough records for several segments, each record with a time of its own."""
    producer = CLIENTS["librdkafka"].producer(cluster.bootstrap)
    noise = random.Random(3)
    for i in range(RECORDS):
        producer.send(noise.randbytes(RECORD_BYTES), timestamp_ms=FIRST_MS + i)
    outcomes = producer.finish()
    offsets = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(offsets) == RECORDS, outcomes
    cluster.wait_converged()
    return offsets


class Asked(NamedTuple):
    """What every tool printed, by a name, and how the quorum stood then."""

    outputs: dict[str, str]
    quorum: DescribeQuorumResponsePartition


@pytest.fixture(scope="module")
def asked(cluster: Cluster, written: list[int]) -> Asked:
    """Every tool, run once; all of them ended well."""
    cluster.start()
    cluster.wait_ready()
    cluster.wait_converged()
    server = ("--bootstrap-server", cluster.bootstrap)
    controller = ("--bootstrap-controller", cluster.bootstrap)
    offsets = (*server, "--topic", TOPIC, "--time")
    get_offsets = f"{TOOLS}.GetOffsetShell"
    commands = {
        "status": (QUORUM, *server, "describe", "--status"),
        "replication": (QUORUM, *server, "describe", "--replication"),
        "controller status": (QUORUM, *controller, "describe", "--status"),
        "controller replication": (QUORUM, *controller, "describe", "--replication"),
        "topics": (TOPICS, *server, "--list"),
        "topic": (TOPICS, *server, "--describe"),
        "cluster id": (f"{TOOLS}.ClusterTool", "cluster-id", *server),
        "features": (f"{TOOLS}.FeatureCommand", *server, "describe"),
        "controller features": (f"{TOOLS}.FeatureCommand", *controller, "describe"),
        "upgrade": (f"{TOOLS}.FeatureCommand", *server, *UPGRADE),
        "controller upgrade": (f"{TOOLS}.FeatureCommand", *controller, *UPGRADE),
        "log dirs": (f"{TOOLS}.LogDirsCommand", *server, "--describe"),
        "earliest": (get_offsets, *offsets, "earliest"),
        "latest": (get_offsets, *offsets, "latest"),
        "by time": (get_offsets, *offsets, str(FIRST_MS + 7)),
        "max timestamp": (get_offsets, *offsets, "max-timestamp"),
        "versions": (f"{TOOLS}.BrokerApiVersionsCommand", *server),
    }
    found = {}
    for name, (tool, *arguments) in commands.items():
        done = run_tool(tool, *arguments)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        assert "Exception" not in done.stderr, f"{name}: {done.stderr}"
        found[name] = done.stdout
    partition = cluster.describe(cluster.wait_leader())
    assert partition is not None
    return Asked(found, partition)


def values_of(output: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):\s+(.*)$", output, re.MULTILINE))


@pytest.mark.parametrize("way", ["status", "controller status"])
def test_the_status_of_the_quorum_is_described(cluster: Cluster, asked: Asked, way: str) -> None:
    partition = asked.quorum
    answers = values_of(asked.outputs[way])
    assert answers["ClusterId"] == cluster.status(1)["cluster_id"]
    assert answers["LeaderId"] == str(partition.leader_id)
    assert answers["LeaderEpoch"] == str(partition.leader_epoch)
    assert answers["HighWatermark"] == str(partition.high_watermark)
    assert answers["MaxFollowerLag"] == "0"
    for node in cluster.ids:
        assert f'"id": {node}, "directoryId": "{_storage_id(cluster, node)}"' in asked.outputs[way]
        assert f'"CONTROLLER://{cluster.address(node)}"' in asked.outputs[way]
    assert answers["CurrentObservers"] == "[]"


@pytest.mark.parametrize("way", ["replication", "controller replication"])
def test_the_replicas_are_described(cluster: Cluster, asked: Asked, way: str) -> None:
    leader, end = asked.quorum.leader_id, asked.quorum.high_watermark
    header, *rows = asked.outputs[way].splitlines()
    assert header.split()[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    found = {int(row.split()[0]): row.split() for row in rows}
    assert found.keys() == set(cluster.ids)
    for node, row in found.items():
        status = "Leader" if node == leader else "Follower"
        assert (row[1], row[2], row[3]) == (_storage_id(cluster, node), str(end), "0")
        assert row[-1] == status


def test_the_topic_is_listed_and_described(cluster: Cluster, asked: Asked) -> None:
    assert asked.outputs["topics"].split() == [TOPIC]
    leader = asked.quorum.leader_id
    assert (
        f"Topic: {TOPIC}\tTopicId: AAAAAAAAAAAAAAAAAAAAAQ\tPartitionCount: 1"
        in asked.outputs["topic"]
    )
    assert f"Partition: 0\tLeader: {leader}\tReplicas: 1,2,3\tIsr: 1,2,3" in asked.outputs["topic"]


def test_the_cluster_id_and_the_features_are_shown(cluster: Cluster, asked: Asked) -> None:
    cluster_id = cluster.status(1)["cluster_id"]
    assert asked.outputs["cluster id"].strip() == f"Cluster ID: {cluster_id}"
    for way in ("features", "controller features"):
        shown = r"Feature: kraft\.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1"
        assert re.search(shown, asked.outputs[way]), asked.outputs[way]
        assert "FinalizedVersionLevel: 1" in asked.outputs[way]


def test_an_upgrade_to_the_level_that_is_there_succeeds(asked: Asked) -> None:
    for way in ("upgrade", "controller upgrade"):
        assert "kraft.version was upgraded to 1" in asked.outputs[way]


def test_an_upgrade_of_anything_else_says_why_not(cluster: Cluster) -> None:
    arguments = ("--bootstrap-server", cluster.bootstrap, "upgrade", "--feature", "group.version=1")
    done = run_tool(f"{TOOLS}.FeatureCommand", *arguments)
    assert done.returncode == 1
    assert "there is no feature group.version here" in done.stdout + done.stderr


def test_the_log_of_every_node_is_described_with_its_size(cluster: Cluster, asked: Asked) -> None:
    (line,) = (x for x in asked.outputs["log dirs"].splitlines() if x.startswith("{"))
    found = {row["broker"]: row["logDirs"] for row in json.loads(line)["brokers"]}
    assert found.keys() == set(cluster.ids)
    for node, (log_dir,) in found.items():
        assert (log_dir["logDir"], log_dir["error"]) == (str(cluster.storage_dir(node)), None)
        (row,) = log_dir["partitions"]
        assert row["partition"] == f"{TOPIC}-0"
        assert row["size"] > RECORDS * RECORD_BYTES


def test_offsets_are_found_by_name_and_by_time(
    cluster: Cluster, asked: Asked, written: list[int]
) -> None:
    expected = {
        "earliest": 0,
        "latest": asked.quorum.high_watermark,
        "by time": written[7],
        "max timestamp": written[-1],
    }
    for name, offset in expected.items():
        assert asked.outputs[name].strip() == f"{TOPIC}:0:{offset}", name
    assert asked.outputs["versions"].count("Produce(0): 0 to 13") == len(cluster.ids)


def test_segments_are_dumped(cluster: Cluster, written: list[int]) -> None:
    """The closed ones of a running node, and all of a stopped one, indexes included."""
    node = cluster.wait_leader()
    end = cluster.wait_converged()
    closed = sorted(cluster.log_folder(node).glob("*.log"))[:-1]
    assert len(closed) >= 2
    live = run_tool(DUMP, "--print-data-log", "--files", _joined(closed))
    cluster.stop(node)
    files = sorted(cluster.log_folder(node).glob("*.log"))
    indexes = sorted(cluster.log_folder(node).glob("*index"))
    assert len(indexes) == 2 * len(files)
    stopped = run_tool(DUMP, "--print-data-log", "--files", _joined(files))
    checked = run_tool(DUMP, "--files", _joined(indexes))

    offsets = dumped_offsets(live)
    assert offsets == list(range(len(offsets)))
    offsets = dumped_offsets(stopped)
    assert offsets[:end] == list(range(end))
    assert set(written) <= set(offsets)
    for record in ("LeaderChange", "KRaftVersion", "KRaftVoters"):
        assert record in stopped.stdout
    assert checked.returncode == 0, checked.stderr
    for complaint in ("Mismatches", "out of order", "out-of-order", "not found", "corrupt"):
        assert complaint not in checked.stdout


def dumped_offsets(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    for complaint in ("invalid bytes", "isValid: false", "Error at"):
        assert complaint not in done.stdout
    return [int(found) for found in re.findall(r"^\| offset: (\d+)", done.stdout, re.MULTILINE)]


def _joined(files: list[Path]) -> str:
    return ",".join(map(str, files))


def _storage_id(cluster: Cluster, node: int) -> str:
    text = (cluster.storage_dir(node) / "meta.properties").read_text()
    found = re.search(r"^storage\.id=(.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1].replace("\\", "")
