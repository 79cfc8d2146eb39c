"""Rounds of votes and pre-votes: what counts in them, when one is over, and who asks no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorumd.raft.campaign import REFUSAL_GRACE_MS
from quorumd.raft.campaign_delays import CAMPAIGN_DELAY_MS
from quorumd.raft.effects import EndQuorumEpoch, Vote
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import (
    ConnectionRefused,
    LeaderHint,
    ResignationRequested,
    TimerFired,
    WriteCompleted,
)
from quorumd.raft.leader_discovery import LAST_EPOCH
from quorumd.raft.roles import Candidate, Role
from tests.raft.harness import Bench, candidate, follower, key, prospective, resigned, unattached

YEARS_MS = 10**12


def until(bench: Bench, role: Role) -> None:
    """Let timers fire until it has this role."""
    while bench.role is not role:
        bench.fire()


def test_a_vote_that_comes_when_the_candidacy_is_over_is_no_pre_vote() -> None:
    bench = candidate()
    until(bench, Role.PROSPECTIVE)
    bench.grant(key(2))
    assert bench.role is Role.PROSPECTIVE
    [again] = bench.requests(Vote)
    assert isinstance(again.request, Vote)
    assert (again.to, again.request.pre_vote) == (key(2), True)


def test_a_candidate_that_cannot_win_any_more_asks_nobody_again() -> None:
    bench = candidate(5, draw=lambda bound: bound - 1)
    bench.fail(Vote, key(5))
    for voter in (key(2), key(3)):
        bench.grant(voter, granted=False)
    left_ms = bench.node.core.state.deadline_ms - bench.now_ms
    assert left_ms > 20
    assert not bench.requests(Vote, bench.wait(left_ms - 1))


def test_a_candidate_that_shuts_down_asks_nobody_again() -> None:
    bench = candidate()
    bench.step(ResignationRequested("stopped", shutting_down=True))
    assert bench.requests(EndQuorumEpoch)
    bench.fail(Vote, key(3))
    assert not bench.requests(Vote, bench.wait(100))


def test_that_a_voter_does_not_know_pre_vote_is_said() -> None:
    bench = prospective()
    bench.fail(Vote, key(2), error="UNSUPPORTED_VERSION")
    assert f"voter {key(2)} does not know pre-vote" in bench.reports


# -- when a round is over


def test_a_voter_that_refused_and_is_gone_is_one_voter() -> None:
    bench = candidate(5)
    bench.grant(key(2), granted=False)
    bench.step(ConnectionRefused(id=2))
    bench.grant(key(3), granted=False)
    state = bench.node.core.state
    assert isinstance(state, Candidate)
    assert not state.is_lost
    bench.grant(key(4))
    bench.grant(key(5))
    assert bench.role is Role.LEADER


def test_a_voter_whose_process_is_gone_is_not_waited_for() -> None:
    """With the other one's refusal that decides, before its Vote has failed."""
    bench = candidate()
    bench.step(ConnectionRefused(id=3))
    bench.grant(key(2), granted=False)
    assert bench.node.core.state.deadline_ms - bench.now_ms < CAMPAIGN_DELAY_MS


def test_more_refusals_put_the_next_round_off_no_further() -> None:
    """The second one decides nothing, and after the third the fourth does not."""
    draws = []

    def draw(bound: int) -> int:
        draws.append(bound)
        return bound // 2

    bench = candidate(5, draw=draw)
    drawn = []
    for voter in (key(2), key(3), key(4), key(5)):
        before = len(draws)
        bench.grant(voter, granted=False)
        drawn.append(len(draws) - before)
    assert drawn == [1, 0, 1, 0]


def test_a_refusal_shortly_before_the_end_of_a_round_does_not_prolong_it() -> None:
    for make in (candidate, prospective):
        bench = make(5)
        due_ms = bench.node.core.state.deadline_ms
        bench.wait(due_ms - bench.now_ms - 1)
        bench.grant(key(2), granted=False)
        assert bench.node.core.state.deadline_ms == due_ms


@pytest.mark.parametrize("attempts", [21, 30, 100])
def test_no_delay_grows_beyond_a_million_times_the_first(attempts: int) -> None:
    """It would become a number of more and more digits."""
    bounds: list[int] = []

    def draw(bound: int) -> int:
        bounds.append(bound)
        return 0

    bench = prospective(draw=draw, election_timeout_ms=YEARS_MS, election_backoff_max_ms=YEARS_MS)
    bench.node.core.election_attempts = attempts
    bounds.clear()
    bench.grant(key(2), granted=False)
    assert bench.node.core.state.deadline_ms - bench.now_ms == REFUSAL_GRACE_MS << 20
    bench.grant(key(3), granted=False)
    assert bounds[0] == CAMPAIGN_DELAY_MS << 20


# -- timers


@pytest.mark.parametrize(
    ("make", "role"),
    [
        (unattached, Role.PROSPECTIVE),
        (follower, Role.FOLLOWER),
        (prospective, Role.UNATTACHED),
        (candidate, Role.PROSPECTIVE),
        (resigned, Role.UNATTACHED),
    ],
)
def test_a_timer_that_fires_late_does_what_it_would_have_done(
    make: Callable[[], Bench], role: Role
) -> None:
    bench = make()
    due_ms = election_deadline_ms(bench.node.core)
    assert due_ms is not None
    bench.step(TimerFired(), after_ms=due_ms - bench.now_ms + 7)
    assert bench.role is role
    if make is follower:
        assert bench.node.next_deadline_ms() == bench.now_ms + CAMPAIGN_DELAY_MS // 2
        bench.step(TimerFired(), after_ms=CAMPAIGN_DELAY_MS)
        assert bench.role is Role.PROSPECTIVE


