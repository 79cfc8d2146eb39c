"""A quorum as its leader describes it: values, and the figures that are worked out from them.

Knows neither how they were asked for nor how they are shown.
Source: KIP-595 "Tooling Support", KIP-836 (times), KIP-856 (replica uuids, CouldBeVoters).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from raft.types import Endpoint, ReplicaKey
from wire.messages.describe_quorum import DescribeQuorumResponse, DescribeQuorumResponseReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """How far one replica has come, as the leader knows it.

    `log_end_offset` is exclusive, -1 if the replica has not fetched in this epoch. Times are ms
    since 1970 on the leader's clock, -1 if not known.
    """

    key: ReplicaKey
    log_end_offset: int
    last_fetch_timestamp_ms: int = -1
    last_caught_up_timestamp_ms: int = -1
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The leader's view of the quorum at one moment. `high_watermark` is exclusive, -1 for none."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...] = field(default=())

    @property
    def leader(self) -> ReplicaState | None:
        """The leader's own entry; None if it is in neither list."""
        replicas = (*self.voters, *self.observers)
        return next((replica for replica in replicas if replica.key.id == self.leader_id), None)

    @property
    def could_be_voters(self) -> tuple[ReplicaState, ...]:
        """Observers whose id and storage uuid are known: the ones that can be added."""
        return tuple(
            replica
            for replica in self.observers
            if replica.key.id >= 0
            and replica.key.uuid is not None
            and replica.key.id != self.leader_id
        )

    def lag(self, replica: ReplicaState) -> int:
        """How many offsets the replica is behind the leader's log end; -1 if that is not known.

        One that has not fetched in this epoch may lack everything, and is counted so.
        """
        leader = self.leader
        if leader is None:
            return -1
        return max(0, leader.log_end_offset - max(0, replica.log_end_offset))

    def lag_time_ms(self, replica: ReplicaState) -> int:
        """For how long the replica has not been caught up; 0 for the leader, -1 if not known."""
        leader = self.leader
        if leader is None:
            return -1
        if replica.key == leader.key:
            return 0
        known = (leader.last_caught_up_timestamp_ms, replica.last_caught_up_timestamp_ms)
        return -1 if min(known) < 0 else max(0, known[0] - known[1])

    @property
    def max_follower_lag(self) -> int:
        """The greatest `lag` of a voter; -1 if it is not known."""
        return max((self.lag(replica) for replica in self.voters), default=-1)

    @property
    def max_follower_lag_time_ms(self) -> int:
        """The greatest `lag_time_ms` of a voter; -1 if that of any voter is not known."""
        lags = [self.lag_time_ms(replica) for replica in self.voters]
        return -1 if not lags or min(lags) < 0 else max(lags)

    def status_of(self, replica: ReplicaState) -> str:
        """Leader, Follower or Observer."""
        if replica.key.id == self.leader_id and replica is self.leader:
            return "Leader"
        return "Follower" if replica in self.voters else "Observer"


def description_from(response: DescribeQuorumResponse, cluster_id: str) -> QuorumDescription:
    """The description in an answer without errors, which has one topic with one partition."""
    partition = response.topics[0].partitions[0]
    endpoints = {
        node.node_id: tuple(Endpoint(each.name, each.host, each.port) for each in node.listeners)
        for node in response.nodes
    }

    def states(replicas: tuple[DescribeQuorumResponseReplica, ...]) -> tuple[ReplicaState, ...]:
        return tuple(
            ReplicaState(
                key=ReplicaKey(replica.replica_id, _known(replica.replica_directory_id)),
                log_end_offset=replica.log_end_offset,
                last_fetch_timestamp_ms=replica.last_fetch_timestamp,
                last_caught_up_timestamp_ms=replica.last_caught_up_timestamp,
                endpoints=endpoints.get(replica.replica_id, ()),
            )
            for replica in replicas
        )

    return QuorumDescription(
        cluster_id=cluster_id,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        voters=states(partition.current_voters),
        observers=states(partition.observers),
    )


def _known(uuid: UUID) -> UUID | None:
    return None if uuid.int == 0 else uuid
