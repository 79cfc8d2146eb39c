"""Votes and pre-votes: who gets one, what is on disk before, and what hostile requests do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import (
    Fetch,
    PersistQuorumState,
    SendReply,
    Vote,
)
from quorumd.raft.events import (
    ConnectionMade,
    ConnectionRefused,
    LeaderHint,
    VoteResponseReceived,
)
from quorumd.raft.leader_discovery import EPOCH_LIMIT, EPOCH_STEP_LIMIT
from quorumd.raft.roles import Candidate, Role
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey
from tests.raft.harness import (
    BUILDERS,
    Bench,
    candidate,
    follower,
    key,
    leader,
    observer,
    prospective,
    unattached,
)

END = (3, 2)
"""The log end of every replica of these tests: three records, the last of epoch 2."""


# -- being asked for a vote


@pytest.mark.parametrize(
    ("last", "granted"),
    [((3, 2), True), ((4, 2), True), ((1, 3), True), ((2, 2), False), ((9, 1), False)],
)
def test_a_vote_needs_a_log_that_is_up_to_date(last: tuple[int, int], granted: bool) -> None:
    bench = unattached()
    assert bench.vote(key(2), 4, last).granted is granted
    assert bench.node.core.voted == (key(2) if granted else None)
    assert bench.node.epoch == 4


def test_a_granted_vote_is_on_disk_before_it_is_answered() -> None:
    bench = unattached()
    bench.vote(key(2), 4, END)
    state = bench.find(PersistQuorumState)[-1]
    answer = bench.find(SendReply)[-1]
    assert (state.epoch, state.voted, state.leader) == (4, key(2), None)
    assert answer.after == state.write
    assert bench.last.index(state) < bench.last.index(answer)


def test_one_vote_an_epoch_and_the_same_one_again() -> None:
    bench = unattached()
    assert bench.vote(key(2), 4, END).granted
    assert not bench.vote(key(3), 4, (99, 3)).granted
    assert not bench.vote(key(2, disk=1), 4, END).granted
    assert bench.vote(key(2), 4, END).granted
    assert not bench.vote(key(2), 3, END).granted


def test_a_vote_survives_a_restart() -> None:
    bench = unattached(stored=StoredState(epoch=4, voted=key(2)))
    assert not bench.vote(key(3), 4, (99, 3)).granted
    assert bench.vote(key(2), 4, END).granted


def test_a_stored_vote_without_uuid_is_good_for_its_id() -> None:
    bench = unattached(stored=StoredState(epoch=4, voted=ReplicaKey(2)))
    assert not bench.vote(key(3), 4, END).granted
    assert bench.vote(key(2), 4, END).granted


def test_a_vote_needs_no_membership() -> None:
    assert unattached().vote(key(7), 4, END).granted
    bench = observer()
    bench.wait(2000)
    assert not bench.vote(key(2), 4, END).granted
    bench.hinted(bench.outstanding(Vote, key(2)), LeaderHint(epoch=4))
    assert bench.vote(key(2), 4, END).granted


def test_a_lower_epoch_is_fenced_and_told_the_leader() -> None:
    answer = follower().vote(key(3), 2, (9, 1))
    assert (answer.error, answer.epoch, answer.leader_id) == ("FENCED_LEADER_EPOCH", 3, 2)
    assert answer.leader_endpoints


def test_who_knows_the_leader_of_the_epoch_does_not_vote_in_it() -> None:
    assert not follower().vote(key(3), 3, END).granted
    assert not observer().vote(key(3), 3, END).granted


@pytest.mark.parametrize("role", [Role.CANDIDATE, Role.LEADER, Role.RESIGNED])
def test_who_campaigns_or_led_does_not_vote_in_that_epoch(role: Role) -> None:
    bench = BUILDERS[role]()
    assert not bench.vote(key(3), bench.node.epoch, (99, 3)).granted


LED = (Role.LEADER, Role.FOLLOWER, Role.OBSERVER)


@pytest.mark.parametrize("role", Role)
def test_an_answer_of_a_higher_epoch_ends_every_role(role: Role) -> None:
    bench = BUILDERS[role]()
    bench.begin(3, 9, says_so=False)
    bench.hinted(bench.outstanding(Vote, key(3)), LeaderHint(epoch=9), "FENCED_LEADER_EPOCH")
    assert bench.node.epoch == 9
    assert bench.role is (Role.OBSERVER if role is Role.OBSERVER else Role.UNATTACHED)
    assert bench.node.leader is None
    assert bench.node.core.voted is None


@pytest.mark.parametrize("role", sorted(set(Role) - {Role.LEADER, Role.OBSERVER}))
def test_a_request_of_a_higher_epoch_ends_the_roles_of_those_without_a_leader(role: Role) -> None:
    bench = BUILDERS[role]() if role is not Role.FOLLOWER else follower(contact=False)
    bench.vote(key(3), 9, (0, 0))
    assert (bench.node.epoch, bench.role) == (9, Role.UNATTACHED)
    assert bench.node.leader is None
    assert bench.node.core.voted is None


@pytest.mark.parametrize("role", Role)
def test_nothing_speaks_of_an_epoch_before_it_is_on_disk(role: Role) -> None:
    bench = BUILDERS[role]()
    if role is Role.LEADER:
        bench.fetch(key(2), bench.node.core.log.end_offset, 4)
    seen = len(bench.all)
    bench.begin(3, 9, says_so=False)
    bench.hinted(bench.outstanding(Vote, key(3)), LeaderHint(epoch=9), "FENCED_LEADER_EPOCH")
    bench.vote(key(3), 9, (0, 0))
    bench.last = bench.all[seen:]
    write = bench.find(PersistQuorumState)[0].write
    answers = [answer for answer in bench.find(SendReply) if answer.reply.epoch == 9]
    assert answers
    assert all(answer.after >= write for answer in answers)
    requests = bench.requests(Fetch) + bench.requests(Vote)
    assert all(request.after >= write for request in requests if request.request.epoch == 9)


def test_a_vote_for_another_replica_is_not_answered_as_own() -> None:
    bench = unattached()
    answer = bench.vote(key(2), 4, END, voter=key(1, disk=1))
    assert (answer.error, answer.granted) == ("INVALID_VOTER_KEY", False)
    assert bench.node.epoch == 4
    assert bench.node.core.voted is None
    assert bench.vote(key(2), 4, END, voter=ReplicaKey(1)).granted
    assert bench.vote(key(2), 4, END, voter=None).granted


def test_a_foreign_cluster_is_refused_and_changes_nothing() -> None:
    bench = unattached()
    answer = bench.vote(key(2), 9, END, cluster_id="other")
    assert answer.top_level_error == "INCONSISTENT_CLUSTER_ID"
    assert bench.node.epoch == 3
    assert bench.vote(key(2), 9, END, cluster_id=None).granted


@pytest.mark.parametrize(
    ("who", "epoch", "last"),
    [
        (ReplicaKey(-1), 4, END),
        (key(1), 4, END),
        (ReplicaKey(1), 4, END),
        (key(2), 4, (-1, 2)),
        (key(2), 4, (3, -1)),
        (key(2), 4, (3, 4)),
        (key(2), -1, (0, 0)),
        (key(2), 2**31 - 1, END),
        (key(2), EPOCH_LIMIT + 1, END),
    ],
)
@pytest.mark.parametrize("role", Role)
def test_impossible_votes_are_refused_and_change_nothing(
    role: Role, who: ReplicaKey, epoch: int, last: tuple[int, int]
) -> None:
    bench = BUILDERS[role](local=key(1)) if role is not Role.OBSERVER else observer()
    if role is Role.OBSERVER and who.id == 1:
        return
    before = bench.node.core.capture()
    answer = bench.vote(who, epoch, last)
    assert answer.top_level_error == "UNKNOWN_SERVER_ERROR"
    assert not answer.granted
    assert bench.node.core.capture() == before


def test_one_request_cannot_use_up_the_epochs() -> None:
    bench = unattached(stored=StoredState(epoch=EPOCH_LIMIT - 1, applied_offset=2))
    assert bench.vote(key(2), EPOCH_LIMIT, END).granted
    assert bench.vote(key(3), EPOCH_LIMIT + 1, END).granted
    assert bench.vote(key(3), EPOCH_LIMIT + 2 + EPOCH_STEP_LIMIT, END).top_level_error
    bench.sync()
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    bench.grant(key(2))
    assert (bench.role, bench.node.epoch) == (Role.CANDIDATE, EPOCH_LIMIT + 2)


def test_the_last_epoch_of_all_is_never_left() -> None:
    bench = prospective(stored=StoredState(epoch=2**31 - 2))
    bench.grant(key(2))
    assert bench.role is not Role.CANDIDATE
    assert "the last" in bench.reports
    bench.wait(3000)


# -- being asked for a pre-vote


@pytest.mark.parametrize("role", [Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE, Role.RESIGNED])
def test_a_pre_vote_is_granted_without_contact_to_a_leader(role: Role) -> None:
    bench = BUILDERS[role]()
    before, (end, epoch) = bench.node.core.capture(), bench.node.core.log.end
    assert bench.pre_vote(key(2), bench.node.epoch, (end, epoch)).granted
    assert not bench.pre_vote(key(2), bench.node.epoch, (end - 1, epoch)).granted
    assert bench.node.core.capture() == before
    assert not bench.find(PersistQuorumState)


def test_a_leader_refuses_pre_votes() -> None:
    assert not leader().pre_vote(key(2), 4, (99, 4)).granted


def test_a_pre_vote_is_refused_while_in_contact_with_the_leader() -> None:
    bench = follower()
    assert not bench.pre_vote(key(3), 3, END).granted
    bench.now_ms += 1999
    assert not bench.pre_vote(key(3), 3, END).granted
    bench.now_ms += 1
    assert bench.pre_vote(key(3), 3, END).granted


def test_a_pre_vote_is_granted_before_the_first_contact() -> None:
    assert follower(contact=False).pre_vote(key(3), 3, END).granted


def test_a_pre_vote_is_granted_once_the_leaders_process_is_gone() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=3))
    assert not bench.pre_vote(key(3), 3, END).granted
    bench.step(ConnectionRefused(id=2))
    assert bench.pre_vote(key(3), 3, END).granted
    bench.step(ConnectionMade(id=2))
    assert not bench.pre_vote(key(3), 3, END).granted


def test_an_observer_in_contact_refuses_pre_votes() -> None:
    bench = observer()
    assert bench.pre_vote(key(3), 3, END).granted
    bench.fetched()
    assert not bench.pre_vote(key(3), 3, END).granted


def test_a_pre_vote_of_a_higher_epoch_is_followed_into_it() -> None:
    bench = follower(contact=False)
    assert bench.pre_vote(key(3), 5, END).granted
    assert (bench.node.epoch, bench.role) == (5, Role.UNATTACHED)


# -- asking


def test_a_silent_leader_leads_to_pre_votes_in_the_same_epoch() -> None:
    bench = follower()
    bench.wait(2024)
    assert bench.role is Role.FOLLOWER
    bench.wait(1)
    assert bench.role is Role.PROSPECTIVE
    assert bench.node.leader == key(2)
    asked = bench.requests(Vote, bench.all)
    assert {e.to for e in asked} == {key(2), key(3)}
    assert all(e.request == Vote(epoch=3, last=OffsetAndEpoch(*END), pre_vote=True) for e in asked)


def test_the_leader_is_fetched_from_all_the_while_and_its_answer_ends_the_campaign() -> None:
    bench = follower()
    bench.wait(2025)
    bench.fetched()
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, key(2))
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000


def test_a_candidate_asks_only_when_its_vote_is_on_disk() -> None:
    bench = prospective()
    bench.grant(key(2))
    state = bench.find(PersistQuorumState)[-1]
    assert (state.epoch, state.voted, state.leader) == (4, key(1), None)
    votes = bench.requests(Vote)
    assert {e.to for e in votes} == {key(2), key(3)}
    assert all(e.after == state.write and not e.request.pre_vote for e in votes)


def test_the_own_vote_counts_when_it_is_on_disk() -> None:
    bench = prospective()
    bench.grant(key(2))
    bench.grant(key(2))
    assert bench.role is Role.CANDIDATE
    bench.sync()
    assert bench.role is Role.LEADER


def test_a_majority_of_others_does_without_the_own_vote() -> None:
    bench = prospective()
    bench.grant(key(2))
    bench.grant(key(2))
    bench.grant(key(3))
    assert bench.role is Role.LEADER


def test_five_voters_need_three_votes() -> None:
    bench = candidate(5)
    bench.grant(key(2))
    assert bench.role is Role.CANDIDATE
    bench.grant(key(5))
    assert bench.role is Role.LEADER


def test_a_lost_candidacy_is_tried_again_soon_by_pre_vote() -> None:
    bench = candidate()
    bench.grant(key(2), granted=False)
    bench.grant(key(3), granted=False)
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline - bench.now_ms <= 50
    bench.fire()
    assert (bench.role, bench.node.epoch) == (Role.PROSPECTIVE, 4)


def test_lost_campaigns_back_off_up_to_the_bound() -> None:
    bench = unattached(draw=lambda bound: bound - 1)
    delays = []
    for _ in range(8):
        while bench.role is not Role.PROSPECTIVE:
            start = bench.now_ms
            bench.fire()
        delays.append(bench.now_ms - start)
        bench.grant(key(2), granted=False)
        bench.grant(key(3), granted=False)
        assert bench.role is Role.UNATTACHED
    assert delays[1:] == [49, 99, 199, 399, 799, 999, 999]


def test_answers_of_another_epoch_or_round_do_not_count() -> None:
    bench = prospective()
    asked = bench.outstanding(Vote, key(3))
    bench.grant(key(2))
    answer = VoteResponseReceived(
        request_id=asked.request_id, error=None, hint=LeaderHint(epoch=3), granted=True
    )
    bench.sync()
    bench.step(answer)
    assert bench.role is Role.CANDIDATE


def test_an_answer_with_a_higher_epoch_ends_the_campaign() -> None:
    bench = candidate()
    asked = bench.outstanding(Vote, key(2))
    bench.step(
        VoteResponseReceived(
            request_id=asked.request_id,
            error="FENCED_LEADER_EPOCH",
            hint=LeaderHint(epoch=7, leader_id=3),
            granted=False,
        )
    )
    assert (bench.role, bench.node.epoch, bench.node.leader) == (Role.FOLLOWER, 7, key(3))


def test_a_voter_without_pre_vote_makes_a_candidate_at_once() -> None:
    bench = prospective()
    bench.fail(Vote, key(2), error="UNSUPPORTED_VERSION")
    assert bench.role is Role.CANDIDATE


def test_only_an_unsupported_vote_says_that_pre_vote_is_unknown() -> None:
    bench = follower()
    bench.wait(2025)
    assert bench.role is Role.PROSPECTIVE
    bench.fail(Fetch, key(2), error="UNSUPPORTED_VERSION")
    assert bench.role is Role.PROSPECTIVE


def test_unreachable_voters_are_asked_again_with_backoff() -> None:
    bench = prospective()
    times = []
    for _ in range(4):
        bench.fail(Vote, key(2))
        start = bench.now_ms
        while not any(e.to == key(2) for e in bench.requests(Vote)):
            bench.fire()
        times.append(bench.now_ms - start)
    assert times == [20, 40, 80, 160]


def test_a_refused_fetch_does_not_keep_a_vote_back() -> None:
    bench = unattached()
    for _ in range(6):
        bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3), to=key(2))
        bench.wait(1000 if _ == 5 else 20 * 2**_)
        if bench.role is Role.PROSPECTIVE:
            break
    assert key(2) in {e.to for e in bench.requests(Vote, bench.all)}
    assert bench.outstanding(Vote, key(2))


def test_a_peer_that_is_back_is_asked_at_once() -> None:
    bench = prospective()
    for _ in range(5):
        bench.fail(Vote, key(2))
        while not any(e.to == key(2) for e in bench.requests(Vote)):
            bench.fire()
    bench.step(ConnectionRefused(id=2))
    bench.fail(Vote, key(2))
    bench.step(ConnectionMade(id=2))
    assert [e.to for e in bench.requests(Vote)] == [key(2)]


# -- a refusal is not for ever


def test_a_split_vote_is_tried_again_soon_when_the_third_voter_cannot_be_asked() -> None:
    bench = candidate()
    bench.fail(Vote, key(3))
    bench.grant(key(2), granted=False)
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline - bench.now_ms < 50


def test_a_split_vote_is_tried_again_soon_when_the_third_voter_fails_later() -> None:
    bench = candidate()
    bench.grant(key(2), granted=False)
    bench.fail(Vote, key(3))
    assert bench.node.core.state.deadline_ms - bench.now_ms < 150


@pytest.mark.parametrize("start", [prospective, candidate])
def test_after_a_refusal_the_other_answers_are_waited_for_only_briefly(
    start: Callable[[], Bench],
) -> None:
    bench = start()
    bench.grant(key(2), granted=False)
    assert 100 <= bench.node.core.state.deadline_ms - bench.now_ms < 150
    bench.grant(key(3))
    assert bench.role is (Role.CANDIDATE if start is prospective else Role.LEADER)


def test_silence_alone_does_not_end_a_round() -> None:
    bench = candidate()
    bench.fail(Vote, key(2))
    bench.fail(Vote, key(3))
    assert bench.node.core.state.deadline_ms - bench.now_ms >= 1000


def test_a_voter_that_lost_its_leader_later_is_asked_again_at_once() -> None:
    """The other's log is shorter: only this replica can win, and must not wait for a new round."""
    bench = follower()
    bench.wait(2025)
    bench.grant(key(3), granted=False)
    assert bench.role is Role.PROSPECTIVE
    assert not bench.pre_vote(key(3), 3, (2, 2)).granted
    assert [e.to for e in bench.requests(Vote)] == [key(3)]
    bench.grant(key(3))
    assert bench.role is Role.CANDIDATE


