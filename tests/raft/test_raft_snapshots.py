"""Snapshots: when one is offered, how it is copied, and what becomes of the log behind it."""

from __future__ import annotations

from typing import Any

import pytest

from raft.control import KRaftVoters
from raft.core import StoredState
from raft.effects import (
    AnnounceHighWatermark,
    CleanLog,
    DropSnapshot,
    Effect,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    ResetLog,
    SendRequest,
    SnapshotAnswer,
    StoreSnapshot,
    VerifySnapshot,
)
from raft.events import (
    AppendRequested,
    CleaningRequested,
    FetchAnswered,
    LeaderHint,
    SnapshotAnswered,
    SnapshotPiece,
    SnapshotRequested,
    SnapshotTaken,
    SnapshotVerified,
)
from raft.log_view import LogView
from raft.roles import Role
from raft.types import OffsetAndEpoch
from tests.raft.harness import (
    CLUSTER,
    Bench,
    follower,
    key,
    leader,
    log_of,
    observer,
    unattached,
    voter_set,
)

SNAPSHOT = OffsetAndEpoch(10, 3)
SIZE = 2_500_000
MIB = 1 << 20


def offered(bench: Bench, snapshot: OffsetAndEpoch = SNAPSHOT) -> list[Effect]:
    """The leader answers the fetch in flight with a snapshot."""
    node = bench.node
    return bench.step(
        FetchAnswered(
            request_id=bench.outstanding(Fetch, node.leader).request_id,
            error=None,
            hint=LeaderHint(epoch=node.epoch, leader_id=node.leader_id),
            snapshot=snapshot,
        )
    )


def piece(bench: Bench, size: int = SIZE, length: int = MIB, **more: Any) -> list[Effect]:
    """The leader answers the request for a piece that is in flight."""
    node = bench.node
    request = bench.outstanding(FetchSnapshot)
    wanted = asked(request)
    values: dict[str, Any] = {
        "snapshot": wanted.snapshot,
        "position": wanted.position,
        "size_bytes": size,
        "piece_bytes": min(length, size - wanted.position),
        "token": request.request_id,
    } | more
    error = values.pop("error", None)
    hint = values.pop("hint", LeaderHint(epoch=node.epoch, leader_id=node.leader_id))
    found = None if error else SnapshotPiece(**values)
    return bench.step(
        SnapshotAnswered(request_id=request.request_id, error=error, hint=hint, piece=found)
    )


def copied(bench: Bench) -> None:
    """All pieces are there."""
    offered(bench)
    while not bench.find(VerifySnapshot):
        bench.sync()
        piece(bench)


def asked(request: SendRequest) -> FetchSnapshot:
    """What piece this request asks for."""
    assert isinstance(request.request, FetchSnapshot)
    return request.request


def verified(bench: Bench, snapshot: OffsetAndEpoch = SNAPSHOT, **more: Any) -> list[Effect]:
    values = {"voters": KRaftVoters(voter_set(1, 2, 3), CLUSTER)} | more
    return bench.step(SnapshotVerified(snapshot=snapshot, **values))


def log_behind(start: int, end: int, *snapshots: tuple[int, int], epoch: int = 3) -> LogView:
    """A synced log of one epoch that starts behind a snapshot."""
    log = log_of(voters=voter_set(1, 2, 3))
    log.start_offset, log.end_offset, log.synced_end_offset = start, end, end
    log.epoch_starts = [(epoch, start)] if end > start else []
    log.snapshots = [OffsetAndEpoch(*snapshot) for snapshot in snapshots]
    return log


def leading(log: LogView) -> Bench:
    bench = leader(log=log, stored=StoredState(epoch=3, applied_offset=2))
    bench.sync()
    return bench


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
    end, epoch = bench.node.log.end_offset, bench.node.epoch
    bench.fetch(key(2), end, epoch, high_watermark=None)
    parked = bench._next_reply
    bench.fetch(key(3), end, epoch, high_watermark=None)
    bench.step(AppendRequested(1, 5))
    bench.sync()
    bench.fetch(key(3), end + 5, epoch)
    assert bench.node.committed_offset == end + 5
    assert bench.answer_to(parked) is None
    taken = OffsetAndEpoch(end + 5, epoch)
    bench.step(SnapshotTaken(snapshot=taken))
    bench.step(CleaningRequested(start_offset=taken.offset, snapshots=(taken,)))
    bench.wait(1_000)
    answer = bench.answer_to(parked)
    assert isinstance(answer, FetchAnswer)
    assert answer.snapshot == taken


