"""The first voter set: who is named, when it counts, when it may still be replaced."""

from __future__ import annotations

from quorumd.raft.config import StoredState
from quorumd.raft.control import KRaftVersionRecord, VotersRecord
from quorumd.raft.effects import AdoptClusterId, AnnounceVoters, AppendControl
from quorumd.raft.events import AppendRequested
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.roles import Role
from quorumd.raft.types import Voter, VoterSet
from tests.raft.changes import MOVED, refused, update
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
    first_batch,
    fresh,
    key,
    keyed_set,
    leader,
    log_of,
    unattached,
    voter_set,
)


def first_leader(**more: object) -> Bench:
    """Replica 1 leads a new quorum in epoch 1; nobody has fetched yet."""
    bench = fresh(1, **more)
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    for other in bench.node.core.other_voters():
        if bench.role is Role.PROSPECTIVE:
            bench.grant(other)
    bench.sync()
    for other in bench.node.core.other_voters():
        if bench.role is Role.CANDIDATE:
            bench.grant(other)
    bench.sync()
    assert bench.role is Role.LEADER
    return bench


def named(bench: Bench) -> list[tuple[int, tuple[object, ...]]]:
    """Base offset and records of every batch that names voters."""
    return [
        (append.base_offset, append.records)
        for append in bench.find_all(AppendControl)
        if any(isinstance(record, VotersRecord) for record in append.records)
    ]


def test_the_voters_are_named_once_every_id_has_shown_its_storage_id() -> None:
    bench = first_leader()
    bench.fetch(key(2), 0, 0)
    assert not named(bench)
    bench.fetch(key(3), 0, 0)
    voters = voter_set(1, 2, 3)
    assert named(bench) == [(1, (KRaftVersionRecord(1), VotersRecord(voters, CLUSTER)))]
    assert bench.node.voters == voters


def test_the_leader_announces_the_voters_that_it_names() -> None:
    bench = first_leader()
    bench.fetch(key(2), 0, 0)
    assert not bench.find_all(AnnounceVoters)
    bench.fetch(key(3), 0, 0)
    assert bench.find_all(AnnounceVoters) == [AnnounceVoters(voters=voter_set(1, 2, 3))]


def test_a_follower_announces_the_voters_that_it_reads_and_those_that_truncation_brings_back() -> (
    None
):
    bench = fresh(1)
    configured = bench.node.voters
    bench.begin(2, 1)
    bench.sync()
    bench.fetched(epochs=(1, 1, 1), control=first_batch())
    assert bench.find(AnnounceVoters) == [AnnounceVoters(voters=voter_set(1, 2, 3))]
    bench.sync()
    bench.begin(3, 2)
    bench.sync()
    bench.fetched(diverging=(0, 0))
    assert bench.find(AnnounceVoters) == [AnnounceVoters(voters=configured)]


def test_vote_requests_show_a_storage_id_too() -> None:
    bench = fresh(1)
    bench.vote(key(2), 0, (0, 0), pre_vote=True, cluster_id=None)
    bench.vote(key(3), 0, (0, 0), pre_vote=True, cluster_id="theirs")
    bench.vote(key(77), 0, (0, 0), pre_vote=True, cluster_id=None)
    while bench.role is not Role.LEADER:
        if bench.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            bench.grant(bench.node.core.other_voters()[0])
            bench.sync()
        else:
            bench.fire()
    [(_, records)] = named(bench)
    assert records[1] == VotersRecord(voter_set(1, 2, 3), "theirs")


def test_a_known_cluster_id_goes_into_the_log() -> None:
    bench = first_leader(cluster_id="given")
    for other in (2, 3):
        bench.fetch(key(other), 0, 0, cluster_id=None)
    [(_, records)] = named(bench)
    assert records[1] == VotersRecord(voter_set(1, 2, 3), "given")


def test_a_replaced_set_keeps_the_cluster_id_that_may_be_committed_already() -> None:
    log = log_of(1, 1, voters=voter_set(1, 2, 3), cluster_id="made by the first leader")
    bench = leader(log=log, stored=StoredState(epoch=3), cluster_id=None, new_cluster_id="another")
    bench.fetch(key(2), 0, 0, cluster_id=None, max_wait_ms=0)
    bench.now_ms += 2500
    bench.fetch(key(3, disk=1), 0, 0, cluster_id=None, max_wait_ms=0)
    [(_, (record,))] = named(bench)
    assert record.cluster_id == "made by the first leader"


