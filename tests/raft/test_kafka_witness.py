"""A witness beside Kafka's controllers: it votes, leads for a hand-over only, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumd.raft.campaign import become_prospective
from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    AppendClient,
    AppendControl,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    FetchReply,
    PersistQuorumState,
    SendReply,
    SendRequest,
    UpdateVoter,
    Vote,
)
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    AddVoterRequested,
    ConnectionLost,
    ConnectionRefused,
    LeaderHint,
    ReassignmentRequested,
    RemoveVoterRequested,
    ResignationRequested,
    TransferRequested,
    UpdateVoterRequested,
    VoterChangeResponseReceived,
)
from quorumd.raft.invariants import InvariantViolation
from quorumd.raft.log_view import LogView
from quorumd.raft.roles import Role
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from tests.raft.changes import FREE, changed
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
    follower,
    key,
    keyed_set,
    log_of,
    unattached,
    voter_set,
)

WITNESS = {"is_kafka_log": True, "is_witness": True, **FREE}
BEHIND = (2, 1)
"""A log end, (offset, epoch), that lacks the last record of a witness."""


def witness(size: int = 3, **more: object) -> Bench:
    """Replica 1 follows 2, which has answered; its log ends at 3 in epoch 2."""
    return follower(size, **({**WITNESS} | more))


def lost(size: int = 3, **more: object) -> Bench:
    """Its leader is gone."""
    bench = witness(size, **more)
    bench.step(ConnectionLost(id=2))
    return bench


def leading() -> Bench:
    """It holds a record that 3 lacks, has been elected by 3, and leads epoch 4."""
    bench = lost()
    assert not bench.pre_vote(key(3), 3, BEHIND).granted
    return elected(bench)


def elected(bench: Bench) -> Bench:
    """It campaigns, and 3 votes for it."""
    while bench.role is Role.FOLLOWER:
        bench.fire()
    bench.grant(key(3))
    bench.sync()
    bench.grant(key(3))
    bench.sync()
    assert bench.role is Role.LEADER
    return bench


def votes(bench: Bench) -> list[SendRequest]:
    """Votes asked for, but for what its leader was asked: whether it leads."""
    return [request for request in bench.requests(Vote, bench.all) if request.to != key(2)]


def test_it_grants_votes_as_any_voter_and_its_vote_is_on_disk_first() -> None:
    bench = lost()
    end = bench.node.core.log.end
    assert bench.pre_vote(key(3), 3, end).granted
    assert not bench.find(PersistQuorumState)
    bench.vote(key(3), 4, end)
    (answer,) = bench.find(SendReply)
    assert answer.after == bench.find(PersistQuorumState)[-1].write


def test_it_misses_the_leader_a_quarter_of_the_fetch_timeout_before_a_kafka_voter_does() -> None:
    bench = witness()
    end = bench.node.core.log.end
    bench.wait(1400)
    assert not bench.pre_vote(key(3), 3, end).granted
    bench.wait(200)
    assert bench.pre_vote(key(3), 3, end).granted
    assert bench.vote(key(3), 4, end).granted


def test_it_does_not_campaign_while_nobody_was_behind() -> None:
    bench = lost()
    bench.wait(60_000)
    assert not votes(bench)
    with pytest.raises(InvariantViolation, match="needless campaign"):
        become_prospective(bench.node.core, Trigger.LEADER_SILENT)


def test_it_leads_if_it_alone_has_a_record_and_hands_over_without_one_of_its_own() -> None:
    bench = leading()
    before = bench.node.core.log.end
    (begun,) = [r for r in bench.requests(BeginQuorumEpoch, bench.all) if r.to == key(3)]
    assert begun.request == BeginQuorumEpoch(epoch=4)
    answer = bench.fetch(key(3), *BEHIND)
    assert isinstance(answer, FetchReply)
    assert (answer.read_from, answer.high_watermark) == (2, None)
    assert bench.role is Role.LEADER
    bench.fetch(key(3), *before)
    assert bench.role is Role.RESIGNED
    ends = [r for r in bench.requests(EndQuorumEpoch, bench.all) if r.to == key(3)]
    assert ends[-1].request.successors[0] == key(3)
    assert bench.node.core.log.end == before
    assert not bench.find_all(AppendControl) + bench.find_all(AppendClient)
    # The one that has everything now is elected.
    assert bench.pre_vote(key(3), 4, before).granted
    assert bench.vote(key(3), 5, before).granted


def leading_beside_another_witness() -> Bench:
    """4 is one: it has everything, and never asks for votes. 3 lacks a record, and has asked."""
    bench = lost(4)
    while not votes(bench):
        assert not bench.pre_vote(key(3), 3, BEHIND).granted
        bench.wait(500)
    for _ in range(2):
        bench.grant(key(3))
        bench.grant(key(4))
        bench.sync()
    assert bench.role is Role.LEADER
    return bench


def test_it_hands_over_to_a_voter_that_asked_for_votes_and_not_to_another_witness() -> None:
    bench = leading_beside_another_witness()
    end = bench.node.core.log.end
    bench.fetch(key(4), *end)
    assert bench.role is Role.LEADER
    bench.fetch(key(3), *BEHIND)
    assert bench.role is Role.LEADER
    bench.fetch(key(3), *end)
    assert bench.role is Role.RESIGNED
    ends = [r for r in bench.requests(EndQuorumEpoch, bench.all) if r.to == key(3)]
    assert ends[-1].request.successors[0] == key(3)


def test_it_hands_over_to_any_voter_when_the_one_that_asked_is_gone_or_falls_silent() -> None:
    bench = leading_beside_another_witness()
    bench.node.core.connections.unreachable.add(3)
    bench.fetch(key(4), *bench.node.core.log.end)
    assert bench.role is Role.RESIGNED
    bench = leading_beside_another_witness()
    for _ in range(4):
        assert bench.role is Role.LEADER
        bench.fetch(key(4), *bench.node.core.log.end)
        bench.wait(500)
    bench.fetch(key(4), *bench.node.core.log.end)
    assert bench.role is Role.RESIGNED


def test_it_says_no_high_watermark_while_it_leads() -> None:
    """A lower one than Kafka's former leader has said would end the follower (Fetch, rule HW)."""
    bench = leading()
    bench.fetch(key(3), *BEHIND)
    bench.fetch(key(2), *BEHIND)
    answers = [e.reply for e in bench.find_all(SendReply) if isinstance(e.reply, FetchReply)]
    assert [answer.high_watermark for answer in answers] == [None] * len(answers)
    assert len(answers) > 1


