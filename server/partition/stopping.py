"""The end of a partition: leadership and what was appended are handed over, then disk and log are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from quorumd.raft.roles import Role
from quorumd.server.partition.partition import Partition

DRAIN_S: Final = 2.0
"""Time that a leader that shuts down waits for what it has appended to be committed."""


async def hand_over(partition: Partition, timeout_s: float) -> None:
    """Before the listeners close: let what was appended commit, then give leadership away."""
    node, progress = partition.node, partition.progress
    partition.drain()
    if node.is_leader:
        await _wait_until(progress, lambda: not partition.produce_handler.parked_count, DRAIN_S)
    partition.resign()
    if node.role is Role.RESIGNED:
        await _wait_until(progress, lambda: node.role is not Role.RESIGNED, timeout_s)


async def _wait_until(
    progress: asyncio.Event, condition: Callable[[], bool], timeout_s: float
) -> None:
    """Check again at each progress; give up after a while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not condition():
                progress.clear()
                await progress.wait()


async def close(partition: Partition) -> None:
    """Stop for good: peers, timers, disk, log, in this order. What was queued is written."""
    partition.stop()
    await partition.outbound.close()
    await asyncio.to_thread(partition.disk.stop)
    await partition.snapshots.ended()
    await asyncio.to_thread(partition.reader.close)
    await asyncio.to_thread(partition.log.close)
