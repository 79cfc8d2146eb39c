"""The first step of a replica: what it makes of its disk, and what it says of that."""

from __future__ import annotations

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import AnnounceRole, CancelHeldRequests, Halt, PersistQuorumState
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import (
    CLUSTER,
    endpoints,
    key,
    keyed_set,
    log_of,
    observer,
    unattached,
    voter_set,
)

END = (3, 2)


def test_a_log_that_names_a_voter_that_quorum_voters_does_not_stops_the_node() -> None:
    bench = unattached(configured_voters=voter_set(1, 2, by_id=True))
    [halt] = bench.last
    assert isinstance(halt, Halt)
    assert halt.reason.startswith(
        "the log says that replica 3 votes, which quorum.voters does not name (KIP-856)."
    )


def test_the_log_of_another_cluster_stops_the_node_if_that_is_committed() -> None:
    log = log_of(1, 2, 3, voters=voter_set(1, 2, 3), cluster_id="another")
    bench = unattached(log=log, stored=StoredState(epoch=3, applied_offset=2))
    [halt] = bench.last
    assert isinstance(halt, Halt)
    assert halt.reason.startswith(
        f"the log is of cluster another, but meta.properties says {CLUSTER}. Correct cluster.id"
    )
    same = log_of(1, 2, 3, voters=voter_set(1, 2, 3))
    assert not unattached(log=same, stored=StoredState(epoch=3, applied_offset=2)).find(Halt)
    unknown = StoredState(epoch=3, applied_offset=2)
    assert not unattached(log=log, stored=unknown, cluster_id=None).find(Halt)


def test_the_leader_and_the_vote_of_the_logs_last_epoch_are_remembered() -> None:
    bench = unattached(stored=StoredState(epoch=2, leader=key(2), voted=key(3)))
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, key(2))
    assert bench.node.core.voted == key(3)


def test_the_vote_of_an_epoch_before_the_logs_last_is_forgotten() -> None:
    bench = unattached(stored=StoredState(epoch=1, voted=key(3)))
    assert (bench.node.epoch, bench.node.core.voted) == (2, None)


def test_a_leader_that_is_found_on_disk_is_waited_for_as_long_as_one_that_is_heard() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    assert bench.node.next_deadline_ms() == bench.now_ms + 2000
    assert bench.node.leader_endpoints == endpoints(2)


def test_who_led_answers_where_it_is_reached() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=ReplicaKey(1), voted=key(1)))
    assert bench.role is Role.RESIGNED
    answer = bench.vote(key(2), 3, END)
    assert (answer.leader_id, answer.leader_endpoints) == (1, endpoints(1))


def test_what_is_asked_after_the_start_is_asked_in_the_epoch_of_the_start() -> None:
    """A first campaign is no reason to ask anew, or to wait for the answers of nobody."""
    bench = unattached(stored=StoredState(epoch=1, leader=key(2)))
    assert (bench.node.epoch, bench.node.leader) == (2, None)
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    assert not bench.find_all(CancelHeldRequests)


def test_the_first_role_is_announced_and_the_state_that_it_implies_written() -> None:
    bench = unattached()
    assert bench.find(AnnounceRole) == [
        AnnounceRole(role=Role.UNATTACHED, epoch=3, leader_id=None, reason="started")
    ]
    assert len(bench.find(PersistQuorumState)) == 1


def test_a_leader_that_is_found_on_disk_has_not_ended_before_it_says_so() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(2), applied_offset=2))
    bench.end(2, 3, key(1), says_so=False)
    assert bench.role is Role.FOLLOWER
    bench.fetched(to=key(2))
    assert bench.node.has_leader_contact


def test_at_the_start_nobody_is_said_to_lead() -> None:
    assert unattached().node.unconfirmed_endpoints_of(3) == ()


def test_a_log_of_kafka_tells_who_votes_whatever_quorum_voters_says() -> None:
    """A static quorum that became dynamic and grew: Kafka's nodes ignore the list by then."""
    static = voter_set(1, 2, by_id=True)
    bench = unattached(configured_voters=static, is_kafka_log=True, is_witness=True)
    assert bench.find(Halt) == []
    assert bench.node.status().unexpected_voters == ()


def test_a_voter_of_a_kafka_log_that_is_no_witness_does_not_start() -> None:
    """It would acknowledge records, and never hand those over that it alone has."""
    bench = unattached(is_kafka_log=True)
    [halt] = bench.last
    assert isinstance(halt, Halt)
    assert "replica 1, this one, votes in the Kafka quorum" in halt.reason
    assert "quorum.witness: true" in halt.reason

    assert unattached(is_kafka_log=True, is_witness=True).find(Halt) == []
    assert (
        unattached(log=log_of(1, 1, 2, voters=voter_set(2, 3)), is_kafka_log=True).find(Halt) == []
    )


def test_an_observer_that_a_kafka_quorum_makes_a_voter_says_so() -> None:
    bench = observer(is_kafka_log=True)
    assert not bench.node.status().is_voter_by_mistake
    grown = VotersRecord(keyed_set(key(1), key(2), key(3), key(9)))
    bench.fetched(epochs=(3,), control=((3, grown),))
    assert bench.node.status().is_voter_by_mistake
