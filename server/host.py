"""What a partition needs of the process that it lives in: clocks, alarms, a disk thread, links to peers.

The daemon's host is an event loop, threads and sockets. The simulator has one of its own, on which all of
it is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Protocol, TypeVar

from quorumd.server.building import Builder, BuildProcess
from quorumd.server.disk_worker import Disk, DiskListener, DiskWorker, Files
from quorumd.server.log_reader import LogReader
from quorumd.server.metrics import Metrics
from quorumd.server.peers import Call, Link, LinkListener
from quorumd.storage.log import Log

T = TypeVar("T")


class Alarm(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None: ...


class PartitionDisk(Disk, Protocol):
    """Whoever writes to a partition's directory, in the order of the jobs."""

    def start(self) -> None: ...
    def stop(self) -> None:
        """Finish what is queued. Blocks until it is done."""


class Reader(Protocol):
    """Reads from a partition's log without holding anybody up; see `quorumd.server.log_reader`."""

    def cached(
        self, offset: int, max_bytes: int, end_offset: int
    ) -> list[bytes | memoryview] | None: ...
    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        done: Callable[[bytes | BaseException], None],
    ) -> None: ...
    def run(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None: ...
    def close(self) -> None: ...


class PeerLink(Protocol):
    """One connection to one peer; see `quorumd.server.peers`."""

    def open(self) -> None: ...
    def call(self, call: Call) -> None: ...
    def discard(self) -> None: ...
    async def close(self) -> None: ...


class LinkMaker(Protocol):
    """Makes links; the arguments are those of `quorumd.server.peers.Link`."""

    def __call__(
        self,
        name: str,
        addresses: Callable[[], Sequence[tuple[str, int]]],
        client_id: str,
        software_version: str,
        listener: LinkListener,
        connect_timeout_ms: int,
        metrics: Metrics,
    ) -> PeerLink: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """`monotonic_s` and `monotonic_ms` are one clock that never goes back; alarms are set on it.

    `draw(n)` is a random integer in [0, n).
    """

    monotonic_s: Callable[[], float]
    monotonic_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    draw: Callable[[int], int]
    call_soon: Callable[[Callable[[], None]], object]
    """Call at the end of this turn of the event loop."""
    call_at: Callable[[float, Callable[[], None]], Alarm]
    disk: Callable[[Files, DiskListener], PartitionDisk]
    reader: Callable[[Log], Reader]
    link: LinkMaker
    build: Builder


def daemon_host() -> Host:
    """The host of a real node. Call it on the running event loop."""
    loop = asyncio.get_running_loop()

    def call_at(at_s: float, callback: Callable[[], None]) -> Alarm:
        return loop.call_later(max(0.0, at_s - time.monotonic()), callback)

    def disk(files: Files, listener: DiskListener) -> PartitionDisk:
        return DiskWorker(files, listener, loop.call_soon_threadsafe)

    return Host(
        monotonic_s=time.monotonic,
        monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        draw=SystemRandom().randrange,
        call_soon=loop.call_soon,
        call_at=call_at,
        disk=disk,
        reader=LogReader,
        link=Link,
        build=BuildProcess,
    )
