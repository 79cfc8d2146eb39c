"""A quorum as its leader describes it: values, and figures derived from them.

Knows neither requests nor output.
Source: KIP-595 "Tooling Support", KIP-642 (target voters), KIP-836 (times), KIP-856 (replica uuids,
CouldBeVoters).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
)

SILENT_AFTER_MS = 3000
"""A replica fetches at least twice a second; one that has not fetched for so long counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica, as the leader knows it (Kafka's QuorumInfo.ReplicaState).

    `log_end_offset` is exclusive, -1 if the replica has not fetched in this epoch. Times are ms
    since 1970 on the leader's clock, -1 if not known.
    """

    key: ReplicaKey
    log_end_offset: int
    last_fetch_timestamp_ms: int = -1
    last_caught_up_timestamp_ms: int = -1
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuorumChange:
    """A requested change of the voters or of the leader that is not complete.

    `kind` is "add", "remove", "reassign" or "transfer"; `key` is the replica that is added, removed or
    becomes leader, id -1 for none. The leader received the request `waiting_ms` ago, -1 for a reassignment,
    which goes on without one; `waits_for` names the condition that is not met yet.
    """

    kind: str
    key: ReplicaKey
    waiting_ms: int
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCopy:
    """A replica that downloads a snapshot: it has `position` of `size_bytes`. `end_offset` is exclusive."""

    key: ReplicaKey
    end_offset: int
    epoch: int
    position: int
    size_bytes: int

    @property
    def ratio(self) -> float:
        return self.position / self.size_bytes if self.size_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBuild:
    """The leader builds a snapshot of the log below `end_offset`; `ratio` (0 to 1) of it is done."""

    end_offset: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The leader's view of the quorum at one moment. `high_watermark` is exclusive, -1 for none.

    `voters` is the newest voter set of the leader's log. It is committed if `committed_voters` is None; else
    `committed_voters` is the last committed one. `target_voters` are the ids of the target of a reassignment,
    None if there is none. `pending_changes`, `snapshot_copies` and `snapshot_build` are empty or None if
    the server's version does not report them.
    """

    cluster_id: str
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...] = field(default=())
    committed_voters: tuple[ReplicaKey, ...] | None = None
    target_voters: tuple[int, ...] | None = None
    pending_changes: tuple[PendingQuorumChange, ...] = ()
    snapshot_copies: tuple[SnapshotCopy, ...] = ()
    snapshot_build: SnapshotBuild | None = None

    @property
    def leader(self) -> ReplicaState | None:
        """The leader's own entry; None if it is in neither list.

        Of two storage ids under the leader's id it is the one that is caught up last: the leader's own
        timestamps are those of the response.
        """
        replicas = (*self.voters, *self.observers)
        return max(
            (replica for replica in replicas if replica.key.id == self.leader_id),
            key=lambda replica: (replica.last_caught_up_timestamp_ms, replica.log_end_offset),
            default=None,
        )

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """Each id once, ascending; two storage ids may vote under one id."""
        return tuple(sorted({voter.key.id for voter in self.voters}))

    def silent_ms(self, replica: ReplicaState) -> int:
        """Milliseconds since the replica's last fetch, 0 for the leader; -1 for never or unknown."""
        leader = self.leader
        if leader is not None and replica.key == leader.key:
            return 0
        if leader is None or replica.last_fetch_timestamp_ms < 0:
            return -1
        return max(0, leader.last_fetch_timestamp_ms - replica.last_fetch_timestamp_ms)

    def is_alive(self, replica: ReplicaState) -> bool:
        """True for the leader, and for a replica whose last fetch is less than 3 s ago."""
        return 0 <= self.silent_ms(replica) < SILENT_AFTER_MS

    @property
    def joining_observers(self) -> tuple[ReplicaState, ...]:
        """Replicas that are in neither list yet, because they download a snapshot first."""
        known = {replica.key for replica in (*self.voters, *self.observers)}
        return tuple(
            ReplicaState(key=copy.key, log_end_offset=-1)
            for copy in self.snapshot_copies
            if copy.key not in known
        )

    def copy_of(self, replica: ReplicaState) -> SnapshotCopy | None:
        """The snapshot download of this replica, None if there is none."""
        return next((copy for copy in self.snapshot_copies if copy.key == replica.key), None)

    @property
    def could_be_voters(self) -> tuple[ReplicaState, ...]:
        """Observers that can be added as voters: their id and storage uuid are known."""
        leader = self.leader
        return tuple(
            replica
            for replica in self.observers
            if replica.key.id >= 0 and replica.key.uuid is not None and replica is not leader
        )

    def lag(self, replica: ReplicaState) -> int:
        """Number of offsets that the replica is behind the leader's log end; -1 if unknown.

        The lag of a replica that has not fetched in this epoch is the whole log.
        """
        leader = self.leader
        if leader is None:
            return -1
        return max(0, leader.log_end_offset - max(0, replica.log_end_offset))

    def lag_time_ms(self, replica: ReplicaState) -> int:
        """Milliseconds since the replica was last caught up; 0 for the leader, -1 if unknown."""
        leader = self.leader
        if leader is None:
            return -1
        if replica.key == leader.key:
            return 0
        known = (leader.last_caught_up_timestamp_ms, replica.last_caught_up_timestamp_ms)
        return -1 if min(known) < 0 else max(0, known[0] - known[1])

    @property
    def max_follower_lag(self) -> int:
        """The greatest `lag` of a voter; -1 if unknown."""
        return max((self.lag(replica) for replica in self.voters), default=-1)

    @property
    def max_follower_lag_time_ms(self) -> int:
        """The greatest `lag_time_ms` of a voter; -1 if that of any voter is unknown."""
        lags = [self.lag_time_ms(replica) for replica in self.voters]
        return -1 if not lags or min(lags) < 0 else max(lags)

    def status_of(self, replica: ReplicaState) -> str:
        """Leader, Follower or Observer."""
        if replica.key.id == self.leader_id and replica is self.leader:
            return "Leader"
        return "Follower" if replica in self.voters else "Observer"


