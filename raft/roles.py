"""The roles of a replica, one value per role with just what that role needs to remember.

Epoch, leader and vote belong to the replica, not to a role: they outlive it, on disk.
Source: KIP-595 (state machine), KIP-996 (prospective).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, Voter


class Role(StrEnum):
    """The role of a replica in its epoch."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    OBSERVER = "observer"


@dataclass(slots=True)
class Unattached:
    """A voter that knows no leader, and fetches from all voters until its election timeout."""

    election_deadline_ms: int
    leaderless_voters: set[ReplicaKey] | None = field(default_factory=set)
    """Voters that know no leader of this epoch either, by their responses; None once a candidate of
    this epoch was refused."""
    vote_write: int | None = None
    """The write of a vote that this replica gave; None once it is on disk."""


@dataclass(slots=True)
class Follower:
    """A voter that fetches from the leader."""

    fetch_deadline_ms: int
    """The leader counts as silent from here on."""
    campaign_at_ms: int | None = None
    """When to ask for pre-votes if that is not the fetch deadline: a lost pre-vote, a leader that
    resigned, or one whose process is gone."""

    @property
    def election_deadline_ms(self) -> int:
        """When it asks for pre-votes, unless the leader responds first."""
        return self.fetch_deadline_ms if self.campaign_at_ms is None else self.campaign_at_ms


@dataclass(slots=True)
class Prospective:
    """A voter that asks whether it could win, without touching its epoch (KIP-996)."""

    deadline_ms: int
    votes: dict[ReplicaKey, bool]


@dataclass(slots=True)
class Candidate:
    """A voter that asks for votes in a new epoch; its own vote counts once it is on disk."""

    deadline_ms: int
    vote_write: int
    votes: dict[ReplicaKey, bool] = field(default_factory=dict)
    is_lost: bool = False
    """No majority can be reached any more: no other voter is asked."""
    is_contested: bool = False
    """A voter refused: the candidate waits for the others only briefly."""


@dataclass(slots=True)
class FetchProgress:
    """Progress of another replica as the leader knows it. Times are the leader's, in ms; None is never."""

    end_offset: int = -1
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    last_heard_ms: int | None = None
    """Its last fetch, or, of a voter, a request of another kind."""
    leader_end_at_last_fetch: int = 0
    begin_due_ms: int = 0


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that waits for records, for the high watermark, or for its time to run out."""

    replica: ReplicaKey | None
    position: OffsetAndEpoch
    due_ms: int
    """When the leader responds at the latest: the wait time is over, or records or the high watermark were
    withheld for a while."""
    high_watermark: int | None
    not_before_ms: int = 0
    """Until then it waits whatever there is to say, unless its time is up. See `observer_pause_ms`."""


class ChangeKind(StrEnum):
    """The kind of a change of the voter set."""

    ADD = "add"
    REMOVE = "remove"
    REASSIGN = "reassign"


@dataclass(slots=True)
class VoterChange:
    """A requested change of the voter set that waits at the leader. Times are ms.

    `voter` is whom to add, or (its key) to remove; `target` are the ids of a reassignment.
    """

    reply_to: int
    kind: ChangeKind
    asked_at_ms: int
    deadline_ms: int
    voter: Voter | None = None
    target: tuple[int, ...] | None = None
    ack_when_committed: bool = True
    force: bool = False
    offset: int | None = None
    """Of the record that makes the change, once it is in the log."""
    waits_for: str = ""


@dataclass(slots=True)
class Transfer:
    """Leadership is about to be handed to `to`, or to any voter. Times are ms.

    `reply_to` is None if it is a step of a reassignment.
    """

    reply_to: int | None
    to: ReplicaKey | None
    asked_at_ms: int
    deadline_ms: int


MOVE_REMEMBERED_MS: Final = 60_000
"""Time for which a leader remembers that a voter was at another place."""


@dataclass(frozen=True, slots=True)
class Move:
    """A voter says that it is reached elsewhere; `returns`: how often it has come back so."""

    former: Voter
    at_ms: int
    returns: int


@dataclass(slots=True)
class Leader:
    """The one replica of its epoch that appends."""

    epoch_start_offset: int
    check_quorum_deadline_ms: int
    elected_at_ms: int = 0
    progress: dict[ReplicaKey, FetchProgress] = field(default_factory=dict)
    heard_from: set[ReplicaKey] = field(default_factory=set)
    """Voters that fetched since the check-quorum timer was restarted."""
    parked: dict[int, ParkedFetch] = field(default_factory=dict)
    fetch_due_ms: int | None = None
    """Earliest time at which a parked fetch is due."""
    next_begin_ms: int = 0
    """Earliest time at which a voter is due for BeginQuorumEpoch, or earlier."""
    changes: list[VoterChange] = field(default_factory=list)
    """In the order in which they were asked for."""
    transfer: Transfer | None = None
    registered_observers: dict[ReplicaKey, Voter] = field(default_factory=dict)
    """Observers that have said where they are reached; voters that were removed are among them."""
    moves: dict[ReplicaKey, Move] = field(default_factory=dict)
    """The last one of each voter."""


@dataclass(slots=True)
class Resigned:
    """A leader that gave up and sends EndQuorumEpoch; it is still named as leader of its epoch."""

    election_deadline_ms: int
    unacknowledged: set[ReplicaKey]
    successors: tuple[ReplicaKey, ...]


@dataclass(slots=True)
class Observer:
    """A replica outside the voter set: follows the leader, never campaigns."""


State = Unattached | Follower | Prospective | Candidate | Leader | Resigned | Observer

ROLE_OF: dict[type[State], Role] = {
    Unattached: Role.UNATTACHED,
    Follower: Role.FOLLOWER,
    Prospective: Role.PROSPECTIVE,
    Candidate: Role.CANDIDATE,
    Leader: Role.LEADER,
    Resigned: Role.RESIGNED,
    Observer: Role.OBSERVER,
}
