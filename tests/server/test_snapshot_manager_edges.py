"""Snapshots whose build, check or copy overlaps with something else, and what is left behind the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.raft.events import LogDeletionRequested, SnapshotTaken
from quorumd.raft.status import DownloadProgress
from quorumd.raft.types import SnapshotId
from quorumd.server.model.partition_view import CopyProgress, SnapshotWork
from quorumd.server.model.snapshot_builds import BuildFailed, BuildResult
from quorumd.server.requests.take_snapshot import SnapshotTaker, take_snapshot
from quorumd.server.snapshots.known_snapshots import KnownSnapshots
from quorumd.server.snapshots.manager import DELETION_INTERVAL_S, RETRY_MAX_S, RETRY_MIN_S
from quorumd.server.snapshots.retention import SEGMENTS_AT_ONCE
from quorumd.storage.layout import part_path
from quorumd.storage.segment_table import ClosedSegment
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse
from tests.server.test_snapshot_manager import NEW, OLD, OTHER, Bench, taken, write_snapshot
from tests.storage.helpers import DIRECTORY, START_MS


class LateBench(Bench):
    """What the disk is asked for is done when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        super().__init__()

    def _run(self, action: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.asked.append(lambda: super(LateBench, self)._run(action, done))

    def step(self) -> None:
        self.asked.pop(0)()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_short_interval_is_looked_at_as_often() -> None:
    bench = Bench(interval_s=1.0)
    bench.wait(2)
    assert bench.ends() == [30]


def test_nothing_is_built_while_a_snapshot_is_copied_from_the_leader(bench: Bench) -> None:
    bench.node.snapshot_download = DownloadProgress(
        snapshot=SnapshotId(40, 1), position=0, size_bytes=None
    )
    bench.write(1000)
    assert bench.ends() == []
    bench.node.snapshot_download = None
    bench.write(1)
    assert bench.ends() == [30]


def test_who_asks_for_what_is_being_built_gets_no_build_of_its_own(bench: Bench) -> None:
    outcomes: list[SnapshotFacts | str] = []
    bench.write(1000)
    bench.snapshots.take(outcomes.append)
    bench.failed("killed")
    assert (bench.ends(), outcomes) == ([30], ["killed"])


def test_who_asks_where_nothing_is_new_gets_the_newest_that_there_is(bench: Bench) -> None:
    outcomes: list[SnapshotFacts | str] = []
    bench.grow(NEW.end_offset)
    bench.snapshots.take(outcomes.append)
    assert (bench.ends(), [taken(each) for each in outcomes]) == ([], [NEW])


def test_batches_that_did_not_unpack_are_counted_over_all_builds(bench: Bench) -> None:
    for end_offset in (30, 40):
        bench.grow(end_offset)
        bench.write(1000)
        built = SnapshotId(end_offset, 1)
        write_snapshot(bench.fs, part_path(DIRECTORY, built), built)
        bench.builds[-1].done(BuildResult(built, 2))
    assert bench.metrics.unreadable_batches == 4


def test_a_snapshot_that_is_copied_while_one_gets_its_name_is_the_newest() -> None:
    bench = LateBench()
    bench.write(1000)
    bench.built(SnapshotId(30, 1))
    bench.snapshots.note_installed(bench.store.facts(NEW))
    while bench.asked:
        bench.step()
    assert not any(isinstance(event, SnapshotTaken) for event in bench.events)
    assert bench.metrics.snapshots.taken == 0


def test_one_snapshot_is_read_at_a_time_and_none_behind_the_end() -> None:
    bench = LateBench()
    for snapshot in (NEW, NEW, OLD, OLD):
        bench.copy(snapshot)
    assert len(bench.asked) == 1
    bench.step()
    assert len(bench.asked) == 1, "it goes on step by step"
    bench.snapshots.close()
    bench.step()
    assert not bench.asked


def test_who_waits_for_a_snapshot_is_told_of_the_end(bench: Bench) -> None:
    outcomes: list[SnapshotFacts | str] = []
    bench.snapshots.take(outcomes.append)
    bench.snapshots.close()
    assert outcomes == ["the node stops"]


def test_how_far_a_build_is_is_told_while_it_goes_on_and_no_longer(bench: Bench) -> None:
    bench.write(1000)
    bench.builds[-1].progress(0.5)
    assert bench.metrics.snapshots.build_ratio == 0.5
    bench.failed("the disk is full")
    assert bench.metrics.snapshots.build_ratio == -1.0
    bench.wait(RETRY_MIN_S + 5)
    assert bench.metrics.snapshots.build_ratio == 0.0
    bench.built(SnapshotId(30, 1))
    assert bench.metrics.snapshots.build_ratio == -1.0


def test_behind_the_end_nothing_begins() -> None:
    bench = Bench(retention_ms=1000)
    bench.closed += [
        SimpleNamespace(end_offset=end, size_bytes=1, max_timestamp=START_MS - 2000)
        for end in range(1, NEW.end_offset)
    ]
    bench.wait(DELETION_INTERVAL_S)
    event = bench.events[-1]
    assert isinstance(event, LogDeletionRequested)
    assert event.start_offset == SEGMENTS_AT_ONCE
    assert bench.alarm_count == 2, "for the clock, and for the next share"
    bench.snapshots.close()
    assert bench.alarm_count == 0
    bench.snapshots.on_damage(NEW, "damaged")
    assert bench.builds == []


def test_the_end_is_waited_for_until_a_build_has_ended(bench: Bench) -> None:
    ends: list[Callable[[], None]] = []

    async def work() -> None:
        bench.write(1000)
        building = bench.snapshots._building
        assert building is not None
        building.build = SimpleNamespace(cancel=ends.append)  # it takes a moment
        left = DIRECTORY / f"{30:020d}-0.run.part"
        bench.fs.put(left, b"")
        bench.snapshots.close()
        ended = asyncio.create_task(bench.snapshots.ended())
        await asyncio.sleep(0)
        assert bench.fs.exists(left)
        ends.pop()()
        await ended
        assert not bench.fs.exists(left)

    asyncio.run(work())


def test_a_request_that_has_its_snapshot_has_no_alarm_any_more(bench: Bench) -> None:
    responses: list[TakeSnapshotResponse] = []
    before = bench.alarm_count
    request = TakeSnapshotRequest(timeout_ms=60_000)
    take_snapshot(bench.snapshots, bench.runtime, request, responses.append)
    assert bench.alarm_count == before + 1
    bench.built(SnapshotId(30, 1))
    assert ([each.end_offset for each in responses], bench.alarm_count) == ([30], before)


@pytest.mark.parametrize(("timeout_ms", "waits_s"), [(1500, 1.5), (0, 0.0), (-1, 0.0)])
def test_a_request_waits_for_its_snapshot_as_long_as_it_says(
    bench: Bench, timeout_ms: int, waits_s: float
) -> None:
    responses: list[TakeSnapshotResponse] = []
    request = TakeSnapshotRequest(timeout_ms=timeout_ms)
    take_snapshot(bench.snapshots, bench.runtime, request, responses.append)
    bench.wait(waits_s - 0.001)
    assert responses == []
    bench.wait(0.001)
    assert [each.error_code for each in responses] == [ErrorCode.REQUEST_TIMED_OUT]
    bench.built(SnapshotId(30, 1))
    assert len(responses) == 1


def test_a_request_whose_snapshot_fails_is_told_why(bench: Bench) -> None:
    responses: list[TakeSnapshotResponse] = []
    failing = cast(SnapshotTaker, SimpleNamespace(take=lambda done: done("the disk is full")))
    take_snapshot(failing, bench.runtime, TakeSnapshotRequest(timeout_ms=1000), responses.append)
    (response,) = responses
    assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert response.error_message == "the disk is full"


def test_a_copy_of_a_snapshot_that_is_gone_is_not_listed(bench: Bench) -> None:
    bench.copy(OLD)
    bench.log.snapshots[:] = [NEW]
    bench.snapshots.note_installed(bench.store.facts(NEW))
    assert bench.snapshots.work().copies == {}


def test_how_far_copies_are_is_known_until_records_are_fetched_or_nobody_asks(
    bench: Bench,
) -> None:
    size = len(bench.contents[NEW])
    for position in (0, 100):
        bench.snapshots.serve(NEW, OTHER, position)
        assert bench.snapshots.work().copies == {OTHER: CopyProgress(NEW, position, size)}
    for later_ms in (
        0,
        1,
    ):  # The fetch that was sent to the snapshot may be as old as its first chunk.
        fetched_ms = int(bench.now_s * 1000) + later_ms
        bench.node.rows = [SimpleNamespace(key=OTHER, last_fetch_ms=fetched_ms)]
        assert (OTHER in bench.snapshots.work().copies) is (not later_ms)
    bench.wait(1)
    bench.snapshots.serve(NEW, OTHER, 200)
    assert bench.snapshots.work().copies == {OTHER: CopyProgress(NEW, 200, size)}
    bench.wait(9)
    assert OTHER in bench.snapshots.work().copies
    bench.wait(2)
    assert bench.snapshots.work().copies == {}


def test_clients_copies_are_not_listed(bench: Bench) -> None:
    bench.snapshots.serve(NEW, None, 0)
    assert bench.snapshots.work() == SnapshotWork({})


def test_a_build_that_goes_on_is_told(bench: Bench) -> None:
    bench.write(1000)
    bench.builds[-1].progress(0.25)
    assert bench.snapshots.work() == SnapshotWork({}, 30, 0.25)
    bench.built(SnapshotId(30, 1))
    assert bench.snapshots.work() == SnapshotWork({})


def test_what_can_be_read_again_while_it_is_built_anew_is_damaged_until_that_is_done() -> None:
    bench = LateBench()
    bench.snapshots.on_damage(NEW, "reading the snapshot failed: Input/output error")
    bench.failed("the log begins at offset 20")
    bench.wait(RETRY_MIN_S + 1)
    assert bench.ends() == [20, 20]
    while bench.asked:
        bench.step()
    assert not bench.copy()
    bench.built(NEW)
    while bench.asked:
        bench.step()
    assert bench.copy()
    assert bench.snapshots.problem == ""


def test_a_repair_that_went_well_ends_the_series_of_those_that_failed(bench: Bench) -> None:
    bench.damage(NEW)
    bench.snapshots.on_damage(NEW, "damaged")
    for count in range(1, 5):
        bench.failed("the disk is full")
        while len(bench.builds) == count:
            bench.wait(5)
    bench.built(NEW)
    bench.wait(RETRY_MAX_S)
    bench.write(1000)
    count = len(bench.builds)
    bench.failed("the disk is full")
    bench.wait(RETRY_MIN_S + 5)
    assert len(bench.builds) == count + 1


def test_damage_of_the_log_is_told_until_a_build_has_read_it_to_the_end(bench: Bench) -> None:
    bench.write(1000)
    assert bench.snapshots.log_damage == ""
    bench.builds[-1].done(BuildFailed("7.log: a gap", is_log_damaged=True))
    assert (bench.snapshots.log_damage, bench.snapshots.problem) == ("7.log: a gap",) * 2
    bench.wait(RETRY_MAX_S)
    bench.failed("the disk is full")
    assert bench.snapshots.log_damage == "7.log: a gap"
    assert bench.snapshots.problem == "the disk is full"
    bench.wait(RETRY_MAX_S)
    bench.built(SnapshotId(30, 1))
    assert (bench.snapshots.log_damage, bench.snapshots.problem) == ("", "")


def test_nothing_is_known_any_more_of_what_was_deleted() -> None:
    bench = Bench(retention_ms=1000)
    bench.closed[:] = [ClosedSegment(0, NEW.end_offset, 100, 0)]
    bench.wait(DELETION_INTERVAL_S)
    assert bench.log.snapshots == [NEW]
    assert bench.copy(OLD)
    assert bench.copy(NEW)
    assert [each.snapshot for each in bench.snapshots.work().copies.values()] == [NEW]
    bench.copy(OLD)
    assert bench.snapshots.work().copies == {}


def test_what_is_gone_is_neither_damaged_nor_to_be_repaired(bench: Bench) -> None:
    old, new = (bench.store.facts(each) for each in (OLD, NEW))
    known = KnownSnapshots([old, new])
    for each in (NEW, OLD):
        known.withdraw(each)
    assert known.to_repair == [OLD, NEW]
    known.keep([new])
    assert (known.facts, known.damaged, known.to_repair) == ({NEW: new}, {NEW}, [NEW])
