"""Kafka's tools against nodes of quorumd, and quorumctl against Kafka's: what docs/kafka.md's table says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from quorumd.raft.types import uuid_to_text
from quorumd.storage.layout import PARTITION_DIRECTORY
from quorumd.storage.meta_properties import random_storage_id
from tests.kafka.tools import (
    CASES,
    CONTROLLER_DIR,
    CONTROLLER_DIRS,
    CONTROLLERS,
    DOCUMENT,
    KAFKAS,
    OBSERVER,
    OBSERVER_DIR,
    QUORUM,
    QUORUM_DIR,
    TABLES,
    WITNESS_ID,
    Case,
    parts_of,
    table,
)
from tests.pipeline.quick_start import start_quickly
from tests.support.commands import Done, quorumctl
from tests.support.kafka_controller import as_kafka_configures_it
from tests.support.kafka_jars import requires_java, run_java
from tests.support.kafka_observer import KafkaObserver, observing
from tests.support.kafka_quorum import KafkaQuorum
from tests.support.kafka_tools import run_tool
from tests.support.live_cluster import TOPIC, Cluster

pytestmark = [requires_java, pytest.mark.timeout(240)]

ADDRESSES = (CONTROLLERS, OBSERVER, QUORUM)
WITH_SPARK = ("batch", "doctor", "report")
"""Commands of quorumd-pipeline that start it."""


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Voters 1 and 2, either of which may be removed, and observer 3, which may be added."""
    cluster = Cluster(tmp_path_factory.mktemp("own"), size=0, observers=3)
    first_voters = ",".join(
        f"{node}@{cluster.address(node)}:{uuid_to_text(random_storage_id())}" for node in (1, 2)
    )
    for node in cluster.ids:
        cluster.write_config(node, {"quorum.bootstrap.servers": cluster.bootstrap})
        cluster.format_one(node, *(["--initial-voters", first_voters] if node < 3 else []))
    try:
        cluster.start()
        cluster.wait_ready()
        done = quorumctl("append", "hello", "--bootstrap-server", cluster.bootstrap)
        assert done.code == 0, done.text
        yield cluster
    finally:
        cluster.kill_all()


def test_the_table_is_the_one_that_is_tested() -> None:
    before, found, after = parts_of(DOCUMENT.read_text())
    assert found == table(), "run python -m tests.kafka.tools --write"
    assert before
    assert after


def is_spark(case: Case) -> bool:
    return case.tool == "quorumd-pipeline" and case.command.startswith(WITH_SPARK)


@pytest.fixture(scope="module")
def witness(
    kafka: KafkaQuorum, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaObserver]:
    """One that does not vote, beside the real controllers."""
    folder = tmp_path_factory.mktemp("witness") / "node"
    settings = {"quorum.witness": "true"}
    with observing(folder, kafka.bootstrap, node_id=WITNESS_ID, settings=settings) as started:
        yield started


@pytest.fixture
def voting(
    case: Case, kafka: KafkaQuorum, request: pytest.FixtureRequest
) -> Iterator[KafkaObserver | None]:
    """The witness, if the case is about it: a voter where it is removed, and none afterwards."""
    if str(WITNESS_ID) not in case.command and "{witness" not in case.command:
        yield None
        return
    witness: KafkaObserver = request.getfixturevalue("witness")
    change = ("--replica-id", WITNESS_ID, "--bootstrap-server", kafka.bootstrap)
    if "remove" in case.command:
        endpoint = ("--endpoint", f"CONTROLLER://{witness.address}")
        done = quorumctl("add-voter", *change, *endpoint)
        assert done.code == 0, done.text
    yield witness
    if any(voter["id"] == WITNESS_ID for voter in witness.status()["voters"]):
        done = quorumctl("remove-voter", *change)
        assert done.code == 0, done.text


