"""What a replica tells of itself, and that telling it changes nothing."""

from __future__ import annotations

import dataclasses

import pytest

from quorumd.raft.events import AppendRequested
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, Voter
from tests.raft.changes import add, leading, reassign, transfer
from tests.raft.harness import (
    Bench,
    candidate,
    endpoints,
    follower,
    key,
    leader,
    observer,
    unattached,
    voter_set,
)
from tests.raft.test_kafka_witness import BEHIND, lost, witness
from tests.raft.test_kafka_witness import leading as leading_for_a_hand_over


def test_a_leader_says_what_it_waits_for() -> None:
    bench = leading()
    assert add(bench, key(4)) is None
    (pending,) = bench.node.status().pending_changes
    assert (pending.kind, pending.key, pending.asked_at_ms) == ("add", key(4), bench.now_ms)
    assert "does not fetch" in pending.waits_for


def test_a_reassignment_that_is_under_way_was_asked_for_by_no_pending_request() -> None:
    bench = leading()
    assert reassign(bench, 2, 3, 4) is None
    status = bench.node.status()
    assert status.target_voters == (2, 3, 4)
    assert [(each.kind, each.asked_at_ms is None) for each in status.pending_changes] == [
        ("reassign", False),
        ("reassign", True),
    ]


def test_a_transfer_is_pending_until_the_successor_has_everything() -> None:
    bench = leading()
    bench.step(AppendRequested(1, 2))
    assert transfer(bench, key(3)) is None
    pending = bench.node.status().pending_changes
    assert [(each.kind, each.key) for each in pending] == [("transfer", key(3))]


def test_who_leads_and_whether_it_answers() -> None:
    with_contact, without = follower(), follower(contact=False)
    assert with_contact.node.status().leader == key(2)
    assert with_contact.node.status().has_leader_contact
    assert not without.node.status().has_leader_contact
    assert unattached().node.status().leader is None
    assert leader().node.status().role is Role.LEADER
    assert not observer().node.is_leader


def test_voters_without_a_known_address_are_named() -> None:
    bench = unattached(configured_voters=voter_set(1, 2, 3))
    assert bench.node.status().voters_without_endpoints == ()
    assert bench.node.endpoints_of(key(2)) == endpoints(2)
    assert bench.node.endpoints_of(key(9)) == ()


def test_a_status_is_a_value_and_asking_for_it_changes_nothing() -> None:
    bench = leading()
    before = bench.node.core.capture()
    status = bench.node.status()
    assert (bench.node.core.capture(), bench.node.status()) == (before, status)
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.epoch = 9  # type: ignore[misc]  # a status cannot be changed
    assert status.registered_observers == ()
    assert Voter(ReplicaKey(9)) not in status.voters.voters


def test_a_leader_lacks_no_records() -> None:
    bench = leader()
    bench.node.core.known_leader.high_watermark = 100
    assert bench.node.status().missing_records == 0


def is_ahead(bench: Bench) -> bool:
    return bench.node.status().is_ahead


def test_a_witness_is_ahead_while_it_campaigns_leads_or_refuses_votes_without_a_leader() -> None:
    assert not is_ahead(witness())
    bench = lost()
    assert not is_ahead(bench)
    assert not bench.pre_vote(key(3), 3, BEHIND).granted
    assert is_ahead(bench)
    while bench.role is Role.FOLLOWER:
        bench.fire()
    assert (bench.role, is_ahead(bench)) == (Role.PROSPECTIVE, True)
    bench.node.core.witness.must_lead = False
    assert is_ahead(bench)
    assert is_ahead(leading_for_a_hand_over())


def test_a_witness_that_hears_from_its_leader_is_not_ahead() -> None:
    bench = witness()
    bench.node.core.witness.must_lead = True
    assert not is_ahead(bench)


def test_no_other_voter_is_called_ahead() -> None:
    bench = candidate()
    bench.node.core.witness.must_lead = True
    assert not is_ahead(bench)


def test_only_a_leader_knows_how_far_replicas_are() -> None:
    assert follower().node.progress() == []
    rows = leader().node.progress()
    assert [(row.key.id, row.is_voter) for row in rows] == [(1, True), (2, True), (3, True)]
    assert rows[0].end_offset == leader().node.log_end_offset
