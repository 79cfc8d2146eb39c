"""What a replica leaves behind with an epoch or a leader, and what it takes along."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import AnnounceRole, AnnounceVoters, PersistQuorumState
from quorumd.raft.events import ConnectionRefused, LeaderHint
from quorumd.raft.invariants import InvariantViolation
from quorumd.raft.role_changes import become_follower, become_unattached
from quorumd.raft.roles import Role
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
    first_batch,
    follower,
    fresh,
    key,
    keyed_set,
    leader,
    observer,
    prospective,
    unattached,
    voter_set,
)

END = (3, 2)


def refuse(bench: Bench, leader_id: int) -> None:
    """The leader answers that it does not lead."""
    hint = LeaderHint(epoch=bench.node.epoch, leader_id=leader_id)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(leader_id))


# -- a new leader is judged by what it does itself


def test_contact_with_the_former_leader_is_none_with_the_new_one() -> None:
    bench = follower()
    bench.begin(3, 4)
    assert bench.node.leader == key(3)
    assert not bench.node.has_leader_contact
    assert bench.pre_vote(key(2), 4, END).granted


def test_the_leader_of_the_disk_is_not_waited_for_once_another_one_leads() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    assert bench.node.core.is_led
    bench.begin(3, 4)
    assert bench.node.leader == key(3)
    assert not bench.node.core.is_led


@pytest.mark.parametrize("answers_first", [False, True])
def test_a_refusal_of_a_former_epoch_confirms_no_end_of_this_one(answers_first: bool) -> None:
    bench = follower()
    if answers_first:
        refuse(bench, 2)
    bench.begin(2, 4)
    bench.end(2, 4, key(1), says_so=False)
    assert bench.role is Role.FOLLOWER
    refuse(bench, 2)
    assert bench.role is Role.PROSPECTIVE


def test_the_end_of_a_former_epoch_says_nothing_of_the_next_leader() -> None:
    bench = follower()
    bench.end(2, 3, key(3), key(1))
    bench.begin(3, 4)
    bench.fetched(to=key(3))
    assert bench.node.has_leader_contact
    assert not bench.pre_vote(key(2), 4, END).granted


def test_what_could_not_be_taken_over_of_the_former_leader_is_no_problem_any_more() -> None:
    bench = follower()
    bench.fetched(diverging=(0, 0))
    assert bench.node.status().problem is not None
    bench.begin(3, 4)
    assert bench.node.status().problem is None


def test_a_witness_waits_in_each_epoch_for_voters_that_could_win() -> None:
    bench = unattached(is_witness=True)
    bench.pre_vote(key(3), 3, END)
    assert bench.node.core.witness.defers_until_ms is not None
    bench.vote(key(3), 4, END)
    patience_ms = 2000 + 2 * 1000 + 1000
    assert bench.node.core.witness.defers_until_ms == bench.now_ms + patience_ms
    bench.now_ms += 100
    bench.vote(key(2), 5, END)
    assert bench.node.core.witness.defers_until_ms == bench.now_ms + patience_ms


def test_who_stops_leading_knows_of_what_was_committed_before_it_led() -> None:
    """As a leader it could not say so before a record of its own epoch was."""
    bench = leader()
    assert bench.node.high_watermark is None
    bench.begin(3, 9)
    assert bench.node.high_watermark == 2


# -- following


def test_a_replica_follows_neither_a_second_leader_of_an_epoch_nor_a_former_one() -> None:
    for epoch in (3, 2):
        core = follower().node.core
        with pytest.raises(InvariantViolation, match="two leaders in epoch"):
            become_follower(core, Trigger.LEADER_LEARNT, epoch, key(3), endpoints(3))


@pytest.mark.parametrize("epoch", [2, 3])
def test_the_leader_of_an_epoch_is_forgotten_for_a_later_epoch_only(epoch: int) -> None:
    core = follower().node.core
    with pytest.raises(InvariantViolation, match="epoch 3 loses its leader"):
        become_unattached(core, Trigger.HIGHER_EPOCH, epoch)


def test_no_replica_follows_itself() -> None:
    core = unattached().node.core
    with pytest.raises(InvariantViolation, match="follows itself"):
        become_follower(core, Trigger.LEADER_LEARNT, 4, key(1), endpoints(1))


def test_the_same_leader_again_is_not_written_to_disk_again() -> None:
    core = follower().node.core
    core.effects.clear()
    become_follower(core, Trigger.LEADER_LEARNT, 3, key(2), endpoints(2))
    assert not [effect for effect in core.effects if isinstance(effect, PersistQuorumState)]
    core = follower().node.core
    core.effects.clear()
    core.leader = ReplicaKey(2)
    become_follower(core, Trigger.LEADER_LEARNT, 3, key(2), endpoints(2))
    assert [effect for effect in core.effects if isinstance(effect, PersistQuorumState)]


def test_failed_campaigns_are_forgotten_when_a_leader_is_found() -> None:
    bench = prospective()
    for voter in (key(2), key(3)):
        bench.grant(voter, granted=False)
    assert bench.node.core.election_attempts == 1
    bench.begin(2, 4)
    assert bench.role is Role.FOLLOWER
    assert bench.node.core.election_attempts == 0


def test_a_leader_known_by_id_is_the_same_one_when_the_log_names_its_storage_id() -> None:
    """What was heard of it counts on, and what was asked of it is answered."""
    bench = fresh(1)
    bench.begin(2, 1)
    bench.sync()
    bench.step(ConnectionRefused(id=3))
    bench.fetched(epochs=(1, 1, 1), control=first_batch())
    assert bench.find(AnnounceVoters)
    core = bench.node.core
    assert core.leader == key(2)
    assert core.context == (1, key(2))
    assert bench.node.has_leader_contact


# -- voters come and go


def test_an_observer_that_becomes_a_voter_waits_for_its_leader_as_long_as_any_follower() -> None:
    bench = observer()
    record = VotersRecord(voter_set(1, 2, 3, 9), CLUSTER)
    bench.fetched(epochs=(3,), control=((3, record),))
    assert bench.role is Role.FOLLOWER
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000


def test_a_leader_keeps_its_storage_id_when_another_disk_under_its_id_votes_as_well() -> None:
    bench = follower()
    both = keyed_set(key(1), key(2), key(2, disk=1), key(3))
    bench.fetched(epochs=(3,), control=((3, VotersRecord(both, CLUSTER)),))
    assert bench.node.leader == key(2)


def test_a_leader_that_was_just_learnt_has_the_fetch_timeout_to_answer() -> None:
    bench = follower(contact=False)
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000


def test_every_change_of_role_is_announced_with_its_cause() -> None:
    bench = follower()
    assert bench.find_all(AnnounceRole)[-1] == AnnounceRole(
        role=Role.FOLLOWER, epoch=3, leader_id=2, reason="the leader of the epoch was learnt"
    )
    bench.fetched(error="FENCED_LEADER_EPOCH", hint=LeaderHint(epoch=5))
    assert bench.find(AnnounceRole) == [
        AnnounceRole(
            role=Role.UNATTACHED,
            epoch=5,
            leader_id=None,
            reason="a higher epoch was seen, its leader is not known",
        )
    ]
