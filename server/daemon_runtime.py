"""The runtime of a real node: an event loop, threads, sockets and processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from math import ceil
from random import SystemRandom

from quorumd.server.disk.disk_worker import DiskWorker
from quorumd.server.disk.log_reader import LogReader
from quorumd.server.model.disk_jobs import DiskListener, Files
from quorumd.server.model.runtime import PartitionDisk, Runtime, TimerHandle
from quorumd.server.peers.link_security import LinkSecurity
from quorumd.server.peers.peer_channel import TcpPeerChannel
from quorumd.server.snapshots.build_subprocess import BuildSubprocess


# In machine code a function costs half of what a lambda does.
def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def daemon_runtime(links: LinkSecurity | None = None) -> Runtime:
    """The runtime of a real node. Call it on the running event loop. Without `links` they are plaintext."""
    loop = asyncio.get_running_loop()

    def call_at(at_s: float, callback: Callable[[], None]) -> TimerHandle:
        # The loop counts whole milliseconds. The rest of one is rounded up: a callback that is called too
        # early would set its timer again in every turn of the loop until it is time.
        return loop.call_later(max(0, ceil((at_s - time.monotonic()) * 1000)) / 1000, callback)

    def disk(files: Files, listener: DiskListener) -> PartitionDisk:
        return DiskWorker(files, listener, loop.call_soon_threadsafe, time.monotonic)

    return Runtime(
        monotonic_s=time.monotonic,
        monotonic_ms=monotonic_ms,
        wall_ms=wall_ms,
        draw=SystemRandom().randrange,
        call_soon=loop.call_soon,
        call_at=call_at,
        disk=disk,
        reader=LogReader,
        peer_channel=partial(TcpPeerChannel, security=links),
        build=BuildSubprocess,
    )
