"""The parts of a replica's state that one feature has for itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quorumd.raft.effects import Peer, Request
from quorumd.raft.types import Endpoint, ReplicaKey, SnapshotId


@dataclass(slots=True)
class Writes:
    """Numbers of writes, in the order in which the writes must reach the disk."""

    last: int = 0
    state: int = 0
    """The last one of the quorum state: messages that name epoch, leader or vote leave after it."""
    state_since_ms: int = 0
    """When that was asked for."""
    vote_took_ms: int = 0
    """The time until the last vote was on disk, the own one or one that was given."""
    log: deque[tuple[int, int]] = field(default_factory=deque)
    """Writes of the log that are not on disk: number, and end offset (exclusive) that it syncs."""

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
    """A request without a response yet."""

    to: Peer
    request: Request


@dataclass(slots=True)
class Backoff:
    """Failures in a row of requests to one peer, and when the next one may be sent."""

    attempts: int = 0
    retry_at_ms: int = 0


@dataclass(slots=True)
class Requests:
    """Requests to peers. One request of a kind is in flight to a peer at most."""

    last_id: int = 0
    in_flight: dict[int, InFlightRequest] = field(default_factory=dict)
    """By request id, those of this epoch and leader."""
    backoffs: dict[tuple[Peer, type[Request]], Backoff] = field(default_factory=dict)

    def is_busy(self, to: Peer, kind: type[Request]) -> bool:
        """True if such a request to this peer is in flight; there are few at any time."""
        is_busy = False  # a generator would cost more than all of them
        for sent in self.in_flight.values():
            is_busy = is_busy or (type(sent.request) is kind and sent.to == to)
        return is_busy


@dataclass(frozen=True, slots=True)
class UnconfirmedEnd:
    """An EndQuorumEpoch: the leader of this epoch is said to have resigned, in favour of these voters."""

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...]


@dataclass(slots=True)
class KnownLeader:
    """Knowledge of the leader beside its key; times are ms."""

    endpoints: tuple[Endpoint, ...] = ()
    """Of all its listeners that are known."""
    high_watermark: int = 0
    """The leader's own in its last response: perhaps beyond the log end of this replica."""
    last_contact_ms: int | None = None
    """When the leader responded last in this epoch, None if it has not."""
    expected_until_ms: int = 0
    """After a start: until then the leader found on disk is waited for, without a response."""
    has_refused: bool = False
    """The leader responded to a fetch of this epoch that it does not lead."""
    has_ended: bool = False
    """The leader resigned: EndQuorumEpoch says so, and so did the leader's own response."""
    unconfirmed_end: UnconfirmedEnd | None = None
    """The last EndQuorumEpoch of this epoch that is not confirmed."""
    older_epoch: int | None = None
    """The epoch of the last response that was ignored for naming an older one than this replica's."""
    unconfirmed_endpoints: tuple[int, tuple[Endpoint, ...]] = (-1, ())
    """Of the last replica that a request named as leader while this one had none: id and endpoints."""

    def forget_contact(self) -> None:
        """The epoch or the leader is another one: nothing has been heard of that leader yet."""
        self.last_contact_ms = None
        self.expected_until_ms = 0
        self.has_refused = False
        self.has_ended = False
        self.older_epoch = None


@dataclass(slots=True)
class PeerConnections:
    """The processes at the other ends of connections, by replica id."""

    unreachable: set[int] = field(default_factory=set)
    """Replicas whose processes are known to be gone."""
    refused_ms: dict[int, int] = field(default_factory=dict)
    """When a replica's addresses last refused connections."""


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
    """A snapshot that was copied without success, `attempts` times in a row; times are ms.

    `context` is the epoch and the leader that it was copied from.
    """

    snapshot: SnapshotId
    context: tuple[int, ReplicaKey | None]
    attempts: int
    again_at_ms: int


@dataclass(slots=True)
class BootstrapState:
    """State of a replica until the first voters are known (KIP-856, bootstrapping)."""

    first_voters_are_known: bool = False
    """Once they are, they are for ever."""
    known_uuids: dict[int, ReplicaKey] = field(default_factory=dict)
    """Keys of initial voters, by id, as they have shown them."""
    heard_cluster_id: str | None = None
    foreign_leader: dict[int, int] = field(default_factory=dict)
    """Leader ids that replicas of another cluster name, by the ids of those replicas."""


@dataclass(slots=True)
class EndpointRegistration:
    """When this replica sends its endpoints to the leader next, and which leader has them."""

    next_ms: int = 0
    registered_in: tuple[int, ReplicaKey | None] | None = None
    """Epoch and leader that have them."""
    overwritten_at: int = -1
    """Offset of the last voter set that named others, where one before it had named these."""
    overwritten_ms: int = 0
    overwritten_times: int = 0
    """So often in a row: another process says that it is this replica."""
    elsewhere: tuple[Endpoint, ...] = ()
    """The endpoints that this set named."""


@dataclass(slots=True)
class WitnessState:
    """State of a witness that decides if it campaigns; of no meaning on others."""

    must_lead: bool = False
    """True if this witness holds records that the others lack."""
    defers_until_ms: int | None = None
    """When it stops waiting for a voter that could win; None if no such voter has asked for a vote."""


@dataclass(slots=True)
class KafkaLogState:
    """State of a replica of a Kafka quorum's log; of no meaning on others. Times are ms."""

    next_record_ms: int = 0
    """When the high watermark may be written to disk again."""
    behind: set[ReplicaKey] = field(default_factory=set)
    """Voters that asked this witness for votes since `contact_ms`, and lack records that it holds."""
    behind_since_ms: int = 0
    """When the first of them asked."""
    campaigned_for: frozenset[ReplicaKey] = frozenset()
    """Voters that were behind at its last campaign: they ask for votes, as another witness does not."""
    contact_ms: int | None = None
    """The last contact with the leader when a voter was found to be behind."""
    former_leader: ReplicaKey | None = None
    """The leader before the present epoch: its process may have died silently."""


@dataclass(slots=True)
class ReassignmentState:
    """State of this replica's leaving the voters by a reassignment (KIP-642)."""

    handed_over_at: int | None = None
    """Offset of the voter set under which it resigned as leader, for its successor to remove it."""