def test_a_log_that_diverges_is_cut_at_a_point_that_both_have() -> None:
    bench = leading()
    answer = bench.fetch(key(3), 5, 1)
    assert isinstance(answer, FetchReply)
    assert answer.diverging == (2, 1)
    assert answer.read_from is None


def test_it_waits_for_each_voter_within_reach_before_it_campaigns() -> None:
    bench = lost(4)
    bench.pre_vote(key(3), 3, BEHIND)
    bench.wait(2_000)
    assert not votes(bench)
    bench.pre_vote(key(4), 3, BEHIND)
    bench.wait(100)
    assert {request.to for request in votes(bench)} >= {key(3), key(4)}


def test_it_leaves_it_to_a_voter_that_lacks_nothing() -> None:
    bench = lost(4)
    bench.pre_vote(key(3), 3, BEHIND)
    assert bench.pre_vote(key(4), 3, bench.node.core.log.end).granted
    for _ in range(3):
        bench.pre_vote(key(3), 3, BEHIND)
        bench.wait(900)
    assert not votes(bench)


def must_lead(bench: Bench, last: tuple[int, int]) -> bool:
    """Once 3 has asked, with this end of its log, whether it would be elected."""
    bench.pre_vote(key(3), 3, last)
    return bench.node.core.witness.must_lead


def test_a_voter_that_has_caught_up_is_behind_no_more() -> None:
    bench = lost()
    assert must_lead(bench, BEHIND)
    assert not must_lead(bench, tuple(bench.node.core.log.end))


