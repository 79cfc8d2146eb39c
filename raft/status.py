"""The status of a replica for operators: frozen values, made on demand.

Hot paths read the properties of `RaftNode` instead, which make nothing. Times are those of `step`, in
ms; offsets are exclusive ends, except the start of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumd.raft.bootstrap import bootstrap_problem
from quorumd.raft.core import Core
from quorumd.raft.replica_progress import progress_of
from quorumd.raft.roles import (
    MOVE_REMEMBERED_MS,
    Candidate,
    FetchProgress,
    Leader,
    Prospective,
    Role,
)
from quorumd.raft.startup import is_voter_by_mistake, unexpected_voters
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, SnapshotId, Voter, VoterSet
from quorumd.raft.voter_changes.reassignment import reassignment_waits_for
from quorumd.raft.voter_changes.voter_sets import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    """Progress of one replica, as the leader sees it. None is never; an end offset of -1 is not known."""

    key: ReplicaKey
    is_voter: bool
    end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """This replica has `position` bytes of a snapshot; `size_bytes` is None until the first of them."""

    snapshot: SnapshotId
    position: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingVoterChange:
    """A requested change of voters or leader that waits at this leader."""

    kind: str
    """add, remove, reassign or transfer."""
    key: ReplicaKey | None
    """None where it is about more than one replica, or any."""
    asked_at_ms: int | None
    """None for a reassignment that is under way: it goes on without a request."""
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStatus:
    """State of a replica after the last step, for everything outside the rules."""

    role: Role
    epoch: int
    leader: ReplicaKey | None
    """Of this epoch; the replica itself while it leads, and after it resigned."""
    voted: ReplicaKey | None
    cluster_id: str | None
    has_leader_contact: bool
    """The leader responded lately, and its process is not known to be gone. False on the leader."""
    older_epoch: int | None
    """Epoch of the last response since this epoch began, if it was an older one: None if none was."""
    bootstrap_problem: str | None
    """The reason why clients cannot write yet to a quorum that is new; None on one that is not."""
    problem: str | None
    """The reason why this replica cannot take over what its leader has."""
    unreachable: frozenset[int]
    """Ids of replicas whose processes are known to be gone."""
    voters: VoterSet
    """The latest set, committed or not."""
    voters_offset: int
    """Of the record that names them; -1 if only configuration does."""
    committed_voters: VoterSet
    target_voters: tuple[int, ...] | None
    """Ids that a reassignment is on its way to; None if there is none."""
    unexpected_voters: tuple[int, ...]
    """Ids that vote although quorum.voters is there and does not name them."""
    is_voter_by_mistake: bool
    """A Kafka quorum counts on this replica, which is not configured as its witness."""
    voters_without_endpoints: tuple[int, ...]
    """Ids of voters whose addresses are not known."""
    running_twice: tuple[str, ...]
    """Voters that run on a directory and on its copy, and where, in words.

    The leader tells it of all, a voter of itself: a Kafka leader tells nothing.
    """
    registered_observers: tuple[Voter, ...]
    """Observers that registered their endpoints with this leader."""
    pending_changes: tuple[PendingVoterChange, ...]
    log_start_offset: int
    log_end: OffsetAndEpoch
    high_watermark: int | None
    """None until it is known: on a leader, until a record of its epoch is committed."""
    missing_records: int
    """Offsets that the leader knows to be committed and this replica has not fetched yet; 0 on the leader."""
    is_ahead: bool
    """True of a witness that holds records which no other voter within reach has."""


def status_of(core: Core) -> RaftStatus:
    """State of this replica now."""
    log = core.log
    leader = core.state if isinstance(core.state, Leader) else None
    return RaftStatus(
        role=core.role,
        epoch=core.epoch,
        leader=core.leader,
        voted=core.voted,
        cluster_id=core.cluster_id,
        has_leader_contact=core.has_leader_contact,
        older_epoch=core.known_leader.older_epoch,
        bootstrap_problem=bootstrap_problem(core) if core.is_bootstrapping else None,
        problem=core.problem,
        unreachable=frozenset(core.connections.unreachable),
        voters=core.voters,
        voters_offset=log.voters_offset,
        committed_voters=core.committed_voters.record.voters,
        target_voters=core.electorate.entry.record.target,
        unexpected_voters=unexpected_voters(core, core.voters),
        is_voter_by_mistake=is_voter_by_mistake(core),
        voters_without_endpoints=tuple(
            key.id for key in core.other_voters() if not core.endpoints_of(key)
        ),
        running_twice=_overwritten(core) if leader is None else _running_twice(core, leader),
        registered_observers=() if leader is None else tuple(leader.registered_observers.values()),
        pending_changes=() if leader is None else _pending_changes(core, leader),
        log_start_offset=log.start_offset,
        log_end=log.end,
        high_watermark=core.high_watermark,
        missing_records=(
            0 if leader is not None else max(0, core.known_leader.high_watermark - log.end_offset)
        ),
        is_ahead=_is_ahead(core),
    )


def _running_twice(core: Core, leader: Leader) -> tuple[str, ...]:
    """A voter may be moved and moved back; not twice in a row."""
    return tuple(
        f"voter {key} is reached in turn at {listed(move.former.endpoints)} and at {listed(now.endpoints)}"
        for key, move in leader.moves.items()
        if move.returns > 1
        and core.now_ms < move.at_ms + MOVE_REMEMBERED_MS
        and (now := core.voters.find(key)) is not None
    )


def _overwritten(core: Core) -> tuple[str, ...]:
    """Once may be a voter that was moved back."""
    said = core.registration
    if said.overwritten_times < 2 or core.now_ms >= said.overwritten_ms + MOVE_REMEMBERED_MS:
        return ()
    here, there = listed(core.config.endpoints), listed(said.elsewhere)
    return (f"voter {core.local} is reached in turn at {here} and at {there}",)


def _is_ahead(core: Core) -> bool:
    campaigns = isinstance(core.state, (Prospective, Candidate, Leader))
    is_refusing = core.witness.must_lead and not core.has_leader_contact
    return core.config.is_witness and (campaigns or is_refusing)


def _pending_changes(core: Core, leader: Leader) -> tuple[PendingVoterChange, ...]:
    found = [
        PendingVoterChange(
            kind=change.kind,
            key=None if change.voter is None else change.voter.key,
            asked_at_ms=change.asked_at_ms,
            waits_for=change.waits_for,
        )
        for change in leader.changes
    ]
    obstacle = reassignment_waits_for(core, leader)
    if obstacle is not None:
        found.append(
            PendingVoterChange(kind="reassign", key=None, asked_at_ms=None, waits_for=obstacle)
        )
    transfer = leader.transfer
    if transfer is not None:
        found.append(
            PendingVoterChange(
                kind="transfer",
                key=transfer.to,
                asked_at_ms=transfer.asked_at_ms,
                waits_for=f"{transfer.to or 'a voter'} to have everything",
            )
        )
    return tuple(found)


def progress_of_replicas(core: Core) -> list[ReplicaProgress]:
    """Voters, this leader among them, then observers; empty if this replica does not lead."""
    leader = core.state
    if not isinstance(leader, Leader):
        return []
    rows = []
    for key in core.voters.keys:
        if core.is_local(key):
            now, end_offset = core.now_ms, core.log.end_offset
            rows.append(
                ReplicaProgress(
                    key=core.local,
                    is_voter=True,
                    end_offset=end_offset,
                    last_fetch_ms=now,
                    last_caught_up_ms=now,
                )
            )
        else:
            rows.append(_row(key, True, progress_of(leader, key) or FetchProgress()))
    observers = [key for key in leader.progress if core.voters.find(key) is None]
    observers.sort(key=lambda key: key.sort_key())
    return rows + [_row(key, False, leader.progress[key]) for key in observers]


def _row(key: ReplicaKey, is_voter: bool, known: FetchProgress) -> ReplicaProgress:
    return ReplicaProgress(
        key=key,
        is_voter=is_voter,
        end_offset=known.end_offset,
        last_fetch_ms=known.last_fetch_ms,
        last_caught_up_ms=known.last_caught_up_ms,
    )
