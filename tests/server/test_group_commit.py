"""The disk thread's work step by step, without the thread: what overtakes what, and what is told."""

from __future__ import annotations

import errno
from collections.abc import Generator
from typing import Any

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.server.disk.group_commit import DiskLoop, Jobs, NoSpace, Pause, Step, carry_out
from quorumd.server.model.disk_jobs import (
    DeleteFiles,
    Files,
    InstallSnapshot,
    Job,
    SaveState,
    Truncate,
    WriteRecords,
)
from quorumd.storage.errors import DiskFull
from quorumd.storage.log import Chunk, Log
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_store import SnapshotStore
from tests.storage.helpers import DIRECTORY, batch, empty_disk, open_log


class Bench:
    """The loop on a disk in memory; each `send` goes on to its next pause."""

    def __init__(self) -> None:
        self.fs = empty_disk()
        self.log = open_log(self.fs)
        self.states: list[int] = []
        self.news: list[tuple[Any, ...]] = []
        self.now_s = 1000.0
        files = Files(
            self.log,
            SnapshotStore(self.fs, DIRECTORY),
            lambda state: self.states.append(state.leader_epoch),
        )
        self.loop = DiskLoop(files, self, lambda call, *args: call(*args), lambda: self.now_s)
        self.steps: Generator[Pause, Jobs, None] = self.loop.run()
        assert next(self.steps) is Step.BRIEF_WAIT

    def send(self, *jobs: Job) -> Pause:
        return self.steps.send(list(jobs))

    def record(self, write: int) -> WriteRecords:
        offset = self.log.log_end_offset
        data = batch(offset)
        self.log.append(data, offset, offset + 1)
        return WriteRecords(write, Chunk(data, offset, offset + 1))

    def fill(self) -> None:
        """No space is left."""
        self.fs.errors = {"pwritev": errno.ENOSPC}

    def on_writes_completed(self, write: int, sync_s: float | None) -> None:
        self.news.append(("completed", write, sync_s))

    def on_state_saved(self, write: int) -> None:
        self.news.append(("saved", write))

    def on_disk_failed(self, error: BaseException) -> None:
        self.news.append(("failed", error))

    def on_disk_full(self, is_full: bool) -> None:
        self.news.append(("full", is_full))

    def on_chunk_not_stored(self, snapshot: SnapshotId, problem: str) -> None:
        raise AssertionError("no chunks are stored here")


def state(write: int) -> SaveState:
    return SaveState(write, QuorumState(leader_epoch=write))


def test_how_long_a_sync_took_is_told() -> None:
    bench = Bench()
    assert bench.send(bench.record(1)) is Step.DONE
    assert bench.send() is Step.SYNC_NEXT
    bench.now_s += 2.5
    assert bench.send() is Step.BRIEF_WAIT
    assert bench.news == [("completed", 1, 2.5)]


def test_a_disk_that_has_no_space_to_prepare_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: Log) -> None:
        raise DiskFull("no space is left", path=DIRECTORY, remedy="make some")

    monkeypatch.setattr(Log, "prepare", full)
    bench = Bench()
    assert bench.send() is Step.LONG_WAIT
    assert bench.news == []


def test_what_fails_while_the_node_stops_is_a_failure_all_the_same() -> None:
    bench = Bench()
    bench.fs.errors = {"fdatasync": errno.EIO}
    job = bench.record(1)
    bench.loop.end()
    assert bench.send(job) is Step.DONE
    assert bench.send() is Step.SYNC_NEXT
    with pytest.raises(StopIteration):
        bench.send()
    [(what, _)] = bench.news
    assert what == "failed"


def test_a_node_that_stops_when_there_is_space_again_writes_what_waits_and_ends() -> None:
    bench = Bench()
    bench.fill()
    assert isinstance(bench.send(bench.record(1)), NoSpace)
    bench.fs.errors = {}
    assert bench.steps.send(None) is Step.DONE, "the mark of the end, taken while it waits"
    assert bench.send() is Step.SYNC_NEXT
    with pytest.raises(StopIteration):
        bench.send()
    assert bench.news == [("full", True), ("full", False), ("completed", 1, 0.0)]


