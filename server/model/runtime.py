"""Surroundings of a partition: clocks, timers, a disk thread, channels to peers.

The daemon's runtime is an event loop, threads and sockets. The simulator has one of its own, on which all of
it is drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from quorumd.raft.types import Address
from quorumd.server.model.disk_jobs import DiskListener, Files, Job
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import PeerCall, PeerListener
from quorumd.server.model.snapshot_builds import Builder
from quorumd.storage.errors import DamagedLog, DiskFailed
from quorumd.storage.log import Log

T = TypeVar("T")


class TimerHandle(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None: ...


class Disk(Protocol):
    """The disk thread as the driver sees it."""

    def submit(self, job: Job) -> None:
        """Take a job; it waits for `flush`. Never blocks."""

    def flush(self) -> None:
        """Begin to carry out what was taken. Never blocks."""


class PartitionDisk(Disk, Protocol):
    """Writes to a partition's directory, in the order of the jobs; a `Disk` that is started and stopped."""

    def start(self) -> None: ...
    def stop(self) -> None:
        """Finish what is queued. Blocks until it is done."""

    def write_age_s(self) -> float:
        """Seconds that the write or the sync under way has taken so far; 0 if none is."""


OnUnreadable = Callable[[DamagedLog | DiskFailed], None]
"""Gets the damage that a read has found, or the failure of the disk."""


def reporting_damage(
    on_unreadable: OnUnreadable, done: Callable[[bytes | BaseException], None]
) -> Callable[[bytes | BaseException], None]:
    """`done`, before which `on_unreadable` hears of an outcome that is for it."""

    def read(outcome: bytes | BaseException) -> None:
        if isinstance(outcome, (DamagedLog, DiskFailed)):
            on_unreadable(outcome)
        done(outcome)

    return read


class Reader(Protocol):
    """Reads from a partition's log without blocking the caller; see `quorumd.server.disk.log_reader`."""

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
    def look_up(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """As `run`, without other reads having to wait."""

    def close(self) -> None: ...


class PeerChannel(Protocol):
    """One connection to one peer; see `quorumd.server.peers.peer_channel`."""

    def open(self) -> None: ...
    def wake(self) -> None: ...
    def call(self, call: PeerCall) -> None: ...
    def discard(self) -> None: ...
    async def close(self) -> None: ...


class PeerChannelFactory(Protocol):
    """Makes channels; the arguments are those of `quorumd.server.peers.peer_channel.TcpPeerChannel`."""

    def __call__(
        self,
        name: str,
        addresses: Callable[[], Sequence[Address]],
        client_id: str,
        software_version: str,
        listener: PeerListener,
        connect_timeout_ms: int,
        metrics: Metrics,
    ) -> PeerChannel: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """`monotonic_s` and `monotonic_ms` are one clock that never goes back; timers are set on it.

    `draw(n)` is a random integer in [0, n).
    """

    monotonic_s: Callable[[], float]
    monotonic_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    draw: Callable[[int], int]
    call_soon: Callable[[Callable[[], None]], object]
    """Call at the end of this turn of the event loop."""
    call_at: Callable[[float, Callable[[], None]], TimerHandle]
    disk: Callable[[Files, DiskListener], PartitionDisk]
    reader: Callable[[Log, OnUnreadable], Reader]
    peer_channel: PeerChannelFactory
    build: Builder
