"""Snapshots: offered, served, taken and cleaned."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    DeleteLogPrefix,
    FetchReply,
    PersistQuorumState,
    SnapshotReply,
)
from quorumd.raft.events import (
    AppendRequested,
    FetchSnapshotRequestReceived,
    LogDeletionRequested,
    SnapshotTaken,
)
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch, SnapshotId
from tests.raft.copying import (
    SNAPSHOT,
    copied,
    leading,
    log_behind,
    verified,
)
from tests.raft.harness import (
    CLUSTER,
    Bench,
    follower,
    key,
    leader,
    log_of,
    unattached,
    voter_set,
)

# -- offering


@pytest.mark.parametrize("position", [(0, 0), (5, 1), (9, 3), (10, 2), (12, 2)])
def test_a_log_that_ends_or_may_agree_only_below_the_start_gets_the_newest_snapshot(
    position: tuple[int, int],
) -> None:
    bench = leading(log_behind(10, 20, (10, 3), (15, 3)))
    answer = bench.fetch(key(2), *position)
    assert answer is not None
    assert answer.snapshot == (15, 3)
    assert (answer.read_from, answer.diverging) == (None, None)


@pytest.mark.parametrize("position", [(10, 3), (11, 3), (15, 3), (20, 3)])
def test_a_log_that_ends_at_a_snapshot_or_above_the_start_gets_records(
    position: tuple[int, int],
) -> None:
    bench = leading(log_behind(10, 20, (10, 3), (15, 3)))
    answer = bench.fetch(key(2), *position)
    assert answer is not None
    assert answer.snapshot is None
    assert answer.read_from == position[0]


def test_an_empty_log_gets_the_snapshot_even_if_all_records_are_there() -> None:
    bench = leading(log_behind(0, 20, (15, 3)))
    answer = bench.fetch(key(2), 0, 0)
    assert answer is not None
    assert answer.snapshot == (15, 3)


def test_a_log_that_diverges_above_the_start_is_told_where() -> None:
    log = log_behind(10, 20, (10, 3))
    log.epoch_starts = [(3, 10), (5, 15)]
    bench = leader(log=log, stored=StoredState(epoch=5, applied_offset=2))
    answer = bench.fetch(key(2), 18, 4)
    assert answer is not None
    assert answer.diverging == (15, 3)
    assert answer.snapshot is None


def test_a_fetch_that_is_offered_a_snapshot_keeps_the_leader_in_office() -> None:
    bench = leading(log_behind(10, 20, (10, 3)))
    for _ in range(20):
        bench.fetch(key(2), 0, 0)
        bench.wait(400)
    assert bench.role is Role.LEADER


def test_a_parked_fetch_that_cleaning_overtakes_gets_the_snapshot() -> None:
    bench = leading(log_behind(0, 20, (15, 3)))
    end, epoch = bench.node.core.log.end_offset, bench.node.epoch
    bench.fetch(key(2), end, epoch, high_watermark=None)
    parked = bench._next_reply
    bench.fetch(key(3), end, epoch, high_watermark=None)
    bench.step(AppendRequested(1, 5))
    bench.sync()
    bench.fetch(key(3), end + 5, epoch)
    assert bench.node.committed_offset == end + 5
    assert bench.answer_to(parked) is None
    taken = SnapshotId(end + 5, epoch)
    bench.step(SnapshotTaken(snapshot=taken))
    bench.step(LogDeletionRequested(start_offset=taken.end_offset, snapshots=(taken,)))
    bench.wait(1_000)
    answer = bench.answer_to(parked)
    assert isinstance(answer, FetchReply)
    assert answer.snapshot == taken


# -- serving


def ask_for(bench: Bench, **more: Any) -> SnapshotReply:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "replica": key(2),
        "epoch": bench.node.epoch,
        "snapshot": SNAPSHOT,
    } | more
    answer = bench.ask(FetchSnapshotRequestReceived, **values)
    assert isinstance(answer, SnapshotReply)
    return answer


def test_a_leader_serves_the_snapshots_that_it_has() -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    answer = ask_for(bench)
    assert answer.error is None
    assert answer.snapshot == SNAPSHOT
    assert ask_for(bench, replica=None).snapshot == SNAPSHOT


@pytest.mark.parametrize(
    ("request_of", "error", "top_level"),
    [
        ({"cluster_id": "another"}, None, "INCONSISTENT_CLUSTER_ID"),
        ({"replica": key(1)}, None, "UNKNOWN_SERVER_ERROR"),
        ({"epoch": 2}, "FENCED_LEADER_EPOCH", None),
        ({"epoch": 99}, "UNKNOWN_LEADER_EPOCH", None),
        ({"snapshot": SnapshotId(11, 3)}, "SNAPSHOT_NOT_FOUND", None),
        ({"snapshot": SnapshotId(10, 2)}, "SNAPSHOT_NOT_FOUND", None),
    ],
)
def test_other_requests_for_snapshots_are_refused(
    request_of: dict[str, Any], error: str | None, top_level: str | None
) -> None:
    answer = ask_for(leading(log_behind(10, 20, SNAPSHOT)), **request_of)
    assert (answer.error, answer.top_level_error) == (error, top_level)
    assert answer.snapshot is None


def test_a_follower_serves_no_snapshot() -> None:
    bench = follower(log=log_behind(10, 20, SNAPSHOT))
    answer = ask_for(bench)
    assert answer.error == "NOT_LEADER_OR_FOLLOWER"
    assert answer.leader_id == 2


def test_pieces_for_a_voter_keep_the_leader_in_office() -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    for _ in range(20):
        ask_for(bench)
        bench.wait(400)
    assert bench.role is Role.LEADER


# -- restart, taking, cleaning


def test_a_start_behind_a_snapshot_takes_what_it_stands_for_as_committed() -> None:
    log = log_behind(10, 10, SNAPSHOT)
    log.voter_entries = []
    log.add_voters(9, VotersRecord(voter_set(1, 2, 3), CLUSTER))
    bench = unattached(log=log, stored=StoredState(epoch=3, applied_offset=5))
    assert bench.node.committed_offset == 10
    assert bench.node.core.log.last_epoch == 3
    assert bench.node.core.is_voter
    assert not bench.node.core.is_bootstrapping


def test_a_candidate_behind_a_snapshot_has_the_epoch_of_its_last_record() -> None:
    bench = unattached(log=log_behind(10, 10, SNAPSHOT), stored=StoredState(epoch=3))
    assert bench.vote(key(2), 4, (9, 3)).granted is False
    assert bench.vote(key(2), 5, (10, 3)).granted is True


def test_a_snapshot_that_was_taken_is_offered_from_now_on() -> None:
    bench = leading(log_behind(0, 20))
    taken = SnapshotId(15, 3)
    bench.step(SnapshotTaken(snapshot=taken))
    answer = bench.fetch(key(2), 0, 0)
    assert answer is not None
    assert answer.snapshot == taken


def test_a_snapshot_that_is_no_newer_than_the_newest_changes_nothing() -> None:
    bench = leading(log_behind(0, 20, (10, 3)))
    for offset in (9, 10):
        bench.step(SnapshotTaken(snapshot=SnapshotId(offset, 3)))
        assert bench.node.core.log.snapshots == [(10, 3)]


@pytest.mark.parametrize(("offset", "writes"), [(1, 0), (2, 0), (3, 1)])
def test_what_a_new_snapshot_stands_for_is_recorded_as_committed_unless_it_is(
    offset: int, writes: int
) -> None:
    bench = follower()
    assert bench.node.core.recorded_offset == 2
    bench.step(SnapshotTaken(snapshot=SnapshotId(offset, 2)))
    assert len(bench.find(PersistQuorumState)) == writes


def test_cleaning_drops_what_a_snapshot_stands_for_and_nothing_else() -> None:
    bench = leading(log_behind(0, 20, (5, 3), (15, 3)))
    bench.step(LogDeletionRequested(start_offset=19, snapshots=(SnapshotId(15, 3),)))
    [clean] = bench.find(DeleteLogPrefix)
    assert clean.start_offset == 15
    assert clean.snapshots == ((15, 3),)
    assert bench.node.core.log.start_offset == 15
    assert bench.node.core.log.epoch_starts[0] == (3, 15)


def test_the_newest_snapshot_is_never_cleaned() -> None:
    bench = leading(log_behind(0, 20, (5, 3), (15, 3)))
    bench.step(LogDeletionRequested(start_offset=5, snapshots=(SnapshotId(5, 3),)))
    assert not bench.find(DeleteLogPrefix)
    assert bench.node.core.log.start_offset == 0


def test_cleaning_that_was_asked_for_before_a_reset_changes_nothing() -> None:
    bench = follower()
    copied(bench)
    verified(bench)
    bench.step(LogDeletionRequested(start_offset=2, snapshots=(SnapshotId(2, 1),)))
    assert not bench.find(DeleteLogPrefix)


def test_the_epochs_of_a_cleaned_log_are_those_that_are_left() -> None:
    log = log_of(1, 1, 2, 2, 3, 3, voters=voter_set(1, 2, 3))
    log.snapshots = [SnapshotId(3, 2)]
    log.delete_prefix(3, log.snapshots)
    assert log.epoch_starts == [(2, 3), (3, 4)]
    assert log.contains(OffsetAndEpoch(3, 2))
    assert not log.contains(OffsetAndEpoch(3, 1))
    assert not log.contains(OffsetAndEpoch(2, 1))


def test_why_a_snapshot_is_refused_is_said() -> None:
    bench = leading(log_behind(10, 20, SNAPSHOT))
    ask_for(bench, cluster_id="another")
    assert f"snapshot for {key(2)} refused: cluster another" in bench.reports
    ask_for(bench, replica=key(1))
    assert f"snapshot for {key(1)} refused: that is this replica" in bench.reports