def test_a_disk_that_hangs_while_space_is_prepared_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    ages_s: list[float] = []

    def prepare(_: Log) -> None:
        bench.now_s += 7.0
        ages_s.append(bench.loop.write_age_s())

    monkeypatch.setattr(Log, "prepare", prepare)
    assert bench.send() is Step.LONG_WAIT
    assert ages_s == [7.0]
    bench.now_s += 7.0
    assert bench.loop.write_age_s() == 0.0


def test_of_states_that_follow_each_other_the_last_is_saved_as_whoever_votes_waits_for_it() -> None:
    """A vote in a later epoch is two states: the epoch, and the vote."""
    bench = Bench()
    bench.send(state(1), state(2), state(3), Truncate(4, 0), state(5))
    bench.send()
    while len(bench.news) < 2:
        bench.send()
    assert bench.states == [3, 5]
    assert bench.news == [("completed", 3, None), ("completed", 5, None)]


def test_a_state_is_told_of_before_the_records_behind_it_are_written() -> None:
    """A leader announces itself, and does not wait for the first record of its epoch."""
    bench = Bench()
    bench.send(state(1), state(2), bench.record(3))
    while not bench.news:
        assert bench.log.written_end_offset == 0
        bench.send()
    assert bench.news == [("completed", 2, None)]
    assert bench.states == [2]
    while len(bench.news) < 2:
        bench.send()
    assert bench.news[1:] == [("completed", 3, 0.0)]
    assert bench.log.written_end_offset == 1


def test_what_was_done_before_the_records_keeps_no_state_behind_them() -> None:
    bench = Bench()
    bench.fill()
    assert bench.send(Truncate(1, 0), bench.record(2), state(3)) is Step.DONE
    assert isinstance(bench.send(), NoSpace)
    assert bench.states == [3]
    assert bench.news == [("full", True), ("saved", 3)]


def test_a_state_overtakes_no_truncation_that_came_before_it_by_itself() -> None:
    bench = Bench()
    bench.fill()
    job = bench.record(1)
    for jobs in ([job], [Truncate(2, 0)], [state(3)], []):
        assert isinstance(bench.send(*jobs), NoSpace)
    assert bench.states == []
    assert bench.news == [("full", True)]


def test_between_snapshots_that_are_kept_the_others_are_deleted() -> None:
    fs = empty_disk()
    log, snapshots = open_log(fs), SnapshotStore(fs, DIRECTORY)
    first, second, third = ids = [SnapshotId(end_offset, 1) for end_offset in (3, 5, 9)]
    for snapshot in ids:
        snapshots.write_part(snapshot, 0, b"all of it")
        snapshots.complete_part(snapshot)
    files = Files(log, snapshots, lambda state: None)
    assert list(carry_out(files, [DeleteFiles(1, 0, (first, third))])) == [Step.DONE]
    assert second not in snapshots.ids
    assert snapshots.ids == [first, third]


def test_a_snapshot_that_takes_the_place_of_the_log_takes_that_of_older_ones_too() -> None:
    fs = empty_disk()
    log, snapshots = open_log(fs), SnapshotStore(fs, DIRECTORY)
    older, copied, newer = (SnapshotId(end_offset, 1) for end_offset in (3, 5, 9))
    for snapshot in (older, copied, newer):
        snapshots.write_part(snapshot, 0, b"all of it")
    snapshots.complete_part(older)
    snapshots.complete_part(newer)
    log.reset_cache(copied.end_offset)
    files = Files(log, snapshots, lambda state: None)
    assert list(carry_out(files, [InstallSnapshot(1, copied)])) == [Step.DONE]
    assert snapshots.ids == [copied, newer]
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
