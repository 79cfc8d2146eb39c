"""`RaftNode`: one replica of one partition. `step(event, now_ms)` returns what to do, in order.

The same events at the same times with the same random draws give the same effects. Source of the rules:
see `election`, `replication`, `leadership`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quorumd.raft import changing, election, joining, leadership, membership, replication, snapshots
from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.core import Core
from quorumd.raft.effects import AddVoter, Effect, Halt, RemoveVoter, UpdateVoter
from quorumd.raft.events import (
    AddVoterRequested,
    AppendRequested,
    BeginQuorumEpochRequestReceived,
    BeginQuorumEpochResponseReceived,
    ChunkNotStored,
    ConnectionLost,
    ConnectionMade,
    ConnectionRefused,
    EndQuorumEpochRequestReceived,
    EndQuorumEpochResponseReceived,
    Event,
    FetchRequestReceived,
    FetchResponseReceived,
    FetchSnapshotRequestReceived,
    FetchSnapshotResponseReceived,
    LogDeletionRequested,
    ReassignmentRequested,
    RemoveVoterRequested,
    RequestFailed,
    ResignationRequested,
    SnapshotTaken,
    SnapshotVerified,
    TimerFired,
    TransferRequested,
    UpdateVoterRequested,
    VoterChangeResponseReceived,
    VoteRequestReceived,
    VoteResponseReceived,
    WriteCompleted,
)
from quorumd.raft.log_view import LogView
from quorumd.raft.roles import Candidate, Follower, Leader, Observer, Resigned, Unattached
from quorumd.raft.types import ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    """How far one replica is, as the leader sees it. Times are those of `step`, None is never."""

    key: ReplicaKey
    is_voter: bool
    end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


class RaftNode(Core):
    """See the module's docstring. Construct it, then call `start` once before any step."""

    def __init__(
        self, config: RaftConfig, stored: StoredState, log: LogView, draw: Callable[[int], int]
    ) -> None:
        super().__init__(config, stored, log, draw)
        self._handlers: Mapping[type[Event], Callable[[Core, Any], None]] = {
            VoteRequestReceived: election.on_vote_requested,
            BeginQuorumEpochRequestReceived: election.on_quorum_epoch_begun,
            EndQuorumEpochRequestReceived: election.on_quorum_epoch_ended,
            VoteResponseReceived: election.on_vote_answered,
            EndQuorumEpochResponseReceived: election.on_end_answered,
            ConnectionRefused: election.on_peer_unreachable,
            ConnectionLost: election.on_peer_lost,
            ConnectionMade: election.on_peer_reachable,
            FetchRequestReceived: replication.on_fetch_received,
            FetchResponseReceived: replication.on_fetch_answered,
            RequestFailed: replication.on_request_failed,
            FetchSnapshotRequestReceived: snapshots.on_snapshot_requested,
            FetchSnapshotResponseReceived: replication.on_piece_answered,
            SnapshotVerified: snapshots.on_snapshot_verified,
            ChunkNotStored: snapshots.on_piece_not_stored,
            SnapshotTaken: snapshots.on_snapshot_taken,
            LogDeletionRequested: snapshots.on_cleaning_requested,
            AddVoterRequested: membership.on_add_voter_requested,
            RemoveVoterRequested: membership.on_remove_voter_requested,
            UpdateVoterRequested: membership.on_update_voter_requested,
            ReassignmentRequested: membership.on_reassignment_requested,
            TransferRequested: membership.on_transfer_requested,
            VoterChangeResponseReceived: joining.on_change_answered,
            AppendRequested: leadership.on_append_requested,
            ResignationRequested: leadership.on_resignation_requested,
            BeginQuorumEpochResponseReceived: _on_begin_answered,
            WriteCompleted: _on_write_completed,
            TimerFired: _on_timer_fired,
        }

    def start(self, now_ms: int) -> list[Effect]:
        """Take up the role that the stored state implies.

        A stored vote for this replica makes it neither candidate nor leader again: its votes are lost
        with the process, and a new campaign is safe in any case. A log that ends below the recorded
        committed offset halts the node at once: no step may follow.
        Source: KIP-595, persistent state; KIP-856, disk failures.
        """
        self.now_ms = now_ms
        if self.recorded_offset > self.log.end_offset:
            return [Halt(reason=self._what_the_disk_lost())]
        strangers = self.unexpected_voters(self.committed_voters.record.voters)
        if strangers:
            return [Halt(reason=self._who_is_unexpected(strangers))]
        if self.epoch < self.log.last_epoch:
            self.epoch, self.leader, self.voted = self.log.last_epoch, None, None
        if self.leader is not None and self.leader.id == self.local.id:
            led = self.is_voter and self.is_local(self.leader)
            self.leader = self.local if led else None
        timeout = self.random_election_timeout_ms()
        if self.leader == self.local:
            self.leader_endpoints = self.config.endpoints
            others = set(self.other_voters())
            self.state = Resigned(now_ms + timeout if others else now_ms, others, ())
        elif not self.is_voter:
            self.state = Observer()
        elif self.leader is not None and self.endpoints_of(self.leader.id):
            self.state = Follower(now_ms + self.config.fetch_timeout_ms)
        else:
            self.leader = None
            self.state = Unattached(now_ms if not self.other_voters() else now_ms + timeout)
        if self.leader is not None:
            self.leader_endpoints = self.endpoints_of(self.leader.id)
        self.context = (self.epoch, self.leader)
        self.persist()
        self.announce("started")
        return self._finish()

    def _what_the_disk_lost(self) -> str:
        return (
            f"the log ends at offset {self.log.end_offset}, but everything below "
            f"{self.recorded_offset} was stored here and committed: this disk lost records that "
            "other replicas rely on. Restore the log directory, or format it anew so that it joins "
            "as a new replica with another storage id."
        )

    def _who_is_unexpected(self, strangers: tuple[int, ...]) -> str:
        named = ", ".join(map(str, strangers))
        return (
            f"the log says that replica {named} votes, which quorum.voters does not name (KIP-856). "
            "Remove quorum.voters from the configuration of all nodes, and set "
            "quorum.bootstrap.servers: the log knows the voters by now. Or add the id there."
        )

    def unexpected_voters(self, voters: VoterSet) -> tuple[int, ...]:
        """Ids that vote although quorum.voters is there and does not name them."""
        permitted = self.config.configured_voters.ids
        return tuple(voter for voter in voters.ids if permitted and voter not in permitted)

    @property
    def word(self) -> UpdateVoter | AddVoter | RemoveVoter | None:
        """What it would ask of its leader in its own favour, as things are now."""
        return joining.word(self)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """What this event asks for, in order. `now_ms` never goes back."""
        assert now_ms >= self.now_ms, "time goes back"
        self.now_ms = now_ms
        self._handlers[type(event)](self, event)
        return self._finish()

    def _finish(self) -> list[Effect]:
        """Let timers expire, send what is due, and hand the effects over."""
        state = self.state
        if isinstance(state, Leader):
            leadership.expire_fetches(self, state)
            leadership.announce_epoch(self, state)
            leadership.expire_leadership(self, state)
            if self.state is state:
                changing.advance(self, state)
        else:
            election.expire(self)
        if isinstance(self.state, Resigned):
            leadership.announce_end(self, self.state)
        elif not isinstance(self.state, Leader):
            election.ask_for_votes(self)
            replication.send_fetches(self)
            joining.tell_leader(self)
        effects, self.effects = self.effects, []
        return effects

    def next_deadline_ms(self) -> int | None:
        """When `TimerFired` is due at the latest; None if only other events matter."""
        if isinstance(self.state, Leader):
            deadlines = leadership.leader_deadline_ms(self.state), changing.due_ms(self.state)
            return min(due for due in deadlines if due is not None)
        own = election.election_deadline_ms(self)
        if not self.backoffs and self.download is None:
            return own
        dues = (own, replication.retry_deadline_ms(self), snapshots.next_piece_ms(self))
        return min((due for due in dues if due is not None), default=None)

    def progress(self) -> list[ReplicaProgress]:
        """Voters, this leader among them, then observers; empty if this replica does not lead."""
        leader = self.state
        if not isinstance(leader, Leader):
            return []
        rows = []
        for key in self.voters.keys:
            if self.is_local(key):
                now = self.now_ms
                rows.append(_row(self.local, True, self.log.end_offset, now, now))
                continue
            known = leadership.progress_of(leader, key)
            times = (
                (None, None) if known is None else (known.last_fetch_ms, known.last_caught_up_ms)
            )
            end_offset = -1 if known is None else known.end_offset
            rows.append(_row(key, True, end_offset, *times))
        for key in sorted(leader.progress, key=lambda key: key.sort_key()):
            known = leader.progress[key]
            if self.voters.find(key) is None:
                times = (known.last_fetch_ms, known.last_caught_up_ms)
                rows.append(_row(key, False, known.end_offset, *times))
        return rows


def _row(
    key: ReplicaKey, is_voter: bool, end_offset: int, fetched: int | None, caught_up: int | None
) -> ReplicaProgress:
    return ReplicaProgress(
        key=key,
        is_voter=is_voter,
        end_offset=end_offset,
        last_fetch_ms=fetched,
        last_caught_up_ms=caught_up,
    )


def _on_begin_answered(core: Core, event: BeginQuorumEpochResponseReceived) -> None:
    """An endorsement needs no note: the voter's fetches are the better one."""
    request = core.take(event.request_id)
    if request is not None:
        election.absorb(core, request, event.error, event.hint)


def _on_write_completed(core: Core, event: WriteCompleted) -> None:
    """Count what is on disk now: the own log end as a leader, the own vote as a candidate."""
    moved = core.complete_writes(event.write)
    state = core.state
    if isinstance(state, Leader):
        if moved:
            if core.is_bootstrapping:
                leadership.write_first_voters(core)
            leadership.advance_high_watermark(core, state)
    elif isinstance(state, Candidate) and event.write >= state.vote_write:
        election.on_own_vote_synced(core)


def _on_timer_fired(core: Core, event: TimerFired) -> None:
    """Nothing happened but time: `step` lets the timers expire."""