def test_a_replaced_set_keeps_that_cluster_id_though_another_one_was_heard() -> None:
    log = log_of(1, 1, voters=voter_set(1, 2, 3), cluster_id="made by the first leader")
    bench = leader(log=log, stored=StoredState(epoch=3), cluster_id=None)
    bench.node.core.bootstrap.heard_cluster_id = "heard before the log was"
    bench.fetch(key(2), 0, 0, cluster_id=None, max_wait_ms=0)
    bench.now_ms += 2500
    bench.fetch(key(3, disk=1), 0, 0, cluster_id=None, max_wait_ms=0)
    [(_, (record,))] = named(bench)
    assert record.cluster_id == "made by the first leader"


def test_who_shows_itself_under_the_leaders_id_is_not_named_in_its_place() -> None:
    bench = first_leader()
    for other in (key(1, disk=1), key(2), key(3)):
        bench.fetch(other, 0, 0)
    assert named(bench)[0][1][1] == VotersRecord(voter_set(1, 2, 3), CLUSTER)


def test_clients_wait_until_every_voter_has_stored_the_first_set() -> None:
    bench = first_leader()
    refusal = bench.node.append_refusal
    assert refusal is not None
    assert refusal.error == "NOT_ENOUGH_REPLICAS"
    assert "2, 3" in refusal.reason
    for other in (2, 3):
        bench.fetch(key(other), 0, 0)
    bench.sync()
    bench.fetch(key(2), 3, 1)
    assert bench.node.high_watermark is None
    refusal = bench.node.append_refusal
    assert refusal is not None
    assert "every voter" in refusal.reason
    bench.fetch(key(3), 3, 1)
    assert bench.node.high_watermark == 3
    assert bench.find_all(AdoptClusterId) == [AdoptClusterId(cluster_id=CLUSTER)]
    assert bench.node.append_refusal is None


def test_a_replaced_disk_replaces_its_storage_id_before_the_set_is_committed() -> None:
    bench = first_leader()
    for other in (2, 3):
        bench.fetch(key(other), 0, 0, max_wait_ms=0)
    bench.sync()
    bench.fetch(key(2), 3, 1, max_wait_ms=0)
    bench.now_ms += 1999
    bench.fetch(key(3, disk=1), 0, 0, max_wait_ms=0)
    assert len(named(bench)) == 1, "the disk that was named may still be alive"
    bench.now_ms += 1
    bench.fetch(key(3, disk=1), 0, 0, max_wait_ms=0)
    new = keyed_set(key(1), key(2), key(3, disk=1))
    assert named(bench)[1:] == [(3, (VotersRecord(new, CLUSTER),))]
    bench.sync()
    bench.fetch(key(2), 4, 1, max_wait_ms=0)
    assert bench.node.high_watermark is None
    bench.fetch(key(3, disk=1), 4, 1, max_wait_ms=0)
    assert bench.node.high_watermark == 4


def test_a_committed_set_is_not_replaced() -> None:
    bench = first_leader()
    for end, epoch in ((0, 0), (3, 1)):
        for other in (2, 3):
            bench.fetch(key(other), end, epoch, max_wait_ms=0)
        bench.sync()
    assert bench.node.high_watermark == 3
    bench.now_ms += 2500
    bench.fetch(key(3, disk=1), 0, 0, max_wait_ms=0)
    bench.vote(key(3, disk=1), 1, (0, 0), pre_vote=True, cluster_id=None)
    assert len(named(bench)) == 1


def test_a_single_new_node_needs_nobody() -> None:
    bench = fresh(1, size=1)
    bench.sync()
    bench.sync()
    bench.sync()
    assert bench.node.high_watermark == 3
    bench.step(AppendRequested(1, 1))
    bench.sync()
    assert bench.node.high_watermark == 4


def test_voters_configured_with_storage_ids_are_named_at_once() -> None:
    bench = first_leader(configured_voters=voter_set(1, 2, 3))
    [(_, records)] = named(bench)
    assert records == (KRaftVersionRecord(1), VotersRecord(voter_set(1, 2, 3), "made"))


def test_a_set_that_is_not_known_to_be_committed_needs_every_voter_again() -> None:
    log = log_of(1, 1, 2, voters=voter_set(1, 2, 3), cluster_id=CLUSTER)
    bench = leader(log=log, stored=StoredState(epoch=3))
    bench.fetch(key(2), 4, 4)
    assert bench.node.high_watermark is None
    bench.fetch(key(3), 2, 1)
    assert bench.node.high_watermark == 4


def test_a_later_set_says_that_the_first_one_is_committed() -> None:
    """A leader changes a set only once it is committed, whoever has heard of that."""
    log = log_of(1, 1, 2, voters=voter_set(1, 2, 3), cluster_id=CLUSTER)
    log.add_voters(2, VotersRecord(voter_set(1, 2, 3, 4), CLUSTER))
    bench = leader(4, log=log, stored=StoredState(epoch=3))
    assert not named(bench)
    bench.fetch(key(2), 4, 4)
    bench.fetch(key(3), 4, 4)
    assert bench.node.high_watermark == 4


