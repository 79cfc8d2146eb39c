"""Connections that are refused and made: what follows for campaigns, and for what waits to be asked."""

from __future__ import annotations

from quorumd.raft.effects import BootstrapServer, Fetch
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import ConnectionMade, ConnectionRefused
from quorumd.raft.roles import Role
from tests.raft.harness import Bench, candidate, follower, key, prospective, unattached

END = (3, 2)


def refused(bench: Bench, *ids: int) -> None:
    for replica in ids:
        bench.step(ConnectionRefused(id=replica))


def made(bench: Bench, *ids: int) -> None:
    for replica in ids:
        bench.step(ConnectionMade(id=replica))


def prospective_in_contact() -> Bench:
    """The leader's process was gone, and is there again before its silence counts."""
    bench = follower()
    refused(bench, 2)
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    made(bench, 2)
    assert bench.node.has_leader_contact
    return bench


def test_a_leader_that_refuses_again_does_not_put_the_campaign_off() -> None:
    bench = follower()
    refused(bench, 2)
    due_ms = election_deadline_ms(bench.node.core)
    bench.now_ms += 10
    refused(bench, 2)
    assert election_deadline_ms(bench.node.core) == due_ms


def test_a_voter_waits_on_for_its_candidate_when_another_process_is_gone() -> None:
    bench = unattached()
    assert bench.vote(key(2), 4, END).granted
    due_ms = election_deadline_ms(bench.node.core)
    refused(bench, 3)
    assert election_deadline_ms(bench.node.core) == due_ms


def test_a_rival_that_is_gone_is_not_the_candidate_that_this_replica_voted_for() -> None:
    """Addresses are known by id: that of another disk under the own id is the own one."""
    bench = candidate()
    due_ms = election_deadline_ms(bench.node.core)
    refused(bench, 1)
    assert (bench.role, election_deadline_ms(bench.node.core)) == (Role.CANDIDATE, due_ms)


def test_a_further_connection_to_a_process_that_is_there_shortens_no_backoff() -> None:
    bench = follower()
    bench.fail(Fetch, key(2))
    made(bench, 2)
    assert not bench.requests(Fetch)


def test_a_process_that_is_back_shortens_no_backoff_of_another_one() -> None:
    bench = unattached(bootstrap_servers=1)
    refused(bench, 2)
    for peer in (key(2), key(3), BootstrapServer(index=0)):
        bench.fail(Fetch, peer)  # type: ignore[arg-type]  # bootstrap servers are fetched from, too
    made(bench, 2)
    assert [sent.to for sent in bench.requests(Fetch)] == [key(2)]


def test_a_leader_that_is_back_after_its_time_is_not_waited_for_any_more() -> None:
    bench = follower(draw=lambda bound: bound - 1)
    bench.now_ms += 1990
    refused(bench, 2)
    due_ms = election_deadline_ms(bench.node.core)
    assert due_ms == bench.now_ms + 49
    bench.now_ms += 10
    made(bench, 2)
    assert not bench.node.has_leader_contact
    assert election_deadline_ms(bench.node.core) == due_ms


# -- a campaign that finds the leader back


def test_who_campaigns_grants_pre_votes_although_its_leader_may_be_back() -> None:
    assert prospective_in_contact().pre_vote(key(3), 3, END).granted


def test_after_lost_pre_votes_the_leader_has_what_is_left_of_its_time() -> None:
    bench = prospective_in_contact()
    contact_ms = bench.node.core.known_leader.last_contact_ms
    assert contact_ms is not None
    for voter in (key(2), key(3)):
        bench.grant(voter, granted=False)
    assert bench.role is Role.FOLLOWER
    again_ms = election_deadline_ms(bench.node.core)
    assert again_ms == bench.now_ms + 25
    refused(bench, 3)
    made(bench, 3)
    assert election_deadline_ms(bench.node.core) == again_ms
    refused(bench, 2)
    made(bench, 2)
    assert election_deadline_ms(bench.node.core) == contact_ms + 2000


def test_lost_pre_votes_are_tried_again_for_a_leader_that_never_answered() -> None:
    bench = follower(contact=False)
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    for voter in (key(2), key(3)):
        bench.grant(voter, granted=False)
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, key(2))
    assert election_deadline_ms(bench.node.core) == bench.now_ms + 25


# -- who asks with a shorter log


def test_only_the_asker_is_asked_again_and_only_if_it_refused() -> None:
    bench = prospective(5)
    for voter, granted in ((key(2), True), (key(3), False), (key(4), False)):
        bench.grant(voter, granted=granted)
    votes = dict(bench.node.core.state.votes)
    assert not bench.pre_vote(key(2), 3, (2, 2)).granted
    assert bench.node.core.state.votes == votes
    assert not bench.pre_vote(key(3), 3, (2, 2)).granted
    del votes[key(3)]
    assert bench.node.core.state.votes == votes


def test_a_replica_without_leader_campaigns_soon_when_a_worse_one_asks() -> None:
    bench = unattached()
    assert not bench.pre_vote(key(3), 3, (2, 2)).granted
    assert election_deadline_ms(bench.node.core) == bench.now_ms + 25
