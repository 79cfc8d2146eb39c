"""The first voter set at its edges: who is named and when, what is learnt of ids and of the cluster."""

from __future__ import annotations

from quorumd.raft.check_quorum import note_heard
from quorumd.raft.config import StoredState
from quorumd.raft.control import KRaftVersionRecord, LeaderChangeRecord, VotersRecord
from quorumd.raft.control_appends import append_control
from quorumd.raft.effects import AppendControl, BeginQuorumEpoch
from quorumd.raft.events import ResignationRequested
from quorumd.raft.roles import Leader, Role
from quorumd.raft.types import ReplicaKey
from tests.raft.changes import refused, remove
from tests.raft.harness import (
    CLUSTER,
    Bench,
    fresh,
    key,
    keyed_set,
    leader,
    log_of,
    unattached,
    voter_set,
)
from tests.raft.test_bootstrap import first_leader, named


def seen(bench: Bench) -> dict[int, ReplicaKey]:
    """The initial voters whose storage ids have been shown."""
    return bench.node.core.bootstrap.known_uuids


def ask_pre_vote(bench: Bench, candidate: ReplicaKey, cluster_id: str | None = None) -> None:
    bench.vote(candidate, bench.node.epoch, (0, 0), pre_vote=True, cluster_id=cluster_id)


def test_a_leader_names_known_voters_right_after_itself() -> None:
    bench = fresh(1, configured_voters=voter_set(1, 2, 3))
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    bench.grant(key(2))
    bench.grant(key(2))
    bench.grant(key(3))
    assert bench.role is Role.LEADER
    assert [type(append.records[0]) for append in bench.find(AppendControl)] == [
        LeaderChangeRecord,
        KRaftVersionRecord,
    ]


def test_a_leader_of_a_quorum_that_is_not_new_names_nobody() -> None:
    bench = leader(configured_voters=voter_set(1, 2, 3))
    assert not named(bench)


def test_a_set_is_replaced_until_the_last_voter_has_it_itself() -> None:
    bench = first_leader()
    for other in (2, 3):
        bench.fetch(key(other), 0, 0, max_wait_ms=0)
    bench.sync()
    for offset, other in ((3, 2), (1, 3)):
        bench.fetch(key(other), offset, 1, max_wait_ms=0)
    assert bench.node.core.log.voters_offset == 2
    bench.fetch(key(3), 2, 1, max_wait_ms=0)
    bench.now_ms += 2000
    bench.fetch(key(3, disk=1), 0, 0, max_wait_ms=0)
    assert len(named(bench)) == 2


def test_a_set_that_every_voter_has_is_committed_whoever_has_been_seen_meanwhile() -> None:
    bench = first_leader()
    for other in (2, 3):
        bench.fetch(key(other), 0, 0, max_wait_ms=0)
    bench.sync()
    bench.fetch(key(3), 3, 1, max_wait_ms=0)
    ask_pre_vote(bench, key(3, disk=1))
    assert seen(bench)[3] == key(3, disk=1)
    bench.fetch(key(2), 3, 1, max_wait_ms=0)
    assert len(named(bench)) == 1
    assert bench.node.high_watermark == 3


def test_a_lost_disk_is_replaced_however_lately_others_have_fetched() -> None:
    bench = first_leader()
    for other in (2, 3):
        bench.fetch(key(other), 0, 0, max_wait_ms=0)
    bench.now_ms += 2500
    bench.fetch(key(2), 0, 0, max_wait_ms=0)
    bench.fetch(key(3, disk=1), 0, 0, max_wait_ms=0)
    new = keyed_set(key(1), key(2), key(3, disk=1))
    assert named(bench)[1:] == [(3, (VotersRecord(new, CLUSTER),))]


# -- what is learnt


def test_only_storage_ids_of_initial_voters_are_remembered() -> None:
    bench = fresh(1)
    for candidate in (ReplicaKey(2), key(77)):
        ask_pre_vote(bench, candidate)
    assert seen(bench) == {}
    ask_pre_vote(bench, key(2))
    assert seen(bench) == {2: key(2)}


