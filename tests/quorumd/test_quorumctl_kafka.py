"""quorumctl beside a real Kafka controller: asking it, and reading its directory."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd import NotSupported, QuorumClient
from tests.quorumd.conftest import Done
from tests.support.kafka_controller import CLUSTER_ID, running_controller
from tests.support.kafka_jars import requires_java

Run = Callable[..., Done]


@requires_java
@pytest.mark.timeout(300)
def test_a_kafka_controller_is_described_and_its_directory_dumped(
    quorumctl: Run, tmp_path: Path
) -> None:
    with running_controller(tmp_path / "kafka", node_id=7) as controller:
        server = ("-b", controller.address)
        first = quorumctl("describe", *server, "-o", "json", "--timeout", "60")
        assert first.code == 0, first.err
        described = json.loads(first.out)
        assert (described["cluster_id"], described["leader_id"]) == (CLUSTER_ID, 7)
        (member,) = described["voters"]
        assert member["endpoints"] == [
            {"name": "CONTROLLER", "host": "127.0.0.1", "port": controller.port}
        ]
        uuid = member["replica_uuid"]
        assert f"7  {uuid}  CONTROLLER://{controller.address}" in quorumctl("describe", *server).out
        replication = quorumctl("describe", *server, "--replication").out.splitlines()
        assert re.fullmatch(rf"7 +{uuid} +\d+ +0 +0 +Leader", replication[1])

        for command in (("append", "x"), ("put", "a", "b"), ("get", "a"), ("watch",)):
            refused = quorumctl(*command, *server)
            assert refused.code == 1
            assert "it is no quorumd node" in refused.err
        with pytest.raises(NotSupported, match="refuses readers that are not replicas"):
            asyncio.run(_follow(controller.address))

        _until_batches(quorumctl, controller.data_folder, 4)
        assert quorumctl("dump-log", controller.data_folder).code == 0
        controller.kill()

    done = quorumctl("dump-log", "--print-data", controller.data_folder)
    assert (done.code, done.err) == (0, "")
    assert "snapshot of everything below offset 0, epoch 0" in done.out
    assert f"ADD (7, {uuid}) CONTROLLER://{controller.address} kraft.version 0..1" in done.out
    assert "0  LeaderChange leader 7, voters 7, granted by 7" in done.out
    assert f"KRaftVoters (7, {uuid}), unchanged" in done.out
    assert "metadata.version" in done.out
    indexes = quorumctl("dump-log", *sorted(controller.log_folder.glob("*index")))
    assert indexes.code == 0
    bootstrap = quorumctl("dump-log", controller.data_folder / "bootstrap.checkpoint")
    assert bootstrap.code == 0
    assert "SnapshotFooter" in bootstrap.out


async def _follow(address: str) -> None:
    async with QuorumClient(address) as client:
        async for _ in client.follow():
            pass


def _until_batches(quorumctl: Run, folder: Path, count: int) -> None:
    """Kafka writes a record every half second; waits until its log has so many batches."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done = quorumctl("dump-log", "--summary", "-o", "json", folder)
        files = [json.loads(line) for line in done.out.splitlines()]
        if files[-1]["batches"] >= count:
            return
        time.sleep(0.2)
    raise AssertionError(f"Kafka did not write {count} batches")
