"""Two replicas under one id: each is a replica of its own, and follows when the other one leads (KIP-856)."""

from __future__ import annotations

from typing import Any

from quorumd.raft.config import StoredState
from quorumd.raft.effects import Fetch, PersistQuorumState, SendRequest, Vote
from quorumd.raft.events import LeaderHint
from quorumd.raft.roles import Role, Unattached
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from tests.raft.harness import Bench, config_of, endpoints, key, log_of

OLD, NEW = key(2), key(2, disk=1)
AT_OLD = (Endpoint("CONTROLLER", "host2", 9093),)
AT_NEW = (Endpoint("CONTROLLER", "host22", 9093),)
DOUBLED = VoterSet.of(
    [Voter(key(1), endpoints(1)), Voter(OLD, AT_OLD), Voter(NEW, AT_NEW), Voter(key(3))]
)
SINGLE = VoterSet.of([Voter(key(1), endpoints(1)), Voter(OLD, AT_OLD), Voter(key(3))])


def rival(voters: VoterSet = DOUBLED, **more: Any) -> Bench:
    """The new disk of replica 2, in epoch 3, without a leader."""
    values = {"endpoints": AT_NEW, "configured_voters": VoterSet()} | more
    stored = values.pop("stored", StoredState(epoch=3, applied_offset=2))
    config = config_of(NEW, **values)
    return Bench(config, stored, log_of(1, 1, 2, voters=voters))


def fetched_from(bench: Bench) -> ReplicaKey:
    to = bench.outstanding(Fetch).to
    assert isinstance(to, ReplicaKey)
    return to


def test_a_voter_follows_a_leader_that_has_its_id_and_another_storage_id() -> None:
    bench = rival()
    assert bench.begin(2, 4, endpoints=AT_OLD).error is None
    bench.sync()
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, OLD)
    assert bench.find_all(PersistQuorumState)[-1].leader == OLD
    assert fetched_from(bench) == OLD
    bench.fetched(epochs=[4], high_watermark=4)
    assert (bench.node.log_end_offset, bench.node.high_watermark) == (4, 4)


def test_the_leader_is_learnt_from_others_too_in_the_very_epoch_that_is_known() -> None:
    bench = rival()
    bench.sync()
    hint = LeaderHint(epoch=3, leader_id=2, endpoints=AT_OLD)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(1))
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, OLD)


def test_who_tells_no_address_of_the_rival_is_answered_by_the_voter_set() -> None:
    bench = rival()
    bench.begin(2, 4, endpoints=())
    assert (bench.node.leader, bench.node.leader_endpoints) == (OLD, AT_OLD)


def test_a_leader_under_the_own_id_and_address_is_a_contradiction() -> None:
    bench = rival()
    answer = bench.begin(2, 4, endpoints=AT_NEW)
    assert answer.top_level_error == "UNKNOWN_SERVER_ERROR"
    assert (bench.node.epoch, bench.node.leader) == (3, None)


def test_a_leader_under_the_own_id_is_none_if_no_other_replica_has_that_id() -> None:
    alone = VoterSet.of([Voter(key(1), endpoints(1)), Voter(NEW, AT_NEW), Voter(key(3))])
    bench = rival(alone)
    assert bench.begin(2, 4, endpoints=()).top_level_error == "UNKNOWN_SERVER_ERROR"
    assert bench.node.leader is None


def test_an_observer_copies_from_a_leader_that_has_its_id() -> None:
    bench = rival(SINGLE)
    bench.begin(2, 4, endpoints=AT_OLD)
    bench.sync()
    assert (bench.role, bench.node.leader) == (Role.OBSERVER, OLD)
    bench.fetched(epochs=[4])
    assert bench.node.log_end_offset == 4


def test_a_rival_whose_storage_id_is_not_known_is_followed_and_never_taken_for_oneself() -> None:
    before = VoterSet.of([Voter(key(1), endpoints(1)), Voter(NEW, AT_NEW), Voter(key(3))])
    bench = rival(before)
    bench.begin(2, 4, endpoints=AT_OLD)
    bench.sync()
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, ReplicaKey(2))
    [stored] = bench.find_all(PersistQuorumState)[-1:]
    again = rival(before, stored=StoredState(epoch=stored.epoch, leader=stored.leader))
    assert (again.role, again.node.leader) == (Role.UNATTACHED, None)


def test_a_rival_is_followed_again_after_a_restart() -> None:
    bench = rival(stored=StoredState(epoch=4, leader=OLD))
    assert (bench.role, bench.node.leader_endpoints) == (Role.FOLLOWER, AT_OLD)
    bench.sync()
    assert fetched_from(bench) == OLD


def test_who_led_itself_has_resigned_after_a_restart() -> None:
    for leader in (NEW, ReplicaKey(2)):
        bench = rival(stored=StoredState(epoch=4, leader=leader))
        assert (bench.role, bench.node.leader) == (Role.RESIGNED, NEW)


def test_a_silent_rival_is_replaced_and_the_vote_of_each_counts_once() -> None:
    bench = rival()
    bench.begin(2, 3, endpoints=AT_OLD)
    bench.sync()
    bench.wait(bench.node.config.fetch_timeout_ms + 50)
    assert bench.role is Role.PROSPECTIVE
    bench.grant(OLD)
    assert bench.role is Role.PROSPECTIVE
    bench.grant(key(1))
    bench.sync()
    asked = {e.to for e in bench.all if isinstance(e, SendRequest) and isinstance(e.request, Vote)}
    assert (bench.role, asked) == (Role.CANDIDATE, {key(1), OLD, key(3)})


def test_one_of_two_voters_under_an_id_that_knows_no_leader_does_not_speak_for_both() -> None:
    stored = StoredState(epoch=3, applied_offset=2)
    log = log_of(1, 1, 2, voters=DOUBLED)
    bench = Bench(config_of(key(3), configured_voters=VoterSet()), stored, log)
    bench.sync()
    before = bench.node.next_deadline_ms()
    nobody = LeaderHint(epoch=3, leader_id=None)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=nobody, to=OLD)
    state = bench.node.core.state
    assert isinstance(state, Unattached)
    assert state.election_deadline_ms == before
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=nobody, to=NEW)
    assert state.election_deadline_ms < bench.now_ms + 50
