"""Snapshots that are copied from the leader: piece by piece, verified, begun anew or given up."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    AnnounceHighWatermark,
    BootstrapServer,
    DropSnapshot,
    Fetch,
    FetchSnapshot,
    ResetLog,
    StoreSnapshotChunk,
    TruncateLog,
    VerifySnapshot,
)
from quorumd.raft.events import (
    ChunkNotStored,
)
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch, SnapshotId
from tests.raft.copying import (
    MIB,
    SIZE,
    SNAPSHOT,
    asked,
    copied,
    log_behind,
    offered,
    piece,
    verified,
)
from tests.raft.harness import (
    CLUSTER,
    Bench,
    follower,
    key,
    log_of,
    observer,
    voter_set,
)


def test_a_snapshot_is_copied_piece_by_piece_each_after_the_one_before_is_stored() -> None:
    bench = follower()
    offered(bench)
    [first] = bench.requests(FetchSnapshot)
    assert first.request == FetchSnapshot(epoch=3, snapshot=SNAPSHOT, position=0, max_bytes=MIB)
    piece(bench)
    [stored] = bench.find(StoreSnapshotChunk)
    assert (stored.position, stored.token) == (0, first.request_id)
    [second] = bench.requests(FetchSnapshot)
    assert second.after >= stored.write
    assert asked(second).position == MIB
    piece(bench)
    piece(bench)
    [verify] = bench.find(VerifySnapshot)
    [last] = bench.find(StoreSnapshotChunk)
    assert verify.after == last.write
    assert not bench.requests(FetchSnapshot)


def test_behind_a_verified_snapshot_the_log_begins_anew() -> None:
    bench = follower()
    copied(bench)
    verified(bench)
    [reset] = bench.find(ResetLog)
    assert reset.snapshot == SNAPSHOT
    log = bench.node.core.log
    assert (log.start_offset, log.end, log.snapshots) == (10, SNAPSHOT, [SNAPSHOT])
    assert log.voters == voter_set(1, 2, 3)
    assert bench.find(AnnounceHighWatermark)[-1].offset == 10
    offered(bench)
    assert bench.node.core.download is None
    [fetch] = bench.requests(Fetch)
    assert isinstance(fetch.request, Fetch)
    assert fetch.request.position == SNAPSHOT
    assert fetch.after >= reset.write
    bench.sync()
    bench.fetched(epochs=[3], high_watermark=11)
    assert bench.node.core.log.end == (11, 3)
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
    newer = SnapshotId(12, 3)
    offered(bench, newer)
    bench.wait(100)
    [request] = bench.requests(FetchSnapshot)
    assert asked(request).snapshot == newer
    assert asked(request).position == 0


def test_a_bootstrap_server_that_leads_is_not_asked_in_a_tight_loop() -> None:
    """While pieces are not to be had, the leader may be asked as a bootstrap server, too."""
    bench = observer(bootstrap_servers=1)
    offered(bench)
    for _ in range(2):
        bench.fail(FetchSnapshot)
        bench.wait(1000)
    offered(bench, asked_as=BootstrapServer(index=0))
    assert not bench.requests(Fetch)
    bench.wait(1000)
    assert bench.requests(Fetch)


def test_a_refusal_of_a_kafka_leader_ends_the_copy() -> None:
    bench = follower()
    offered(bench)
    bench.fail(FetchSnapshot, error="UNKNOWN_SERVER_ERROR")
    assert bench.find(DropSnapshot)
    assert bench.node.core.download is None


def test_a_refusal_that_comes_after_the_copy_was_given_up_is_no_news() -> None:
    bench = follower()
    offered(bench)
    bench.step(ChunkNotStored(snapshot=SNAPSHOT, problem="the disk is full"))
    reports = bench.reports
    bench.fail(FetchSnapshot, error="UNKNOWN_SERVER_ERROR")
    assert bench.reports == reports


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
    offered(bench, SnapshotId(12, 4))
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
    assert bench.node.core.log.end == (4, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshot": SnapshotId(11, 3)},
        {"position": 7},
        {"size_bytes": 5},
    ],
)
def test_an_answer_that_does_not_fit_ends_the_copy(wrong: dict[str, Any]) -> None:
    bench = follower()
    offered(bench)
    piece(bench, **wrong)
    assert not bench.find(StoreSnapshotChunk)
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
    piece(bench, chunk_bytes=0)
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
    assert bench.node.core.log.end == (3, 2)
    assert bench.node.core.problem is not None
    assert "the CRC does not match" in bench.node.core.problem
    bench.sync()
    copied_again(bench)
    verified(bench)
    assert bench.find(ResetLog)


def waits_for(bench: Bench, kind: type[Fetch | FetchSnapshot]) -> bool:
    """Whether such a request to the leader has no answer yet."""
    sent = bench.requests(kind, bench.all)
    return any(
        each.request_id in bench.node.core.requests.in_flight and each.to == bench.node.leader
        for each in sent
    )


def copied_again(bench: Bench) -> int:
    """The leader offers its snapshot until all pieces are there; returns the ms until the first."""
    before = bench.now_ms
    while not waits_for(bench, FetchSnapshot):
        assert bench.now_ms < before + 20_000
        if waits_for(bench, Fetch):
            offered(bench)
        bench.wait(50)
        assert bench.role is Role.FOLLOWER
    begun = bench.now_ms - before
    piece(bench)
    while not bench.find(VerifySnapshot):
        bench.sync()
        piece(bench)
    bench.sync()
    return begun


def test_a_snapshot_that_is_never_sound_is_copied_more_and_more_seldom() -> None:
    """Each copy costs all its bytes. The leader is kept in touch with all the while."""
    bench = follower()
    copied(bench)
    bench.sync()
    pauses = []
    for _ in range(7):
        verified(bench, problem="byte 61: the CRC does not match the contents")
        pauses.append(copied_again(bench))
    for pause, wanted in zip(pauses, [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert wanted * 1_000 <= pause <= wanted * 1_000 + 1_100, pauses


def test_another_snapshot_or_another_leader_is_tried_at_once() -> None:
    bench = follower()
    copied(bench)
    bench.sync()
    verified(bench, problem="byte 61: the CRC does not match the contents")
    bench.sync()
    newer = SnapshotId(12, 3)
    offered(bench, newer)
    assert asked(bench.outstanding(FetchSnapshot)).snapshot == newer
    bench.begin(3, 4)
    bench.sync()
    offered(bench)
    assert asked(bench.outstanding(FetchSnapshot)).snapshot == SNAPSHOT


def test_a_copy_that_there_is_no_room_for_is_dropped_and_tried_again_later() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.step(ChunkNotStored(snapshot=SNAPSHOT, problem="no space left"))
    assert bench.find(DropSnapshot)
    assert bench.node.core.problem is not None
    assert "no space left" in bench.node.core.problem
    bench.sync()
    piece(bench)
    assert not bench.find(StoreSnapshotChunk)
    assert copied_again(bench) >= 900
    verified(bench)
    assert bench.find(ResetLog)


def test_a_piece_of_another_snapshot_that_was_not_stored_is_nothing_new() -> None:
    bench = follower()
    offered(bench)
    bench.step(ChunkNotStored(snapshot=SnapshotId(7, 3), problem="no space left"))
    assert bench.node.core.download is not None
    assert bench.node.core.problem is None


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
        for other in bench.node.core.other_voters():
            if bench.role in (Role.PROSPECTIVE, Role.CANDIDATE):
                bench.grant(other)
                bench.sync()
    assert bench.node.core.download is None
    assert bench.find_all(DropSnapshot)


def test_a_snapshot_that_ends_below_what_is_committed_here_is_refused() -> None:
    bench = follower(
        log=log_behind(10, 20, SNAPSHOT), stored=StoredState(epoch=3, applied_offset=18)
    )
    offered(bench, SnapshotId(15, 3))
    assert not bench.requests(FetchSnapshot)
    assert bench.node.core.problem is not None
    assert "keep this one" in bench.node.core.problem


def test_a_snapshot_of_a_later_epoch_is_refused() -> None:
    bench = follower()
    offered(bench, SnapshotId(10, 4))
    assert not bench.requests(FetchSnapshot)
    assert bench.node.core.download is None


def test_uncommitted_records_give_way_to_a_snapshot() -> None:
    bench = follower(log=log_of(1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, voters=voter_set(1, 2, 3)))
    copied(bench)
    verified(bench)
    assert bench.find(ResetLog)
    assert bench.node.core.log.end == SNAPSHOT


def test_records_behind_an_offered_snapshot_that_the_log_holds_are_cut() -> None:
    """The leader's log begins with that snapshot, and does not know them."""
    bench = follower(log=log_of(1, 1, 2, 2, voters=voter_set(1, 2, 3)))
    offered(bench, SnapshotId(3, 2))
    assert not bench.requests(FetchSnapshot)
    assert [cut.end_offset for cut in bench.find(TruncateLog)] == [3]
    bench.sync()
    fetch = bench.outstanding(Fetch).request
    assert isinstance(fetch, Fetch)
    assert fetch.position == OffsetAndEpoch(3, 2)


def test_an_observer_joins_the_voters_that_its_snapshot_names() -> None:
    bench = observer()
    local = bench.node.local
    assert bench.role is Role.OBSERVER
    copied(bench)
    named = voter_set(2, 3, local.id)
    assert named.find(local) is not None
    verified(bench, voters=VotersRecord(named, CLUSTER))
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
