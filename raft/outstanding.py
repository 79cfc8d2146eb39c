"""What a replica has asked others for, and has not got yet."""

from __future__ import annotations

from dataclasses import dataclass

from quorumd.raft.effects import Peer, Request
from quorumd.raft.types import ReplicaKey, SnapshotId


@dataclass(slots=True)
class InFlightRequest:
    """A request without an answer yet."""

    to: Peer
    request: Request


@dataclass(slots=True)
class SnapshotDownload:
    """A snapshot that is being copied; times are ms.

    `context` is the epoch and the leader that offered it last: after a change it goes on only if the
    new leader offers the same, which has the same bytes everywhere.
    """

    snapshot: SnapshotId
    context: tuple[int, ReplicaKey | None]
    position: int = 0
    size_bytes: int | None = None
    stored_write: int = 0
    next_at_ms: int = 0

    @property
    def is_complete(self) -> bool:
        return self.position == self.size_bytes


@dataclass(slots=True)
class FailedDownload:
    """A snapshot that was copied in vain, `attempts` times in a row; times are ms.

    `context` is the epoch and the leader that it was copied from.
    """

    snapshot: SnapshotId
    context: tuple[int, ReplicaKey | None]
    attempts: int
    again_at_ms: int


@dataclass(slots=True)
class Backoff:
    """Failures in a row of requests to one peer, and when the next one may be sent."""

    attempts: int = 0
    retry_at_ms: int = 0
