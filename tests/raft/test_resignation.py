"""A leader that gives up: when it does, whom it tells, and what its voters make of that."""

from __future__ import annotations

from quorumd.raft.effects import EndQuorumEpoch, Fetch, Vote
from quorumd.raft.events import AppendRequested, ConnectionMade, ConnectionRefused, TimerFired
from quorumd.raft.events import ResignationRequested as Resign
from quorumd.raft.leadership import resign
from quorumd.raft.roles import Leader, Resigned, Role, Transfer, Unattached
from quorumd.raft.transitions import Trigger
from tests.raft.changes import add, leading
from tests.raft.harness import (
    Bench,
    candidate,
    follower,
    key,
    leader,
    prospective,
    resigned,
    unattached,
)


def refuse(bench: Bench) -> None:
    """The leader answers that it does not lead."""
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", to=bench.node.leader)


# -- what the voters make of it


def test_the_end_of_a_former_epoch_is_not_that_of_this_one() -> None:
    bench = follower()
    bench.end(2, 3, key(1), says_so=False)
    bench.begin(2, 4)
    refuse(bench)
    assert bench.role is Role.FOLLOWER


def test_an_end_that_somebody_made_up_is_not_that_of_the_leader_that_is_found() -> None:
    bench = unattached()
    bench.end(2, 3, key(1), says_so=False)
    bench.begin(3, 3)
    refuse(bench)
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, key(3))


def test_an_end_of_another_epoch_takes_the_place_of_none_of_this_one() -> None:
    bench = follower()
    bench.end(2, 3, key(1), says_so=False)
    bench.end(3, 9, key(3), says_so=False)
    refuse(bench)
    assert bench.role is Role.PROSPECTIVE


def test_an_end_is_used_up_when_it_was_confirmed() -> None:
    """The process was gone, and is back: that it leads no more has to be said anew."""
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.end(2, 3, key(3), key(1), says_so=False)
    assert bench.node.core.known_leader.has_ended
    assert bench.node.core.known_leader.unconfirmed_end is None


def test_that_a_former_leader_has_ended_is_not_held_against_the_next_one() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.end(2, 3, key(3), says_so=False)
    bench.begin(3, 4)
    assert bench.node.leader == key(3)
    refuse(bench)
    bench.wait(50)
    bench.fetched()
    assert bench.node.core.has_leader_contact


def test_who_is_not_the_best_successor_waits_although_the_process_is_gone() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.end(2, 3, key(3), says_so=False)
    bench.wait(999)
    assert bench.role is Role.FOLLOWER
    bench.wait(1)
    assert bench.role is Role.PROSPECTIVE


def test_an_end_that_is_said_again_puts_no_campaign_off_and_may_bring_one_forward() -> None:
    bench = follower()
    bench.end(2, 3, key(3))
    bench.end(2, 3, key(3), key(1), says_so=False)
    bench.end(2, 3, key(3), says_so=False)
    bench.wait(19)
    assert bench.role is Role.FOLLOWER
    bench.wait(1)
    assert bench.role is Role.PROSPECTIVE


def test_a_leader_that_has_ended_is_not_waited_for_when_its_process_is_back() -> None:
    bench = follower()
    bench.end(2, 3, key(3), key(1))
    bench.step(ConnectionRefused(id=2))
    bench.step(ConnectionMade(id=2))
    bench.wait(20)
    assert bench.role is Role.PROSPECTIVE


# -- who resigns


def test_whoever_shall_lead_next_is_named_first_and_once() -> None:
    bench = leader(5)
    for other, end in ((2, 4), (3, 3), (4, 4)):
        bench.fetch(key(other), end, 4 if end == 4 else 2, max_wait_ms=0)
    state = bench.node.core.state
    assert isinstance(state, Leader)
    resign(bench.node.core, state, Trigger.RESIGNATION, first=key(3))
    bench.wait(0)
    [request] = {sent.request for sent in bench.requests(EndQuorumEpoch)}
    assert request == EndQuorumEpoch(
        epoch=4, leader_id=1, successors=(key(3), key(2), key(4), key(5))
    )


