"""What every rule relies on: writes that complete, what is recorded, contact, who the first voters are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import AppendClient, Fetch, PersistQuorumState, SendReply
from quorumd.raft.events import (
    AppendRequested,
    ConnectionMade,
    ConnectionRefused,
    SnapshotTaken,
    TimerFired,
    WriteCompleted,
)
from quorumd.raft.roles import Candidate, Role
from quorumd.raft.types import SnapshotId, VoterSet
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
    follower,
    fresh,
    key,
    keyed_set,
    leader,
    log_of,
    prospective,
    unattached,
    voter_set,
)
from tests.raft.test_bootstrap import named

END = (3, 2)
FIRST = StoredState(epoch=3)
"""Nothing is known to be committed."""


# -- writes


def test_a_completed_write_syncs_what_it_wrote_and_nothing_behind_it() -> None:
    bench = leader()
    for token in (1, 2, 3):
        bench.step(AppendRequested(token, 1))
    last = bench.node.core.writes.last
    for completed, synced in ((last - 2, 5), (last - 2, 5), (last, 7)):
        bench.step(WriteCompleted(completed))
        assert bench.node.synced_end_offset == synced


def test_a_committed_offset_is_recorded_as_far_as_the_log_is_on_disk() -> None:
    bench = follower()
    bench.fetched(epochs=[3], high_watermark=4)
    bench.begin(3, 4)
    assert bench.find_all(PersistQuorumState)[-1].applied_offset == 3
    bench.sync()
    bench.begin(2, 5)
    assert bench.find_all(PersistQuorumState)[-1].applied_offset == 4


def test_the_own_vote_counts_when_its_write_or_a_later_one_is_on_disk() -> None:
    for later in (False, True):
        bench = prospective(5)
        for voter in (key(2), key(3)):
            bench.grant(voter)
        state = bench.node.core.state
        assert isinstance(state, Candidate)
        bench.step(WriteCompleted(state.vote_write - 1))
        assert key(1) not in state.votes
        if later:
            bench.step(SnapshotTaken(snapshot=SnapshotId(3, 2)))
        bench.sync()
        assert state.votes == {key(1): True}


def test_a_leader_that_has_seen_the_last_storage_id_names_the_voters_with_its_next_write() -> None:
    bench = fresh(1)
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    for voter in bench.node.core.other_voters():
        if bench.role is not Role.LEADER:
            bench.grant(voter)
            bench.sync()
            bench.grant(voter)
    assert bench.role is Role.LEADER
    bench.fetch(key(2), 0, 0)
    bench.pre_vote(key(3), 1, (0, 0))
    assert not named(bench)
    bench.sync()
    assert len(named(bench)) == 1


# -- requests


def test_what_failed_in_a_former_epoch_is_no_reason_to_wait_in_this_one() -> None:
    bench = follower()
    bench.fail(Fetch, key(2))
    assert not bench.requests(Fetch)
    bench.begin(2, 4)
    assert [sent.to for sent in bench.requests(Fetch)] == [key(2)]


# -- contact


@pytest.mark.parametrize("late_ms", [0, 1, 500])
def test_contact_ends_with_the_fetch_timeout_and_does_not_come_back(late_ms: int) -> None:
    bench = follower()
    bench.now_ms += 2000 + late_ms
    assert bench.pre_vote(key(3), 3, END).granted


@pytest.mark.parametrize("late_ms", [0, 1, 500])
def test_a_leader_found_on_disk_is_expected_for_the_fetch_timeout(late_ms: int) -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    bench.now_ms += 2000 + late_ms
    assert bench.vote(key(3), 4, END).granted


def test_unconfirmed_endpoints_count_for_whom_they_name_and_only_while_nobody_leads() -> None:
    bench = unattached()
    bench.begin(3, 9, endpoints=endpoints(66), says_so=False)
    assert bench.node.unconfirmed_endpoints_of(3) == endpoints(66)
    assert bench.node.unconfirmed_endpoints_of(2) == ()
    bench.begin(2, 3)
    bench.fetched(to=key(2))
    assert bench.node.core.is_led
    assert bench.node.unconfirmed_endpoints_of(3) == ()


# -- who the first voters are


def new(*sets: VoterSet, **more: object) -> Bench:
    """A replica whose log names these voters one after the other; nothing is known to be committed."""
    log = log_of(*[1] * (len(sets) + 1))
    for offset, voters in enumerate(sets, 1):
        log.add_voters(offset, VotersRecord(voters, CLUSTER))
    values: dict[str, object] = {"stored": FIRST} | more
    return unattached(log=log, **values)


def test_the_first_set_is_known_once_it_is_committed_itself() -> None:
    for applied, is_new in ((0, True), (1, True), (2, False)):
        bench = new(voter_set(1, 2, 3), stored=StoredState(epoch=3, applied_offset=applied))
        assert bench.node.core.is_bootstrapping is is_new


def test_a_first_set_that_configuration_does_not_name_has_to_be_committed() -> None:
    assert new(voter_set(1, 2, 3), configured_voters=VoterSet()).node.core.is_bootstrapping


def test_a_single_voter_that_is_named_with_its_storage_id_is_known() -> None:
    only = voter_set(1)
    assert not new(only, configured_voters=only).node.core.is_bootstrapping


def test_a_set_that_was_replaced_and_then_changed_was_committed() -> None:
    lost = keyed_set(key(1), key(2), key(3, disk=1))
    more = voter_set(1, 2, 3, 4)
    free = {"configured_voters": VoterSet()}
    assert new(lost, voter_set(1, 2, 3), **free).node.core.is_bootstrapping
    assert not new(lost, voter_set(1, 2, 3), more, **free).node.core.is_bootstrapping
    assert not new(voter_set(1, 2, 3), more, more, **free).node.core.is_bootstrapping


def test_voters_behind_whom_clients_have_written_are_known_even_if_that_is_cut_again() -> None:
    log = log_of(1, 1, 1, voters=voter_set(1, 2, 3))
    bench = follower(log=log, stored=FIRST)
    assert not bench.node.core.is_bootstrapping
    bench.fetched(diverging=(2, 1))
    assert bench.node.log_end_offset == 2
    assert not bench.node.core.is_bootstrapping


# -- what is told


@pytest.mark.parametrize("make", [leader, follower])
def test_observers_are_listed_by_their_keys(make: Callable[[], Bench]) -> None:
    bench = make()
    for observer in (key(9), key(8, disk=1), key(8)):
        bench.fetch(observer, 2, 1, max_wait_ms=0)
    rows = [row.key for row in bench.node.progress() if not row.is_voter]
    assert rows == ([key(8), key(8, disk=1), key(9)] if bench.role is Role.LEADER else [])


def test_each_write_has_a_number_of_its_own() -> None:
    bench = unattached()
    bench.vote(key(2), 4, END)
    bench.vote(key(3), 5, END)
    numbers = [state.write for state in bench.find_all(PersistQuorumState)]
    assert len(numbers) > 3
    assert numbers == sorted(set(numbers))


def test_a_parked_fetch_whose_time_was_up_long_ago_is_answered() -> None:
    bench = leader()
    bench.fetch(key(2), 4, 4, high_watermark=4, max_wait_ms=300)
    bench.step(TimerFired(), after_ms=307)
    assert bench.find(SendReply)


def test_batches_are_appended_before_they_are_sent_to_who_waits_for_them() -> None:
    bench = leader()
    bench.fetch(key(2), 4, 4, high_watermark=4)
    bench.step(AppendRequested(1, 1))
    kinds = [type(effect) for effect in bench.last]
    assert kinds.index(AppendClient) < kinds.index(SendReply)


def test_nothing_is_a_problem_before_a_leader_was_heard() -> None:
    assert unattached().node.status().problem is None


def test_a_leader_whose_end_was_confirmed_by_a_dead_process_has_no_contact_when_it_is_back() -> (
    None
):
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.end(2, 3, key(3), key(1), says_so=False)
    bench.step(ConnectionMade(id=2))
    assert not bench.node.has_leader_contact


def test_clients_are_told_to_wait_for_voters_that_the_log_names_to_store_that() -> None:
    log = log_of(1, 1, voters=voter_set(1, 2, 3))
    problem = leader(log=log, stored=FIRST).node.status().bootstrap_problem
    assert (
        problem == "this quorum is new and waits until every voter has stored the first voter set"
    )
