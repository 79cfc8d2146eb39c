"""A quorum to look at, for tests of what is shown of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, Voter, VoterSet
from quorumd.server.model.partition_view import PendingChange, ReplicaStatus
from quorumd.server.model.topic import METADATA, TopicPartition
from quorumd.wire.codec import decode, encode
from quorumd.wire.schema import Message

M = TypeVar("M", bound=Message)


def decoded_again(message: M, version: int) -> M:
    """The message as its reader has it: fields that the version does not have are gone."""
    return decode(type(message), version, encode(message, version))


def endpoints(node: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("CONTROLLER", f"node{node}.internal", 9093),
        Endpoint("CLIENT", f"node{node}.example", 9092),
    )


def voter(node: int, uuid: int | None = None) -> Voter:
    return Voter(ReplicaKey(node, UUID(int=1000 + node if uuid is None else uuid)), endpoints(node))


NODE_2 = ReplicaKey(2, UUID(int=1002))


@dataclass(slots=True)
class FixedView:
    """Three voters, led by node 2 in epoch 7; this is node 2. Implements `PartitionView`."""

    topic: TopicPartition = METADATA
    cluster_id: str | None = "cluster-of-tests"
    local: ReplicaKey = NODE_2
    leader_id: int | None = 2
    leader_epoch: int = 7
    leader_endpoints: tuple[Endpoint, ...] = endpoints(2)
    is_leader: bool = True
    has_committed_in_epoch: bool = True
    voters: VoterSet = field(default_factory=lambda: VoterSet.of([voter(1), voter(2), voter(3)]))
    log_start_offset: int = 0
    log_end_offset: int = 120
    high_watermark: int = 110
    committed_offset: int = 110
    is_kafka_log: bool = False
    is_witness: bool = False
    is_ahead: bool = False
    obstacles: tuple[str, ...] = ()
    offers_vote: bool = True
    missing_records: int = 0
    kraft_version: int = 1
    kraft_version_offset: int = 3
    in_sync: tuple[int, ...] = (2, 3)
    voter_rows: tuple[ReplicaStatus, ...] = ()
    observer_rows: tuple[ReplicaStatus, ...] = ()
    announced: tuple[Voter, ...] = ()
    committed: VoterSet | None = None
    target_voters: tuple[int, ...] | None = None
    pending: tuple[PendingChange, ...] = ()
    role: str = "leader"
    voted_id: int | None = 2
    log_end_epoch: int = 7
    snapshot_end_offset: int = 40
    snapshot_copy_ratio: float = -1.0
    unknown_voter_connections: int = 0
    is_adding_voter: bool = False
    is_removing_voter: bool = False
    now_ms: int = 0
    age_s: float = 0.0

    def wall_ms(self) -> int:
        return self.now_ms

    def write_age_s(self) -> float:
        return self.age_s

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.log_end_offset, epoch)

    def in_sync_ids(self) -> tuple[int, ...]:
        return self.in_sync

    def voter_statuses(self) -> tuple[ReplicaStatus, ...]:
        return self.voter_rows

    def observer_statuses(self) -> tuple[ReplicaStatus, ...]:
        return self.observer_rows

    def observer_endpoints(self) -> tuple[Voter, ...]:
        return self.announced

    @property
    def committed_voters(self) -> VoterSet:
        return self.voters if self.committed is None else self.committed

    def pending_changes(self) -> tuple[PendingChange, ...]:
        return self.pending