def test_why_leadership_is_given_away_is_said() -> None:
    bench = leader()
    bench.step(Resign("the disk is full", shutting_down=False))
    assert bench.reports == "leadership is given away: the disk is full"


def test_who_shuts_down_does_so_whatever_it_is_asked_for_then() -> None:
    bench = follower()
    bench.step(Resign("stopped", shutting_down=True))
    bench.step(Resign("maintenance", shutting_down=False))
    assert not bench.requests(Vote, bench.wait(10_000))


def test_only_who_campaigns_and_shuts_down_tells_that_it_campaigns_no_more() -> None:
    for make in (candidate, prospective):
        bench = make()
        bench.step(Resign("maintenance", shutting_down=False))
        assert not bench.requests(EndQuorumEpoch)
    for make in (follower, unattached):
        bench = make()
        bench.step(Resign("stopped", shutting_down=True))
        assert not bench.requests(EndQuorumEpoch)


def test_a_step_of_a_reassignment_that_ends_with_the_leadership_is_answered_to_nobody() -> None:
    bench = leader()
    state = bench.node.core.state
    assert isinstance(state, Leader)
    state.transfer = Transfer(None, key(2), bench.now_ms, bench.now_ms + 1000)
    seen = len(bench.all)
    bench.step(Resign("maintenance", shutting_down=False))
    assert bench.role is Role.RESIGNED
    assert not [e for e in bench.all[seen:] if getattr(e, "reply_to", 0) is None]


# -- when a leader has something to do by itself


def test_a_leaders_next_deadline_is_the_earliest_of_all() -> None:
    bench = leader()
    begin_ms = bench.now_ms + 1000
    assert bench.node.next_deadline_ms() == begin_ms
    bench.fetch(key(2), 4, 4, high_watermark=4, max_wait_ms=5000)
    assert bench.node.next_deadline_ms() == begin_ms
    bench.fetch(key(3), 4, 4, high_watermark=4, max_wait_ms=300)
    assert bench.node.next_deadline_ms() == bench.now_ms + 300
    bench.step(AppendRequested(1, 1))
    bench = leader()
    resigns_ms = bench.now_ms + 3000
    for _ in range(2):  # late, so that the next announcement is due after the check
        bench.step(TimerFired(), after_ms=1050)
    assert bench.node.next_deadline_ms() == resigns_ms


def test_a_change_that_may_wait_for_long_does_not_put_the_leaders_timers_off() -> None:
    bench = leading()
    begin_ms = bench.node.next_deadline_ms()
    assert begin_ms is not None
    for timeout_ms in (50_000, 60_000):
        assert add(bench, key(9), timeout_ms=timeout_ms) is None
    assert bench.node.next_deadline_ms() == begin_ms
    assert add(bench, key(9), timeout_ms=3) is None
    assert add(bench, key(9), timeout_ms=4) is None
    assert bench.node.next_deadline_ms() == bench.now_ms + 3


def test_a_leader_has_won_and_begins_to_count_anew() -> None:
    bench = prospective()
    for voter in (key(2), key(3)):
        bench.grant(voter, granted=False)
    bench.wait(100)
    assert bench.role is Role.PROSPECTIVE
    bench.grant(key(2))
    bench.sync()
    bench.grant(key(2))
    assert bench.role is Role.LEADER
    assert bench.node.core.election_attempts == 0


def test_who_has_resigned_fetches_from_nobody_in_that_epoch() -> None:
    bench = leader()
    begin = len(bench.all)
    bench.step(Resign("maintenance", shutting_down=False))
    bench.step(TimerFired())
    assert bench.role is Role.RESIGNED
    assert bench.requests(Fetch, bench.all[begin:]) == []


def test_a_later_epoch_does_not_put_off_the_campaign_of_who_has_resigned() -> None:
    bench = resigned()
    state = bench.node.core.state
    assert isinstance(state, Resigned)
    bench.now_ms += 100
    assert not bench.vote(key(2), 5, (0, 0)).granted
    now = bench.node.core.state
    assert isinstance(now, Unattached)
    assert now.election_deadline_ms == state.election_deadline_ms
