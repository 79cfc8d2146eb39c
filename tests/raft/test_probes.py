"""A follower whose disk takes no records keeps in touch with its leader, and acknowledges nothing by that."""

from __future__ import annotations

import pytest

from quorumd.raft.effects import AppendFetched, Fetch, Probe, TruncateLog
from quorumd.raft.events import (
    DiskSpaceChanged,
    FetchedRecords,
    FetchResponseReceived,
    LeaderHint,
    TimerFired,
)
from quorumd.raft.log_view import LogView
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch, SnapshotId
from tests.raft.harness import Bench, follower, observer

FETCH_TIMEOUT_MS = 2_000
HALF_MS = FETCH_TIMEOUT_MS // 2


def stuck(bench: Bench) -> Bench:
    """Two records were fetched, and do not reach the disk."""
    bench.sync()
    bench.fetched(epochs=(3, 3))
    bench.step(DiskSpaceChanged(is_full=True))
    return bench


def answer(
    bench: Bench,
    *,
    records: FetchedRecords | None = None,
    high_watermark: int | None = None,
    diverging: OffsetAndEpoch | None = None,
) -> None:
    bench.step(
        FetchResponseReceived(
            request_id=bench.outstanding(Probe).request_id,
            error=None,
            hint=LeaderHint(epoch=3, leader_id=2),
            records=records,
            high_watermark=high_watermark,
            diverging=diverging,
        )
    )


def test_it_follows_for_as_long_as_its_leader_responds() -> None:
    bench = stuck(follower())
    before = len(bench.all)
    for _ in range(10):
        bench.wait(HALF_MS)
        answer(bench)
    assert bench.role is Role.FOLLOWER
    assert [type(sent.request) for sent in bench.requests(object, bench.all[before:])] == 10 * [
        Probe
    ]


def test_a_probe_names_what_is_on_the_disk_and_waits_for_no_records() -> None:
    bench = stuck(follower())
    end = bench.node.synced_end_offset
    assert end == bench.node.log_end_offset - 2
    bench.wait(HALF_MS)
    (sent,) = bench.requests(Probe)
    assert sent.request.position == OffsetAndEpoch(end, 2), "the records of epoch 3 are not there"
    assert not sent.waits_for_records
    assert sent.after == bench.node.core.writes.state
    assert sent.request.high_watermark == -1, "it knows none"
    (fetch,) = (held for held in bench.requests(Fetch, bench.all) if held.after > sent.after)
    assert fetch.waits_for_records


def test_a_probe_says_what_is_known_to_be_committed() -> None:
    bench = follower()
    bench.sync()
    bench.fetched(high_watermark=2)
    bench.fetched(epochs=(3, 3))
    bench.step(DiskSpaceChanged(is_full=True))
    bench.wait(HALF_MS)
    (sent,) = bench.requests(Probe)
    assert sent.request.high_watermark == 2


def test_a_timer_that_goes_off_late_sends_one_nevertheless() -> None:
    bench = stuck(follower())
    bench.step(TimerFired(), after_ms=HALF_MS - 1)
    assert not bench.requests(Probe, bench.all)
    bench.step(TimerFired(), after_ms=300)
    assert len(bench.requests(Probe)) == 1


def test_nor_is_it_taken_where_the_log_ends_as_on_the_disk() -> None:
    """The truncation waits for the disk."""
    bench = follower()
    bench.sync()
    bench.fetched(diverging=(2, 1))
    bench.step(DiskSpaceChanged(is_full=True))
    bench.wait(HALF_MS)
    end = bench.node.log_end_offset
    (sent,) = bench.requests(Probe)
    assert sent.request.position.offset == end
    records = FetchedRecords(token=7, base_offset=end, end_offset=end + 1, epochs=((3, end),))
    answer(bench, records=records)
    assert bench.node.log_end_offset == end


def test_what_the_leader_sends_with_it_is_not_taken() -> None:
    bench = stuck(follower())
    end, before = bench.node.log_end_offset, len(bench.all)
    bench.wait(HALF_MS)
    base = bench.node.synced_end_offset
    records = FetchedRecords(token=7, base_offset=base, end_offset=base + 2, epochs=((3, base),))
    answer(bench, records=records, high_watermark=base + 2)
    bench.wait(HALF_MS)
    answer(bench, diverging=OffsetAndEpoch(1, 1))
    assert not any(isinstance(each, AppendFetched | TruncateLog) for each in bench.all[before:])
    assert bench.node.log_end_offset == end


def test_a_leader_that_does_not_respond_is_dead_all_the_same() -> None:
    bench = stuck(follower())
    bench.wait(FETCH_TIMEOUT_MS + 60)
    assert bench.role is Role.PROSPECTIVE
    assert len(bench.requests(Probe, bench.all)) == 1


def test_records_that_are_on_the_disk_after_all_are_acknowledged_by_a_fetch() -> None:
    bench = stuck(follower())
    bench.wait(HALF_MS)
    bench.step(DiskSpaceChanged(is_full=False))
    bench.sync()
    answer(bench)
    fetch = bench.outstanding(Fetch)
    assert fetch.request.position.offset == bench.node.log_end_offset
    bench.all.clear()
    bench.wait(HALF_MS)
    assert not bench.requests(Probe, bench.all)


def test_a_disk_that_is_only_slow_keeps_nobody_from_campaigning() -> None:
    bench = stuck(follower())
    bench.step(DiskSpaceChanged(is_full=False))
    bench.wait(FETCH_TIMEOUT_MS + 60)
    assert bench.role is Role.PROSPECTIVE
    assert not bench.requests(Probe, bench.all)


def test_a_full_disk_that_nothing_waits_for_keeps_no_fetch_back() -> None:
    bench = stuck(follower())
    bench.sync()
    bench.wait(HALF_MS)
    assert not bench.requests(Probe, bench.all)


def test_an_observer_elects_nobody_and_does_not_probe() -> None:
    bench = observer()
    bench.fetched(epochs=(3, 3), hint=LeaderHint(epoch=3, leader_id=2))
    bench.step(DiskSpaceChanged(is_full=True))
    bench.all.clear()
    bench.wait(10 * FETCH_TIMEOUT_MS)
    assert not bench.requests(Probe, bench.all)


@pytest.mark.parametrize(("end_offset", "epoch"), [(4, 2), (5, 3), (6, 5), (8, 5), (9, 7), (12, 7)])
def test_the_end_of_a_part_of_the_log_has_the_epoch_of_its_last_record(
    end_offset: int, epoch: int
) -> None:
    log = LogView(4, 12, 12, [(3, 4), (5, 5), (7, 8)], [], [SnapshotId(4, 2), SnapshotId(6, 5)])
    assert log.prefix_end(end_offset) == OffsetAndEpoch(end_offset, epoch)
    assert log.contains(log.prefix_end(end_offset))


def test_the_beginning_of_all_logs_is_of_epoch_0() -> None:
    assert LogView(0, 3, 3, [(2, 0)]).prefix_end(0) == OffsetAndEpoch(0, 0)