@pytest.fixture
def places(
    kafka: KafkaQuorum, first: KafkaObserver, quorum: Cluster
) -> dict[str, Sequence[str | Path]]:
    """What each of the table's words stands for: addresses or directories."""
    data = [each.data_folder for each in kafka.controllers.values()]
    return {
        CONTROLLERS: [kafka.bootstrap],
        OBSERVER: [first.address],
        QUORUM: [quorum.bootstrap],
        CONTROLLER_DIR: data[:1],
        CONTROLLER_DIRS: data,
        OBSERVER_DIR: [first.storage_dir],
        QUORUM_DIR: [quorum.storage_dir(1)],
    }


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=pytest.mark.spark if is_spark(each) else ()) for each in CASES],
    ids=lambda case: f"{case.tool} {case.command} of {case.against}",
)
def test_a_tool_does_what_the_table_says(
    case: Case,
    kafka: KafkaQuorum,
    first: KafkaObserver,
    quorum: Cluster,
    voting: KafkaObserver | None,
    places: dict[str, Sequence[str | Path]],
    tmp_path: Path,
) -> None:
    kafka.wait_leader()
    known = {"storage_id": quorum.status(2)["storage_id"], "observer": first.address}
    if voting is not None:
        file = as_kafka_configures_it(voting.storage_dir, WITNESS_ID, voting.address, tmp_path)
        known |= {
            "witness": voting.address,
            "witness_file": str(file),
            "witness_storage_id": voting.status()["storage_id"],
        }
    if case.against == TABLES:
        places[TABLES] = [made_tables(first, tmp_path)]
    words: list[str] = []
    for word in case.command.split():
        if word == "{dir}":
            words += map(str, files_of(case, places[case.against], tmp_path))
        elif word == "{file}":
            words.append(str(file_of(case, quorum, tmp_path)))
        else:
            words.append(word.format_map(known))
    if case.against in ADDRESSES:
        is_controller = case.against in (CONTROLLERS, OBSERVER) and case.tool in KAFKAS
        option = "--bootstrap-controller" if is_controller else "--bootstrap-server"
        at = [option, str(places[case.against][0])]
        words = [*at, *words] if case.tool in KAFKAS else [*words, *at]
    with standing_still(case, kafka):
        done = run(case, words)
    assert done.code == case.code, done.text
    assert case.says in done.text


@contextmanager
def standing_still(case: Case, kafka: KafkaQuorum) -> Iterator[None]:
    """Suspends the controller whose directory Spark reads: that takes longer than such a controller needs for
    its next snapshot, and then the reading begins anew."""
    if not (case.against == CONTROLLER_DIR and case.command.startswith("batch ")):
        yield
        return
    kafka.controllers[1].suspend()
    try:
        yield
    finally:
        kafka.controllers[1].resume()


def run(case: Case, words: list[str]) -> Done:
    if case.tool == "quorumctl":
        limit = [] if case.code == 0 else ["--timeout", "2"]
        return while_cleaned(lambda: quorumctl(*words, *limit))
    if case.tool == "quorumd-pipeline":
        return run_pipeline(*words)
    # One of them prints what is asked for while its process ends.
    runs = run_java if case.tool == "kafka-verifiable-producer" else run_tool
    ended = runs(KAFKAS[case.tool], *words, stdin="x\n")
    return Done(ended.returncode, ended.stdout, ended.stderr)


def run_pipeline(*words: object) -> Done:
    command = [str(Path(sys.executable).with_name("quorumd-pipeline")), *map(str, words)]
    environ = dict(os.environ)
    if words[0] in WITH_SPARK:
        start_quickly(environ)

    def once() -> Done:
        ended = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=200, check=False
        )
        return Done(ended.returncode, ended.stdout, ended.stderr)

    return while_cleaned(once)


def made_tables(observer: KafkaObserver, folder: Path) -> Path:
    """Tables of its directory."""
    made = folder / "tables"
    done = run_pipeline("batch", "--path", observer.storage_dir, "--output", made)
    assert done.code == 0, done.text
    return made


def while_cleaned(run_once: Callable[[], Done]) -> Done:
    """Once more, if a controller has deleted a segment meanwhile."""
    done = run_once()
    return run_once() if "Read again" in done.text else done


def files_of(case: Case, directories: Sequence[str | Path], folder: Path) -> Sequence[str | Path]:
    """What stands for `{dir}`."""
    (directory, *_) = map(Path, directories)
    if case.tool == "kafka-dump-log":
        return [max((directory / PARTITION_DIRECTORY).glob("*.log"))]
    if case.tool == "kafka-storage":
        return [
            as_kafka_configures_it(
                directory, 90 if case.against == OBSERVER_DIR else 1, "127.0.0.1:9", folder
            )
        ]
    return directories


def file_of(case: Case, quorum: Cluster, folder: Path) -> Path:
    """What stands for `{file}`."""
    if case.tool == "kafka-reassign-partitions":
        voters = [each["id"] for each in quorum.status(1)["voters"]]
        moved = {"topic": TOPIC, "partition": 0, "replicas": voters}
        path = folder / "reassignment.json"
        path.write_text(json.dumps({"version": 1, "partitions": [moved]}))
        return path
    if case.tool in KAFKAS:
        return as_kafka_configures_it(quorum.storage_dir(3), 3, quorum.address(3), folder)
    return folder / "made"