def test_the_first_cluster_id_that_a_voter_names_is_remembered() -> None:
    bench = fresh(1)
    for candidate, named_id, heard in (
        (key(77), "made up", None),
        (key(2), None, None),
        (key(3), "theirs", "theirs"),
        (key(2), "another", "theirs"),
        (key(2), None, "theirs"),
    ):
        ask_pre_vote(bench, candidate, named_id)
        assert bench.node.core.bootstrap.heard_cluster_id == heard


def test_a_given_cluster_id_goes_into_a_set_that_replaces_one_without() -> None:
    log = log_of(1, 1)
    log.add_voters(1, VotersRecord(voter_set(1, 2, 3), None))
    bench = leader(log=log, stored=StoredState(epoch=3), cluster_id="given")
    bench.fetch(key(2), 0, 0, cluster_id=None, max_wait_ms=0)
    bench.now_ms += 2500
    bench.fetch(key(3, disk=1), 0, 0, cluster_id=None, max_wait_ms=0)
    [(_, (record,))] = named(bench)
    assert record.cluster_id == "given"


def test_a_quorum_that_was_given_no_cluster_id_has_none() -> None:
    bench = first_leader(new_cluster_id="")
    for other in (2, 3):
        bench.fetch(key(other), 0, 0, cluster_id=None)
    [(_, records)] = named(bench)
    assert records[1] == VotersRecord(voter_set(1, 2, 3), None)


def test_clients_are_told_which_voters_have_not_been_seen() -> None:
    bench = first_leader()
    texts = []
    for other in (2, 3):
        texts.append(bench.node.status().bootstrap_problem)
        bench.fetch(key(other), 0, 0)
    assert texts == [
        "this quorum is new and waits for voter 2, 3 to be seen once",
        "this quorum is new and waits for voter 3 to be seen once",
    ]


# -- a leader that appends


def test_a_voter_that_is_removed_is_not_one_that_was_heard() -> None:
    """Two of four others are needed; of the three that remain two are as well."""
    bench = leader(5)
    core = bench.node.core
    assert isinstance(core.state, Leader)
    note_heard(core, core.state, key(5))
    append_control(core, core.state, (VotersRecord(voter_set(1, 2, 3, 4), CLUSTER),))
    core.now_ms += 500
    due_ms = core.state.check_quorum_deadline_ms
    note_heard(core, core.state, key(2))
    assert core.state.check_quorum_deadline_ms == due_ms
    note_heard(core, core.state, key(3))
    assert core.state.check_quorum_deadline_ms == core.now_ms + 3000


def test_a_new_voter_is_told_of_the_epoch_at_once() -> None:
    bench = leader()
    bench.wait(100)
    core = bench.node.core
    assert isinstance(core.state, Leader)
    append_control(core, core.state, (VotersRecord(voter_set(1, 2, 3, 4), CLUSTER),))
    bench.wait(0)
    assert key(4) in {sent.to for sent in bench.requests(BeginQuorumEpoch)}


def test_a_node_that_stops_takes_no_batches_although_nobody_can_take_over() -> None:
    bench = unattached(1)
    bench.sync()
    bench.sync()
    assert bench.node.append_refusal is None
    bench.step(ResignationRequested("stopped", shutting_down=True))
    assert bench.role is Role.LEADER
    refusal = bench.node.append_refusal
    assert refusal is not None
    assert refusal.error == "NOT_LEADER_OR_FOLLOWER"


def test_of_a_voter_that_a_new_quorum_has_not_seen_no_storage_id_is_known() -> None:
    error, text = refused(remove(first_leader(), ReplicaKey(3)))
    assert error == "INVALID_REQUEST"
    assert text.endswith("; this quorum is new and waits for voter 2, 3 to be seen once")