def description_from(response: DescribeQuorumResponse, cluster_id: str) -> QuorumDescription:
    """The description in a response without errors, which has one topic with one partition."""
    partition = response.topics[0].partitions[0]
    endpoints = {
        _key(node.node_id, node.directory_id): tuple(
            Endpoint(each.name, each.host, each.port) for each in node.listeners
        )
        for node in response.nodes
    }

    def states(replicas: tuple[DescribeQuorumResponseReplica, ...]) -> tuple[ReplicaState, ...]:
        return tuple(
            ReplicaState(
                key=(key := _key(replica.replica_id, replica.replica_directory_id)),
                log_end_offset=replica.log_end_offset,
                last_fetch_timestamp_ms=replica.last_fetch_timestamp,
                last_caught_up_timestamp_ms=replica.last_caught_up_timestamp,
                endpoints=endpoints.get(key) or endpoints.get(ReplicaKey(key.id), ()),
            )
            for replica in replicas
        )

    committed = partition.committed_voters
    return QuorumDescription(
        cluster_id=cluster_id,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        voters=states(partition.current_voters),
        observers=states(partition.observers),
        committed_voters=(
            None
            if committed is None
            else tuple(_key(voter.replica_id, voter.replica_directory_id) for voter in committed)
        ),
        target_voters=partition.target_voters,
        pending_changes=_pending(partition),
        snapshot_copies=_copies(partition),
        snapshot_build=None
        if partition.snapshot_build.end_offset < 0
        else SnapshotBuild(
            end_offset=partition.snapshot_build.end_offset,
            ratio=partition.snapshot_build.permille / 1000,
        ),
    )


def _copies(partition: DescribeQuorumResponsePartition) -> tuple[SnapshotCopy, ...]:
    return tuple(
        SnapshotCopy(
            key=_key(copy.replica_id, copy.replica_directory_id),
            end_offset=copy.end_offset,
            epoch=copy.epoch,
            position=copy.position,
            size_bytes=copy.size_bytes,
        )
        for copy in partition.snapshot_copies or ()
    )


def _pending(partition: DescribeQuorumResponsePartition) -> tuple[PendingQuorumChange, ...]:
    return tuple(
        PendingQuorumChange(
            kind=change.kind,
            key=_key(change.replica_id, change.replica_directory_id),
            waiting_ms=change.waiting_ms,
            waits_for=change.waits_for,
        )
        for change in partition.pending_changes or ()
    )


def _key(replica_id: int, uuid: UUID) -> ReplicaKey:
    return ReplicaKey(replica_id, None if uuid.int == 0 else uuid)
