"""Copies of snapshots at their edges: which answers belong to them, when the next chunk is asked for."""

from __future__ import annotations

import pytest

from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.effects import (
    BootstrapServer,
    DropSnapshot,
    Fetch,
    FetchSnapshot,
    PersistQuorumState,
    ResetLog,
    StoreSnapshotChunk,
    VerifySnapshot,
)
from quorumd.raft.events import (
    ChunkNotStored,
    FetchSnapshotResponseReceived,
    LeaderHint,
    SnapshotChunk,
)
from quorumd.raft.status import DownloadProgress
from quorumd.raft.types import SnapshotId
from tests.raft.copying import MIB, SIZE, SNAPSHOT, asked, copied, offered, piece, verified
from tests.raft.harness import Bench, follower, observer

NEWER = SnapshotId(12, 3)


def given_up(bench: Bench) -> None:
    """The disk is full: the copy is dropped while a chunk of it is under way."""
    bench.step(ChunkNotStored(snapshot=SNAPSHOT, problem="no space left"))
    assert bench.node.core.download is None


def answered(bench: Bench, request_id: int, error: str | None, position: int | None) -> None:
    """The answer to a chunk that was asked for long ago."""
    chunk = None
    if position is not None:
        chunk = SnapshotChunk(
            snapshot=SNAPSHOT, position=position, size_bytes=SIZE, chunk_bytes=10, token=1
        )
    hint = LeaderHint(epoch=3, leader_id=2)
    bench.step(
        FetchSnapshotResponseReceived(request_id=request_id, error=error, hint=hint, chunk=chunk)
    )


# -- offers


def test_that_a_snapshot_is_copied_is_said() -> None:
    bench = follower()
    offered(bench)
    assert f"copying the snapshot that ends at {SNAPSHOT.end_offset} from {bench.node.leader}" in (
        bench.reports
    )


def test_an_offer_that_is_not_taken_is_not_asked_for_again_at_once() -> None:
    bench = follower()
    offered(bench, SnapshotId(10, 4))
    assert "it is of a later epoch" in bench.reports
    assert not bench.requests(Fetch)
    bench = follower()
    copied(bench)
    bench.sync()
    offered(bench)
    assert not bench.requests(Fetch)
    verified(bench, problem="it is damaged")
    bench.wait(20)
    offered(bench)
    assert bench.node.core.download is None
    assert not bench.requests(Fetch)


LARGEST = 2**31
"""Bytes of the largest snapshot whose last byte a Kafka leader can be asked for."""


def test_a_kafka_leader_is_never_asked_for_a_position_that_ends_it() -> None:
    """Its process ends when it is asked for a byte behind the first 2^31; the first piece says the size."""
    bench = observer(is_kafka_log=True)
    offered(bench)
    piece(bench, LARGEST + 1)
    bench.sync()
    assert bench.node.core.download is None
    assert not bench.find_all(StoreSnapshotChunk)
    problem = bench.node.status().problem
    assert problem is not None
    assert f"a snapshot of {LARGEST + 1} bytes" in problem
    asked_before = len(bench.requests(FetchSnapshot, bench.all))
    bench.wait(500)
    offered(bench)
    assert len(bench.requests(FetchSnapshot, bench.all)) == asked_before, "not at once again"


@pytest.mark.parametrize(
    ("is_kafka_log", "size"), [(True, LARGEST - 1), (True, LARGEST), (False, LARGEST + MIB)]
)
def test_a_large_snapshot_is_copied_to_its_end(is_kafka_log: bool, size: int) -> None:
    bench = observer(is_kafka_log=is_kafka_log)
    offered(bench)
    piece(bench, size)
    bench.sync()
    assert asked(bench.outstanding(FetchSnapshot)).position == MIB


def test_a_snapshot_of_a_former_epoch_is_copied() -> None:
    bench = follower()
    offered(bench, SnapshotId(10, 2))
    assert bench.requests(FetchSnapshot)


# -- chunks


