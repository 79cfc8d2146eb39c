"""`RaftNode`: one replica of one partition. `step(event, now_ms)` returns what to do, in order.

The same events at the same times with the same random draws give the same effects. Which module has the rule
for an event stands in `RaftNode.__init__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorumd.raft import (
    bootstrap,
    campaign,
    check_quorum,
    client_appends,
    election_timeout,
    fetch_requests,
    fetching,
    high_watermark,
    leadership,
    leadership_transfer,
    parked_fetches,
    peer_connections,
    quorum_epochs,
    request_failures,
    snapshot_download,
    snapshot_requests,
    snapshots,
    startup,
    vote_requests,
)
from quorumd.raft.commitment import record_voter_set
from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.core import Core
from quorumd.raft.effects import AddVoter, Effect, Halt, RemoveVoter, UpdateVoter
from quorumd.raft.errors import Refusal
from quorumd.raft.events import (
    AddVoterRequested,
    AppendRequested,
    BeginQuorumEpochRequestReceived,
    BeginQuorumEpochResponseReceived,
    ChunkNotStored,
    ConnectionLost,
    ConnectionMade,
    ConnectionRefused,
    DiskSpaceChanged,
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
from quorumd.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Observer,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorumd.raft.status import (
    DownloadProgress,
    RaftStatus,
    ReplicaProgress,
    progress_of_replicas,
    status_of,
)
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId, VoterSet
from quorumd.raft.voter_changes import (
    add_voter,
    auto_join,
    pending_changes,
    reassignment,
    remove_voter,
    update_voter,
)


class RaftNode:
    """See the module's docstring. Construct it, then call `start` once before any step.

    The properties cost nothing and change with every step; `status` and `progress` make frozen values.
    `core` is for the rules, the invariants and the simulator; the daemon must not read it.
    """

    def __init__(
        self, config: RaftConfig, stored: StoredState, log: LogView, draw: Callable[[int], int]
    ) -> None:
        self.core = Core(config, stored, log, draw)
        self._handlers: Mapping[type[Event], Callable[[Core, Any], None]] = {
            VoteRequestReceived: vote_requests.on_vote_requested,
            VoteResponseReceived: campaign.on_vote_response,
            BeginQuorumEpochRequestReceived: quorum_epochs.on_begin_quorum_epoch_requested,
            BeginQuorumEpochResponseReceived: quorum_epochs.on_begin_quorum_epoch_response,
            EndQuorumEpochRequestReceived: quorum_epochs.on_end_quorum_epoch_requested,
            EndQuorumEpochResponseReceived: quorum_epochs.on_end_quorum_epoch_response,
            ConnectionRefused: peer_connections.on_connection_refused,
            ConnectionLost: peer_connections.on_connection_lost,
            ConnectionMade: peer_connections.on_connection_made,
            FetchRequestReceived: fetch_requests.on_fetch_requested,
            FetchResponseReceived: fetching.on_fetch_response,
            RequestFailed: request_failures.on_request_failed,
            FetchSnapshotRequestReceived: snapshot_requests.on_fetch_snapshot_requested,
            FetchSnapshotResponseReceived: fetching.on_fetch_snapshot_response,
            SnapshotVerified: snapshot_download.on_snapshot_verified,
            ChunkNotStored: snapshot_download.on_chunk_not_stored,
            DiskSpaceChanged: fetching.on_disk_space_changed,
            SnapshotTaken: snapshots.on_snapshot_taken,
            LogDeletionRequested: snapshots.on_log_deletion_requested,
            AddVoterRequested: add_voter.on_add_voter_requested,
            RemoveVoterRequested: remove_voter.on_remove_voter_requested,
            UpdateVoterRequested: update_voter.on_update_voter_requested,
            ReassignmentRequested: reassignment.on_reassignment_requested,
            TransferRequested: leadership_transfer.on_transfer_requested,
            VoterChangeResponseReceived: auto_join.on_voter_change_response,
            AppendRequested: client_appends.on_append_requested,
            ResignationRequested: leadership.on_resignation_requested,
            WriteCompleted: _on_write_completed,
            TimerFired: _on_timer_fired,
        }

    def start(self, now_ms: int) -> list[Effect]:
        """Take up the role that the stored state implies; a node that has to halt says only that."""
        core = self.core
        core.now_ms = now_ms
        reason = startup.halt_reason(core)
        if reason is not None:
            return [Halt(reason=reason)]
        startup.restore_role(core)
        return self._finish(core)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event; returns the effects that it asks for, in order. `now_ms` never goes back."""
        core = self.core
        assert now_ms >= core.now_ms, "time goes back"
        core.now_ms = now_ms
        self._handlers[type(event)](core, event)
        return self._finish(core)

    def _finish(self, core: Core) -> list[Effect]:
        """Let timers expire, send what is due, and hand the effects over."""
        state, now = core.state, core.now_ms
        # An `isinstance` that is false costs several times as much as one that is true.
        if type(state) is Leader:
            if state.fetch_due_ms is not None and now >= state.fetch_due_ms:
                parked_fetches.expire_fetches(core, state)
            if now >= state.next_begin_ms:
                quorum_epochs.announce_epoch(core, state)
            if now >= state.check_quorum_deadline_ms and check_quorum.is_quorum_lost(core, state):
                leadership.resign(core, state, Trigger.QUORUM_LOST)
            elif state.changes or state.transfer is not None or not core.electorate.is_settled:
                pending_changes.advance(core, state)
        else:
            due = election_timeout.election_deadline_ms(core)
            if due is not None and now >= due:
                election_timeout.expire(core)
        if core.state is not state or type(state) is not Leader:
            self._ask_others(core)
        effects, core.effects = core.effects, []
        return effects

    def _ask_others(self, core: Core) -> None:
        """Send the requests that the role calls for; a leader's are sent where their reason comes up."""
        state = core.state
        if not isinstance(state, (Follower, Observer)):
            if isinstance(state, Resigned):
                quorum_epochs.announce_end(core, state)
                return
            if isinstance(state, (Prospective, Candidate)):
                campaign.ask_for_votes(core, state)
        fetching.send_fetches(core)
        if core.now_ms >= core.registration.next_ms:
            auto_join.register_with_leader(core)

    def next_deadline_ms(self) -> int | None:
        """When `TimerFired` is due at the latest; None if only other events matter."""
        core = self.core
        state = core.state
        if type(state) is Leader:
            return leadership.next_deadline_ms(state)
        own = election_timeout.election_deadline_ms(core)
        if core.is_disk_full and own is not None:
            probe = fetching.probe_due_ms(core)
            own = own if probe is None else min(own, probe)
        if not core.requests.backoffs and core.download is None:
            return own
        dues = (
            own,
            request_failures.retry_deadline_ms(core),
            snapshot_download.next_chunk_ms(core),
        )
        return min((due for due in dues if due is not None), default=None)

    # -- for operators

    def status(self) -> RaftStatus:
        """State of this replica after the last step."""
        return status_of(self.core)

    def progress(self) -> list[ReplicaProgress]:
        """Voters, this leader among them, then observers; empty if this replica does not lead."""
        return progress_of_replicas(self.core)

    # -- for hot paths: this replica and its leader

    @property
    def config(self) -> RaftConfig:
        """The configuration of this replica."""
        return self.core.config

    @property
    def local(self) -> ReplicaKey:
        """This replica."""
        return self.core.local

    def is_local(self, key: ReplicaKey) -> bool:
        """True if this key, perhaps one without uuid, can be this replica's."""
        return self.core.is_local(key)

    @property
    def cluster_id(self) -> str | None:
        """None until it is known to be committed."""
        return self.core.cluster_id

    @property
    def role(self) -> Role:
        """Role of this replica in its epoch."""
        return self.core.role

    @property
    def is_leader(self) -> bool:
        """True if this replica leads, and has not resigned."""
        return isinstance(self.core.state, Leader)

    @property
    def epoch(self) -> int:
        """The latest epoch that this replica knows; it never goes back."""
        return self.core.epoch

    @property
    def leader(self) -> ReplicaKey | None:
        """The leader of `epoch`, if known; also this replica, also if it has resigned."""
        return self.core.leader

    @property
    def leader_id(self) -> int | None:
        """Id of `leader`, None if it is not known."""
        return self.core.leader_id

    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]:
        """As the leader, or a replica that knows the leader, named them; empty if none did."""
        return self.core.known_leader.endpoints

    @property
    def has_leader_contact(self) -> bool:
        """True if the leader responded lately and its process is not known to be gone."""
        return self.core.has_leader_contact

    @property
    def voters(self) -> VoterSet:
        """The latest voter set, committed or not."""
        return self.core.voters

    def endpoints_of(self, replica: ReplicaKey) -> tuple[Endpoint, ...]:
        """Endpoints of a replica, as far as voter set and leader hints tell."""
        return self.core.endpoints_of(replica)

    def unconfirmed_endpoints_of(self, replica_id: int) -> tuple[Endpoint, ...]:
        """Endpoints at which a request says that this replica leads; empty if this node has a leader."""
        named_id, endpoints = self.core.known_leader.unconfirmed_endpoints
        return endpoints if named_id == replica_id and not self.core.is_led else ()

    @property
    def registration_request(self) -> UpdateVoter | AddVoter | RemoveVoter | None:
        """The registration or voter change that this replica would send to its leader now; None if none."""
        return auto_join.registration_request(self.core)

    # -- for hot paths: the log

    @property
    def append_refusal(self) -> Refusal | None:
        """The reason why no batches of clients can be appended now; None if they can."""
        return client_appends.append_refusal(self.core)

    @property
    def log_start_offset(self) -> int:
        """Inclusive."""
        return self.core.log.start_offset

    @property
    def log_end_offset(self) -> int:
        """Exclusive, synced or not."""
        return self.core.log.end_offset

    @property
    def synced_end_offset(self) -> int:
        """Exclusive end of what is on this replica's disk."""
        return self.core.log.synced_end_offset

    @property
    def committed_offset(self) -> int:
        """Everything below is known to be committed; it never goes back."""
        return self.core.committed_offset

    @property
    def high_watermark(self) -> int | None:
        """As `committed_offset`, but None until it is known in this epoch."""
        return self.core.high_watermark

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        """Largest epoch of the log not above `epoch`, and where it ends (exclusive)."""
        return self.core.log.end_offset_for(epoch)

    def contains(self, position: OffsetAndEpoch) -> bool:
        """True if a log that ends at `position` is a prefix of this one."""
        return self.core.log.contains(position)

    @property
    def snapshots(self) -> Sequence[SnapshotId]:
        """Ends of the log that complete snapshots here stand for, ascending."""
        return self.core.log.snapshots

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        """The last of `snapshots`; None if there is none."""
        return self.core.log.snapshot

    @property
    def snapshot_download(self) -> DownloadProgress | None:
        """Progress of the snapshot that is being copied from the leader; None if none is."""
        download = self.core.download
        if download is None:
            return None
        return DownloadProgress(
            snapshot=download.snapshot, position=download.position, size_bytes=download.size_bytes
        )


def _on_write_completed(core: Core, event: WriteCompleted) -> None:
    """Count what is on disk now: the own log end as a leader, the own vote as a candidate."""
    moved = core.complete_writes(event.write)
    if moved:
        record_voter_set(core)
    state = core.state
    if type(state) is Leader:
        if moved:
            if core.is_bootstrapping:
                bootstrap.write_first_voters(core, state)
            high_watermark.advance_high_watermark(core, state)
    elif type(state) is Candidate and event.write >= state.vote_write:
        campaign.on_own_vote_synced(core, state)
    elif type(state) is Unattached:
        vote_requests.on_write_completed(core, state, event.write)


def _on_timer_fired(core: Core, event: TimerFired) -> None:
    """Nothing happened but time: `step` lets the timers expire."""