# -- serving


def ask_for(bench: Bench, **more: Any) -> SnapshotAnswer:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "replica": key(2),
        "epoch": bench.node.epoch,
        "snapshot": SNAPSHOT,
    } | more
    answer = bench.ask(SnapshotRequested, **values)
    assert isinstance(answer, SnapshotAnswer)
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
        ({"snapshot": OffsetAndEpoch(11, 3)}, "SNAPSHOT_NOT_FOUND", None),
        ({"snapshot": OffsetAndEpoch(10, 2)}, "SNAPSHOT_NOT_FOUND", None),
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


# -- copying


def test_a_snapshot_is_copied_piece_by_piece_each_after_the_one_before_is_stored() -> None:
    bench = follower()
    offered(bench)
    [first] = bench.requests(FetchSnapshot)
    assert first.request == FetchSnapshot(epoch=3, snapshot=SNAPSHOT, position=0, max_bytes=MIB)
    piece(bench)
    [stored] = bench.find(StoreSnapshot)
    assert (stored.position, stored.token) == (0, first.request_id)
    [second] = bench.requests(FetchSnapshot)
    assert second.after >= stored.write
    assert asked(second).position == MIB
    piece(bench)
    piece(bench)
    [verify] = bench.find(VerifySnapshot)
    [last] = bench.find(StoreSnapshot)
    assert verify.after == last.write
    assert not bench.requests(FetchSnapshot)


def test_behind_a_verified_snapshot_the_log_begins_anew() -> None:
    bench = follower()
    copied(bench)
    verified(bench)
    [reset] = bench.find(ResetLog)
    assert reset.snapshot == SNAPSHOT
    log = bench.node.log
    assert (log.start_offset, log.end, log.snapshots) == (10, SNAPSHOT, [SNAPSHOT])
    assert log.voters == voter_set(1, 2, 3)
    assert bench.find(AnnounceHighWatermark)[-1].offset == 10
    offered(bench)
    assert bench.node.download is None
    [fetch] = bench.requests(Fetch)
    assert isinstance(fetch.request, Fetch)
    assert fetch.request.position == SNAPSHOT
    assert fetch.after >= reset.write
    bench.sync()
    bench.fetched(epochs=[3], high_watermark=11)
    assert bench.node.log.end == (11, 3)
    assert bench.node.committed_offset == 11


def test_nothing_is_fetched_but_to_keep_in_touch_while_a_copy_is_verified() -> None:
    bench = follower()
    copied(bench)
    bench.sync()
    for _ in range(20):
        bench.wait(300)
        offered(bench)
    assert bench.role is Role.FOLLOWER
    assert not bench.requests(FetchSnapshot)
    verified(bench)
    assert bench.find(ResetLog)


def test_a_voter_that_copies_does_not_campaign() -> None:
    bench = follower()
    offered(bench)
    for _ in range(20):
        bench.wait(300)
        bench.sync()
        piece(bench, size=10 * SIZE, length=1000)
    assert bench.role is Role.FOLLOWER


def test_a_lost_connection_goes_on_where_it_was() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.sync()
    bench.fail(FetchSnapshot)
    assert not bench.requests(FetchSnapshot)
    bench.wait(100)
    [again] = bench.requests(FetchSnapshot)
    assert asked(again).position == MIB


@pytest.mark.parametrize("error", ["SNAPSHOT_NOT_FOUND", "POSITION_OUT_OF_RANGE"])
def test_a_snapshot_that_has_vanished_is_given_up_and_the_leader_asked_anew(error: str) -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.sync()
    piece(bench, error=error)
    assert bench.find(DropSnapshot)
    assert bench.requests(Fetch)
    newer = OffsetAndEpoch(12, 3)
    offered(bench, newer)
    bench.wait(100)
    [request] = bench.requests(FetchSnapshot)
    assert asked(request).snapshot == newer
    assert asked(request).position == 0