def test_one_that_lacks_nothing_is_no_reason_to_lead() -> None:
    bench = lost()
    assert not must_lead(bench, tuple(bench.node.core.log.end))


def test_without_a_former_leader_every_other_voter_is_waited_for() -> None:
    bench = unattached(**WITNESS)
    assert not must_lead(bench, BEHIND)
    bench.pre_vote(key(2), 3, BEHIND)
    assert bench.node.core.witness.must_lead


def test_a_voter_that_was_behind_before_the_leader_answered_again_has_to_ask_again() -> None:
    bench = lost(4)
    bench.pre_vote(key(3), 3, BEHIND)
    bench.fetched(after_ms=1)
    bench.step(ConnectionLost(id=2))
    bench.pre_vote(key(4), 3, BEHIND)
    assert not bench.node.core.witness.must_lead
    assert must_lead(bench, BEHIND)


def test_a_voter_that_was_behind_in_an_earlier_epoch_has_to_ask_again() -> None:
    bench = unattached(4, **WITNESS)
    bench.pre_vote(key(3), 3, BEHIND)
    bench.begin(2, 4)
    bench.step(ConnectionLost(id=2))
    bench.pre_vote(key(4), 4, BEHIND)
    assert not bench.node.core.witness.must_lead
    bench.pre_vote(key(3), 4, BEHIND)
    assert bench.node.core.witness.must_lead


def test_the_leader_that_was_lost_is_not_waited_for_epochs_later() -> None:
    bench = witness(4)
    bench.wait(1_600)
    bench.vote(key(3), 4, BEHIND)
    bench.vote(key(4), 5, BEHIND)
    assert not bench.node.core.witness.must_lead
    bench.pre_vote(key(3), 5, BEHIND)
    assert bench.node.core.witness.must_lead


def test_the_leader_that_was_lost_is_not_waited_for_after_the_witness_led_itself() -> None:
    bench = witness()
    bench.wait(1_600)
    bench.pre_vote(key(3), 3, BEHIND)
    bench = elected(bench)
    bench.step(ResignationRequested("no majority fetches", shutting_down=False))
    assert bench.role is Role.RESIGNED
    bench.vote(key(3), 5, BEHIND)
    assert bench.node.epoch == 5
    assert bench.node.core.witness.must_lead


def test_a_campaign_that_is_lost_is_repeated_in_the_epoch_that_it_began() -> None:
    bench = lost()
    bench.pre_vote(key(3), 3, BEHIND)
    while bench.role is Role.FOLLOWER:
        bench.fire()
    bench.grant(key(3))
    bench.sync()
    bench.grant(key(3), granted=False)
    assert bench.role is Role.CANDIDATE
    bench.fire()
    assert (bench.role, bench.node.epoch) == (Role.PROSPECTIVE, 4)


def test_a_voter_that_refuses_connections_is_not_waited_for() -> None:
    bench = lost(4)
    assert not must_lead(bench, BEHIND)
    bench.step(ConnectionRefused(id=4))
    assert must_lead(bench, BEHIND)


def test_a_voter_that_says_nothing_is_waited_for_until_others_have_asked_twice() -> None:
    bench = lost(4)
    config = bench.node.config
    patience_ms = config.fetch_timeout_ms + 2 * config.election_timeout_ms
    assert not must_lead(bench, BEHIND)
    bench.now_ms += patience_ms + config.election_backoff_max_ms - 1
    assert not must_lead(bench, BEHIND)
    bench.now_ms += 1
    assert must_lead(bench, BEHIND)


def test_it_does_not_wait_for_ever_for_a_voter_that_says_nothing() -> None:
    bench = lost(5)
    for _ in range(8):
        bench.pre_vote(key(3), 3, BEHIND)
        bench.pre_vote(key(4), 3, BEHIND)
        bench.wait(900)
    assert votes(bench)