def test_who_is_about_to_campaign_does_not_put_it_off_because_a_worse_one_asks() -> None:
    bench = follower(contact=False)
    due_ms = bench.node.next_deadline_ms()
    assert due_ms is not None
    bench.wait(due_ms - bench.now_ms - 1)
    assert not bench.pre_vote(key(3), 3, (2, 2)).granted
    assert bench.node.next_deadline_ms() == due_ms


def test_the_backoff_of_a_campaign_that_failed_runs_though_nobody_knows_a_leader() -> None:
    bench = unattached()
    bench.node.core.election_attempts = 1
    due_ms = bench.node.next_deadline_ms()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3), to=key(3))
    bench.node.core.requests.backoffs.clear()
    assert bench.node.next_deadline_ms() == due_ms


def test_who_resigned_in_the_last_epoch_remains_in_it() -> None:
    bench = resigned()
    bench.node.core.epoch = LAST_EPOCH
    until_ms = bench.node.core.state.election_deadline_ms
    bench.step(TimerFired(), after_ms=until_ms - bench.now_ms)
    assert (bench.role, bench.node.epoch) == (Role.RESIGNED, LAST_EPOCH)
    assert bench.node.core.state.election_deadline_ms > bench.now_ms


# -- disks that are slow


SYNC_MS = 700
"""So long a quorum state takes to be on disk; a round without refusals takes 1,500 ms here."""


def slow_candidate(size: int = 3, sync_ms: int = SYNC_MS, **more: Any) -> Bench:
    """As `candidate`, but its own vote took `sync_ms` to be on disk."""
    bench = prospective(size, **more)
    for other in bench.node.core.other_voters():
        if bench.role is Role.PROSPECTIVE:
            bench.grant(other)
    bench.sync(after_ms=sync_ms)
    assert bench.role is Role.CANDIDATE
    return bench


@pytest.mark.parametrize(
    ("sync_ms", "left_ms"), [(0, 1500), (300, 1300), (SYNC_MS, 1700), (1000, 2000), (1400, 2000)]
)
def test_others_have_time_from_when_the_own_vote_is_on_disk_and_as_much_for_theirs(
    sync_ms: int, left_ms: int
) -> None:
    """But what a disk that stood still took is not expected of others."""
    bench = slow_candidate(sync_ms=sync_ms)
    assert bench.node.core.state.deadline_ms - bench.now_ms == left_ms
    asked = bench.node.core.state.deadline_ms
    bench.sync(after_ms=100)
    assert bench.node.core.state.deadline_ms == asked, "once"


@pytest.mark.parametrize(
    ("sync_ms", "left_ms"), [(0, 1500), (300, 1300), (SYNC_MS, 1700), (1400, 2000)]
)
def test_a_candidate_has_time_to_take_office_from_when_the_vote_for_it_is_on_disk(
    sync_ms: int, left_ms: int
) -> None:
    bench = unattached()
    assert bench.vote(key(2), 4, (3, 2)).granted
    bench.wait(sync_ms)
    due_ms = election_deadline_ms(bench.node.core)
    bench.step(WriteCompleted(bench.node.core.writes.state - 1))
    assert election_deadline_ms(bench.node.core) == due_ms
    bench.sync()
    due_ms = election_deadline_ms(bench.node.core)
    assert due_ms == bench.now_ms + left_ms
    bench.sync(after_ms=100)
    assert election_deadline_ms(bench.node.core) == due_ms, "once"


def test_a_refused_candidate_waits_for_others_as_long_as_its_own_vote_took() -> None:
    bounds: list[int] = []

    def draw(bound: int) -> int:
        bounds.append(bound)
        return 0

    bench = slow_candidate(5, draw=draw)
    bounds.clear()
    bench.grant(key(2), granted=False)
    assert bench.node.core.state.deadline_ms - bench.now_ms == REFUSAL_GRACE_MS + SYNC_MS
    assert bounds == [CAMPAIGN_DELAY_MS + 4 * SYNC_MS], "of two that collided one is first"


def test_an_epoch_that_is_on_disk_puts_no_campaign_off() -> None:
    """A voter that cannot win could go on to later and later epochs, and keep all others from campaigning."""
    bench = unattached()
    due_ms = election_deadline_ms(bench.node.core)
    assert bench.pre_vote(key(2), 4, (3, 2)).epoch == 4
    bench.sync(after_ms=SYNC_MS)
    assert election_deadline_ms(bench.node.core) == due_ms


def test_a_leader_that_resigned_campaigns_in_a_later_epoch_however_slow_its_disk_is() -> None:
    bench = resigned()
    until(bench, Role.UNATTACHED)
    assert election_deadline_ms(bench.node.core) == bench.now_ms
    bench.sync(after_ms=SYNC_MS)
    assert bench.role is not Role.UNATTACHED
