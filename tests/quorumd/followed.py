"""A follower of a fake quorum, for tests: stories, and what happens in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from quorumd import (
    BatchCommitted,
    LogEvent,
    QuorumClient,
    Record,
    SnapshotLoaded,
)
from quorumd.wire.control_records import LeaderChange, encode_control_batch
from quorumd.wire.records import build_batch
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.snapshots import snapshot_bytes

Events = AsyncGenerator[LogEvent, None]
Story = Callable[[FakeQuorum, QuorumClient, Events], Awaitable[None]]


def follow(
    story: Story,
    *,
    prepare: Callable[[FakeQuorum], None] = lambda quorum: None,
    from_offset: int | None = None,
    timeout_ms: int = 5000,
) -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum:
            prepare(quorum)
            async with (
                QuorumClient(quorum.addresses, timeout_ms=timeout_ms) as client,
                aclosing(client.follow(from_offset=from_offset)) as events,
            ):
                await story(quorum, client, events)

    asyncio.run(run())


def put(quorum: FakeQuorum, *values: bytes) -> None:
    """One batch with a record for each value."""
    quorum.append(build_batch([Record(timestamp=5, key=b"k", value=value) for value in values]))


def elect(quorum: FakeQuorum, leader_id: int) -> None:
    """A new leader that has committed the record that begins its epoch."""
    quorum.elect(leader_id)
    record = LeaderChange(version=0, leader_id=leader_id, voters=(), granting_voters=())
    quorum.append(encode_control_batch([record], base_offset=0, epoch=0, timestamp_ms=5))


def take_snapshot(quorum: FakeQuorum, count: int = 10, *, cleans: bool = True) -> bytes:
    """A snapshot of everything up to now: keys k0 to k<count - 1>, set at offset 0."""
    contents = {b"k%d" % number: (b"v" * 50, 0) for number in range(count)}
    data = snapshot_bytes(contents, epoch=quorum.epoch, records_per_batch=3 + count // 100)
    quorum.snapshots[quorum.end_offset, quorum.epoch] = data
    if cleans:
        quorum.log_start_offset = quorum.end_offset
    return data


async def committed(events: Events, count: int) -> list[tuple[int, list[bytes | None]]]:
    """Base offset and values of the next batches that have records."""
    found: list[tuple[int, list[bytes | None]]] = []
    while len(found) < count:
        event = await anext(events)
        if isinstance(event, BatchCommitted) and event.records:
            found.append((event.base_offset, [record.value for record in event.records]))
    return found


def without_records(event: LogEvent) -> LogEvent:
    return replace(event, records=()) if isinstance(event, BatchCommitted) else event


async def until_snapshot(events: Events) -> SnapshotLoaded:
    async for event in events:
        if isinstance(event, SnapshotLoaded):
            return event
    raise AssertionError("the events have ended")
