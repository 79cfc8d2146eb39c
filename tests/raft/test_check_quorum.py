"""A leader that a majority does not fetch from any more: how long it leaves the next election to others."""

from __future__ import annotations

import pytest

from quorumd.raft.check_quorum import note_heard
from quorumd.raft.control import VotersRecord
from quorumd.raft.events import FetchSnapshotRequestReceived, ResignationRequested, TimerFired
from quorumd.raft.roles import Leader, Role
from quorumd.raft.types import SnapshotId
from tests.raft.harness import CLUSTER, key, leader, voter_set


@pytest.mark.parametrize(("size", "waits_ms"), [(2, 1500), (3, 1500), (4, 3500), (5, 3500)])
def test_who_lost_its_quorum_leaves_it_to_those_who_still_reached_it(
    size: int, waits_ms: int
) -> None:
    """Until they have missed it for the fetch timeout they refuse pre-votes to all others."""
    bench = leader(size)
    bench.wait(2999)
    assert bench.role is Role.LEADER
    bench.wait(1)
    assert bench.role is Role.RESIGNED
    bench.wait(waits_ms - 1)
    assert bench.role is Role.RESIGNED
    bench.wait(1)
    assert bench.role is Role.PROSPECTIVE


def test_who_resigned_for_another_reason_waits_for_an_election_timeout() -> None:
    bench = leader(5)
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    bench.wait(1500)
    assert bench.role is Role.PROSPECTIVE


def test_a_check_that_is_late_ends_the_leadership_all_the_same() -> None:
    bench = leader()
    bench.step(TimerFired(), after_ms=3100)
    assert bench.role is Role.RESIGNED


def test_a_voter_that_is_removed_may_leave_more_voters_heard_than_are_needed() -> None:
    """Two of four others were needed, one of them was heard; then one of the two that are left is."""
    bench = leader(5)
    core = bench.node.core
    assert isinstance(core.state, Leader)
    note_heard(core, core.state, key(2))
    core.log.add_voters(core.log.end_offset - 1, VotersRecord(voter_set(1, 2, 3), CLUSTER))
    core.now_ms += 500
    note_heard(core, core.state, key(3))
    assert core.state.check_quorum_deadline_ms == core.now_ms + 3000


def test_a_replica_that_asks_for_anything_in_any_epoch_is_alive() -> None:
    bench = leader()
    state = bench.node.core.state
    assert isinstance(state, Leader)
    bench.now_ms += 100
    bench.ask(
        FetchSnapshotRequestReceived,
        cluster_id=CLUSTER,
        replica=key(2),
        epoch=3,
        snapshot=SnapshotId(2, 1),
    )
    assert state.progress[key(2)].last_heard_ms == bench.now_ms