def test_a_refusal_of_a_kafka_leader_ends_the_copy() -> None:
    bench = follower()
    offered(bench)
    bench.fail(FetchSnapshot, error="UNKNOWN_SERVER_ERROR")
    assert bench.find(DropSnapshot)
    assert bench.node.download is None


def test_another_leader_that_offers_the_same_snapshot_goes_on_with_it() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.sync()
    bench.begin(3, 4)
    bench.sync()
    assert not bench.requests(FetchSnapshot)
    offered(bench)
    [request] = bench.requests(FetchSnapshot)
    assert request.to == key(3)
    assert asked(request).position == MIB


def test_another_leader_with_another_snapshot_begins_anew() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.begin(3, 4)
    bench.sync()
    offered(bench, OffsetAndEpoch(12, 4))
    [dropped] = bench.find(DropSnapshot)
    assert dropped.snapshot == SNAPSHOT
    [request] = bench.requests(FetchSnapshot)
    assert asked(request).position == 0


def test_a_leader_that_has_the_records_after_all_ends_the_copy() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.begin(3, 4)
    bench.sync()
    bench.fetched(epochs=[4])
    assert bench.find(DropSnapshot)
    assert bench.node.log.end == (4, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshot": OffsetAndEpoch(11, 3)},
        {"position": 7},
        {"size_bytes": 5},
    ],
)
def test_an_answer_that_does_not_fit_ends_the_copy(wrong: dict[str, Any]) -> None:
    bench = follower()
    offered(bench)
    piece(bench, **wrong)
    assert not bench.find(StoreSnapshot)
    assert bench.find(DropSnapshot)


def test_a_snapshot_whose_size_changes_is_given_up() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.sync()
    piece(bench, size=SIZE + 1)
    assert bench.find(DropSnapshot)


def test_an_empty_piece_is_asked_for_again_later() -> None:
    bench = follower()
    offered(bench)
    piece(bench, piece_bytes=0)
    assert not bench.requests(FetchSnapshot)
    bench.wait(100)
    assert bench.requests(FetchSnapshot)


def test_a_copy_that_is_not_sound_is_dropped_and_begun_anew() -> None:
    bench = follower()
    copied(bench)
    bench.sync()
    verified(bench, problem="byte 61: the CRC does not match the contents")
    assert "the CRC does not match" in bench.reports
    assert bench.find(DropSnapshot)
    assert not bench.find(ResetLog)
    assert bench.node.log.end == (3, 2)


def test_a_copy_that_was_verified_under_a_former_leader_waits_for_the_next_one() -> None:
    bench = follower()
    copied(bench)
    bench.sync()
    bench.begin(3, 4)
    bench.sync()
    verified(bench)
    assert not bench.find(ResetLog)
    offered(bench)
    assert bench.find(VerifySnapshot)
    verified(bench)
    assert bench.find(ResetLog)


def test_whoever_becomes_leader_has_no_use_for_a_copy() -> None:
    bench = follower()
    offered(bench)
    while bench.role is not Role.LEADER:
        bench.fire()
        for other in bench.node.other_voters():
            if bench.role in (Role.PROSPECTIVE, Role.CANDIDATE):
                bench.grant(other)
                bench.sync()
    assert bench.node.download is None
    assert bench.find_all(DropSnapshot)


def test_a_snapshot_that_ends_below_what_is_committed_here_is_refused() -> None:
    bench = follower(
        log=log_behind(10, 20, SNAPSHOT), stored=StoredState(epoch=3, applied_offset=18)
    )
    offered(bench, OffsetAndEpoch(15, 3))
    assert not bench.requests(FetchSnapshot)
    assert bench.node.obstacle is not None
    assert "restore" in bench.node.obstacle


def test_a_snapshot_of_a_later_epoch_is_refused() -> None:
    bench = follower()
    offered(bench, OffsetAndEpoch(10, 4))
    assert not bench.requests(FetchSnapshot)
    assert bench.node.download is None


def test_uncommitted_records_give_way_to_a_snapshot() -> None:
    bench = follower(log=log_of(1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, voters=voter_set(1, 2, 3)))
    copied(bench)
    verified(bench)
    assert bench.find(ResetLog)
    assert bench.node.log.end == SNAPSHOT


