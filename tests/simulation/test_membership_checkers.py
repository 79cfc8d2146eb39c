"""The checkers of voter sets, of what was asked for and of witnesses: each fires, and each keeps silent."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from quorumd.raft.control import VotersRecord
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from simulation.checkers.acknowledged_changes import check_acknowledged
from simulation.checkers.base import Observation
from simulation.checkers.caught_up import CaughtUp
from simulation.checkers.duplicate_ids import DuplicateIds
from simulation.checkers.log_voters import LogVoters
from simulation.checkers.majority_synced import MajoritySynced
from simulation.checkers.one_change_at_a_time import OneChangeAtATime
from simulation.checkers.permitted_voters import PermittedVoters
from simulation.checkers.requested_changes import RequestedChanges
from simulation.checkers.voter_sets import VoterSets
from simulation.checkers.witnesses import Witnesses
from simulation.clients.operator import Operator
from simulation.history.facts import Change
from simulation.history.replica import Replica
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.options import Options
from simulation.scheduler import MS, SECOND
from simulation.world import World
from tests.simulation.sight import A, B, C, D, Sight, batch, node_of, violates, voters_of

C2 = ReplicaKey(C.id, UUID(int=33))


@pytest.fixture
def sight() -> Sight:
    return Sight()


def written(sight: Sight, *sets: tuple[ReplicaKey, ...]) -> Replica:
    """A leader's log: a voter set, a client's record, and the other voter sets."""
    log = [batch(offset) for offset in range(len(sets) + 1)]
    sight.write(log[1])
    for of, keys in zip([log[0], *log[2:]], sets, strict=True):
        sight.name(of, *keys)
    return sight.replica(A, *log)


def observed(
    sight: Sight, *sets: tuple[ReplicaKey, ...], committed: int, epoch: int = 1
) -> tuple[Observation, Change]:
    replica = written(sight, *sets)
    seen = sight.observation(replica, Role.LEADER, committed=committed, epoch=epoch)
    return seen, sight.change(replica)


# -- changes


def test_two_voters_changed_at_once_are_noticed(sight: Sight) -> None:
    VoterSets(sight.facts).on_change(*observed(sight, (A, B), (A, B, C), committed=2))
    VoterSets(sight.facts).on_change(*observed(sight, (A, B, C), (A, B), committed=2))
    with violates("one voter changes at a time"):
        VoterSets(sight.facts).on_change(*observed(sight, (A, B), (A, B, C, D), committed=2))
    with violates("one voter changes at a time"):
        VoterSets(sight.facts).on_change(*observed(sight, (A, B, C), (A, B, C2), committed=2))


def test_a_change_before_the_last_one_is_committed_is_noticed(sight: Sight) -> None:
    sets = (A, B), (A, B, C), (A, B, C, D)
    VoterSets(sight.facts).on_change(*observed(sight, *sets, committed=3))
    with violates("one voter changes at a time"):
        VoterSets(sight.facts).on_change(*observed(sight, *sets, committed=2))


def test_a_first_voter_set_may_be_replaced_while_nothing_is_written(sight: Sight) -> None:
    log = [batch(0), batch(1)]
    sight.name(log[0], A, B, C)
    sight.name(log[1], A, B, C2)
    replica = sight.replica(A, *log)
    change = sight.change(replica)
    assert change.added == [C2]
    assert change.removed == [C]
    VoterSets(sight.facts).on_change(sight.observation(replica, Role.LEADER), change)
    sight.name(log[1], A, B, D)
    with violates("one voter changes at a time"):
        VoterSets(sight.facts).on_change(
            sight.observation(replica, Role.LEADER), sight.change(replica)
        )


def test_a_change_before_a_commit_of_the_epoch_is_noticed(sight: Sight) -> None:
    replica = sight.replica(A, batch(0), batch(1), batch(2, epoch=2), batch(3, epoch=2))
    sight.write(replica.log[1])
    sight.name(replica.log[0], A, B)
    sight.name(replica.log[3], A, B, C)
    checker, change = OneChangeAtATime(sight.facts), sight.change(replica)
    checker.on_change(sight.observation(replica, Role.LEADER, epoch=2, committed=3), change)
    with violates("a leader commits in its epoch before it changes the voters"):
        checker.on_change(sight.observation(replica, Role.LEADER, epoch=2, committed=2), change)


def test_a_set_that_the_log_does_not_name_last_is_noticed(sight: Sight) -> None:
    replica = written(sight, (A, B), (A, B, C))
    node, checker = node_of(A, A, B), LogVoters(sight.facts)
    checker.on_append(replica, replica.log, None)
    node.core.log.voter_entries.append(VoterEntry(2, VotersRecord(voters_of(A, B, C), "cluster")))
    checker.on_event(sight.observation(replica, node=node))
    checker.on_truncate(replica, [replica.log.pop()])
    with violates("the voters are those that the log names last"):
        checker.on_event(sight.observation(replica, node=node))
    node.core.log.voter_entries[-1:] = [VoterEntry(0, VotersRecord(voters_of(A, B), "cluster"))]
    checker.on_event(sight.observation(replica, node=node))
    target = VotersRecord(voters_of(A, B), "cluster", (1, 2, 3))
    node.core.log.voter_entries[-1:] = [VoterEntry(0, target)]
    with violates("the voters are those that the log names last"):
        checker.on_event(sight.observation(replica, node=node))


def test_an_id_that_configuration_does_not_name_is_noticed(sight: Sight) -> None:
    replica = written(sight, (A, B, C), (A, B, C, C2))
    by_id = node_of(A, *(ReplicaKey(key.id) for key in (A, B, C)))
    checker = PermittedVoters(sight.facts)
    checker.on_change(sight.observation(replica, Role.LEADER, node=by_id), sight.change(replica))
    for keys in ((A, B, C, D), (A, B)):
        sight.name(replica.log[2], *keys)
        with violates("quorum.voters names the ids that vote"):
            checker.on_change(
                sight.observation(replica, Role.LEADER, node=by_id), sight.change(replica)
            )


def test_a_second_storage_id_beside_a_living_one_is_noticed(sight: Sight) -> None:
    replica = written(sight, (A, B, C), (A, B, C, C2))
    checker, change = DuplicateIds(sight.facts), sight.change(replica)
    silent_us = 3 * node_of(A, A).config.fetch_timeout_ms * MS
    checker.on_change(sight.observation(replica, Role.LEADER), change)
    sight.facts.contacts[C], sight.facts.up_since[C] = SECOND, 0
    checker.on_change(sight.observation(replica, Role.LEADER, now_us=SECOND + silent_us), change)
    early = sight.observation(replica, Role.LEADER, now_us=SECOND + silent_us // 2)
    with violates("a storage id is added only if that of the same id is silent"):
        checker.on_change(early, change)
    sight.facts.up_since[C] = SECOND + 1
    checker.on_change(early, change)
    del sight.facts.up_since[C]
    checker.on_change(early, change)


def test_a_second_storage_id_beside_the_leaders_is_noticed(sight: Sight) -> None:
    own = ReplicaKey(A.id, UUID(int=11))
    seen, change = observed(sight, (A, B, C), (A, own, B, C), committed=2)
    with violates("a storage id is added only if that of the same id is silent"):
        DuplicateIds(sight.facts).on_change(seen, change)


def test_a_voter_that_is_added_far_behind_is_noticed(sight: Sight) -> None:
    replica = written(sight, (A, B), (A, B, C))
    sight.replica(C, *replica.log, synced=2)
    checker, change = CaughtUp(sight.facts), sight.change(replica)
    slow_us = 2 * node_of(A, A).config.election_timeout_ms * MS
    checker.on_event(sight.observation(replica, Role.LEADER, now_us=SECOND))
    checker.on_change(sight.observation(replica, Role.LEADER, now_us=SECOND + slow_us - 1), change)
    with violates("a voter is added when it has caught up"):
        checker.on_change(sight.observation(replica, Role.LEADER, now_us=SECOND + slow_us), change)
    sight.replica(C, *replica.log)
    checker.on_change(sight.observation(replica, Role.LEADER, now_us=SECOND + slow_us), change)


def test_a_commit_is_counted_by_the_set_that_the_leader_had_before(sight: Sight) -> None:
    """A leader that was removed does not count."""
    replica = written(sight, (A, B, C), (B, C))
    node = node_of(A, A, B, C)
    node.core.log.append(3, ((1, 0),))
    node.core.log.add_voters(2, VotersRecord(voters_of(B, C), "cluster"))
    before = sight.observation(replica, Role.LEADER, committed=2, node=node).now
    sight.replica(B, *replica.log)
    sight.replica(C, *replica.log, synced=2)
    sight.commit(*replica.log)
    seen = sight.observation(replica, Role.LEADER, committed=3, before=before, node=node)
    with violates("the high watermark is synced by a majority"):
        MajoritySynced(sight.facts).on_event(seen)
    sight.replica(C, *replica.log)
    MajoritySynced(sight.facts).on_event(seen)


# -- requests


def test_a_voter_that_comes_or_goes_unasked_is_noticed(sight: Sight) -> None:
    checker = RequestedChanges(sight.facts)
    for sets, kind, key in (
        (((A, B), (A, B, C)), VoterChangeKind.ADD, C),
        (((A, B, C), (A, B)), VoterChangeKind.REMOVE, C),
    ):
        seen, change = observed(sight, *sets, committed=2)
        with violates("voters change as was asked for"):
            checker.on_change(seen, change)
        sight.facts.change_requests.append(VoterChangeRequest(kind, key))
        checker.on_change(seen, change)


def test_a_step_of_a_reassignment_needs_no_other_request(sight: Sight) -> None:
    checker, replica = RequestedChanges(sight.facts), written(sight, (A, B), (A, B, C))
    sight.name(replica.log[0], A, B, target=(1, 2, 3))
    sight.name(replica.log[2], A, B, C, target=(1, 2, 3))
    checker.on_change(sight.observation(replica, Role.LEADER), sight.change(replica))
    sight.name(replica.log[0], A, B, target=(1, 2, 4))
    sight.name(replica.log[2], A, B, C, target=(1, 2, 4))
    with violates("voters change as was asked for"):
        checker.on_change(sight.observation(replica, Role.LEADER), sight.change(replica))


def test_a_target_that_is_given_up_unasked_is_noticed(sight: Sight) -> None:
    checker, replica = RequestedChanges(sight.facts), written(sight, (A, B), (A, B))
    sight.name(replica.log[0], A, B, target=(1, 2))
    checker.on_change(sight.observation(replica, Role.LEADER), sight.change(replica))
    sight.name(replica.log[0], A, B, target=(1, 2, 3))
    with violates("voters change as was asked for"):
        checker.on_change(sight.observation(replica, Role.LEADER), sight.change(replica))
    sight.facts.change_requests.append(VoterChangeRequest(VoterChangeKind.REASSIGN))
    checker.on_change(sight.observation(replica, Role.LEADER), sight.change(replica))


def test_a_replica_that_knows_of_its_removal_and_asks_to_vote_is_noticed(sight: Sight) -> None:
    replica = written(sight, (A, B, C), (A, B))
    sight.commit(*replica.log)
    checker, node = RequestedChanges(sight.facts), node_of(C, A, B)
    node.core.committed_offset = 3
    checker.on_own_request(node)  # it got a snapshot, and never knew that it was a voter
    checker.on_event(sight.observation(sight.replica(C), Role.FOLLOWER))
    node.core.committed_offset = 2
    checker.on_own_request(node)
    node.core.committed_offset = 3
    with violates("voters change as was asked for"):
        checker.on_own_request(node)


@pytest.mark.parametrize(
    ("asked_for", "is_so"),
    [
        (VoterChangeRequest(VoterChangeKind.ADD, C, sets_before=1), True),
        (VoterChangeRequest(VoterChangeKind.ADD, C, sets_before=2), True),
        (VoterChangeRequest(VoterChangeKind.ADD, C, sets_before=3), False),
        (VoterChangeRequest(VoterChangeKind.ADD, D, sets_before=1), False),
        (VoterChangeRequest(VoterChangeKind.REMOVE, C, sets_before=3), True),
        (VoterChangeRequest(VoterChangeKind.REMOVE, A, sets_before=1), False),
        (VoterChangeRequest(VoterChangeKind.REASSIGN, target=(1, 2), sets_before=3), True),
        (VoterChangeRequest(VoterChangeKind.REASSIGN, target=(1, 4), sets_before=1), False),
        (VoterChangeRequest(VoterChangeKind.TRANSFER, D, sets_before=1), True),
    ],
)
def test_a_request_is_fulfilled_if_it_was_so_at_some_moment(
    sight: Sight, asked_for: VoterChangeRequest, is_so: bool
) -> None:
    sight.commit(*written(sight, (A, B), (A, B, C), (A, B)).log)
    if is_so:
        check_acknowledged(sight.facts, asked_for)
        return
    with violates("an acknowledged change is committed"):
        check_acknowledged(sight.facts, asked_for)


def test_a_target_that_is_committed_grants_a_reassignment(sight: Sight) -> None:
    of = batch(0)
    sight.name(of, A, B, target=(3, 4))
    request = VoterChangeRequest(VoterChangeKind.REASSIGN, target=(3, 4), sets_before=1)
    with violates("an acknowledged change is committed"):
        check_acknowledged(sight.facts, request)
    sight.commit(of)
    check_acknowledged(sight.facts, request)


def test_who_says_it_has_handed_over_and_leads_is_noticed() -> None:
    world = World(1, Options(faults=()))
    for machine in world.cluster.machines:
        machine.start()
    world.env.scheduler.run_until(10 * SECOND)
    leader = world.cluster.leader_machine()
    assert leader is not None
    assert leader.process is not None
    epoch = leader.process.node.epoch
    operator = Operator(
        world.cluster, world.chaos.risk, "operator", Random(1), "transfer leader", []
    )
    operator.on_fulfilled(VoterChangeRequest(VoterChangeKind.TRANSFER), leader.id, epoch - 1)
    operator.on_fulfilled(
        VoterChangeRequest(VoterChangeKind.TRANSFER, leader.replica.key), leader.id, epoch
    )
    with violates("a leader that handed over does not lead"):
        operator.on_fulfilled(VoterChangeRequest(VoterChangeKind.TRANSFER), leader.id, epoch)


# -- witnesses


def test_a_witness_that_leads_where_another_could_is_noticed(sight: Sight) -> None:
    checker, witness = Witnesses(sight.facts), node_of(A, A, B, is_witness=True)
    ours = sight.replica(A, batch(0), batch(1))
    seen = sight.observation(ours, Role.LEADER, epoch=2, node=witness)
    sight.replica(B, batch(0))
    checker.on_event(seen)
    sight.replica(B, batch(0), batch(1))
    with violates("a witness leads only where no other voter can"):
        checker.on_event(seen)
    checker.on_event(sight.observation(ours, Role.LEADER, epoch=2, node=node_of(A, A, B)))
    sight.facts.is_undisturbed = False
    checker.on_event(seen)


def test_who_could_lead_is_not_judged_where_a_leader_yielded_to_an_epoch_from_before(
    sight: Sight,
) -> None:
    checker, witness = Witnesses(sight.facts), node_of(A, A, B, is_witness=True)
    ours = sight.replica(A, batch(0))
    sight.replica(B, batch(0))
    sight.facts.late_epoch = 2
    checker.on_event(sight.observation(ours, Role.LEADER, epoch=3, node=witness))
    with violates("a witness leads only where no other voter can"):
        checker.on_event(sight.observation(ours, Role.LEADER, epoch=4, node=witness))


def test_a_witness_need_not_wait_for_who_led_before(sight: Sight) -> None:
    checker, witness = Witnesses(sight.facts), node_of(A, A, B, is_witness=True)
    ours = sight.replica(A, batch(0), batch(1))
    theirs = sight.replica(B, batch(0), batch(1))
    checker.on_event(sight.observation(theirs, Role.LEADER, epoch=2, node=node_of(B, A, B)))
    checker.on_event(sight.observation(ours, Role.LEADER, epoch=3, node=witness))
    with violates("a witness leads only where no other voter can"):
        checker.on_event(sight.observation(ours, Role.LEADER, epoch=4, node=witness))
