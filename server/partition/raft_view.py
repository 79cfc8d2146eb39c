"""The view of a partition that is read from the rules when it is asked, and never copied before."""

from __future__ import annotations

from collections.abc import Callable

from quorumd.raft.config import OBSERVER_FORGOTTEN_MS
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.status import ReplicaProgress
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, Voter, VoterSet
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.partition_view import PendingChange, ReplicaStatus
from quorumd.server.model.topic import TopicPartition


class RaftPartitionView:
    """Implements `PartitionView` on top of one `RaftNode`.

    `now_ms` is the clock of its steps, `wall_ms` that of the times that are shown,
    `write_age_s` is of its disk.
    """

    def __init__(
        self,
        topic: TopicPartition,
        node: RaftNode,
        drift: KafkaDrift,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        write_age_s: Callable[[], float],
    ) -> None:
        self.topic = topic
        self._node = node
        self._drift = drift
        self._now_ms = now_ms
        self.wall_ms = wall_ms
        self.write_age_s = write_age_s

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
        """None on a leader that has resigned, too: clients cannot write to it."""
        return None if self._node.role is Role.RESIGNED else self._node.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._node.epoch

    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]:
        """As it was heard of last; a response names one listener at the most, so the log has the others."""
        leader = self._node.leader
        if leader is None or self.leader_id is None:
            return ()
        heard = self._node.endpoints_of(leader)
        if self.is_leader:
            return heard
        names = {endpoint.name for endpoint in heard}
        logged = (voter.endpoints for voter in self.voters if voter.key.matches(leader))
        return (*heard, *(at for at in next(logged, ()) if at.name not in names))

    @property
    def is_leader(self) -> bool:
        return self._node.is_leader

    @property
    def has_committed_in_epoch(self) -> bool:
        return self.is_leader and self._node.high_watermark is not None

    @property
    def voters(self) -> VoterSet:
        return self._node.voters

    @property
    def voted_id(self) -> int | None:
        voted = self._node.status().voted
        return None if voted is None else voted.id

    @property
    def log_start_offset(self) -> int:
        return self._node.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._node.log_end_offset

    @property
    def log_end_epoch(self) -> int:
        return self._node.status().log_end.epoch

    @property
    def high_watermark(self) -> int:
        known = self._node.high_watermark
        return -1 if known is None else known

    @property
    def committed_offset(self) -> int:
        return self._node.committed_offset

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        return self._node.end_offset_for(epoch)

    @property
    def is_kafka_log(self) -> bool:
        return self._node.config.is_kafka_log

    @property
    def is_witness(self) -> bool:
        return self._node.config.is_witness

    @property
    def obstacles(self) -> tuple[str, ...]:
        return tuple(self._drift.obstacles) if self.is_witness else ()

    @property
    def offers_vote(self) -> bool:
        is_voter = self._node.role is not Role.OBSERVER
        return self.is_witness and (is_voter or not self.obstacles)

    @property
    def is_ahead(self) -> bool:
        return self._node.status().is_ahead

    @property
    def missing_records(self) -> int:
        return self._node.status().missing_records

    @property
    def kraft_version(self) -> int:
        return 1 if self._node.status().voters_offset >= 0 else 0

    @property
    def kraft_version_offset(self) -> int:
        return self.high_watermark if self.kraft_version else -1

    @property
    def snapshot_end_offset(self) -> int:
        newest = self._node.newest_snapshot
        return -1 if newest is None else newest.end_offset

    @property
    def snapshot_copy_ratio(self) -> float:
        download = self._node.snapshot_download
        if download is None:
            return -1.0
        return download.position / download.size_bytes if download.size_bytes else 0.0

    @property
    def unknown_voter_connections(self) -> int:
        return len(self._node.status().voters_without_endpoints)

    @property
    def is_adding_voter(self) -> bool:
        return len(self.voters) > len(self.committed_voters) or self._is_pending("add")

    @property
    def is_removing_voter(self) -> bool:
        return len(self.voters) < len(self.committed_voters) or self._is_pending("remove")

    def _is_pending(self, kind: str) -> bool:
        return any(change.kind == kind for change in self.pending_changes())

    @property
    def committed_voters(self) -> VoterSet:
        return self._node.status().committed_voters

    @property
    def target_voters(self) -> tuple[int, ...] | None:
        return self._node.status().target_voters

    def pending_changes(self) -> tuple[PendingChange, ...]:
        now = self._now_ms()
        return tuple(
            PendingChange(
                change.kind,
                change.key,
                -1 if change.asked_at_ms is None else now - change.asked_at_ms,
                change.waits_for,
            )
            for change in self._node.status().pending_changes
        )

    def in_sync_ids(self) -> tuple[int, ...]:
        node = self._node
        if not self.is_leader:
            # Fetches from the leader are not seen from here. To leave a voter out without need would
            # raise an alarm about a partition that is fine.
            known = () if self.leader_id is None else node.voters.ids
            unreachable = node.status().unreachable
            return tuple(voter_id for voter_id in known if voter_id not in unreachable)
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
        return self._node.status().registered_observers

    def _status(self, row: ReplicaProgress) -> ReplicaStatus:
        now, wall = self._now_ms(), self.wall_ms()

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