def test_a_better_candidate_campaigns_soon_when_a_worse_one_asks() -> None:
    bench = follower(contact=False)
    assert not bench.pre_vote(key(3), 3, (2, 2)).granted
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline - bench.now_ms < 50


def test_a_replica_in_contact_ignores_that_a_worse_one_asks() -> None:
    bench = follower()
    bench.pre_vote(key(3), 3, (2, 2))
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000


def test_a_voter_whose_candidate_died_does_not_wait_for_its_timeout() -> None:
    bench = unattached()
    assert bench.vote(key(2), 4, END).granted
    bench.step(ConnectionRefused(id=2))
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline - bench.now_ms < 50


# -- signs of life


def test_the_death_of_the_leaders_process_starts_a_campaign_within_50_ms() -> None:
    bench = follower(draw=lambda bound: bound - 1)
    bench.step(ConnectionRefused(id=2))
    assert bench.role is Role.FOLLOWER
    bench.wait(49)
    assert bench.role is Role.PROSPECTIVE


def test_a_leader_that_is_back_is_waited_for_as_usual() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.step(ConnectionMade(id=2))
    bench.wait(1900)
    assert bench.role is Role.FOLLOWER


def test_the_death_of_another_voter_changes_nothing() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=3))
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000


def test_a_majority_without_leader_campaigns_within_50_ms() -> None:
    bench = unattached()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3), to=key(3))
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline - bench.now_ms < 50