def test_an_observer_joins_the_voters_that_its_snapshot_names() -> None:
    bench = observer()
    local = bench.node.local
    assert bench.role is Role.OBSERVER
    copied(bench)
    named = voter_set(2, 3, local.id)
    assert named.find(local) is not None
    verified(bench, voters=KRaftVoters(named, CLUSTER))
    assert bench.role is Role.FOLLOWER


def test_the_bandwidth_limit_spaces_pieces_but_never_silences_a_follower() -> None:
    bench = follower(snapshot_bytes_per_s=100_000)
    offered(bench)
    begun_ms, received = bench.now_ms, 0
    while not bench.find(VerifySnapshot):
        [request] = bench.requests(FetchSnapshot)
        assert asked(request).max_bytes == 50_000
        piece(bench, size=500_000, length=asked(request).max_bytes)
        bench.sync()
        received += asked(request).max_bytes
        if not bench.find_all(VerifySnapshot):
            bench.wait(500)
        else:
            break
    assert received == 500_000
    assert bench.now_ms - begun_ms == 4_500
    assert bench.role is Role.FOLLOWER


# -- restart, taking, cleaning


def test_a_start_behind_a_snapshot_takes_what_it_stands_for_as_committed() -> None:
    log = log_behind(10, 10, SNAPSHOT)
    log.voter_entries = []
    log.add_voters(9, KRaftVoters(voter_set(1, 2, 3), CLUSTER))
    bench = unattached(log=log, stored=StoredState(epoch=3, applied_offset=5))
    assert bench.node.committed_offset == 10
    assert bench.node.log.last_epoch == 3
    assert bench.node.is_voter
    assert not bench.node.is_bootstrapping


def test_a_candidate_behind_a_snapshot_has_the_epoch_of_its_last_record() -> None:
    bench = unattached(log=log_behind(10, 10, SNAPSHOT), stored=StoredState(epoch=3))
    assert bench.vote(key(2), 4, (9, 3)).granted is False
    assert bench.vote(key(2), 5, (10, 3)).granted is True


def test_a_snapshot_that_was_taken_is_offered_from_now_on() -> None:
    bench = leading(log_behind(0, 20))
    taken = OffsetAndEpoch(15, 3)
    bench.step(SnapshotTaken(snapshot=taken))
    answer = bench.fetch(key(2), 0, 0)
    assert answer is not None
    assert answer.snapshot == taken


def test_cleaning_drops_what_a_snapshot_stands_for_and_nothing_else() -> None:
    bench = leading(log_behind(0, 20, (5, 3), (15, 3)))
    bench.step(CleaningRequested(start_offset=19, snapshots=(OffsetAndEpoch(15, 3),)))
    [clean] = bench.find(CleanLog)
    assert clean.start_offset == 15
    assert clean.snapshots == ((15, 3),)
    assert bench.node.log.start_offset == 15
    assert bench.node.log.epoch_starts[0] == (3, 15)


def test_the_newest_snapshot_is_never_cleaned() -> None:
    bench = leading(log_behind(0, 20, (5, 3), (15, 3)))
    bench.step(CleaningRequested(start_offset=5, snapshots=(OffsetAndEpoch(5, 3),)))
    assert not bench.find(CleanLog)
    assert bench.node.log.start_offset == 0


def test_cleaning_that_was_asked_for_before_a_reset_changes_nothing() -> None:
    bench = follower()
    copied(bench)
    verified(bench)
    bench.step(CleaningRequested(start_offset=2, snapshots=(OffsetAndEpoch(2, 1),)))
    assert not bench.find(CleanLog)


def test_the_epochs_of_a_cleaned_log_are_those_that_are_left() -> None:
    log = log_of(1, 1, 2, 2, 3, 3, voters=voter_set(1, 2, 3))
    log.snapshots = [OffsetAndEpoch(3, 2)]
    log.clean(3, log.snapshots)
    assert log.epoch_starts == [(2, 3), (3, 4)]
    assert log.contains(OffsetAndEpoch(3, 2))
    assert not log.contains(OffsetAndEpoch(3, 1))
    assert not log.contains(OffsetAndEpoch(2, 1))
