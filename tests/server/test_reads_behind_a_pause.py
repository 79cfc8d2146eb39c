"""Reads of a process that stood still, before any of its alarms has gone off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.list_offsets import ListOffsetsRequest
from quorumd.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from quorumd.wire.schema import Message
from tests.server.test_replicas import alone
from tests.support.asking import ask
from tests.support.serving import run

PAUSE_MS = 3_600_000
READS = [
    (1, 12, FetchRequest(max_wait_ms=0)),
    (2, 7, ListOffsetsRequest(replica_id=-1)),
    (23, 4, OffsetForLeaderEpochRequest(replica_id=-1)),
]


@pytest.mark.parametrize(("key", "version", "message"), READS)
def test_a_leader_learns_how_late_it_is_before_it_responds(
    tmp_path: Path, key: int, version: int, message: Message
) -> None:
    """Others may have elected another one meanwhile: what it knows to be committed is outdated."""
    ahead_ms = 0

    async def work() -> None:
        nonlocal ahead_ms
        clock = lambda: time.monotonic_ns() // 1_000_000 + ahead_ms  # noqa: E731 (of one line)
        async with alone(tmp_path, monotonic_ms=clock) as at:
            core = at.partition.node.core
            before_ms = core.now_ms
            client = await at.connect()
            ahead_ms = PAUSE_MS
            await ask(client, key, version, message)
            assert core.now_ms >= before_ms + PAUSE_MS

    run(work())
