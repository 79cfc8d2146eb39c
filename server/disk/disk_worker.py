"""The one thread that writes to a partition's directory.

Jobs arrive in the order in which they must reach the disk. Everything that waits when the thread gets to
it is written, and then synced once: group commit. A disk that is full holds the thread up until there is
space again: nothing is dropped, nothing later overtakes. Any other failure is fatal: a failed fsync is
never retried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple

from quorumd.raft.types import SnapshotId
from quorumd.server.model.disk_jobs import (
    DeleteFiles,
    DiskListener,
    DropChunks,
    Files,
    InstallSnapshot,
    Job,
    SaveState,
    StoreChunk,
    Truncate,
    WriteRecords,
)
from quorumd.storage.errors import DiskFull
from quorumd.storage.log import Chunk
from quorumd.storage.snapshot_store import SnapshotStore

FULL_DISK_RETRY_S = 0.5
IDLE_S = 0.05
"""How long nothing must have been asked for before space is prepared ahead."""


class Step(Enum):
    """What has just happened when `carry_out` pauses."""

    DONE = "done"
    """Something was written; it is not synced, unless it was a quorum state or a truncation."""
    SYNC_NEXT = "sync next"


class NotStored(NamedTuple):
    """`carry_out` pauses: there was no room for a chunk of this snapshot, and it is given up."""

    snapshot: SnapshotId
    problem: str


def carry_out(files: Files, jobs: Sequence[Job]) -> Iterator[Step | NotStored | DiskFull]:
    """Write in order; one sync at the end covers all records among the jobs.

    Everything is durable when this has ended. It pauses after each step, so that a simulator can let
    other things happen in between, and where the disk is full: to go on is to try again.
    """
    log = files.log
    chunks: list[Chunk] = []
    unsynced = False
    for job in jobs:
        if isinstance(job, WriteRecords):
            chunks.append(job.chunk)
            continue
        if chunks:
            yield from _when_there_is_space(partial(log.write_many, tuple(chunks)))
            chunks.clear()
            unsynced = True
        if isinstance(job, StoreChunk):
            yield _store_chunk(files.snapshots, job)
        else:
            yield from _when_there_is_space(partial(_carry_out_alone, files, job))
    if chunks:
        yield from _when_there_is_space(partial(log.write_many, tuple(chunks)))
        unsynced = True
    if unsynced:
        yield Step.SYNC_NEXT
        log.sync()


def _store_chunk(snapshots: SnapshotStore, job: StoreChunk) -> Step | NotStored:
    """It is durable only with the whole snapshot. A copy never waits for space: votes wait behind it."""
    try:
        snapshots.write_part(job.snapshot, job.position, job.data)
    except DiskFull as error:
        snapshots.drop_part(job.snapshot)
        return NotStored(job.snapshot, str(error))
    return Step.DONE


def _carry_out_alone(files: Files, job: Job) -> None:
    """A job that is durable at its end."""
    log, snapshots = files.log, files.snapshots
    match job:
        case Truncate(end_offset=end_offset):
            log.truncate(end_offset)
        case SaveState(state=state):
            files.save_state(state)
        case DropChunks(snapshot=snapshot):
            snapshots.drop_part(snapshot)
        case InstallSnapshot(snapshot=snapshot):
            snapshots.complete_part(snapshot)
            log.reset(snapshot.end_offset)
            _drop_older(snapshots, (snapshot,))
        case DeleteFiles(start_offset=start_offset, kept=kept):
            log.delete_before(start_offset)
            _drop_older(snapshots, kept)
        case WriteRecords() | StoreChunk():
            raise AssertionError("these are written in another way")


def _drop_older(snapshots: SnapshotStore, kept: Sequence[SnapshotId]) -> None:
    """What is newer was completed after this was asked for: the rules count on it already."""
    for snapshot in snapshots.ids:
        if snapshot not in kept and snapshot.end_offset < kept[-1].end_offset:
            snapshots.delete(snapshot)


def _when_there_is_space(action: Callable[[], object]) -> Iterator[Step | DiskFull]:
    while True:
        try:
            action()
        except DiskFull as error:
            yield error
        else:
            yield Step.DONE
            return


class DiskWorker:
    """Runs jobs on a thread of its own; `call_on_loop` runs a callback on the event loop."""

    def __init__(
        self,
        files: Files,
        listener: DiskListener,
        call_on_loop: Callable[..., object],
    ) -> None:
        self._files = files
        self._listener = listener
        self._call_on_loop = call_on_loop
        self._taken: list[Job] = []
        self._jobs: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._is_full = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._taken.append(job)

    def flush(self) -> None:
        # To wake the thread is the last thing that a turn of the event loop does: woken earlier, it
        # would wait for the interpreter's lock, and be woken once more.
        if self._taken:
            self._jobs.put(self._taken)
            self._taken = []

    def stop(self) -> None:
        """Finish what is queued, then end the thread. Blocks until it has ended."""
        self.flush()
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                jobs, is_last = self._next_jobs()
                if jobs:
                    sync_s = self._carry_out(jobs)
                    completed = self._listener.on_writes_completed
                    self._call_on_loop(completed, jobs[-1].write, sync_s)
                if is_last:
                    return
        except BaseException as error:  # the thread must not die unnoticed, whatever it died of
            self._call_on_loop(self._listener.on_disk_failed, error)

    def _next_jobs(self) -> tuple[list[Job], bool]:
        """Everything that waits, at least something; and whether it is the end."""
        try:
            jobs = self._jobs.get(timeout=IDLE_S)
        except Empty:
            with suppress(DiskFull):
                self._files.log.prepare()
            jobs = self._jobs.get()
        found: list[Job] = []
        while jobs is not None:
            found += jobs
            try:
                jobs = self._jobs.get_nowait()
            except Empty:
                return found, False
        return found, True

    def _carry_out(self, jobs: list[Job]) -> float | None:
        """Carry the jobs out; returns how long the sync took, if there was one."""
        started = None
        for step in carry_out(self._files, jobs):
            if isinstance(step, DiskFull):
                if self._stopping.is_set():
                    raise step
                self._note_space(is_full=True)
                self._stopping.wait(FULL_DISK_RETRY_S)
            elif isinstance(step, NotStored):
                self._call_on_loop(self._listener.on_chunk_not_stored, *step)
            else:
                self._note_space(is_full=False)
                if step is Step.SYNC_NEXT:
                    started = perf_counter()
        return None if started is None else perf_counter() - started

    def _note_space(self, *, is_full: bool) -> None:
        if is_full != self._is_full:
            self._is_full = is_full
            self._call_on_loop(self._listener.on_disk_full, is_full)