def test_an_answer_of_somebody_else_counts_as_none() -> None:
    """With the refusal of the third voter that ends the round, as a connection that failed does."""
    bench = candidate()
    bench.grant(key(3), granted=False)
    request = bench.outstanding(Vote, key(2))
    hint = LeaderHint(epoch=4)
    before = bench.node.next_deadline_ms()
    bench.step(
        VoteResponseReceived(
            request_id=request.request_id, error="INVALID_VOTER_KEY", hint=hint, granted=False
        )
    )
    state = bench.node.core.state
    assert isinstance(state, Candidate)
    assert state.is_lost
    after = bench.node.next_deadline_ms()
    assert before is not None
    assert after is not None
    assert after <= before


def test_who_has_voted_waits_for_its_candidate_although_nobody_knows_a_leader_yet() -> None:
    """A leader that handed over must not take leadership back from its successor."""
    bench = unattached()
    assert bench.vote(key(2), 4, (3, 2)).granted
    bench.sync()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=4), to=key(3))
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    bench.wait(900)
    assert bench.role is Role.UNATTACHED


def test_who_has_refused_a_candidate_waits_for_it_although_nobody_knows_a_leader_yet() -> None:
    """Others may have voted for it. A leader that made way with records that only it has must not take
    leadership back from its successor."""
    bench = unattached()
    assert not bench.vote(key(2), 4, (2, 2)).granted
    bench.sync()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=4), to=key(3))
    bench.wait(900)
    assert bench.role is Role.UNATTACHED


def test_five_voters_need_two_that_know_no_leader_either() -> None:
    bench = unattached(5)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3), to=key(3))
    assert bench.node.core.state.election_deadline_ms - bench.now_ms > 50
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3), to=key(4))
    assert bench.node.core.state.election_deadline_ms - bench.now_ms < 50


def test_a_voter_whose_answers_take_long_is_waited_for_in_the_end() -> None:
    """The other one refuses at once, round after round."""
    bench = prospective(draw=lambda bound: bound - 1)
    waited = []
    for _ in range(6):
        begun_ms = bench.now_ms
        bench.grant(key(2), granted=False)
        bench.wait(bench.node.core.state.deadline_ms - bench.now_ms - 1)
        assert bench.role is Role.PROSPECTIVE
        waited.append(bench.now_ms + 1 - begun_ms)
        bench.fire()
        while bench.role is not Role.PROSPECTIVE:
            bench.fire()
    assert waited[:4] == [100, 200, 400, 800]
    assert waited[4:] == [1600, 1999]
