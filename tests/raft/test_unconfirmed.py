"""What requests say of epochs and leaders counts once the replica that it is about says so in a response."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import Fetch, PersistQuorumState, Vote
from quorumd.raft.events import ConnectionRefused, LeaderHint
from quorumd.raft.leader_discovery import EPOCH_LIMIT, EPOCH_STEP_LIMIT
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import (
    Bench,
    endpoints,
    follower,
    key,
    leader,
    observer,
    resigned,
    unattached,
)

END = (3, 2)
HUGE = 1_162_891_075


def observer_in_contact() -> Bench:
    bench = observer()
    bench.fetched()
    return bench


LED: list[Callable[[], Bench]] = [leader, follower, observer_in_contact]


@pytest.mark.parametrize("pre_vote", [False, True])
@pytest.mark.parametrize("candidate", [key(3), key(3, disk=1), ReplicaKey(3), key(77)])
@pytest.mark.parametrize("step", [1, 5, HUGE])
@pytest.mark.parametrize("make", LED)
def test_a_vote_request_takes_nobody_out_of_a_living_epoch(
    make: Callable[[], Bench], step: int, candidate: ReplicaKey, pre_vote: bool
) -> None:
    bench = make()
    before = bench.node.core.capture()
    epoch = bench.node.epoch
    answer = bench.vote(
        candidate, epoch + step, (99, epoch), cluster_id=None, voter=None, pre_vote=pre_vote
    )
    assert (answer.granted, answer.top_level_error) == (False, "BROKER_NOT_AVAILABLE")
    assert bench.node.core.capture() == before
    assert not bench.find(PersistQuorumState)


@pytest.mark.parametrize("says", [LeaderHint(epoch=3), LeaderHint(epoch=3, leader_id=2)])
@pytest.mark.parametrize("make", [follower, observer_in_contact, resigned])
def test_a_leader_that_says_otherwise_itself_is_not_followed(
    make: Callable[[], Bench], says: LeaderHint
) -> None:
    bench = make()
    before = bench.node.core.capture()
    answer = bench.begin(3, bench.node.epoch + 4, says_so=False)
    assert (answer.error, answer.top_level_error) == (None, None)
    assert answer.epoch == bench.node.epoch
    bench.hinted(bench.outstanding(Vote, key(3)), says)
    assert bench.node.core.capture() == before


def test_the_same_request_again_and_again_is_one_question_every_20_ms() -> None:
    bench = follower()
    bench.all.clear()
    for _ in range(100):
        bench.begin(3, 9, says_so=False)
    [question] = bench.requests(Vote, bench.all)
    bench.hinted(question, LeaderHint(epoch=3, leader_id=2))
    for _ in range(100):
        bench.begin(3, 9, says_so=False)
    assert len(bench.requests(Vote, bench.all)) == 1
    bench.now_ms += 20
    bench.begin(3, 9, says_so=False)
    assert len(bench.requests(Vote, bench.all)) == 2


def test_a_question_goes_nowhere_but_to_known_addresses_while_there_is_a_leader() -> None:
    bench = follower()
    bench.begin(3, 9, endpoints=endpoints(66), says_so=False)
    assert bench.node.unconfirmed_endpoints_of(3) == ()
    bench.step(ConnectionRefused(id=2))
    bench.begin(3, 9, endpoints=endpoints(66), says_so=False)
    assert bench.node.unconfirmed_endpoints_of(3) == endpoints(66)


def test_a_leader_asks_a_replica_that_names_a_later_epoch_and_yields_to_its_answer() -> None:
    bench = leader()
    answer = bench.fetch(key(2), 3, 2, epoch=9)
    assert answer is not None
    assert answer.error == "UNKNOWN_LEADER_EPOCH"
    assert bench.role is Role.LEADER
    bench.hinted(bench.outstanding(Vote, key(2)), LeaderHint(epoch=9), "FENCED_LEADER_EPOCH")
    assert (bench.role, bench.node.epoch) == (Role.UNATTACHED, 9)


def test_a_made_up_replica_that_does_not_answer_delays_the_next_one() -> None:
    bench = leader()
    bench.fetch(key(100), 3, 2, epoch=9)
    bench.fail(Vote)
    bench.fetch(key(101), 3, 2, epoch=9)
    assert not bench.requests(Vote)
    bench.now_ms += 20
    bench.fetch(key(101), 3, 2, epoch=9)
    assert [question.to for question in bench.requests(Vote)] == [key(101)]


def test_nobody_but_a_leader_asks_who_fetches_in_a_later_epoch() -> None:
    """Others hear of that epoch from its leader; and who has no id can be asked nothing."""
    for bench, replica in ((follower(), key(3)), (leader(), None)):
        bench.all.clear()
        answer = bench.fetch(replica, 3, 2, epoch=9)
        assert answer is not None
        assert answer.error == "UNKNOWN_LEADER_EPOCH"
        assert not bench.requests(Vote, bench.all)


def test_made_up_replicas_are_asked_one_at_a_time_and_leave_nothing_behind() -> None:
    bench = leader()
    for made_up in range(100, 300):
        bench.fetch(key(made_up), 3, 2, epoch=9)
    [question] = bench.requests(Vote, [e for e in bench.all if e not in _campaign(bench)])
    assert question.to == key(100)
    for made_up in range(300, 400):
        bench.fail(Vote)
        bench.now_ms += 20
        bench.fetch(key(made_up), 3, 2, epoch=9)
    assert len(bench.node.core.requests.backoffs) <= 3


def _campaign(bench: Bench) -> list[object]:
    """The votes and pre-votes by which it was elected."""
    return [e for e in bench.requests(Vote, bench.all) if e.to in (key(2), key(3))]


def test_a_replica_that_starts_waits_for_the_leader_that_it_finds_on_disk() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    assert bench.role is Role.FOLLOWER
    assert not bench.vote(key(3), 4, END).granted
    assert bench.node.epoch == 3
    bench.fetched(to=key(2))
    assert not bench.vote(key(3), 4, END).granted


@pytest.mark.parametrize("end", ["time", "refused", "failed", "denied"])
def test_but_no_longer_than_until_there_is_a_reason_to_doubt_it(end: str) -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    if end == "time":
        bench.now_ms += 2000
    elif end == "refused":
        bench.step(ConnectionRefused(id=2))
    elif end == "failed":
        bench.fail(Fetch, key(2))
    else:
        hint = LeaderHint(epoch=3, leader_id=2)
        bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(2))
    assert bench.vote(key(3), 4, END).granted


def test_a_leap_of_the_epoch_is_believed_to_the_candidate_only() -> None:
    bench = unattached()
    assert not bench.vote(key(2), 3 + EPOCH_STEP_LIMIT + 1, END).granted
    assert bench.node.epoch == 3
    hint = LeaderHint(epoch=3 + EPOCH_STEP_LIMIT + 1)
    bench.hinted(bench.outstanding(Vote, key(2)), hint, "FENCED_LEADER_EPOCH")
    assert bench.vote(key(2), 3 + EPOCH_STEP_LIMIT + 1, END).granted
    assert 3 + EPOCH_STEP_LIMIT < EPOCH_LIMIT


# -- the end of an epoch


@pytest.mark.parametrize("make", [follower, observer_in_contact])
def test_an_end_that_the_leader_does_not_confirm_changes_nothing(
    make: Callable[[], Bench],
) -> None:
    bench = make()
    for _ in range(50):
        bench.end(2, 3, key(1), says_so=False)
    assert not bench.pre_vote(key(3), 3, END).granted
    bench.fetched(high_watermark=3)
    bench.wait(1900)
    assert bench.role in (Role.FOLLOWER, Role.OBSERVER)
    assert bench.node.has_leader_contact


def test_the_end_may_be_confirmed_before_or_after_it_is_announced() -> None:
    refused = LeaderHint(epoch=3, leader_id=2)
    for announced_first in (True, False):
        bench = follower()
        if announced_first:
            bench.end(2, 3, key(1), says_so=False)
        bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=refused)
        assert bench.pre_vote(key(3), 3, END).granted
        assert (bench.role is Role.PROSPECTIVE) == announced_first
        if not announced_first:
            bench.end(2, 3, key(1), says_so=False)
        assert bench.role is Role.PROSPECTIVE


def test_a_leader_whose_process_is_gone_has_confirmed_its_end() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.end(2, 3, key(1), key(3), says_so=False)
    assert bench.role is Role.PROSPECTIVE


@pytest.mark.parametrize("make", [follower, observer_in_contact])
def test_a_leader_that_serves_on_has_not_ended_though_its_process_seemed_to_be_gone(
    make: Callable[[], Bench],
) -> None:
    """A replica that has moved is refused at its former address, and any process can send the end."""
    bench = make()
    bench.step(ConnectionRefused(id=2))
    bench.end(2, 3, key(1), key(3), says_so=False)
    bench.fetched(high_watermark=3)
    assert bench.role in (Role.FOLLOWER, Role.OBSERVER)
    assert bench.node.has_leader_contact
    assert not bench.pre_vote(key(3), 3, END).granted


def test_a_leader_that_has_refused_a_fetch_does_not_lead_again() -> None:
    bench = follower()
    refused = LeaderHint(epoch=3, leader_id=2)
    bench.end(2, 3, key(3), key(1), says_so=False)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=refused)
    bench.wait(100)
    bench.fetched(high_watermark=3)
    assert not bench.node.has_leader_contact


def test_who_learns_of_an_epoch_by_its_end_follows_its_leader_and_then_campaigns() -> None:
    bench = unattached()
    bench.end(2, 3, key(1), says_so=False)
    hint = LeaderHint(epoch=3, leader_id=2, endpoints=endpoints(2))
    bench.hinted(bench.outstanding(Vote, key(2)), hint)
    assert bench.role is Role.FOLLOWER
    bench.sync()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(2))
    assert bench.role is Role.PROSPECTIVE


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.OBSERVER])
def test_who_heard_of_the_end_grants_pre_votes(role: Role) -> None:
    bench = follower() if role is Role.FOLLOWER else observer()
    if role is Role.OBSERVER:
        bench.fetched()
    assert not bench.pre_vote(key(3), 3, (3, 2)).granted
    bench.end(2, 3, key(3), key(1))
    assert bench.pre_vote(key(3), 3, (3, 2)).granted


def test_a_replica_that_waits_for_the_leader_found_on_disk_ignores_that_a_worse_one_asks() -> None:
    """Any process can ask: no campaign begins before the leader has had the time to respond."""
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    assert bench.role is Role.FOLLOWER
    assert not bench.pre_vote(key(3), 3, (2, 2)).granted
    bench.wait(1990)
    assert bench.role is Role.FOLLOWER
    bench.wait(50)
    assert bench.role is Role.PROSPECTIVE
