"""The runtime of a real node, on the event loop of a real node."""

from __future__ import annotations

import asyncio
import time

import uvloop

from quorumd.server.daemon_runtime import daemon_runtime

PART_OF_A_MS = 0.0004


def test_an_alarm_for_a_part_of_a_millisecond_does_not_keep_the_loop_busy() -> None:
    async def calls_until(seconds: float) -> int:
        runtime, reached = daemon_runtime(), asyncio.Event()
        at, calls = time.monotonic() + seconds, 0

        def on_alarm() -> None:
            nonlocal calls
            calls += 1
            if time.monotonic() >= at:
                reached.set()
            else:
                runtime.call_at(at, on_alarm)

        runtime.call_at(at, on_alarm)
        await reached.wait()
        return calls

    async def most() -> int:
        return max([await calls_until(PART_OF_A_MS) for _ in range(20)])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(most()) <= 3
