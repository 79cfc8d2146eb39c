"""What an answer of the leader proves, and what one of somebody else does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import Fetch, Vote
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import ConnectionRefused, LeaderHint, VoteResponseReceived
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch
from tests.raft.harness import Bench, candidate, config_of, follower, key, prospective, unattached

NO_LEADER = LeaderHint(epoch=3, leader_id=None)


def refuse(bench: Bench) -> None:
    """The leader answers that it does not lead."""
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", to=key(2))


@pytest.mark.parametrize(
    ("is_kafka_log", "is_witness", "contact_ms"),
    [(True, True, 1500), (True, False, 2000), (False, True, 2000), (False, False, 2000)],
)
def test_only_a_witness_beside_kafka_misses_its_leader_before_the_fetch_timeout(
    is_kafka_log: bool, is_witness: bool, contact_ms: int
) -> None:
    config = config_of(is_kafka_log=is_kafka_log, is_witness=is_witness)
    assert config.fetch_timeout_ms == 2000
    assert config.leader_contact_ms == contact_ms


def test_a_leader_that_answers_again_after_it_refused_leads() -> None:
    bench = follower()
    refuse(bench)
    assert not bench.node.core.has_leader_contact
    bench.wait(20)
    bench.fetched(to=key(2))
    assert bench.node.core.has_leader_contact


def test_a_leader_that_answers_after_its_address_refused_is_waited_for_as_long_as_ever() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    assert not bench.node.core.has_leader_contact
    bench.fetched(to=key(2))
    assert bench.node.core.has_leader_contact
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000


def test_only_the_leader_that_answers_is_there_again() -> None:
    bench = follower()
    bench.step(ConnectionRefused(id=2))
    bench.step(ConnectionRefused(id=3))
    bench.fetched(to=key(2))
    assert bench.node.core.connections.unreachable == {3}


def test_a_leader_found_on_disk_is_not_waited_for_any_more_once_it_has_answered() -> None:
    """What counts from then on is what it says: here, that it leads no more."""
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    assert bench.node.core.is_led
    bench.fetched(to=key(2))
    refuse(bench)
    assert not bench.node.core.is_led
    assert bench.pre_vote(key(3), 3, (3, 2)).granted


def test_who_does_not_say_that_it_leads_commits_nothing() -> None:
    for bench in (unattached(), follower()):
        before = bench.node.high_watermark
        bench.fetched(hint=NO_LEADER, high_watermark=3, to=key(2))
        assert f"fetch response of {key(2)} ignored: it does not lead" in bench.reports
        assert bench.node.high_watermark == before
        assert not [sent for sent in bench.requests(Fetch) if sent.to == key(2)], "it backs off"


def test_a_follower_whose_leader_fails_twice_asks_the_other_voters_as_well() -> None:
    bench = follower()
    bench.fail(Fetch, key(2))
    assert not bench.requests(Fetch)
    bench.wait(20)
    assert [sent.to for sent in bench.requests(Fetch)] == [key(2)]
    bench.fail(Fetch, key(2))
    assert [sent.to for sent in bench.requests(Fetch)] == [key(3)]


def test_a_follower_that_knows_of_nothing_committed_says_so() -> None:
    request = follower().outstanding(Fetch).request
    assert isinstance(request, Fetch)
    assert request.high_watermark == -1


def test_a_leader_that_truncates_nothing_is_not_asked_again_at_once() -> None:
    bench = follower()
    end = OffsetAndEpoch(3, 2)
    assert bench.node.core.log.end == end
    bench.fetched(diverging=end)
    assert "asks to truncate to the present end 3" in bench.reports
    assert not bench.requests(Fetch)
    bench.wait(20)
    assert bench.requests(Fetch)


def test_records_of_a_former_epoch_are_not_taken() -> None:
    bench = follower()
    bench.fetched(hint=LeaderHint(epoch=2, leader_id=2), epochs=[3], high_watermark=4)
    assert f"response of {key(2)} ignored: epoch 2, own epoch 3" in bench.reports
    assert bench.node.core.log.end == OffsetAndEpoch(3, 2)
    assert not bench.requests(Fetch), "it backs off"
    bench.wait(20)
    assert bench.requests(Fetch)


def test_a_vote_of_a_former_epoch_does_not_count() -> None:
    bench = candidate()
    for voter in (key(2), key(3)):
        request_id = bench.outstanding(Vote, voter).request_id
        hint = LeaderHint(epoch=3)
        bench.step(VoteResponseReceived(request_id=request_id, error=None, hint=hint, granted=True))
    assert bench.role is Role.CANDIDATE


@pytest.mark.parametrize("make", [unattached, prospective])
def test_a_later_epoch_does_not_put_off_the_own_election(make: Callable[[], Bench]) -> None:
    """A replica that goes from epoch to epoch must not keep the others from an election."""
    bench = make()
    due_ms = election_deadline_ms(bench.node.core)
    bench.now_ms += 100
    told = LeaderHint(epoch=9)
    if make is unattached:
        bench.fetched(error="FENCED_LEADER_EPOCH", hint=told, to=key(2))
    else:
        question = bench.outstanding(Vote, key(2)).request_id
        error = "FENCED_LEADER_EPOCH"
        bench.step(VoteResponseReceived(request_id=question, error=error, hint=told, granted=False))
    assert (bench.role, bench.node.epoch) == (Role.UNATTACHED, 9)
    assert election_deadline_ms(bench.node.core) == due_ms


def test_a_new_leader_knows_of_nothing_committed_until_a_record_of_its_epoch_is() -> None:
    """What it knew as a follower is no reason to change voters, or to answer (KIP-595)."""
    bench = follower()
    bench.fetched(high_watermark=3)
    assert bench.node.high_watermark == 3
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    bench.grant(key(3))
    bench.sync()
    bench.grant(key(3))
    assert bench.role is Role.LEADER
    assert bench.node.high_watermark is None


def test_a_response_of_an_older_epoch_says_nothing_of_the_next_leader() -> None:
    bench = follower()
    bench.fetched(hint=LeaderHint(epoch=2, leader_id=2))
    assert bench.node.status().older_epoch == 2
    bench.begin(3, 4)
    assert bench.node.leader == key(3)
    assert bench.node.status().older_epoch is None