def test_a_doubled_disk_says_so_too() -> None:
    log = log_of(1, 1, 2, voters=voter_set(1, 2, 3), cluster_id=CLUSTER)
    doubled = keyed_set(key(1), key(2), key(3), key(3, disk=1))
    log.add_voters(2, VotersRecord(doubled, CLUSTER))
    bench = leader(log=log, stored=StoredState(epoch=3))
    bench.fetch(key(2), 4, 4)
    bench.fetch(key(3, disk=1), 4, 4)
    assert bench.node.high_watermark == 4


def test_what_clients_have_written_says_so_too() -> None:
    """They write nothing before: a voter that lost its disk is not exchanged like one that never wrote."""
    log = log_of(1, 1, 2, 2, voters=voter_set(1, 2, 3), cluster_id=CLUSTER)
    bench = leader(log=log, stored=StoredState(epoch=3))
    bench.fetch(key(3, disk=1), 0, 0, max_wait_ms=0)
    assert not named(bench)
    bench.fetch(key(2), 5, 4)
    assert bench.node.high_watermark == 5


def test_a_set_with_an_exchanged_disk_may_be_a_first_one_that_was_replaced() -> None:
    log = log_of(1, 1, 2, voters=keyed_set(key(1), key(2), key(3, disk=1)))
    log.add_voters(2, VotersRecord(voter_set(1, 2, 3), CLUSTER))
    bench = leader(log=log, stored=StoredState(epoch=3))
    bench.fetch(key(2), 4, 4)
    assert bench.node.high_watermark is None


def test_who_moves_is_named_elsewhere_only_once_the_first_set_is_committed() -> None:
    log = log_of(1, 1, 2, voters=voter_set(1, 2, 3), cluster_id=CLUSTER)
    moved = VoterSet.of(
        Voter(voter.key, endpoints(voter.key.id + 10)) for voter in voter_set(1, 2, 3)
    )
    log.add_voters(2, VotersRecord(moved, CLUSTER))
    bench = leader(log=log, stored=StoredState(epoch=3), endpoints=endpoints(11))
    bench.fetch(key(2), 4, 4)
    assert bench.node.high_watermark == 4


def test_a_first_set_is_not_replaced_by_other_ids() -> None:
    """Nodes that are configured differently must not take turns in naming their own."""
    log = log_of(1, 1, voters=voter_set(1, 2, 4))
    bench = leader(log=log, stored=StoredState(epoch=3))
    for other in (2, 3):
        bench.fetch(key(other), 2, 1)
    assert not named(bench)


def test_named_voters_commit_their_first_set_by_a_majority() -> None:
    """Nobody can be mistaken for another: one that never comes may be replaced like any other."""
    bench = first_leader(configured_voters=voter_set(1, 2, 3))
    bench.sync()
    assert bench.node.append_refusal is None
    bench.step(AppendRequested(1, 1))
    bench.sync()
    bench.fetch(key(2), 4, 1)
    assert bench.node.high_watermark == 4


def test_named_voters_are_named_again_by_the_next_leader() -> None:
    bench = first_leader(configured_voters=voter_set(1, 2, 3))
    bench.begin(2, 2)
    bench.sync()
    bench.fetched(diverging=(0, 0))
    assert bench.node.core.log.voters_offset < 0
    while bench.role is not Role.LEADER:
        bench.fire()
        for other in bench.node.core.other_voters():
            if bench.role in (Role.PROSPECTIVE, Role.CANDIDATE):
                bench.grant(other)
            bench.sync()
    bench.sync()
    assert len(named(bench)) == 2


def test_no_voter_set_is_changed_while_the_quorum_is_new() -> None:
    bench = first_leader()
    for other in (key(2), key(3)):
        bench.fetch(other, 0, 0)
    error, text = refused(update(bench, Voter(key(3), MOVED), epoch=1))
    assert error == "REQUEST_TIMED_OUT"
    assert text == "this quorum is new and waits until every voter has stored the first voter set"
    assert len(named(bench)) == 1


def test_the_first_voters_are_known_once_the_first_set_is_committed_though_a_later_one_is_not() -> (
    None
):
    """A set that takes the place of one whose commit its writer did not know of."""
    log = log_of(1, 1, 1, 2)
    for at, disk in ((2, 0), (3, 1)):
        voters = keyed_set(key(1), key(2), key(3, disk))
        log.voter_entries.append(VoterEntry(at, VotersRecord(voters, CLUSTER)))
    for applied, is_new in ((2, True), (3, False)):
        stored = StoredState(epoch=3, applied_offset=applied)
        core = unattached(log=log, stored=stored).node.core
        assert core.is_bootstrapping is is_new
        del log.voter_entries[0]
