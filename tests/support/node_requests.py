"""Raft requests in the name of a node: one of each kind, for each version in which it is one."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from quorumd.server.model.topic import METADATA
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestTopic,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest
from quorumd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from quorumd.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from quorumd.wire.messages.vote import VoteRequest, VoteRequestPartition, VoteRequestTopic
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message

FETCH: Final = 1
# Fetch before version 12 tells no epoch of a last record, OffsetForLeaderEpoch before version 3 no replica
# id: these are no replica's.
BY_NODES: Final = tuple(
    (key, version)
    for key, first in ((FETCH, 12), (23, 3), (52, 0), (53, 0), (54, 0), (59, 0), (82, 0))
    for version in range(first, APIS[key].max_version + 1)
)
"""Api key and version of all requests that a replica makes in its own name."""


def request_of(key: int, node: int, version: int) -> Message:
    """A raft request in the name of this node. It changes nothing where it counts."""
    if key == FETCH:
        return replica_fetch(node, version)
    if key == 23:
        epoch = OffsetForLeaderEpochRequestPartition(leader_epoch=0)
        return OffsetForLeaderEpochRequest(
            replica_id=node,
            topics=(OffsetForLeaderEpochRequestTopic(topic=METADATA.name, partitions=(epoch,)),),
        )
    if key == 52:
        asked = VoteRequestPartition(replica_id=node, replica_epoch=0)
        return VoteRequest(
            topics=(VoteRequestTopic(topic_name=METADATA.name, partitions=(asked,)),)
        )
    if key == 53:
        begun = BeginQuorumEpochRequestPartition(leader_id=node)
        return BeginQuorumEpochRequest(
            topics=(BeginQuorumEpochRequestTopic(topic_name=METADATA.name, partitions=(begun,)),)
        )
    if key == 54:
        ended = EndQuorumEpochRequestPartition(leader_id=node)
        return EndQuorumEpochRequest(
            topics=(EndQuorumEpochRequestTopic(topic_name=METADATA.name, partitions=(ended,)),)
        )
    if key == 59:
        return FetchSnapshotRequest(replica_id=node)
    assert key == 82, "no other is made in a node's name"
    return UpdateRaftVoterRequest(voter_id=node, voter_directory_id=UUID(int=1))


def replica_fetch(node: int, version: int) -> FetchRequest:
    """A replica's fetch from the log's beginning; it gives its answer at once."""
    partition = FetchRequestPartition(
        partition=0,
        last_fetched_epoch=0,
        fetch_offset=0,
        partition_max_bytes=1000,
        # A replica without id is told from a consumer by the directory that it names.
        replica_directory_id=UUID(int=7 if node < 0 else 0),
    )
    topic = FetchRequestTopic(
        topic=METADATA.name,
        topic_id=UUID(bytes=METADATA.id_bytes),
        partitions=(partition,),
    )
    state = FetchRequestReplicaState(replica_id=node)
    return FetchRequest(
        replica_id=node if version < 15 else -1,
        replica_state=state if version >= 15 else FetchRequestReplicaState(),
        topics=(topic,),
    )