def test_a_leader_that_answers_again_ends_the_reason_to_campaign() -> None:
    bench = witness()
    bench.wait(1_600)
    bench.pre_vote(key(3), 3, BEHIND)
    bench.fetched()
    bench.wait(30_000)
    assert not votes(bench)


def test_a_stranger_does_not_make_it_campaign() -> None:
    bench = lost()
    bench.pre_vote(key(7), 3, BEHIND)
    bench.wait(30_000)
    assert not votes(bench)


def test_a_leader_that_is_not_known_any_more_is_not_waited_for() -> None:
    """A candidate without pre-vote (Kafka 3.9) ends the epoch before it is refused."""
    bench = witness()
    bench.wait(1_600)
    assert not bench.vote(key(3), 4, BEHIND).granted
    bench.wait(3_000)
    assert votes(bench)


def test_who_took_office_for_a_hand_over_makes_no_change() -> None:
    bench = leading()
    new = Voter(key(9), endpoints(9))
    moved = Voter(key(3), (Endpoint("CONTROLLER", "elsewhere", 1),))
    asked = (
        changed(bench, AddVoterRequested, cluster_id=CLUSTER, voter=new, timeout_ms=9),
        changed(bench, RemoveVoterRequested, cluster_id=CLUSTER, key=key(3), timeout_ms=9),
        changed(bench, UpdateVoterRequested, cluster_id=CLUSTER, epoch=4, voter=moved),
        changed(bench, TransferRequested, cluster_id=CLUSTER, to=key(3), timeout_ms=9),
        changed(bench, ReassignmentRequested, target=(2, 3), timeout_ms=9),
    )
    assert {reply and reply.error for reply in asked} == {KafkaError.NOT_LEADER_OR_FOLLOWER}
    assert not bench.find_all(AppendControl)


def test_one_that_stops_hands_over_and_a_candidate_says_nothing() -> None:
    bench = leading()
    bench.step(ResignationRequested("stop", shutting_down=True))
    assert bench.requests(EndQuorumEpoch)
    bench = lost()
    bench.pre_vote(key(3), 3, BEHIND)
    while bench.role is Role.FOLLOWER:
        bench.fire()
    bench.step(ResignationRequested("stop", shutting_down=True))
    assert not bench.requests(EndQuorumEpoch, bench.all)


def test_a_kafka_node_is_never_asked_under_its_own_id() -> None:
    """That, and a FetchSnapshot, would end it: a leader with the id of this node is not followed."""
    bench = witness()
    asked = len(votes(bench))
    bench.begin(1, 4, endpoints=(Endpoint("CONTROLLER", "elsewhere", 1),))
    assert len(votes(bench)) == asked == 0
    bench.fetched(
        hint=LeaderHint(epoch=4, leader_id=1, endpoints=(Endpoint("CONTROLLER", "elsewhere", 1),))
    )
    assert bench.node.leader == key(2)


# -- what the leader is told


def updates(bench: Bench) -> list[SendRequest]:
    return bench.requests(UpdateVoter, bench.all)


def test_the_leader_is_told_where_a_witness_is_if_the_voter_set_says_otherwise() -> None:
    moved = (Endpoint("CONTROLLER", "elsewhere", 9093),)
    bench = witness(endpoints=moved)
    (update,) = updates(bench)
    assert update.request == UpdateVoter(epoch=3, endpoints=moved)
    assert not updates(witness())


def test_endpoints_in_another_order_are_no_news() -> None:
    at = (Endpoint("CONTROLLER", "host1", 9093), Endpoint("OTHER", "host1", 9094))
    voters = VoterSet.of([Voter(key(1), at[::-1]), *voter_set(2, 3)])
    bench = witness(endpoints=at, log=log_of(1, 1, 2, voters=voters))
    bench.fetched(after_ms=3000)
    assert not updates(bench)


def test_a_voter_set_without_its_kraft_version_is_corrected() -> None:
    voters = VoterSet.of([Voter(key(1), endpoints(1), 0, 0), *voter_set(2, 3)])
    assert updates(witness(log=log_of(1, 1, 2, voters=voters)))


