"""What answers say of epochs and leaders: what is taken over, what contradicts, and who is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import BeginQuorumEpoch, Fetch, PersistQuorumState, Vote
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import (
    BeginQuorumEpochResponseReceived,
    ConnectionRefused,
    LeaderHint,
    VoteResponseReceived,
)
from quorumd.raft.leader_discovery import (
    EPOCH_LIMIT,
    EPOCH_STEP_LIMIT,
    LAST_EPOCH,
    is_out_of_reach,
)
from quorumd.raft.roles import Role
from quorumd.raft.types import Endpoint, Voter, VoterSet
from tests.raft.harness import (
    Bench,
    candidate,
    endpoints,
    follower,
    fresh,
    key,
    leader,
    log_of,
    prospective,
    resigned,
    unattached,
)

END = (3, 2)
TWO = (Endpoint("CONTROLLER", "host2", 9093), Endpoint("BROKER", "host2", 9092))
OTHERS = tuple(Endpoint(at.name, "elsewhere", at.port) for at in TWO)


def begin_answered(bench: Bench, error: str | None, hint: LeaderHint) -> None:
    asked = bench.outstanding(BeginQuorumEpoch, key(2)).request_id
    bench.step(BeginQuorumEpochResponseReceived(request_id=asked, error=error, hint=hint))


# -- who is this replica itself


def test_who_says_that_this_leader_leads_does_not_contradict() -> None:
    """Not even where it is said to be elsewhere, as behind a gateway."""
    for at in ((), endpoints(1), endpoints(66)):
        bench = leader()
        known = bench.node.leader_endpoints
        hint = LeaderHint(epoch=4, leader_id=1, endpoints=(*at, *at))
        begin_answered(bench, "INVALID_VOTER_KEY", hint)
        assert bench.role is Role.LEADER
        assert bench.node.leader_endpoints == known
        assert "ignored" not in bench.reports


def test_a_leader_that_is_told_that_it_leads_asks_nobody() -> None:
    for bench in (leader(), resigned()):
        for at in (endpoints(1), endpoints(66)):
            bench.all.clear()
            answer = bench.begin(1, 4, endpoints=at)
            assert (answer.error, answer.top_level_error) == (None, None)
            assert not bench.requests(Vote, bench.all)
            assert bench.node.unconfirmed_endpoints_of(1) == ()


@pytest.mark.parametrize(("make", "epoch"), [(follower, 3), (leader, 9), (candidate, 4)])
def test_a_replica_knows_better_whether_it_leads_an_epoch(
    make: Callable[[], Bench], epoch: int
) -> None:
    bench = make()
    answer = bench.begin(1, epoch)
    assert answer.top_level_error == "UNKNOWN_SERVER_ERROR"
    assert f"this replica is called the leader of epoch {epoch}, which it is not" in bench.reports


# -- where the leader is


@pytest.mark.parametrize("backs_off", [False, True], ids=["", "backs off from another one"])
def test_the_leader_is_where_the_longest_list_of_its_endpoints_says(backs_off: bool) -> None:
    bench = follower()
    if backs_off:
        bench.begin(3, 9, says_so=False)
        bench.fail(Vote, key(3))
    for said, known in (
        (TWO, TWO),
        (endpoints(66), TWO),
        (OTHERS, TWO),
        (endpoints(2), TWO),
        ((*OTHERS, *endpoints(66)), (*OTHERS, *endpoints(66))),
    ):
        bench.fetched(hint=LeaderHint(epoch=3, leader_id=2, endpoints=said))
        assert bench.node.leader_endpoints == known


def test_of_a_leader_that_is_learnt_all_endpoints_are_known_though_a_response_has_one() -> None:
    voters = VoterSet.of(Voter(key(i), TWO if i == 2 else endpoints(i)) for i in (1, 2, 3))
    bench = unattached(log=log_of(1, 1, 2, voters=voters))
    hint = LeaderHint(epoch=4, leader_id=2, endpoints=TWO[:1])
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(3))
    assert (bench.node.leader, bench.node.leader_endpoints) == (key(2), TWO)


def test_no_step_leads_beyond_the_last_epoch() -> None:
    for epoch in (LAST_EPOCH - 1, LAST_EPOCH):
        core = unattached(stored=StoredState(epoch=epoch)).node.core
        assert not is_out_of_reach(core, LAST_EPOCH)
        assert is_out_of_reach(core, LAST_EPOCH + 1)


def test_a_leader_that_nobody_can_place_does_not_put_off_the_election() -> None:
    bench = unattached()
    due_ms = election_deadline_ms(bench.node.core)
    bench.now_ms += 100
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3, leader_id=8), to=key(2))
    assert "no endpoint is known of replica 8, leader of epoch 3" in bench.reports
    assert election_deadline_ms(bench.node.core) == due_ms
    assert not bench.find(PersistQuorumState)


# -- answers that are not looked at


def test_a_vote_of_who_contradicts_does_not_count_and_is_not_asked_for_at_once() -> None:
    bench = follower()
    bench.wait(2025)
    assert bench.role is Role.PROSPECTIVE
    asked = bench.outstanding(Vote, key(3)).request_id
    hint = LeaderHint(epoch=3, leader_id=3, endpoints=endpoints(3))
    bench.step(VoteResponseReceived(request_id=asked, error=None, hint=hint, granted=True))
    assert bench.role is Role.PROSPECTIVE
    assert f"response of {key(3)} ignored: replica 3 is called the leader" in bench.reports
    assert not bench.requests(Vote)
    assert bench.requests(Vote, bench.wait(20))


@pytest.mark.parametrize(
    ("who", "hint"),
    [
        (2, LeaderHint(epoch=2)),
        (2, LeaderHint(epoch=2, leader_id=2)),
        (2, LeaderHint(epoch=3, leader_id=3, endpoints=endpoints(3))),
        (3, LeaderHint(epoch=3, leader_id=2)),
        (3, LeaderHint(epoch=3)),
    ],
)
def test_only_the_leader_itself_can_say_that_it_leads_this_epoch_no_more(
    who: int, hint: LeaderHint
) -> None:
    bench = follower()
    bench.fail(Fetch, key(2))
    bench.wait(20)
    bench.fail(Fetch, key(2))
    bench.wait(40)
    assert bench.node.has_leader_contact
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(who))
    assert bench.node.has_leader_contact


# -- timers


@pytest.mark.parametrize("make", [unattached, prospective, candidate])
def test_a_later_epoch_that_is_heard_of_when_the_time_is_up_does_not_put_off_the_campaign(
    make: Callable[[], Bench],
) -> None:
    bench = make()
    due_ms = election_deadline_ms(bench.node.core)
    assert due_ms is not None
    bench.now_ms = due_ms + 5
    hint = LeaderHint(epoch=9)
    if make is unattached:
        bench.fetched(error="FENCED_LEADER_EPOCH", hint=hint, to=key(2))
    else:
        bench.hinted(bench.outstanding(Vote, key(3)), hint, "FENCED_LEADER_EPOCH")
    assert (bench.role, bench.node.epoch) == (Role.PROSPECTIVE, 9)


def test_a_voter_that_says_again_that_it_knows_no_leader_does_not_hasten_the_campaign() -> None:
    draws = iter([0, 40, 0, 0])
    bench = unattached(draw=lambda bound: next(draws))
    no_leader: dict[str, Any] = {
        "error": "NOT_LEADER_OR_FOLLOWER",
        "hint": LeaderHint(epoch=3),
        "to": key(3),
    }
    bench.fetched(**no_leader)
    due_ms = election_deadline_ms(bench.node.core)
    assert due_ms == bench.now_ms + 40
    bench.wait(20)
    bench.fetched(**no_leader)
    assert election_deadline_ms(bench.node.core) == due_ms


def test_an_observer_does_not_mind_that_nobody_leads() -> None:
    bench = fresh(9, is_bootstrap=False)
    for voter in bench.node.core.other_voters():
        bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=0), to=voter)
    assert bench.role is Role.OBSERVER


# -- epochs near the end


def test_above_the_limit_an_epoch_may_be_so_far_ahead_and_no_further() -> None:
    bench = unattached(stored=StoredState(epoch=EPOCH_LIMIT - 1, applied_offset=2))
    furthest = EPOCH_LIMIT - 1 + EPOCH_STEP_LIMIT
    assert bench.vote(key(2), furthest + 1, END).top_level_error == "UNKNOWN_SERVER_ERROR"
    assert bench.vote(key(2), furthest, END).granted


# -- whom requests are about


def test_where_a_leader_was_said_to_be_while_there_was_another_one_does_not_count() -> None:
    bench = follower()
    bench.begin(3, 9, endpoints=endpoints(66), says_so=False)
    bench.step(ConnectionRefused(id=2))
    assert bench.node.unconfirmed_endpoints_of(3) == ()


def test_a_request_without_endpoints_takes_none_away() -> None:
    bench = unattached()
    bench.begin(3, 9, endpoints=endpoints(66), says_so=False)
    bench.vote(key(3), 3 + EPOCH_STEP_LIMIT + 1, END)
    assert bench.node.unconfirmed_endpoints_of(3) == endpoints(66)


def test_voters_and_one_other_replica_are_asked_at_the_same_time() -> None:
    bench = leader()
    for asker in (2, 100, 3, 101):
        bench.all.clear()
        bench.fetch(key(asker), 3, 2, epoch=9)
        asked = [question.to for question in bench.requests(Vote, bench.all)]
        assert asked == ([] if asker == 101 else [key(asker)])


def test_a_leader_outside_the_voter_set_is_fetched_from_and_others_can_be_asked() -> None:
    bench = unattached()
    bench.begin(8, 4)
    bench.sync()
    assert bench.node.leader_id == 8
    assert bench.requests(Fetch, bench.all)
    bench.begin(100, 9, says_so=False)
    assert [question.to.id for question in bench.requests(Vote)] == [100]


def test_a_made_up_replica_is_forgotten_when_its_backoff_is_over() -> None:
    bench = leader()
    bench.fetch(key(100), 3, 2, epoch=9)
    bench.fail(Vote)
    bench.now_ms += 50
    bench.fetch(key(101), 3, 2, epoch=9)
    assert [question.to for question in bench.requests(Vote)] == [key(101)]
    assert key(100) not in {peer for peer, _ in bench.node.core.requests.backoffs}


def test_what_a_leader_says_of_its_endpoints_counts_more_than_the_voter_set() -> None:
    bench = follower()
    assert bench.node.endpoints_of(key(2)) == endpoints(2)
    bench.fetched(hint=LeaderHint(epoch=3, leader_id=2, endpoints=OTHERS))
    assert bench.node.endpoints_of(key(2)) == OTHERS
