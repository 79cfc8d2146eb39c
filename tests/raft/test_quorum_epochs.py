"""BeginQuorumEpoch and EndQuorumEpoch: to whom they go, what they hold, and what answers to them change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumd.raft.effects import BeginQuorumEpoch, EndQuorumEpoch, Vote
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import (
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochResponseReceived,
    LeaderHint,
    ResignationRequested,
    TimerFired,
)
from quorumd.raft.leader_discovery import EPOCH_LIMIT
from quorumd.raft.roles import Role
from tests.raft.harness import (
    Bench,
    candidate,
    endpoints,
    follower,
    fresh,
    key,
    leader,
    resigned,
    unattached,
)


def begin_answered(bench: Bench, request_id: int, error: str | None = None, epoch: int = 4) -> None:
    hint = LeaderHint(epoch=epoch)
    bench.step(BeginQuorumEpochResponseReceived(request_id=request_id, error=error, hint=hint))


def end_answered(bench: Bench, request_id: int, error: str | None = None, epoch: int = 4) -> None:
    hint = LeaderHint(epoch=epoch)
    bench.step(EndQuorumEpochResponseReceived(request_id=request_id, error=error, hint=hint))


def announced(bench: Bench) -> list[int]:
    return [sent.to.id for sent in bench.requests(BeginQuorumEpoch)]  # type: ignore[union-attr]  # voters have ids


# -- announcing an epoch


def test_each_voter_is_told_again_half_a_fetch_timeout_after_its_last_fetch() -> None:
    bench = leader()
    for sent in bench.requests(BeginQuorumEpoch, bench.all):
        begin_answered(bench, sent.request_id)
    bench.wait(500)
    bench.fetch(key(2), 4, 4, max_wait_ms=0)
    bench.wait(499)
    assert announced(bench) == []
    bench.wait(1)
    assert announced(bench) == [3]
    bench.wait(499)
    assert announced(bench) == []
    bench.wait(1)
    assert announced(bench) == [2]


def test_an_announcement_that_is_late_is_made_all_the_same() -> None:
    bench = leader()
    for sent in bench.requests(BeginQuorumEpoch, bench.all):
        begin_answered(bench, sent.request_id)
    bench.step(TimerFired(), after_ms=1100)
    assert announced(bench) == [2, 3]
    assert bench.node.next_deadline_ms() == bench.now_ms + 1000


def test_a_voter_of_a_later_epoch_ends_this_one_by_its_answer() -> None:
    bench = leader()
    begin_answered(bench, bench.outstanding(BeginQuorumEpoch, key(2)).request_id, epoch=9)
    assert (bench.role, bench.node.epoch) == (Role.UNATTACHED, 9)


def test_a_voter_that_has_not_asked_the_leader_yet_answers_in_its_former_epoch() -> None:
    """Without an error that is nothing to report."""
    bench = leader()
    asked = bench.outstanding(BeginQuorumEpoch, key(2)).request_id
    begin_answered(bench, asked, epoch=3)
    assert not bench.reports
    asked = bench.outstanding(BeginQuorumEpoch, key(3)).request_id
    begin_answered(bench, asked, "UNKNOWN_LEADER_EPOCH", epoch=3)
    assert f"response of {key(3)} ignored: epoch 3, own epoch 4" in bench.reports


def test_a_voter_that_answers_is_not_backed_off_from_any_more() -> None:
    bench = leader()
    bench.fail(BeginQuorumEpoch, key(2))
    assert (key(2), BeginQuorumEpoch) in bench.node.core.requests.backoffs
    bench.wait(1000)
    begin_answered(bench, bench.outstanding(BeginQuorumEpoch, key(2)).request_id)
    assert (key(2), BeginQuorumEpoch) not in bench.node.core.requests.backoffs


def test_answers_that_come_when_the_epoch_is_over_are_not_looked_at() -> None:
    bench = leader()
    begun = bench.outstanding(BeginQuorumEpoch, key(2)).request_id
    bench.begin(3, 9)
    begin_answered(bench, begun, epoch=99)
    assert bench.node.epoch == 9
    bench = resigned()
    ended = bench.outstanding(EndQuorumEpoch, key(2)).request_id
    bench.begin(3, 9)
    end_answered(bench, ended, epoch=99)
    assert bench.node.epoch == 9


# -- being told of an epoch


def test_a_follower_that_is_told_of_its_leader_asks_nobody() -> None:
    for at in ((), endpoints(2), endpoints(66)):
        bench = follower()
        bench.all.clear()
        bench.begin(2, 3, endpoints=at, says_so=False)
        assert not bench.requests(Vote, bench.all)


def test_a_follower_without_contact_asks_a_leader_that_is_said_to_be_elsewhere() -> None:
    bench = follower(contact=False)
    bench.all.clear()
    for at in ((), endpoints(2)):
        bench.begin(2, 3, endpoints=at, says_so=False)
        assert not bench.requests(Vote, bench.all)
    bench.begin(2, 3, endpoints=endpoints(66), says_so=False)
    assert [question.to for question in bench.requests(Vote)] == [key(2)]
    assert bench.node.unconfirmed_endpoints_of(2) == endpoints(66)


def test_where_a_new_leader_is_says_nothing_of_the_former_one() -> None:
    bench = follower(contact=False)
    bench.begin(3, 9, endpoints=endpoints(66), says_so=False)
    assert [question.to for question in bench.requests(Vote)] == [key(3)]
    assert bench.node.unconfirmed_endpoints_of(3) == endpoints(66)


def test_who_tells_of_an_epoch_need_not_say_whom_it_means() -> None:
    answer = follower().begin(2, 3, voter=None)
    assert (answer.error, answer.top_level_error) == (None, None)


def test_the_first_id_and_the_first_epoch_are_possible_ones() -> None:
    bench = unattached()
    bench.begin(0, 4)
    assert (bench.node.leader_id, bench.node.epoch) == (0, 4)
    bench = fresh(1)
    assert bench.begin(2, 0).top_level_error is None
    assert (bench.node.leader_id, bench.node.epoch) == (2, 0)


@pytest.mark.parametrize(("leader_id", "epoch"), [(2, -1), (-1, 3), (-1, -1)])
def test_impossible_ids_and_epochs_are_refused(leader_id: int, epoch: int) -> None:
    for bench in (follower(), unattached()):
        for answer in (
            bench.begin(leader_id, epoch, says_so=False),
            bench.end(leader_id, epoch, says_so=False),
        ):
            assert (answer.error, answer.top_level_error) == (None, "UNKNOWN_SERVER_ERROR")


def test_why_an_announcement_is_refused_is_said() -> None:
    bench = follower()
    bench.begin(2, 3, cluster_id="other")
    assert "request of leader 2 refused: cluster other" in bench.reports
    bench.begin(7, EPOCH_LIMIT + 1, endpoints=())
    assert f"request of leader 7 refused: epoch {EPOCH_LIMIT + 1} is above" in bench.reports


# -- the end of an epoch


def test_a_voter_that_knows_of_the_end_is_not_told_again() -> None:
    bench = resigned()
    end_answered(bench, bench.outstanding(EndQuorumEpoch, key(2)).request_id)
    assert not bench.requests(EndQuorumEpoch)
    assert bench.node.core.state.unacknowledged == {key(3)}


def test_a_voter_that_refuses_to_hear_of_the_end_is_told_again() -> None:
    bench = resigned()
    asked = bench.outstanding(EndQuorumEpoch, key(2)).request_id
    end_answered(bench, asked, "INVALID_VOTER_KEY")
    assert not bench.requests(EndQuorumEpoch)
    assert [sent.to for sent in bench.requests(EndQuorumEpoch, bench.wait(20))] == [key(2)]


def test_the_voters_of_a_candidate_that_stops_need_not_answer() -> None:
    bench = candidate()
    bench.step(ResignationRequested("stopped", shutting_down=True))
    end_answered(bench, bench.outstanding(EndQuorumEpoch, key(2)).request_id)
    assert bench.role is Role.CANDIDATE


@pytest.mark.parametrize("make", [follower, unattached, candidate])
def test_the_end_of_a_candidacy_in_another_epoch_makes_nobody_hurry(
    make: Callable[[], Bench],
) -> None:
    bench = make()
    due_ms = election_deadline_ms(bench.node.core)
    epochs = (3,) if make is follower else (9,)
    for epoch in epochs:
        bench.end(None, epoch)
        assert election_deadline_ms(bench.node.core) == due_ms
