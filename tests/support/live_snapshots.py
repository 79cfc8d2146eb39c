"""Snapshots of live nodes, for tests: made, found, and what is built at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import quorumd
from quorumd.raft.types import SnapshotId
from quorumd.server.snapshots import manager
from quorumd.storage.layout import is_part, parse_snapshot_name, snapshot_path
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse
from tests.support.live_cluster import Cluster

VALUE = b"x" * 100


class SteadyCluster(Cluster):
    """Builds the next snapshot soon, however long the one before took on a busy machine."""

    constants: ClassVar[Mapping[str, object]] = {f"{manager.__name__}.REST_MAX_S": 5.0}


def put(
    cluster: Cluster, count: int, first: int = 0, keys: int = 200, value: bytes = VALUE
) -> None:
    """Append records of some keys, and wait until they are committed."""

    async def run() -> None:
        async with quorumd.QuorumClient(cluster.bootstrap) as client:
            producer = client.producer(batch_bytes=3_000)
            for i in range(first, first + count):
                record = quorumd.Record(key=b"key%d" % (i % keys), value=b"%d " % i + value)
                await producer.append(record)
            await producer.flush()

    asyncio.run(run())


def ask_for_snapshot(cluster: Cluster, node: int) -> TakeSnapshotResponse:
    """A node's answer to an operator who wants a snapshot now."""
    request = TakeSnapshotRequest(timeout_ms=60_000)
    answer = cluster.ask(node, request, TakeSnapshotResponse, 0, timeout_s=65)
    assert answer is not None, cluster.logs()
    return answer


def take(cluster: Cluster, node: int) -> SnapshotId:
    """Have a node take a snapshot of all that is committed; the last of it may not be on its disk yet."""
    end_offset = cluster.wait_converged()

    def taken() -> SnapshotId | None:
        answer = ask_for_snapshot(cluster, node)
        assert not answer.error_code, answer.error_message
        found = SnapshotId(answer.end_offset, answer.epoch)
        return found if found.end_offset == end_offset else None

    return cluster.wait_for(taken, "a snapshot of everything")


def path_of(cluster: Cluster, node: int, snapshot: SnapshotId) -> Path:
    """Where a node keeps this snapshot."""
    return snapshot_path(cluster.log_folder(node), snapshot)


def files(cluster: Cluster, node: int) -> dict[SnapshotId, bytes]:
    """The complete snapshots of a node, without one that it deletes meanwhile."""
    found = {}
    for path in cluster.log_folder(node).iterdir():
        parsed = parse_snapshot_name(path.name)
        if parsed is not None:
            with suppress(FileNotFoundError):
                found[SnapshotId(*parsed)] = path.read_bytes()
    return found


def parts(cluster: Cluster, node: int) -> list[str]:
    """What is there only while a snapshot is built or copied."""
    return sorted(path.name for path in cluster.log_folder(node).iterdir() if is_part(path.name))


def builders(node_pid: int) -> Sequence[int]:
    """The processes that build snapshots for the node with this process id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, fields = path.read_text().rpartition(") ")
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if (
            int(fields.split()[1]) == node_pid
            and b"quorumd.server.snapshots.build_command" in command
        ):
            found.append(int(path.parent.name))
    return found
