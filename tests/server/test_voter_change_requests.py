"""Changes of the voters: from the messages of clients to what the rules are asked for."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorumd.raft.effects import AddVoter, EndQuorumEpoch
from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.server.model.topic import METADATA
from quorumd.server.translate.elections import end_request
from quorumd.server.translate.voter_changes import (
    ADD_VOTER,
    REMOVE_VOTER,
    UPDATE_VOTER,
    change_request,
    change_request_received,
    misplaced_reassignment,
    reassignment_request_received,
)
from quorumd.wire.codec import encode
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.messages.update_raft_voter import (
    UpdateRaftVoterRequest,
    UpdateRaftVoterRequestKRaftVersionFeature,
)


@pytest.mark.parametrize(
    ("asked_ms", "waits_ms"), [(-1, 0), (0, 0), (5000, 5000), (2**31 - 1, 3_600_000)]
)
def test_a_change_waits_as_long_as_its_client_says_and_no_longer_than_an_hour(
    asked_ms: int, waits_ms: int
) -> None:
    """It has one of a hundred places meanwhile, though its client is gone."""
    added = encode(AddRaftVoterRequest(voter_id=4, timeout_ms=asked_ms), 0)
    request = change_request_received(ADD_VOTER, 0, added, 0, 1, 7000)
    assert request.timeout_ms == waits_ms  # type: ignore[union-attr]  # it is one to add
    removed = encode(RemoveRaftVoterRequest(voter_id=4, timeout_ms=asked_ms), 0)
    request = change_request_received(REMOVE_VOTER, 0, removed, 0, 1, 7000)
    assert request.timeout_ms == (7000 if asked_ms < 0 else waits_ms)  # type: ignore[union-attr]  # one to remove


@pytest.mark.parametrize("when_committed", [True, False])
def test_who_adds_a_voter_says_whether_to_wait_until_that_is_committed(
    when_committed: bool,
) -> None:
    message = AddRaftVoterRequest(voter_id=4, ack_when_committed=when_committed)
    request = change_request_received(ADD_VOTER, 1, encode(message, 1), 0, 1, 7000)
    assert request.ack_when_committed is when_committed  # type: ignore[union-attr]  # it is one to add


def test_who_joins_by_itself_does_not_wait_for_the_commit() -> None:
    """A new voter may be needed for it."""
    joins = AddVoter(endpoints=(Endpoint("CONTROLLER", "four", 9093),))
    key, message = change_request(joins, "cluster", ReplicaKey(4, UUID(int=4)))
    assert isinstance(message, AddRaftVoterRequest)
    assert (key, message.voter_id, message.ack_when_committed) == (ADD_VOTER, 4, False)


@pytest.mark.parametrize(("replicas", "target"), [((3, 1, 2), (1, 2, 3)), ((), ()), (None, None)])
def test_the_target_of_a_reassignment_is_a_set(
    replicas: tuple[int, ...] | None, target: tuple[int, ...] | None
) -> None:
    """Clients write replicas in the order in which they prefer them; a voter set has none."""
    partition = AlterPartitionReassignmentsRequestPartition(partition_index=0, replicas=replicas)
    topic = AlterPartitionReassignmentsRequestTopic(name="t", partitions=(partition,))
    message = AlterPartitionReassignmentsRequest(timeout_ms=700, topics=(topic,))
    request = reassignment_request_received(message, 1)
    assert (request.target, request.timeout_ms) == (target, 700)


def test_a_voter_that_says_which_versions_it_knows_is_taken_at_its_word() -> None:
    message = UpdateRaftVoterRequest(
        voter_id=4,
        kraft_version_feature=UpdateRaftVoterRequestKRaftVersionFeature(
            min_supported_version=1, max_supported_version=3
        ),
    )
    request = change_request_received(UPDATE_VOTER, 0, encode(message, 0), 0, 1, 7000)
    voter = request.voter  # type: ignore[union-attr]  # it is one to update
    assert (voter.min_kraft_version, voter.max_kraft_version) == (1, 3)


def test_a_reassignment_is_of_one_partition_alone() -> None:
    of_this, of_another = (
        AlterPartitionReassignmentsRequestPartition(partition_index=index, replicas=(1,))
        for index in (0, 1)
    )
    for partitions, is_misplaced in (
        ((of_this,), False),
        ((of_another,), True),
        ((of_this, of_another), True),
        ((of_this, of_this), True),
        ((), True),
    ):
        topic = AlterPartitionReassignmentsRequestTopic(name=METADATA.name, partitions=partitions)
        message = AlterPartitionReassignmentsRequest(topics=(topic,))
        assert (misplaced_reassignment(message, METADATA) is not None) is is_misplaced


@pytest.mark.parametrize(("leader_id", "count"), [(1, 1), (None, 0)])
def test_who_leads_no_epoch_says_nowhere_that_a_leader_is_there(
    leader_id: int | None, count: int
) -> None:
    end = EndQuorumEpoch(epoch=3, leader_id=leader_id, successors=())
    at = (Endpoint("CONTROLLER", "one", 9093),)
    assert len(end_request(end, METADATA, "cluster", at).leader_endpoints) == count