def test_a_voter_set_with_a_later_kraft_version_is_right() -> None:
    voters = VoterSet.of([Voter(key(1), endpoints(1), 0, 2), *voter_set(2, 3)])
    assert not updates(witness(log=log_of(1, 1, 2, voters=voters)))


def test_a_voter_that_configuration_makes_no_witness_tells_a_kafka_leader_nothing() -> None:
    moved = (Endpoint("CONTROLLER", "elsewhere", 9093),)
    assert not updates(witness(is_witness=False, endpoints=moved))


# -- kraft.version 0: the log names no voters


STATIC = {"configured_voters": voter_set(1, 2, 3, by_id=True)}


def static_log() -> LogView:
    return LogView(0, 3, 3, [(1, 0), (2, 2)], [])


def static(**more: object) -> Bench:
    return witness(**STATIC | more, log=static_log())


@pytest.mark.parametrize(
    ("error", "times"), [(None, 1), ("UNSUPPORTED_VERSION", 1), ("REQUEST_TIMED_OUT", 2)]
)
def test_each_leader_of_a_static_quorum_is_told_until_it_knows_or_need_not_know(
    error: str | None, times: int
) -> None:
    bench = static()
    (update,) = updates(bench)
    hint = LeaderHint(epoch=3, leader_id=2)
    bench.step(VoterChangeResponseReceived(request_id=update.request_id, error=error, hint=hint))
    for _ in range(5):
        bench.fetched(after_ms=900)
    assert len(updates(bench)) == times


def test_a_static_voter_votes_and_hands_over_by_id() -> None:
    bench = static()
    assert bench.role is Role.FOLLOWER
    bench.step(ConnectionLost(id=2))
    assert bench.pre_vote(key(3), 3, bench.node.core.log.end).granted
    bench.pre_vote(key(3), 3, BEHIND)
    while bench.role is Role.FOLLOWER:
        bench.fire()
    for _ in range(2):
        bench.grant(ReplicaKey(3))
        bench.sync()
    assert bench.role is Role.LEADER
    bench.fetch(key(3), *BEHIND)
    bench.fetch(key(3), *bench.node.core.log.end)
    assert bench.role is Role.RESIGNED
    assert not bench.find_all(AppendControl)


def test_an_empty_directory_of_a_static_quorum_does_not_vote() -> None:
    """It may have held, and acknowledged, what a candidate lacks."""
    bench = unattached(
        **WITNESS | {"configured_voters": voter_set(1, 2, 3, by_id=True)},
        log=log_of(),
        stored=StoredState(),
    )
    assert not bench.pre_vote(key(3), 0, (5, 0)).granted
    assert not bench.vote(key(3), 1, (5, 0)).granted


@pytest.mark.parametrize(
    ("committed", "more", "grants"),
    [(0, {}, False), (1, {}, True), (1, {"is_witness": False}, False)],
)
def test_a_replica_of_a_static_quorum_votes_as_its_witness_and_with_a_committed_record(
    committed: int, more: dict[str, object], grants: bool
) -> None:
    bench = unattached(
        **WITNESS | STATIC | {"stored": StoredState(epoch=3, applied_offset=committed)} | more,
        log=static_log(),
    )
    end = bench.node.core.log.end
    assert bench.pre_vote(key(3), 3, end).granted is grants
    assert bench.vote(key(3), 3, end).granted is grants


@pytest.mark.parametrize("build", [witness, static])
def test_the_log_of_a_kafka_quorum_is_not_new(build: Callable[[], Bench]) -> None:
    bench = build()
    assert not bench.node.core.is_bootstrapping
    assert bench.node.status().bootstrap_problem is None


def test_a_removed_witness_observes() -> None:
    bench = witness()
    voters = VotersRecord(keyed_set(key(2), key(3)))
    at = bench.node.log_end_offset
    bench.fetched(epochs=[3], control=((at, voters),))
    bench.sync()
    bench.fetched(high_watermark=at + 1)
    assert bench.role is Role.OBSERVER
    bench.wait(30_000)
    assert not votes(bench)
