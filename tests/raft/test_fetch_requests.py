"""Fetch at the leader at its edges: what a request may hold, and whom it shows to be there."""

from __future__ import annotations

import pytest

from quorumd.raft.effects import FetchReply
from quorumd.raft.roles import Leader, Role
from tests.raft.copying import SNAPSHOT, leading, log_behind
from tests.raft.harness import Bench, fresh, key, leader
from tests.raft.test_bootstrap import first_leader


def fetched(bench: Bench, *position: int, **more: object) -> FetchReply:
    """The answer to a fetch of replica 2 that comes at once."""
    answer = bench.fetch(key(2), *position, **more)
    assert answer is not None
    return answer


def heard_ms(bench: Bench) -> int | None:
    """When the leader heard of replica 2."""
    state = bench.node.core.state
    assert isinstance(state, Leader)
    return state.progress[key(2)].last_heard_ms


def test_why_a_fetch_is_refused_is_said() -> None:
    bench = leader()
    fetched(bench, 4, 4, cluster_id="other")
    assert f"fetch of {key(2)} refused: cluster other" in bench.reports
    fetched(bench, -1, 4)
    assert f"fetch of {key(2)} refused: impossible values" in bench.reports


@pytest.mark.parametrize(
    ("last_epoch", "epoch", "error", "top_level"),
    [
        (0, -1, "FENCED_LEADER_EPOCH", None),
        (1, -1, None, "UNKNOWN_SERVER_ERROR"),
        (1, 0, None, "UNKNOWN_SERVER_ERROR"),
        (3, 3, "FENCED_LEADER_EPOCH", None),
        (4, 3, None, "UNKNOWN_SERVER_ERROR"),
        (5, 5, "UNKNOWN_LEADER_EPOCH", None),
    ],
)
def test_no_record_is_of_a_later_epoch_than_who_has_it(
    last_epoch: int, epoch: int, error: str | None, top_level: str | None
) -> None:
    """Who knows of no epoch yet says -1, and has no record."""
    answer = fetched(leader(), 3, last_epoch, epoch=epoch)
    assert (answer.error, answer.top_level_error) == (error, top_level)


def test_a_fetch_that_does_not_wait_is_answered_at_once() -> None:
    bench = leader()
    assert bench.fetch(key(2), 4, 4, max_wait_ms=0) is not None
    assert bench.fetch(key(2), 4, 4, max_wait_ms=1) is None


def test_a_fetch_of_whatever_epoch_shows_that_a_disk_is_not_lost() -> None:
    bench = leader()
    for epoch in (3, 9):
        bench.now_ms += 100
        fetched(bench, 3, 2, epoch=epoch)
        assert heard_ms(bench) == bench.now_ms


def test_who_is_offered_a_snapshot_keeps_the_leader_in_office() -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    for _ in range(20):
        assert fetched(bench, 0, 0).snapshot == SNAPSHOT
        bench.wait(400)
    assert bench.role is Role.LEADER


def test_who_acknowledged_something_and_needs_a_snapshot_has_lost_records() -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    fetched(bench, 20, 3, max_wait_ms=0)
    fetched(bench, 0, 0)
    assert "fetches from offset 0 after it acknowledged everything below 20" in bench.reports


def test_who_has_no_id_is_offered_a_snapshot_and_told_where_it_diverges() -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    answer = bench.fetch(None, 0, 0)
    assert answer is not None
    assert answer.snapshot == SNAPSHOT
    answer = bench.fetch(None, 21, 3)
    assert answer is not None
    assert answer.diverging is not None


def test_storage_ids_are_learnt_by_fetches_of_a_new_quorum_only() -> None:
    bench = first_leader()
    bench.fetch(key(2), 0, 0)
    assert bench.node.core.bootstrap.known_uuids == {2: key(2)}
    bench = leader()
    bench.fetch(key(2), 4, 4)
    assert bench.node.core.bootstrap.known_uuids == {}
    assert fresh(1).node.core.bootstrap.known_uuids == {}


@pytest.mark.parametrize("position", [(0, 0), (21, 3)], ids=["snapshot", "diverging"])
@pytest.mark.parametrize("replica_id", [2, 9], ids=["voter", "observer"])
def test_whoever_is_sent_back_has_been_heard(replica_id: int, position: tuple[int, int]) -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    bench.fetch(key(replica_id), 20, 3, max_wait_ms=0)
    bench.now_ms += 100
    bench.fetch(key(replica_id), *position)
    state = bench.node.core.state
    assert isinstance(state, Leader)
    assert state.progress[key(replica_id)].last_heard_ms == bench.now_ms
