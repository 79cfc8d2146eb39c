"""The quorum as this node sees it: read from the rules whenever somebody asks, copied by nobody before."""

from __future__ import annotations

from collections.abc import Callable

from quorumd.raft.changing import reassignment_waits_for
from quorumd.raft.node import RaftNode, ReplicaProgress
from quorumd.raft.roles import ChangeKind, Leader, Resigned
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from quorumd.server.model.cluster_view import PendingChange, ReplicaStatus

OBSERVER_FORGOTTEN_MS = 300_000
"""An observer that has been silent for so long is not listed any more."""


class QuorumView:
    """Implements `StatusSource` on top of one `RaftNode`.

    `now_ms` is the clock of its steps, `wall_ms` that of the times that are shown.
    """

    def __init__(
        self, node: RaftNode, now_ms: Callable[[], int], wall_ms: Callable[[], int]
    ) -> None:
        self._node = node
        self._now_ms = now_ms
        self._wall_ms = wall_ms

    @property
    def cluster_id(self) -> str | None:
        return self._node.cluster_id

    @property
    def local(self) -> ReplicaKey:
        return self._node.local

    @property
    def role(self) -> str:
        return self._node.role.value

    @property
    def leader_id(self) -> int | None:
        """None on a leader that has resigned, too: clients find nobody there to write to."""
        return None if isinstance(self._node.state, Resigned) else self._node.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._node.epoch

    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]:
        if self.leader_id is None:
            return ()
        return self._node.leader_endpoints_for_answers()

    @property
    def is_leader(self) -> bool:
        return isinstance(self._node.state, Leader)

    @property
    def has_committed_in_epoch(self) -> bool:
        return self.is_leader and self._node.high_watermark is not None

    @property
    def voters(self) -> VoterSet:
        return self._node.voters

    @property
    def voted_id(self) -> int | None:
        return None if self._node.voted is None else self._node.voted.id

    @property
    def log_start_offset(self) -> int:
        return self._node.log.start_offset

    @property
    def log_end_offset(self) -> int:
        return self._node.log.end_offset

    @property
    def log_end_epoch(self) -> int:
        return self._node.log.last_epoch

    @property
    def high_watermark(self) -> int:
        known = self._node.high_watermark
        return -1 if known is None else known

    @property
    def kraft_version(self) -> int:
        return 1 if self._node.log.voters_offset >= 0 else 0

    @property
    def kraft_version_offset(self) -> int:
        return self.high_watermark if self.kraft_version else -1

    @property
    def snapshot_end_offset(self) -> int:
        newest = self._node.log.snapshot
        return -1 if newest is None else newest.offset

    @property
    def snapshot_copy_ratio(self) -> float:
        download = self._node.download
        if download is None:
            return -1.0
        return download.position / download.size_bytes if download.size_bytes else 0.0

    @property
    def unknown_voter_connections(self) -> int:
        return sum(not self._node.endpoints_of(voter_id) for voter_id in self._node.voters.ids)

    @property
    def is_adding_voter(self) -> bool:
        return len(self.voters) > len(self.committed_voters) or self._is_pending(ChangeKind.ADD)

    @property
    def is_removing_voter(self) -> bool:
        return len(self.voters) < len(self.committed_voters) or self._is_pending(ChangeKind.REMOVE)

    def _is_pending(self, kind: ChangeKind) -> bool:
        return any(change.kind == kind for change in self.pending_changes())

    @property
    def committed_voters(self) -> VoterSet:
        return self._node.committed_voters.record.voters

    @property
    def target_voters(self) -> tuple[int, ...] | None:
        return self._node.electorate.entry.record.target

    def pending_changes(self) -> tuple[PendingChange, ...]:
        leader, now = self._node.state, self._now_ms()
        if not isinstance(leader, Leader):
            return ()
        found = [
            PendingChange(
                change.kind,
                None if change.voter is None else change.voter.key,
                now - change.asked_at_ms,
                change.waits_for,
            )
            for change in leader.changes
        ]
        obstacle = reassignment_waits_for(self._node, leader)
        if obstacle is not None:
            found.append(PendingChange(ChangeKind.REASSIGN, None, -1, obstacle))
        transfer = leader.transfer
        if transfer is not None:
            text = f"{transfer.to or 'a voter'} to have everything"
            found.append(PendingChange("transfer", transfer.to, now - transfer.asked_at_ms, text))
        return tuple(found)

    def in_sync_ids(self) -> tuple[int, ...]:
        node = self._node
        if not self.is_leader:
            # Who fetches from the leader is not seen from here. To leave somebody out without need
            # would raise an alarm about a partition that is fine.
            known = () if self.leader_id is None else node.voters.ids
            return tuple(voter_id for voter_id in known if voter_id not in node.unreachable)
        oldest = self._now_ms() - node.config.fetch_timeout_ms
        ids = {
            row.key.id
            for row in node.progress()
            if row.is_voter
            and (node.is_local(row.key) or (row.last_fetch_ms or -1) >= max(oldest, 0))
        }
        return tuple(sorted(ids))

    def voter_statuses(self) -> tuple[ReplicaStatus, ...]:
        return tuple(self._status(row) for row in self._node.progress() if row.is_voter)

    def observer_statuses(self) -> tuple[ReplicaStatus, ...]:
        oldest = self._now_ms() - OBSERVER_FORGOTTEN_MS
        return tuple(
            self._status(row)
            for row in self._node.progress()
            if not row.is_voter and row.last_fetch_ms is not None and row.last_fetch_ms >= oldest
        )

    def observer_endpoints(self) -> tuple[Voter, ...]:
        leader = self._node.state
        return tuple(leader.told.values()) if isinstance(leader, Leader) else ()

    def _status(self, row: ReplicaProgress) -> ReplicaStatus:
        now, wall = self._now_ms(), self._wall_ms()

        def on_wall_clock(at: int | None) -> int:
            return -1 if at is None else wall - (now - at)

        if self._node.is_local(row.key):
            return ReplicaStatus(row.key, row.end_offset, wall, wall)
        return ReplicaStatus(
            row.key,
            row.end_offset,
            on_wall_clock(row.last_fetch_ms),
            on_wall_clock(row.last_caught_up_ms),
        )
