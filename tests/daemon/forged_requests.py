"""Raft requests as an attacker makes them, from what any client can learn of a quorum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from quorumd.raft.types import uuid_from_text
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestLeaderEndpoint,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestLeaderEndpoint,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestPreferredCandidate,
    EndQuorumEpochRequestTopic,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
)
from tests.support.live_cluster import TOPIC, Cluster

FETCH, VOTE, BEGIN, END = 1, 52, 53, 54
UNKNOWN_ID = 4711
UNKNOWN_UUID = UUID(int=77)
TOPIC_ID = UUID(int=1)


@dataclass(frozen=True, slots=True)
class Seen:
    """A quorum as an attacker can learn it."""

    leader: int
    epoch: int
    cluster_id: str
    uuids: dict[int, UUID]


def see(quorum: Cluster) -> Seen:
    """Leader, epoch and storage ids, as `/status` of the leader has them."""
    leader = quorum.wait_leader()
    status = quorum.status(leader)
    uuids = {row["id"]: uuid_from_text(row["storage_id"]) for row in status["voters"]}
    return Seen(leader, status["epoch"], status["cluster_id"], uuids)


def vote(
    cluster_id: str | None,
    *,
    epoch: int,
    replica: int = UNKNOWN_ID,
    uuid: UUID = UNKNOWN_UUID,
    pre_vote: bool = False,
    last_epoch: int | None = None,
    last_offset: int = 10**12,
    topics: int = 1,
    topic: str = TOPIC,
    partition: int = 0,
) -> VoteRequest:
    """A candidate's request; its log is longer than all others."""
    asked = VoteRequestPartition(
        partition_index=partition,
        replica_epoch=epoch,
        replica_id=replica,
        replica_directory_id=uuid,
        last_offset_epoch=max(0, epoch - 1) if last_epoch is None else last_epoch,
        last_offset=last_offset,
        pre_vote=pre_vote,
    )
    one = VoteRequestTopic(topic_name=topic, partitions=(asked,))
    return VoteRequest(cluster_id=cluster_id, topics=(one,) * topics)


def begin(
    cluster_id: str | None, *, epoch: int, leader: int, port: int | None = None
) -> BeginQuorumEpochRequest:
    """A leader's request; its endpoint is this port of this host, or missing."""
    begun = BeginQuorumEpochRequestPartition(leader_id=leader, leader_epoch=epoch)
    at = BeginQuorumEpochRequestLeaderEndpoint(name="CONTROLLER", host="127.0.0.1", port=port or 0)
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=(BeginQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(begun,)),),
        leader_endpoints=() if port is None else (at,),
    )


def end(
    cluster_id: str | None,
    *,
    epoch: int,
    leader: int,
    port: int | None = None,
    successors: Mapping[int, UUID] = MappingProxyType({}),
) -> EndQuorumEpochRequest:
    """A resigning leader's request; its endpoint is this port of this host, or missing."""
    ended = EndQuorumEpochRequestPartition(
        leader_id=leader,
        leader_epoch=epoch,
        preferred_successors=tuple(successors),
        preferred_candidates=tuple(
            EndQuorumEpochRequestPreferredCandidate(candidate_id=each, candidate_directory_id=uuid)
            for each, uuid in successors.items()
        ),
    )
    at = EndQuorumEpochRequestLeaderEndpoint(name="CONTROLLER", host="127.0.0.1", port=port or 0)
    return EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=(EndQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(ended,)),),
        leader_endpoints=() if port is None else (at,),
    )


def replica_fetch(
    *,
    epoch: int,
    offset: int = 0,
    last_epoch: int = 0,
    replica: int = UNKNOWN_ID,
    uuid: UUID = UNKNOWN_UUID,
    wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    cluster_id: str | None = None,
    topics: int = 1,
    partitions: int = 1,
    topic_id: UUID = TOPIC_ID,
    partition: int = 0,
) -> FetchRequest:
    """A replica's fetch, of one partition if it is not malformed on purpose."""
    asked = FetchRequestPartition(
        partition=partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=0,
        replica_directory_id=uuid,
    )
    topic = FetchRequestTopic(topic_id=topic_id, partitions=(asked,) * partitions)
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequestReplicaState(replica_id=replica),
        max_wait_ms=wait_ms,
        max_bytes=max_bytes,
        topics=(topic,) * topics,
    )
