"""Copies and builds of snapshots as an operator sees them from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import quorumd
from quorumd.cli.describe import description_as_dict
from quorumd.client.description import QuorumDescription
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest
from tests.support import commands
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import builders, put, take
from tests.support.raw_client import RawClient, frame, request

OBSERVER = 4
SETTINGS = {"log.max.batch.bytes": 65536, "quorum.fetch.timeout.ms": 1000}
SLOW = {"snapshot.bandwidth.bytes.per.second": 80_000}
TAKE_SNAPSHOT = 20002


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("quorum")
    with running_cluster(folder, observers=1, settings=SETTINGS) as cluster:
        put(cluster, 200, value=bytes(5_000))
        yield cluster


def quorumctl(quorum: Cluster, *arguments: str) -> str:
    done = commands.quorumctl("describe", "-b", quorum.bootstrap, *arguments)
    assert done.code == 0, done.err
    return done.out


def snapshot_of(quorum: Cluster, node: int) -> dict[str, Any] | None:
    """What `quorumctl describe --output json` says that a node does with a snapshot.

    Without what it prints.
    """

    async def ask() -> QuorumDescription:
        async with quorumd.QuorumClient(quorum.bootstrap) as client:
            return await client.describe_quorum()

    shown = description_as_dict(asyncio.run(ask()))
    for row in (*shown["voters"], *shown["observers"]):
        if row["replica_id"] == node and row["snapshot"] is not None:
            doing: dict[str, Any] = row["snapshot"]
            return doing
    return None


def test_a_copy_is_shown_from_its_first_piece_until_records_are_fetched(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    snapshot = take(quorum, leader)
    quorum.stop(OBSERVER)
    quorum.new_disk(OBSERVER)
    quorum.write_config(OBSERVER, SLOW)
    quorum.start(OBSERVER)
    first = quorum.wait_for(lambda: snapshot_of(quorum, OBSERVER), "a copy that is shown")
    assert (first["doing"], first["end_offset"]) == ("copying", snapshot.end_offset)
    later = quorum.wait_for(
        lambda: (
            (now := snapshot_of(quorum, OBSERVER)) and now["position"] > first["position"] and now
        ),
        "progress",
    )
    assert first["position"] < later["position"] <= later["size_bytes"]
    printed = quorumctl(quorum, "--replication", "--output", "json")
    assert '"doing": "copying"' in printed
    rows = quorumctl(quorum, "--replication").splitlines()
    assert rows[0].endswith("Snapshot")
    assert any(re.search(rf"^{OBSERVER} .* Observer +copying \d+ %$", row) for row in rows), rows
    plain = quorum.describe(leader)
    assert plain is not None
    assert plain.snapshot_copies is None
    quorum.wait_ready(OBSERVER, timeout_s=60)
    quorum.wait_for(lambda: snapshot_of(quorum, OBSERVER) is None, "a copy that is over")
    assert not quorumctl(quorum, "--replication").splitlines()[0].endswith("Snapshot")


def test_a_build_of_the_leader_is_shown(quorum: Cluster) -> None:
    put(quorum, 1)
    leader = quorum.wait_leader()
    with RawClient(quorum.port(leader), 60) as client:
        client.send(frame(request(TAKE_SNAPSHOT, 0, TakeSnapshotRequest(timeout_ms=60_000))))
        process = quorum.wait_for(lambda: builders(quorum.pid(leader)), "a build")[0]
        os.kill(process, signal.SIGSTOP)
        try:
            doing = quorum.wait_for(lambda: snapshot_of(quorum, leader), "a build that is shown")
            assert doing["doing"] == "building"
            rows = quorumctl(quorum, "--replication").splitlines()
            assert re.search(rf"^{leader} .* Leader +building \d+ %$", rows[1]), rows
        finally:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        client.read_frame()
    assert snapshot_of(quorum, leader) is None
