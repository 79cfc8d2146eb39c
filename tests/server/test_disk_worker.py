"""The disk's thread: order, group commit, a full disk, a failing one, and the end."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.server.disk import disk_worker
from quorumd.server.disk.disk_worker import DiskWorker
from quorumd.server.disk.group_commit import Step, carry_out
from quorumd.server.model.disk_jobs import (
    DeleteFiles,
    Files,
    InstallSnapshot,
    SaveState,
    StoreChunk,
    Truncate,
    WriteRecords,
)
from quorumd.storage.errors import DiskFailed, DiskFull
from quorumd.storage.filesystem import Buffer, FileSystem, RealFileSystem
from quorumd.storage.log import Chunk, Log
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_store import SnapshotStore
from tests.storage.faulty_filesystem import Survival
from tests.storage.helpers import (
    DIRECTORY,
    batch,
    crash,
    crash_points,
    empty_disk,
    fill,
    open_log,
)

WAIT_S = 5.0


class Slow(RealFileSystem):
    """A real disk on which a call can be held up, counted, or made to fail."""

    def __init__(self) -> None:
        self.syncs = 0
        self.is_syncing = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.fail_sync = False
        self.full = 0

    def fdatasync(self, handle: int) -> None:
        self.is_syncing.set()
        self.gate.wait(WAIT_S)
        self.syncs += 1
        if self.fail_sync:
            raise OSError(errno.EIO, "the disk is broken")
        super().fdatasync(handle)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        if self.full:
            self.full -= 1
            raise OSError(errno.ENOSPC, "no space left")
        return super().pwritev(handle, buffers, at)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.suffix == ".log":
            self.full = 0


class Told:
    """What the event loop would be told, in order."""

    def __init__(self) -> None:
        self.news: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def on_writes_completed(self, write: int, sync_s: float | None) -> None:
        self.news.put(("completed", write, sync_s is not None))

    def on_state_saved(self, write: int) -> None:
        self.news.put(("saved", write))

    def on_disk_failed(self, error: BaseException) -> None:
        self.news.put(("failed", error))

    def on_disk_full(self, is_full: bool) -> None:
        self.news.put(("full", is_full))

    def on_chunk_not_stored(self, snapshot: SnapshotId, problem: str) -> None:
        self.news.put(("not stored", snapshot, problem))

    def next(self) -> tuple[Any, ...]:
        return self.news.get(timeout=WAIT_S)


class Bench:
    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.fs = Slow()
        self.log = Log.open(self.fs, folder, segment_bytes=segment_bytes, tail_cache_bytes=1 << 20)
        self.told = Told()
        self.states: list[QuorumState] = []
        self.save: Callable[[QuorumState], None] = self.states.append
        self.snapshots = SnapshotStore(self.fs, folder)
        files = Files(self.log, self.snapshots, lambda state: self.save(state))
        self.now_s = 1000.0
        self.worker = DiskWorker(
            files, self.told, lambda call, *args: call(*args), lambda: self.now_s
        )
        self.write = 0

    def append(self) -> None:
        self.write += 1
        offset = self.log.log_end_offset
        data = batch(offset)
        self.log.append(data, offset, offset + 1)
        self.worker.submit(WriteRecords(self.write, Chunk(data, offset, offset + 1)))

    def save_state(self, epoch: int) -> None:
        self.write += 1
        self.worker.submit(SaveState(self.write, QuorumState(leader_epoch=epoch)))

    def truncate(self, end_offset: int) -> None:
        self.write += 1
        self.log.truncate_cache(end_offset)
        self.worker.submit(Truncate(self.write, end_offset))

    def delete(self, start_offset: int) -> None:
        self.write += 1
        self.worker.submit(DeleteFiles(self.write, start_offset, (SnapshotId(start_offset, 1),)))


@contextmanager
def bench(folder: Path, segment_bytes: int = 1 << 20) -> Iterator[Bench]:
    made = Bench(folder, segment_bytes)
    try:
        yield made
    finally:
        made.fs.gate.set()
        if made.worker._disk_thread.is_alive():
            made.worker.stop()


def test_everything_that_waits_is_covered_by_one_sync(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        for _ in range(100):
            at.append()
        at.worker.flush()
        before = at.fs.syncs
        at.worker.start()
        assert at.told.next() == ("completed", 100, True)
        assert at.fs.syncs == before + 1
        assert at.log.written_end_offset == 100


def test_jobs_that_come_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        at.fs.gate.clear()
        at.worker.start()
        at.append()
        at.worker.flush()
        for _ in range(50):
            at.append()
            at.worker.flush()
        at.fs.gate.set()
        seen = [at.told.next()]
        while seen[-1][1] < 51:
            seen.append(at.told.next())
        assert len(seen) <= 3
        assert at.fs.syncs <= 3


def test_a_sync_that_does_not_end_grows_old(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        assert at.worker.write_age_s() == 0
        at.fs.gate.clear()
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.fs.is_syncing.wait(WAIT_S)
        at.now_s += 7
        assert at.worker.write_age_s() == 7
        at.fs.gate.set()
        assert at.told.next() == ("completed", 1, True)
        at.now_s += 60
        assert at.worker.write_age_s() == 0


def test_each_write_of_a_group_has_an_age_of_its_own(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        ages: list[float] = []

        def save(state: QuorumState) -> None:
            at.now_s += 4
            ages.append(at.worker.write_age_s())

        at.save = save
        for epoch in range(3):
            at.save_state(epoch)
            # Of states that follow each other only the last is saved.
            at.truncate(0)
        at.worker.flush()
        at.worker.start()
        # The first is told by itself: votes wait for it.
        assert [at.told.next(), at.told.next()] == [
            ("completed", 1, False),
            ("completed", 6, False),
        ]
        assert ages == [4, 4, 4]


def test_what_waits_for_space_is_no_write_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", WAIT_S)
    with bench(tmp_path) as at:
        at.fs.full = 1
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("full", True)
        at.now_s += 60
        assert at.worker.write_age_s() == 0
        at.append()
        at.worker.flush()
        assert at.told.next() == ("full", False)


def test_the_state_is_saved_between_the_records_around_it(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        ends: list[int] = []
        at.save = lambda state: ends.append(at.log.written_end_offset)
        at.append()
        at.save_state(4)
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("completed", 3, True)
        assert ends == [1]
        assert at.log.written_end_offset == 2


def test_a_state_alone_needs_no_sync_of_the_log(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        at.save_state(4)
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("completed", 1, False)
        assert [state.leader_epoch for state in at.states] == [4]


def test_a_truncation_comes_after_the_records_before_it(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        for _ in range(4):
            at.append()
        at.truncate(2)
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("completed", 6, True)
        assert at.log.written_end_offset == 3


def test_a_full_disk_holds_records_up_and_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", 0.001)
    with bench(tmp_path) as at:
        at.fs.full = 5
        at.append()
        at.save_state(9)
        at.worker.flush()
        at.worker.start()
        news = [at.told.next() for _ in range(4)]
        assert news == [("full", True), ("saved", 2), ("full", False), ("completed", 2, True)]
        assert at.log.read(0, 1 << 20, 1) == batch(0)
        assert [state.leader_epoch for state in at.states] == [9], "once"


def test_a_quorum_state_waits_for_no_records_and_the_last_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", 0.001)
    with bench(tmp_path) as at:
        at.fs.full = 1 << 30
        at.save_state(1)
        at.append()
        at.save_state(2)
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("completed", 1, False)
        assert [at.told.next(), at.told.next()] == [("full", True), ("saved", 3)]
        at.append()
        at.save_state(3)
        at.save_state(4)
        at.worker.flush()
        assert at.told.next() == ("saved", 6)
        at.save_state(5)
        at.worker.flush()
        assert at.told.next() == ("saved", 7)
        at.append()
        at.worker.flush()
        at.fs.full = 0
        assert at.told.next() == ("full", False)
        while at.told.next() != ("completed", 8, True):
            pass
        assert [state.leader_epoch for state in at.states] == [1, 2, 4, 5], "none a second time"
        assert at.log.written_end_offset == 3


def test_a_quorum_state_overtakes_no_truncation_nor_one_that_finds_no_space_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", 0.001)
    with bench(tmp_path) as at:
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("completed", 1, True)
        at.fs.full = 1 << 30
        at.append()
        at.truncate(1)
        at.save_state(1)
        at.worker.flush()
        assert at.told.next() == ("full", True)
        at.fs.full = 20
        assert [at.told.next(), at.told.next()] == [("full", False), ("completed", 4, True)]
        tried = 0

        def save(state: QuorumState) -> None:
            nonlocal tried
            tried += 1
            if tried < 5:
                raise DiskFull("cannot write", path=tmp_path, remedy="Free space")
            at.states.append(state)

        at.save = save
        at.fs.full = 1 << 30
        at.append()
        at.save_state(2)
        at.worker.flush()
        assert [at.told.next(), at.told.next()] == [("full", True), ("saved", 6)]
        assert (tried, [state.leader_epoch for state in at.states]) == (5, [1, 2])


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_was_taken_while_the_disk_was_full_is_carried_out_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", 0.001)
    with bench(tmp_path) as at:
        at.fs.full = 1 << 30
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("full", True)
        for epoch in (1, 2):
            at.save_state(epoch)
            at.append()
            at.worker.flush()
            assert at.told.next()[0] == "saved"
        at.fs.full = 0
        if is_stopped:
            at.worker.stop()
        news = [at.told.next()]
        while news[-1] != ("completed", 5, True):
            news.append(at.told.next())
        assert at.log.written_end_offset == 3


def test_what_is_deleted_waits_for_no_records_and_makes_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", 0.001)
    with bench(tmp_path, segment_bytes=len(batch(0))) as at:
        for _ in range(4):
            at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("completed", 4, True)
        at.fs.full = 1 << 30
        at.append()
        at.worker.flush()
        assert at.told.next() == ("full", True)
        at.save_state(9)
        at.delete(2)
        at.worker.flush()
        assert [at.told.next(), at.told.next()] == [("saved", 6), ("full", False)]
        while at.told.next()[:2] != ("completed", 7):
            pass
        assert (at.log.log_start_offset, at.log.written_end_offset) == (2, 5)


def test_a_copy_that_there_is_no_room_for_holds_nothing_up_and_is_deleted(tmp_path: Path) -> None:
    snapshot = SnapshotId(9, 1)
    with bench(tmp_path) as at:
        at.worker.submit(StoreChunk(1, snapshot, 0, b"the first piece, "))
        at.worker.start()
        at.worker.flush()
        assert at.told.next() == ("completed", 1, False)
        at.fs.full = 1
        at.write = 2
        at.worker.submit(StoreChunk(2, snapshot, 17, b"the second one"))
        at.save_state(9)
        at.worker.flush()
        kind, told, problem = at.told.next()
        assert (kind, told) == ("not stored", snapshot)
        assert "no space left" in problem
        assert at.told.next() == ("completed", 3, False)
        assert [state.leader_epoch for state in at.states] == [9]
        assert list(tmp_path.glob("*.part")) == []


def test_a_full_disk_does_not_keep_the_node_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "FULL_DISK_RETRY_S", 60.0)
    with bench(tmp_path) as at:
        at.fs.full = 1 << 30
        at.append()
        at.worker.flush()
        at.worker.start()
        assert at.told.next() == ("full", True)
        at.worker.stop()
        # Nothing that waits was acknowledged: it is no failure, and not done.
        assert at.told.news.empty()
        assert at.log.written_end_offset == 0


def test_a_failed_sync_is_reported_once_and_never_tried_again(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        at.fs.fail_sync = True
        at.append()
        at.worker.flush()
        at.worker.start()
        kind, error = at.told.next()
        assert kind == "failed"
        assert isinstance(error, DiskFailed)
        syncs = at.fs.syncs
        at.save_state(3)
        at.worker.flush()
        at.worker.stop()
        assert at.told.news.empty()
        assert at.fs.syncs == syncs
        assert not at.states


def test_a_state_that_cannot_be_saved_ends_it_too(tmp_path: Path) -> None:
    def broken(state: QuorumState) -> None:
        raise DiskFailed("no", path=tmp_path, remedy="none")

    with bench(tmp_path) as at:
        at.save = broken
        at.save_state(3)
        at.worker.flush()
        at.worker.start()
        assert at.told.next()[0] == "failed"


def test_a_stop_finishes_what_was_submitted(tmp_path: Path) -> None:
    with bench(tmp_path) as at:
        at.worker.start()
        for _ in range(10):
            at.append()
        at.worker.stop()
        assert at.log.written_end_offset == 10
        last = at.told.next()
        while not at.told.news.empty():
            last = at.told.next()
        assert last == ("completed", 10, True)
        assert not at.worker._disk_thread.is_alive()


def test_cleaning_leaves_a_snapshot_that_was_completed_after_it_was_asked_for(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, 1 << 20)
    older, kept, newer = (SnapshotId(end_offset, 1) for end_offset in (3, 5, 9))
    for snapshot in (older, kept, newer):
        bench.snapshots.write_part(snapshot, 0, b"all of it")
        bench.snapshots.complete_part(snapshot)
    bench.worker.submit(DeleteFiles(1, 0, (kept,)))
    bench.worker.start()
    bench.worker.stop()
    assert bench.told.next() == ("completed", 1, False)
    assert bench.snapshots.ids == [kept, newer]
    bench.log.close()


@pytest.mark.parametrize("survival", [Survival.LOSE, Survival.KEEP])
def test_wherever_the_power_goes_the_log_is_there_or_the_snapshot_that_takes_its_place(
    survival: Survival,
) -> None:
    snapshot, synced_end = SnapshotId(9, 1), 0

    def install(fs: FileSystem) -> None:
        nonlocal synced_end
        synced_end = 0
        log, snapshots = open_log(fs), SnapshotStore(fs, DIRECTORY)
        fill(log, range(3))
        synced_end = 3
        snapshots.write_part(snapshot, 0, b"all of it")
        log.reset_cache(snapshot.end_offset)
        files = Files(log, snapshots, lambda state: None)
        assert list(carry_out(files, [InstallSnapshot(1, snapshot)])) == [Step.DONE]

    for at in crash_points(install):
        fs = empty_disk()
        crash(fs, at, install)
        after = fs.crash(survival, Random(at))
        is_installed = after.exists(SnapshotStore(after, DIRECTORY).path(snapshot))
        log = open_log(after, snapshots=[snapshot] if is_installed else [])
        assert log.log_end_offset >= (snapshot.end_offset if is_installed else synced_end)
        log.close()
