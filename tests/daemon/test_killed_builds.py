"""Builds of snapshots that are killed, and nodes that end while they build: nothing is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import quorumd
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse
from quorumd.wire.records import build_batch
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import builders, files, parts, put, take
from tests.support.load import Load, produce, produce_of
from tests.support.raw_client import RawClient, frame, request

RECORDS, RECORDS_PER_BATCH = 200_000, 5_000
TAKE_SNAPSHOT = 20002
WAIT_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node with so many keys that a snapshot of them takes a second or more."""
    with running_cluster(tmp_path_factory.mktemp("node"), size=1) as cluster:
        with RawClient(cluster.port(1)) as client:
            for first in range(0, RECORDS, RECORDS_PER_BATCH):
                records = [
                    quorumd.Record(key=b"%09d" % (at * 7919 % 10**9), value=bytes(50))
                    for at in range(first, first + RECORDS_PER_BATCH)
                ]
                answer = produce(client, produce_of(build_batch(records)))
                assert not answer.error_code, answer.error_message
        yield cluster


@pytest.fixture(autouse=True)
def runs_again(node: Cluster) -> Iterator[None]:
    """The next test needs records that no snapshot stands for, and a node that runs."""
    node.start()
    node.wait_ready()
    put(node, 1)
    yield
    node.start()
    node.wait_ready()


@contextmanager
def building(cluster: Cluster) -> Iterator[tuple[RawClient, int]]:
    """A build that has begun to write, and stands still: who waits for it, and its process."""
    with RawClient(cluster.port(1), WAIT_S) as client:
        wanted = TakeSnapshotRequest(timeout_ms=int(WAIT_S * 1000))
        client.send(frame(request(TAKE_SNAPSHOT, 0, wanted)))
        process = cluster.wait_for(lambda: builders(cluster.pid(1)), "a build")[0]
        cluster.wait_for(
            lambda: any(".checkpoint" in name for name in parts(cluster, 1)), "a part", WAIT_S
        )
        os.kill(process, signal.SIGSTOP)
        assert parts(cluster, 1), "the build was over too soon"
        try:
            yield client, process
        finally:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def answer_to(client: RawClient) -> str:
    """What whoever asked for the snapshot is told."""
    return client.answer(TAKE_SNAPSHOT, 0, TakeSnapshotResponse).error_message or ""


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_build_that_is_killed_is_told_and_leaves_nothing(node: Cluster) -> None:
    before = files(node, 1)
    with building(node) as (client, process), Load(node) as load:
        os.kill(process, signal.SIGKILL)
        message = answer_to(client)
        load.wait_progress()
    assert "the process that builds snapshots was killed by signal 9" in message
    status = node.status(1)["snapshots"]
    assert (status["problem"], status["building"]) == (message, None)
    node.wait_for(lambda: not parts(node, 1), "no parts")
    assert files(node, 1) == before
    take(node, 1)
    assert node.status(1)["snapshots"]["problem"] == ""
    assert parts(node, 1) == []


def test_a_build_that_is_asked_to_end_deletes_what_it_has_written(node: Cluster) -> None:
    """As systemd asks every process of a service."""
    with building(node) as (client, process):
        os.kill(process, signal.SIGTERM)
        os.kill(process, signal.SIGCONT)
        assert "the process that builds snapshots ended" in answer_to(client)
    node.wait_for(lambda: not parts(node, 1), "no parts")


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_node_that_is_stopped_ends_its_build_and_leaves_nothing(
    node: Cluster, is_stuck: bool
) -> None:
    with building(node) as (_, process):
        if not is_stuck:
            os.kill(process, signal.SIGCONT)
        ended = node.stop(1)
        assert ended.exit_code == 0
        assert is_gone(process)
    assert parts(node, 1) == []


def test_a_build_does_not_outlive_a_node_that_is_killed(node: Cluster) -> None:
    with building(node) as (_, process):
        node.kill(1)
        os.kill(process, signal.SIGCONT)
        node.wait_for(lambda: is_gone(process), "the end of the build")
    assert parts(node, 1) == []
