"""Who copies a snapshot and what is built, in the answer to DescribeQuorum: for own software alone."""

from __future__ import annotations

import pytest

from quorumd.raft.types import ReplicaKey, SnapshotId, VoterSet
from quorumd.server.model.partition_view import CopyProgress, PendingChange, SnapshotWork
from quorumd.server.requests.describe_quorum import describe_quorum, for_any_client
from quorumd.wire.codec import decode, encode
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseSnapshotBuild,
    DescribeQuorumResponseSnapshotCopy,
)
from tests.support.cluster import FixedView, voter

REQUEST = DescribeQuorumRequest(
    topics=(
        DescribeQuorumRequestTopic(
            topic_name="__cluster_metadata",
            partitions=(DescribeQuorumRequestPartition(partition_index=0),),
        ),
    )
)
SNAPSHOT = SnapshotId(1234, 5)
WORK = SnapshotWork(
    {
        ReplicaKey(9): CopyProgress(SNAPSHOT, 0, 100),
        voter(1).key: CopyProgress(SNAPSHOT, 43, 100),
    },
    2000,
    0.129,
)


def told(
    view: FixedView, version: int, is_own: bool, work: SnapshotWork
) -> DescribeQuorumResponsePartition:
    answer = describe_quorum(view, REQUEST, version, "CLIENT", is_own, work)
    heard = decode(DescribeQuorumResponse, version, encode(answer, version))
    return heard.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
def test_own_software_is_told_in_every_version(version: int) -> None:
    partition = told(FixedView(), version, True, WORK)
    uuid = voter(1).key.uuid
    assert uuid is not None
    first, second = partition.snapshot_copies or ()
    assert first == DescribeQuorumResponseSnapshotCopy(
        replica_id=1,
        replica_directory_id=uuid,
        end_offset=1234,
        epoch=5,
        position=43,
        size_bytes=100,
    )
    assert (second.replica_id, second.position) == (9, 0)
    assert partition.snapshot_build == DescribeQuorumResponseSnapshotBuild(
        end_offset=2000, permille=129
    )


@pytest.mark.parametrize("version", range(3))
def test_others_are_not(version: int) -> None:
    nothing = SnapshotWork({})
    assert told(FixedView(), version, False, WORK) == told(FixedView(), version, False, nothing)
    quiet = told(FixedView(), version, True, nothing)
    assert quiet.snapshot_copies is None
    assert quiet.snapshot_build.end_offset == -1


@pytest.mark.parametrize("version", range(3))
def test_others_are_not_by_another_node_either_nor_of_a_change_under_way(version: int) -> None:
    """A follower has the leader's response for own software, and passes it on to whoever asks."""
    view = FixedView(
        target_voters=(1, 2, 9),
        pending=(PendingChange("add", ReplicaKey(9), 12_000, "replica 9 is behind"),),
        committed=VoterSet.of([voter(1), voter(2)]),
    )
    own = describe_quorum(view, REQUEST, version, "CLIENT", is_own=True, work=WORK)
    assert own.topics[0].partitions[0].pending_changes is not None
    heard = decode(DescribeQuorumResponse, version, encode(own, version))
    plain = describe_quorum(view, REQUEST, version, "CLIENT")
    assert encode(for_any_client(heard), version) == encode(plain, version)


def test_a_node_that_does_not_lead_tells_nothing() -> None:
    partition = told(FixedView(is_leader=False, leader_id=1), 2, True, WORK)
    assert partition.snapshot_copies is None
