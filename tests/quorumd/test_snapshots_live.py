"""The key-value view of a quorum of real processes that takes snapshots and deletes its history."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from quorumd import (
    BatchCommitted,
    KeyValueMap,
    KeyValueView,
    LeaderChanged,
    LogEvent,
    QuorumClient,
    Record,
    SnapshotLoaded,
)
from tests.quorumd.conftest import Done
from tests.quorumd.running import started
from tests.support.live_cluster import POLL_MAX_S, Cluster, running_cluster

pytestmark = [pytest.mark.usefixtures("nodes"), pytest.mark.timeout(400)]

Run = Callable[..., Done]

FORGETFUL = {
    "log.segment.bytes": 1 << 20,
    "snapshot.max.new.record.bytes": 1 << 20,
    "retention.bytes": 0,
}
KEYS = 3000
FORGET_S = 150.0
"""Two builds and the rest of 30 s between them, on a host where a build takes a minute."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that keep hardly more than their newest snapshot."""
    with running_cluster(tmp_path_factory.mktemp("quorum"), settings=FORGETFUL) as cluster:
        yield cluster


class Writer:
    """Sets and deletes keys at random, and knows what the map must be."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.model: dict[bytes, bytes] = {}
        self.last_offset = -1

    async def write(self, client: QuorumClient, count: int) -> None:
        records = []
        for _ in range(count):
            key = b"key/%04d" % self.chance.randrange(KEYS)
            value = None if self.chance.random() < 0.2 else self.chance.randbytes(300)
            records.append(Record(key=key, value=value, headers=(("h", b"x"),)))
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value
        self.last_offset = (await client.append(records))[-1]


async def forget(cluster: Cluster, client: QuorumClient, writer: Writer, offset: int) -> None:
    """Writes until `offset` is gone from the logs of all nodes that run.

    No more than they need: what is written while a node builds a snapshot, or rests after that, makes its
    next one later.
    """
    deadline = time.monotonic() + FORGET_S
    while True:
        status = [cluster.status(node) for node in cluster.running()]
        if min(each["log_start_offset"] for each in status) > offset:
            return
        assert time.monotonic() < deadline, f"offset {offset} is still there\n{cluster.logs()}"
        if any(_wants_bytes(each["snapshots"]) for each in status):
            await writer.write(client, 4000)
        await asyncio.sleep(POLL_MAX_S)


def _wants_bytes(snapshots: dict[str, Any]) -> bool:
    is_due = snapshots["new_bytes"] >= FORGETFUL["snapshot.max.new.record.bytes"]
    return not is_due and snapshots["building"] is None


def contents(view: KeyValueMap) -> dict[bytes, bytes]:
    return {key: entry.value for key, entry in view.entries.items()}


def test_the_map_is_whole_although_the_log_has_lost_its_beginning(
    cluster: Cluster, quorumctl: Run
) -> None:
    async def run() -> Writer:
        writer = Writer(1)
        async with QuorumClient(cluster.bootstrap, timeout_ms=20_000) as client:
            await forget(cluster, client, writer, await _delete_all(client))
            async with aclosing(client.follow()) as events:
                first, second = await anext(events), await anext(events)
                assert isinstance(first, LeaderChanged)
                assert isinstance(second, SnapshotLoaded)
                records = list(second.records())
                assert [r.key for r in records] == sorted(r.key or b"" for r in records)
                assert all(0 <= r.offset < second.id.end_offset for r in records)
                assert all(r.headers == (("h", b"x"),) for r in records)
                assert all(0 < r.timestamp <= second.last_contained_log_timestamp for r in records)
                await writer.write(client, 1)
                third = await anext(events)
                assert isinstance(third, BatchCommitted)
                assert third.base_offset == second.id.end_offset
        return writer

    writer = asyncio.run(run())
    for _ in range(2):
        done = quorumctl("get", "--all", "-o", "json", "--linearizable")
        found = [json.loads(line) for line in done.out.splitlines()]
        assert len(found) == len(writer.model)
        assert {each["key"].encode() for each in found} == set(writer.model)
        # Every replica has made its snapshots itself, and they are the same.
        leader = cluster.wait_leader()
        cluster.kill(leader)
        cluster.wait_leader(other_than=leader)
        cluster.start(leader)
        cluster.wait_ready(leader)
    for key in list(writer.model)[:3]:
        raw = quorumctl("get", key.decode(), "-o", "json").out
        assert json.loads(raw)["key"] == key.decode()


def test_a_follower_that_is_overtaken_loads_a_snapshot_and_goes_on(cluster: Cluster) -> None:
    async def run() -> None:
        writer, view, snapshots = Writer(2), KeyValueMap(), 0
        async with QuorumClient(cluster.bootstrap, timeout_ms=20_000) as client:
            await _delete_all(client)
            async with aclosing(client.follow()) as events:
                for _ in range(2):
                    await writer.write(client, 100)
                    while view.offset <= writer.last_offset:
                        snapshots += await _take(view, events)
                    assert contents(view) == writer.model
                    await forget(cluster, client, writer, view.offset)
                while view.offset <= writer.last_offset:
                    snapshots += await _take(view, events)
                assert contents(view) == writer.model
        assert snapshots >= 2

    asyncio.run(run())


async def _take(view: KeyValueMap, events: AsyncGenerator[LogEvent, None]) -> bool:
    """Applies the next event; True if it was a snapshot. The offset never goes back."""
    event = await anext(events)
    before = view.offset
    await view.apply(event)
    assert view.offset >= before
    return isinstance(event, SnapshotLoaded)


async def _delete_all(client: QuorumClient) -> int:
    """Deletes the keys of other tests; returns the offset of the last deletion."""
    async with KeyValueView(client) as view:
        deletions = [Record(key=key, value=None) for key, _ in view.items()]
    return (await client.append([*deletions, Record(value=b"all deleted")]))[-1]


def test_a_leader_that_is_killed_in_the_middle_of_a_snapshot_does_not_stop_its_loading(
    cluster: Cluster,
) -> None:
    async def run() -> None:
        writer = Writer(3)
        steps: list[tuple[int, int]] = []

        def kill_once(done_bytes: int, total_bytes: int) -> None:
            if not steps and done_bytes < total_bytes:
                cluster.kill(cluster.wait_leader())
            steps.append((done_bytes, total_bytes))

        async with QuorumClient(cluster.bootstrap, timeout_ms=20_000) as client:
            await _delete_all(client)
            large = [Record(key=b"large/%d" % n, value=bytes(500_000)) for n in range(12)]
            for record in large:
                await client.append([record])
            await forget(cluster, client, writer, (await client.append([Record(value=b"x")]))[0])
            view = KeyValueMap()
            async with aclosing(client.follow(on_progress=kill_once)) as events:
                while view.offset <= writer.last_offset:
                    await _take(view, events)
            assert len(steps) > 2
            assert len(cluster.running()) == 2
            assert {record.key: record.value for record in large}.items() <= contents(view).items()
            assert contents(view).items() >= writer.model.items()
            await client.append([Record(key=record.key, value=None) for record in large])

    asyncio.run(run())


def test_a_view_and_a_watch_stay_right_while_history_is_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def run() -> None:
        writer = Writer(4)
        async with QuorumClient(cluster.bootstrap, timeout_ms=20_000) as client:
            await _delete_all(client)
            async with KeyValueView(client, prefix=b"key/") as view:
                for turn in range(4):
                    await writer.write(client, 4000)
                    if turn == 2:
                        cluster.kill(cluster.wait_leader())
                    await view.wait_for(writer.last_offset)
                    assert {key: entry.value for key, entry in view.items()} == writer.model
                assert view.problem is None
            await forget(cluster, client, writer, 0)
            last = max(writer.model)
            with started("watch", last.decode(), "--output", "json") as process:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["key"] == last.decode()
                await client.append([Record(key=last, value=None)])
                assert json.loads(process.stdout.readline())["value"] is None

    asyncio.run(run())