def test_no_chunk_is_asked_for_while_a_fetch_is_under_way() -> None:
    bench = follower()
    core = bench.node.core
    offered(bench)
    bench.fail(FetchSnapshot)
    assert core.leader is not None
    fetch = InFlightRequest(core.leader, Fetch(core.epoch, core.log.end, -1))
    core.requests.in_flight[0] = fetch
    assert not bench.requests(FetchSnapshot, bench.wait(100))
    core.requests.in_flight.clear()
    assert bench.requests(FetchSnapshot, bench.wait(0))


def test_a_chunk_is_asked_of_a_new_leader_once_that_is_on_disk() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    bench.begin(3, 4)
    state = bench.find(PersistQuorumState)[-1].write
    offered(bench)
    [request] = bench.requests(FetchSnapshot)
    assert request.after == state


def test_a_chunk_is_as_long_as_the_limit_allows_in_half_a_fetch_timeout() -> None:
    for limit, length in ((None, MIB), (10**9, MIB), (100_000, 50_000), (1, 1)):
        bench = follower(snapshot_bytes_per_s=limit)
        offered(bench)
        assert asked(bench.outstanding(FetchSnapshot)).max_bytes == length


def test_the_next_chunk_comes_when_the_limit_allows_it() -> None:
    bench = follower(snapshot_bytes_per_s=100_000)
    offered(bench)
    piece(bench, length=100_000)
    bench.sync()
    assert bench.node.next_deadline_ms() == bench.now_ms + 1000
    assert not bench.requests(FetchSnapshot, bench.wait(999))
    assert bench.requests(FetchSnapshot, bench.wait(1))


def test_a_chunk_that_is_longer_than_the_rest_of_the_file_ends_the_copy() -> None:
    bench = follower()
    offered(bench)
    piece(bench, chunk_bytes=SIZE + 1)
    assert not bench.find(StoreSnapshotChunk)
    assert bench.find(DropSnapshot)


def test_an_answer_without_a_chunk_shows_that_the_leader_is_there() -> None:
    bench = follower()
    offered(bench)
    bench.now_ms += 500
    answered(bench, bench.outstanding(FetchSnapshot).request_id, None, None)
    assert bench.node.core.known_leader.last_contact_ms == bench.now_ms
    assert bench.node.core.download is not None


# -- answers to a copy that was given up


def test_a_late_refusal_does_not_end_the_copy_of_another_snapshot() -> None:
    for error in ("SNAPSHOT_NOT_FOUND", None):
        bench = follower()
        offered(bench)
        late = bench.outstanding(FetchSnapshot).request_id
        given_up(bench)
        offered(bench, NEWER)
        answered(bench, late, error, 0 if error is None else None)
        assert bench.node.core.download is not None
        assert bench.node.core.download.snapshot == NEWER
        assert not bench.find_all(StoreSnapshotChunk)


def test_a_late_chunk_of_the_same_snapshot_does_not_fit_a_copy_that_was_begun_anew() -> None:
    bench = follower()
    offered(bench)
    piece(bench)
    late = bench.outstanding(FetchSnapshot).request_id
    given_up(bench)
    bench.now_ms += 1000
    offered(bench)
    bench.last.clear()
    answered(bench, late, None, MIB)
    assert not bench.find(StoreSnapshotChunk)
    assert bench.node.core.download is None or bench.node.core.download.position == 0


def test_the_leader_whose_snapshot_is_no_use_is_named() -> None:
    bench = follower()
    offered(bench)
    given_up(bench)
    assert bench.node.core.problem == (
        f"the snapshot of leader {bench.node.leader} that ends at 10 could not be taken over: "
        "no space left"
    )
    assert "the copy of the snapshot that ends at 10 is dropped: no space left" in bench.reports


def test_how_far_a_copy_is_can_be_asked() -> None:
    bench = follower()
    assert bench.node.snapshot_download is None
    offered(bench)
    piece(bench)
    assert bench.node.snapshot_download == DownloadProgress(
        snapshot=SNAPSHOT, position=MIB, size_bytes=SIZE
    )


# -- edges of an offer


def test_a_copy_that_is_being_verified_is_verified_once() -> None:
    bench = follower()
    copied(bench)
    bench.sync()
    offered(bench)
    assert len(bench.find_all(VerifySnapshot)) == 1


