"""The parts of a replica's state that one feature has for itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quorumd.raft.effects import Peer, Request
from quorumd.raft.types import ReplicaKey, SnapshotId


@dataclass(slots=True)
class Writes:
    """Numbers of writes, in the order in which they must reach the disk."""

    last: int = 0
    state: int = 0
    """The last one of the quorum state: what speaks of epoch, leader or vote leaves after it."""
    log: deque[tuple[int, int]] = field(default_factory=deque)
    """Those of the log that are not on disk: number, and end offset (exclusive) that it syncs."""

    def next(self) -> int:
        """The number of the next write."""
        self.last += 1
        return self.last

    def next_of_log(self, end_offset: int) -> int:
        """The number of the next write, after which the log is synced up to `end_offset`."""
        self.last = write = self.last + 1
        self.log.append((write, end_offset))
        return write

    def truncate_log(self, end_offset: int) -> None:
        """No write syncs anything from `end_offset` on any more."""
        self.log = deque((write, min(end, end_offset)) for write, end in self.log)

    def reset_log(self, end_offset: int) -> None:
        """The log is empty and ends at `end_offset`, whichever write completes."""
        self.log = deque((write, end_offset) for write, _ in self.log)


@dataclass(slots=True)
class InFlightRequest:
    """A request without an answer yet."""

    to: Peer
    request: Request


@dataclass(slots=True)
class Backoff:
    """Failures in a row of requests to one peer, and when the next one may be sent."""

    attempts: int = 0
    retry_at_ms: int = 0


@dataclass(slots=True)
class Requests:
    """What this replica has asked others for. One request of a kind is in flight to a peer at most."""

    last_id: int = 0
    in_flight: dict[int, InFlightRequest] = field(default_factory=dict)
    """By request id, those of this epoch and leader."""
    busy: set[tuple[Peer, type[Request]]] = field(default_factory=set)
    """Peers and kinds of what is in flight."""
    backoffs: dict[tuple[Peer, type[Request]], Backoff] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndClaim:
    """EndQuorumEpoch: the leader of this epoch is said to have resigned, in favour of these."""

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...]


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
        """True if all of it is copied; it may not be verified yet."""
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
class BootstrapState:
    """What a replica learns while it is not known who the first voters are (KIP-856, bootstrapping)."""

    first_voters_are_known: bool = False
    """Once they are, they are for ever."""
    known_uuids: dict[int, ReplicaKey] = field(default_factory=dict)
    """Keys of initial voters, by id, as they have shown them."""
    heard_cluster_id: str | None = None
    foreign_leader: dict[int, int] = field(default_factory=dict)
    """Whom those that belong to another cluster call their leader, by their ids."""


@dataclass(slots=True)
class EndpointRegistration:
    """When the leader is told next where this replica is reached, and who has been told."""

    next_ms: int = 0
    registered_in: tuple[int, ReplicaKey | None] | None = None
    """Epoch and leader that know it."""


@dataclass(slots=True)
class WitnessState:
    """Whether this witness campaigns; of no meaning on others."""

    must_lead: bool = False
    """It holds records that the others lack."""
    defers_until_ms: int | None = None
    """When it stops waiting for a voter that could win, None if none has shown up."""
    behind: set[ReplicaKey] = field(default_factory=set)
    """Of a Kafka quorum: voters that asked for votes since `contact_ms`, and lack what it holds."""
    behind_since_ms: int = 0
    contact_ms: int | None = None
    """When the leader had answered last when a voter was found to be behind."""
    former_leader: ReplicaKey | None = None
    """Who led before the present epoch: it may be gone without a word."""
