"""When snapshots are taken, what becomes of builds that fail, and of snapshots that are damaged."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from quorumd.raft.events import Event, LogDeletionRequested, ResignationRequested, SnapshotTaken
from quorumd.raft.log_view import LogView
from quorumd.raft.node import RaftNode
from quorumd.raft.status import DownloadProgress
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, SnapshotId
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Reader, Runtime
from quorumd.server.model.snapshot_builds import BuildFailed, BuildResult
from quorumd.server.requests.take_snapshot import take_snapshot
from quorumd.server.snapshots.manager import (
    DELETION_INTERVAL_S,
    RESIGN_INTERVAL_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    SnapshotManager,
)
from quorumd.server.snapshots.outgoing_copies import CHECK_AGAIN_S
from quorumd.server.snapshots.settings import SnapshotSettings, WriteProgress
from quorumd.storage.layout import part_path
from quorumd.storage.log import Log
from quorumd.storage.snapshot_file import SnapshotFacts, SnapshotWriter
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse
from quorumd.wire.records import Record, build_batch
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, START_MS, empty_disk

T = TypeVar("T")
OLD, NEW = SnapshotId(10, 1), SnapshotId(20, 1)
OTHER = ReplicaKey(2, UUID(int=2))
COPIER_SILENT_S = 10.0


def write_snapshot(fs: FaultyFileSystem, path: Path, snapshot: SnapshotId) -> bytes:
    """A sound one of some batches of records."""
    writer = SnapshotWriter(fs, path, snapshot, START_MS, (), ())
    for number in range(5):
        headers = (("quorumd.offset", b"3"),)
        record = Record(START_MS, START_MS, b"%03d" % number, bytes(100), headers)
        batch = build_batch([record], base_offset=writer.next_offset, epoch=snapshot.epoch)
        writer.write_batch([batch], 1)
    writer.finish()
    return fs.contents(path)


@dataclass(slots=True)
class FakeBuild:
    end_offset: int
    progress: Callable[[float], None]
    done: Callable[[BuildResult | BuildFailed], None]
    is_cancelled: bool = False
    is_over: bool = False

    def cancel(self, ended: Callable[[], None]) -> None:
        self.is_cancelled = True
        ended()


@dataclass(slots=True)
class Node:
    """What `SnapshotManager` sees of the rules."""

    log: LogView
    committed_offset: int
    is_leader: bool = True
    snapshot_download: DownloadProgress | None = None
    rows: list[Any] = field(default_factory=list)

    @property
    def snapshots(self) -> list[SnapshotId]:
        return self.log.snapshots

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        return self.log.snapshot

    @property
    def log_start_offset(self) -> int:
        return self.log.start_offset

    @property
    def synced_end_offset(self) -> int:
        return self.log.synced_end_offset

    def contains(self, position: OffsetAndEpoch) -> bool:
        return self.log.contains(position)

    def progress(self) -> list[Any]:
        return self.rows


class Bench:
    """A node with two snapshots, whose log holds everything; time passes when `wait` says so."""

    def __init__(self, retention_ms: int | None = None, interval_s: float = 3600.0) -> None:
        self.fs = empty_disk()
        self.closed: list[Any] = []
        self.store = SnapshotStore(self.fs, DIRECTORY)
        self.contents = {
            each: write_snapshot(self.fs, self.store.path(each), each) for each in (OLD, NEW)
        }
        found = self.store.open()
        self.now_s = 1000.0
        self.builds: list[FakeBuild] = []
        self.events: list[Event] = []
        self.log = LogView(
            end_offset=30,
            synced_end_offset=30,
            epoch_starts=[(1, 0)],
            snapshots=[SnapshotId(*OLD), SnapshotId(*NEW)],
        )
        self.node = Node(self.log, 30)
        self.metrics = Metrics()
        self.written = SimpleNamespace(written_bytes=0, base=None)
        self._numbers = itertools.count()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        runtime = SimpleNamespace(
            monotonic_s=lambda: self.now_s,
            monotonic_ms=lambda: int(self.now_s * 1000),
            wall_ms=lambda: START_MS,
            call_at=self._call_at,
            build=self._build,
        )
        self.runtime = cast(Runtime, runtime)
        settings = SnapshotSettings(
            max_new_record_bytes=1000,
            interval_s=interval_s,
            retention_bytes=None,
            retention_ms=retention_ms,
            copier_silent_s=COPIER_SILENT_S,
        )
        log = SimpleNamespace(directory=DIRECTORY, closed_segments=self.closed.copy, size_bytes=0)
        self.snapshots = SnapshotManager(
            settings,
            cast(RaftNode, self.node),
            cast(Log, log),
            self.store,
            cast(Reader, SimpleNamespace(run=self._run)),
            self.runtime,
            self.metrics,
            self._handle,
            cast(WriteProgress, self.written),
            found,
            0,
        )
        self.snapshots.start()

    def _call_at(self, at_s: float, callback: Callable[[], None]) -> Any:
        alarm = (at_s, next(self._numbers), callback)
        heapq.heappush(self._alarms, alarm)
        return SimpleNamespace(cancel=lambda: self._cancel(alarm))

    def _cancel(self, alarm: tuple[float, int, Callable[[], None]]) -> None:
        if alarm in self._alarms:
            self._alarms.remove(alarm)
            heapq.heapify(self._alarms)

    @property
    def alarm_count(self) -> int:
        """Alarms that are still to go off."""
        return len(self._alarms)

    def _build(
        self,
        directory: Path,
        end_offset: int,
        progress: Callable[[float], None],
        done: Callable[[BuildResult | BuildFailed], None],
    ) -> FakeBuild:
        self.builds.append(FakeBuild(end_offset, progress, done))
        return self.builds[-1]

    def _run(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        outcome: T | BaseException
        try:
            outcome = action()
        except Exception as error:
            outcome = error
        done(outcome)

    def _handle(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, SnapshotTaken):
            self.log.snapshots.append(event.snapshot)
        elif isinstance(event, LogDeletionRequested):
            self.log.snapshots[:] = event.snapshots

    def wait(self, seconds: float) -> None:
        """Let time pass; alarms go off on the way."""
        end_s = self.now_s + seconds
        while self._alarms and self._alarms[0][0] <= end_s:
            self.now_s, _, callback = heapq.heappop(self._alarms)
            callback()
        self.now_s = end_s

    def write(self, size_bytes: int) -> None:
        self.written.written_bytes += size_bytes
        self.snapshots.build_if_due()

    def grow(self, end_offset: int) -> None:
        """So much is committed now."""
        self.node.committed_offset = end_offset
        self.log.end_offset = self.log.synced_end_offset = end_offset

    def built(self, snapshot: SnapshotId) -> None:
        """The build that goes on ends well."""
        write_snapshot(self.fs, part_path(DIRECTORY, snapshot), snapshot)
        self.builds[-1].done(BuildResult(snapshot, 0))

    def failed(self, problem: str, damaged: SnapshotId | None = None) -> None:
        self.builds[-1].is_over = True
        self.builds[-1].done(BuildFailed(problem, damaged))

    def ends(self) -> list[int]:
        return [build.end_offset for build in self.builds]

    def damage(self, snapshot: SnapshotId) -> None:
        path = self.store.path(snapshot)
        self.fs.flip(path, len(self.fs.contents(path)) // 2)

    def copy(self, snapshot: SnapshotId = NEW, replica: ReplicaKey | None = OTHER) -> bool:
        """Somebody begins to copy; false if it is not given."""
        return self.snapshots.serve(snapshot, replica, 0)

    def resigned(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, ResignationRequested)]


def taken(outcome: SnapshotFacts | str) -> SnapshotId:
    assert not isinstance(outcome, str), outcome
    return outcome.id


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_enough_new_records_or_enough_time_begin_a_build(bench: Bench) -> None:
    bench.write(999)
    assert bench.builds == []
    bench.write(1)
    assert bench.ends() == [30]
    bench.write(5000)
    assert bench.ends() == [30]
    bench.grow(40)
    bench.built(SnapshotId(30, 1))
    assert bench.ends() == [30, 40]
    bench.built(SnapshotId(40, 1))
    assert bench.written.base == bench.store.facts(SnapshotId(40, 1))
    bench.wait(3_599)
    assert bench.ends() == [30, 40]
    bench.grow(50)
    bench.wait(10)
    assert bench.ends() == [30, 40, 50]


@pytest.mark.parametrize(("took_s", "rest_s"), [(2.0, 38.0), (5.0, 60.0)])
def test_new_records_begin_no_build_before_the_processor_has_had_rest(
    bench: Bench, took_s: float, rest_s: float
) -> None:
    bench.write(1000)
    bench.wait(took_s)
    bench.grow(40)
    bench.write(5000)
    bench.built(SnapshotId(30, 1))
    bench.wait(rest_s - 0.1)
    bench.write(1)
    assert bench.ends() == [30]
    bench.snapshots.take(lambda _: None)
    assert bench.ends() == [30, 40], "an operator need not wait"
    bench.built(SnapshotId(40, 1))
    bench.grow(50)
    bench.write(1000)
    assert bench.ends() == [30, 40, 50], "that one took no time"


@pytest.mark.parametrize(("took_s", "rest_s"), [(2.0, 38.0), (5.0, 60.0)])
def test_what_was_due_while_the_processor_rested_is_built_without_new_records(
    bench: Bench, took_s: float, rest_s: float
) -> None:
    bench.write(1000)
    bench.wait(took_s)
    bench.grow(40)
    bench.write(1000)
    bench.built(SnapshotId(30, 1))
    bench.wait(rest_s + DELETION_INTERVAL_S)
    assert bench.ends() == [30, 40]


def test_nothing_that_a_build_may_read_is_deleted_before_its_end(bench: Bench) -> None:
    bench.copy(OLD)
    bench.write(1000)
    bench.built(SnapshotId(30, 1))
    bench.grow(40)
    bench.write(1000)
    bench.wait(COPIER_SILENT_S + 2 * DELETION_INTERVAL_S)
    assert bench.log.snapshots == [OLD, NEW, SnapshotId(30, 1)]
    bench.built(SnapshotId(40, 1))
    assert bench.log.snapshots == [SnapshotId(30, 1), SnapshotId(40, 1)]


def test_of_several_snapshots_that_are_copied_the_oldest_stays_too(bench: Bench) -> None:
    bench.copy(OLD)
    bench.copy(NEW, None)
    bench.write(1000)
    bench.built(SnapshotId(30, 1))
    assert bench.log.snapshots == [OLD, NEW, SnapshotId(30, 1)]
    bench.wait(COPIER_SILENT_S + 2 * DELETION_INTERVAL_S)
    assert bench.log.snapshots == [NEW, SnapshotId(30, 1)]


def test_a_build_that_fails_is_tried_again_more_and_more_seldom(bench: Bench) -> None:
    bench.write(1000)
    pauses = []
    for _ in range(7):
        begun = len(bench.ends())
        bench.failed("the disk is full")
        bench.write(1000)
        pauses.append(0)
        while len(bench.ends()) == begun:
            bench.wait(5)
            pauses[-1] += 5
    assert pauses[0] <= RETRY_MIN_S + 5
    assert pauses == sorted(pauses)
    assert RETRY_MAX_S <= pauses[-1] == pauses[-2] <= RETRY_MAX_S + 5
    bench.grow(40)
    bench.built(SnapshotId(30, 1))
    bench.write(1000)
    assert bench.ends()[-1] == 40
    bench.failed("the disk is full")
    bench.wait(RETRY_MIN_S + 5)
    assert bench.ends()[-2:] == [40, 40], "one that went well ends the series"


def test_a_build_that_failed_is_tried_again_soon_and_at_once_for_an_operator(
    bench: Bench,
) -> None:
    bench.write(1000)
    bench.failed("the disk is full")
    assert (bench.snapshots.problem, bench.metrics.snapshots.failed) == ("the disk is full", 1)
    for _ in range(20):
        bench.write(1000)
    bench.wait(RETRY_MIN_S - 2)
    assert bench.ends() == [30]
    bench.wait(7)
    assert bench.ends() == [30, 30]
    bench.failed("the disk is full")
    outcomes: list[SnapshotFacts | str] = []
    bench.snapshots.take(outcomes.append)
    assert bench.ends() == [30, 30, 30]
    bench.built(SnapshotId(30, 1))
    assert [taken(each) for each in outcomes] == [SnapshotId(30, 1)]
    assert bench.snapshots.problem == ""


def test_what_operators_ask_for_in_vain_does_not_put_off_the_next_try(bench: Bench) -> None:
    bench.write(1000)
    bench.failed("the disk is full")
    outcomes: list[SnapshotFacts | str] = []
    for _ in range(10):
        bench.snapshots.take(outcomes.append)
        bench.failed("the disk is full")
    assert outcomes == ["the disk is full"] * 10
    begun = bench.ends()
    bench.wait(RETRY_MIN_S + 5)
    assert bench.ends() == [*begun, 30]


def test_what_a_failed_build_has_left_is_deleted_and_a_copy_is_not(bench: Bench) -> None:
    left = [f"{30:020d}-0.run.part", f"{30:020d}-0000000001.checkpoint.part"]
    copied = f"{35:020d}-0000000001.checkpoint.part"
    for name in (*left, copied):
        bench.fs.put(DIRECTORY / name, b"")
    bench.write(1000)
    bench.failed("killed")
    names = bench.fs.listdir(DIRECTORY)
    assert copied in names
    assert not set(left) & set(names)


def test_a_copy_that_ends_where_a_failed_build_did_is_not_deleted(bench: Bench) -> None:
    copied = part_path(DIRECTORY, (30, 1))
    bench.fs.put(copied, b"")
    bench.write(1000)
    bench.node.snapshot_download = DownloadProgress(
        snapshot=SnapshotId(30, 1), position=0, size_bytes=None
    )
    bench.failed("killed")
    assert bench.fs.exists(copied)


def test_a_file_that_is_no_snapshot_gets_no_name(bench: Bench) -> None:
    bench.write(1000)
    bench.fs.put(part_path(DIRECTORY, (30, 1)), b"no snapshot")
    bench.builds[-1].done(BuildResult(SnapshotId(30, 1), 0))
    assert "not a whole snapshot" in bench.snapshots.problem
    assert bench.store.ids == [OLD, NEW]
    assert not any(name.startswith(f"{30:020d}") for name in bench.fs.listdir(DIRECTORY))


def test_a_first_copy_is_trusted_and_the_next_one_is_a_reason_to_look(bench: Bench) -> None:
    bench.damage(NEW)
    assert bench.copy()
    assert bench.snapshots.serve(NEW, OTHER, 100)
    assert bench.builds == []
    bench.copy()
    assert bench.ends() == [NEW.end_offset]
    assert bench.metrics.snapshots.damaged == 1
    assert "the CRC does not match" in bench.snapshots.problem


def test_a_sound_snapshot_is_not_read_at_each_copy(bench: Bench) -> None:
    for _ in range(3):
        assert bench.copy()
    bench.damage(NEW)
    bench.wait(CHECK_AGAIN_S - 10)
    assert bench.copy()
    assert bench.builds == []
    bench.wait(20)
    bench.copy()
    assert bench.ends() == [NEW.end_offset]


def test_nobody_gets_a_damaged_snapshot_before_it_was_built_anew(bench: Bench) -> None:
    bench.damage(NEW)
    bench.copy()
    bench.copy()
    for _ in range(3):
        assert not bench.copy()
    bench.built(NEW)
    assert bench.copy()
    assert bench.fs.contents(bench.store.path(NEW)) == bench.contents[NEW]
    assert bench.snapshots.problem == ""
    assert not any(isinstance(event, SnapshotTaken) for event in bench.events)
    assert bench.resigned() == []


def test_a_build_that_ends_elsewhere_does_not_repair(bench: Bench) -> None:
    bench.damage(NEW)
    bench.snapshots.on_damage(NEW, "damaged")
    bench.built(SnapshotId(20, 2))
    assert "the log on disk says epoch 2" in bench.snapshots.problem
    assert not bench.copy()


def test_what_a_snapshot_is_built_on_is_repaired_first_the_oldest_before_the_others(
    bench: Bench,
) -> None:
    outcomes: list[SnapshotFacts | str] = []
    bench.snapshots.take(outcomes.append)
    bench.failed("NEW is damaged", NEW)
    assert bench.ends() == [30, 20]
    bench.failed("OLD is damaged", OLD)
    assert bench.ends() == [30, 20, 10]
    bench.built(OLD)
    assert bench.ends() == [30, 20, 10, 20]
    bench.built(NEW)
    assert bench.ends() == [30, 20, 10, 20, 30]
    assert outcomes == []
    bench.built(SnapshotId(30, 1))
    assert [taken(each) for each in outcomes] == [SnapshotId(30, 1)]


def test_a_repair_that_fails_is_tried_again(bench: Bench) -> None:
    bench.damage(NEW)
    bench.snapshots.on_damage(NEW, "damaged")
    bench.failed("the log begins at offset 15")
    assert bench.snapshots.problem == "the log begins at offset 15"
    bench.wait(RETRY_MIN_S - 2)
    assert bench.ends() == [20]
    bench.wait(7)
    assert bench.ends() == [20, 20]


def test_a_snapshot_that_can_be_read_again_is_not_damaged(bench: Bench) -> None:
    """A disk that failed while it was read: nothing is wrong with the file, and nothing to build it of."""
    bench.snapshots.on_damage(NEW, "reading the snapshot failed: Input/output error")
    assert not bench.copy()
    bench.failed("the log begins at offset 20")
    assert bench.copy()
    assert bench.snapshots.problem == ""
    assert bench.resigned() == []
    bench.wait(RETRY_MAX_S)
    assert bench.ends() == [20]


def test_a_disk_that_fails_again_and_again_does_not_begin_build_after_build(bench: Bench) -> None:
    for _ in range(10):
        bench.snapshots.on_damage(NEW, "reading the snapshot failed: Input/output error")
        if not bench.builds[-1].is_over:
            bench.failed("the log begins at offset 20")
        bench.wait(0.1)
    assert bench.ends() == [20]
    bench.wait(RETRY_MIN_S + 5)
    assert bench.ends() == [20, 20]


def test_an_older_snapshot_that_cannot_be_repaired_stops_nothing(bench: Bench) -> None:
    bench.damage(OLD)
    bench.snapshots.on_damage(OLD, "damaged")
    bench.failed("the log begins at offset 15")
    bench.wait(RETRY_MAX_S + 10)
    assert bench.ends() == [10]
    assert not bench.copy(OLD)
    bench.write(1000)
    assert bench.ends() == [10, 30]
    assert not bench.copy(OLD)
    assert bench.resigned() == []


def test_a_leader_whose_newest_snapshot_cannot_be_repaired_resigns_when_it_is_asked_for(
    bench: Bench,
) -> None:
    bench.damage(NEW)
    bench.snapshots.on_damage(NEW, "damaged")
    assert not bench.copy()
    assert bench.resigned() == []
    bench.failed("the log begins at offset 15")
    assert bench.resigned() == []
    assert not bench.copy()
    assert len(bench.resigned()) == 1
    for times in (1, 2):
        bench.wait(RESIGN_INTERVAL_S / 2)
        bench.failed("the log begins at offset 15")
        assert not bench.copy()
        assert len(bench.resigned()) == times


def test_a_snapshot_that_is_gone_is_not_damaged(bench: Bench) -> None:
    bench.snapshots.on_damage(SnapshotId(5, 1), "no such file")
    assert bench.builds == []
    assert bench.snapshots.problem == ""


def test_a_copied_snapshot_ends_builds_and_repairs(bench: Bench) -> None:
    bench.snapshots.on_damage(NEW, "damaged")
    facts = bench.store.facts(OLD)
    bench.log.snapshots[:] = [SnapshotId(*OLD)]
    bench.snapshots.note_installed(facts)
    assert bench.builds[-1].is_cancelled
    bench.wait(RETRY_MAX_S + 10)
    assert bench.ends() == [20]
    assert bench.copy(OLD)


def test_a_copied_snapshot_leaves_nothing_of_a_build_and_stands_for_all_before_it(
    bench: Bench,
) -> None:
    bench.write(1000)
    left = DIRECTORY / f"{30:020d}-0.run.part"
    bench.fs.put(left, b"")
    bench.snapshots.note_installed(bench.store.facts(NEW))
    assert not bench.fs.exists(left)
    bench.write(999)
    assert bench.ends() == [30]
    bench.write(1)
    assert bench.ends() == [30, 30]


def test_a_request_that_waits_for_a_build_gets_the_snapshot_that_was_copied_instead(
    bench: Bench,
) -> None:
    responses: list[TakeSnapshotResponse] = []
    take_snapshot(
        bench.snapshots, bench.runtime, TakeSnapshotRequest(timeout_ms=1000), responses.append
    )
    assert (bench.ends(), responses) == ([30], [])
    copied = SnapshotId(40, 1)
    write_snapshot(bench.fs, bench.store.path(copied), copied)
    bench.store.open()
    bench.log.snapshots[:] = [copied]
    bench.snapshots.note_installed(bench.store.facts(copied))
    (response,) = responses
    assert (response.error_code, response.end_offset, response.epoch) == (0, 40, 1)
    assert response.size_bytes == len(bench.fs.contents(bench.store.path(copied)))