def test_a_snapshot_below_what_is_committed_whose_end_the_log_does_not_have_is_refused() -> None:
    for end, is_refused in ((2, False), (1, True)):
        bench = follower()
        assert bench.node.core.kept_offset == 2
        offered(bench, SnapshotId(end, 2))
        assert (f"offers a snapshot that ends at {end}" in bench.reports) is is_refused
        assert (bench.node.core.problem is not None) is is_refused
        assert (bench.node.core.download is None) is is_refused


def test_a_leader_that_has_a_newer_snapshot_meanwhile_has_that_copied() -> None:
    bench = observer(bootstrap_servers=1)
    offered(bench)
    for _ in range(2):
        bench.fail(FetchSnapshot)
        bench.wait(1000)
    offered(bench, NEWER, asked_as=BootstrapServer(index=0))
    assert bench.node.core.download is not None
    assert bench.node.core.download.snapshot == NEWER


# -- edges of a chunk


def test_what_was_not_asked_or_is_refused_is_no_sign_of_the_leader() -> None:
    bench = follower()
    offered(bench)
    contact_ms = bench.node.core.known_leader.last_contact_ms
    request_id = bench.outstanding(FetchSnapshot).request_id
    bench.now_ms += 100
    answered(bench, request_id + 1000, None, 0)
    assert bench.node.core.known_leader.last_contact_ms == contact_ms
    answered(bench, request_id, "INCONSISTENT_CLUSTER_ID", None)
    assert bench.node.core.known_leader.last_contact_ms == contact_ms


def test_a_chunk_that_does_not_fit_is_no_reason_to_ask_at_once() -> None:
    bench = follower()
    offered(bench)
    piece(bench, chunk_bytes=SIZE + 1)
    bench.sync()
    assert not bench.requests(FetchSnapshot)
    assert (bench.node.core.leader, FetchSnapshot) in bench.node.core.requests.backoffs


# -- edges of a verified copy


def test_only_the_copy_of_now_counts_once_it_is_whole_and_verified() -> None:
    """The file that an earlier word was about is gone."""
    bench = follower()
    copied(bench)
    bench.sync()
    given_up(bench)
    verified(bench)
    assert not bench.find(ResetLog)

    bench.wait(1000)
    offered(bench)
    piece(bench)
    assert bench.node.core.download is not None
    assert not bench.node.core.download.is_complete
    verified(bench)
    assert not bench.find(ResetLog)

    bench = follower()
    copied(bench)
    bench.sync()
    verified(bench, NEWER)
    assert not bench.find(ResetLog)
    assert bench.node.core.download is not None


def test_behind_a_verified_copy_the_leader_is_asked_at_once() -> None:
    bench = follower()
    copied(bench)
    bench.sync()
    offered(bench)
    assert (bench.node.core.leader, Fetch) in bench.node.core.requests.backoffs
    verified(bench)
    bench.sync()
    assert bench.outstanding(Fetch)
    assert not bench.node.core.requests.backoffs


# -- edges of a copy in vain


def test_a_chunk_that_is_not_stored_after_the_copy_was_given_up_is_nothing_new() -> None:
    bench = follower()
    offered(bench)
    given_up(bench)
    failed = bench.node.core.failed_download
    given_up(bench)
    assert bench.node.core.failed_download == failed


def test_of_another_snapshot_no_copy_has_failed_before() -> None:
    bench = follower()
    for wanted in (1000, 2000):
        offered(bench)
        given_up(bench)
        assert bench.node.core.failed_download is not None
        assert bench.node.core.failed_download.again_at_ms == bench.now_ms + wanted
        bench.now_ms += wanted
        bench.wait(0)
    offered(bench, NEWER)
    bench.step(ChunkNotStored(snapshot=NEWER, problem="no space left"))
    assert bench.node.core.failed_download.again_at_ms == bench.now_ms + 1000


def test_a_copy_in_vain_is_tried_again_from_its_time_on() -> None:
    for waited_ms, is_copied in ((999, False), (1000, True), (1001, True)):
        bench = follower()
        offered(bench)
        late = bench.outstanding(FetchSnapshot).request_id
        given_up(bench)
        answered(bench, late, None, None)
        bench.now_ms += waited_ms
        offered(bench)
        assert (bench.node.core.download is not None) is is_copied
