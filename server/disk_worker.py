"""The one thread that writes to a partition's directory.

Jobs arrive in the order in which they must reach the disk. Everything that waits when the thread gets to
it is written, and then synced once: group commit. A disk that is full holds the thread up until there is
space again: nothing is dropped, nothing later overtakes. Any other failure is fatal: a failed fsync is
never retried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple, Protocol

from storage.errors import DiskFull
from storage.log import Chunk, Log
from storage.quorum_state import QuorumState

FULL_DISK_RETRY_S = 0.5


class WriteRecords(NamedTuple):
    write: int
    chunk: Chunk


class Truncate(NamedTuple):
    """Drop everything from `end_offset` on."""

    write: int
    end_offset: int


class SaveState(NamedTuple):
    write: int
    state: QuorumState


Job = WriteRecords | Truncate | SaveState


class DiskListener(Protocol):
    """Who is told, on the event loop."""

    def on_writes_completed(self, write: int, sync_s: float | None) -> None:
        """Everything up to this write is on disk; `sync_s` is how long the log's sync took."""

    def on_disk_failed(self, error: BaseException) -> None:
        """The disk cannot be relied on any more: the process has to end."""

    def on_disk_full(self, is_full: bool) -> None:
        """Writing stands still for lack of space, or goes on again."""


class Disk(Protocol):
    """What the driver needs of a disk."""

    def submit(self, job: Job) -> None:
        """Queue a job; never blocks."""


class DiskWorker:
    """Runs jobs on a thread of its own; `call_on_loop` runs a callback on the event loop."""

    def __init__(
        self,
        log: Log,
        save_state: Callable[[QuorumState], None],
        listener: DiskListener,
        call_on_loop: Callable[..., object],
    ) -> None:
        self._log = log
        self._save_state = save_state
        self._listener = listener
        self._call_on_loop = call_on_loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Finish what is queued, then end the thread. Blocks until it has ended."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        jobs: list[Job] = []
        try:
            while True:
                job = self._jobs.get()
                while job is not None:
                    jobs.append(job)
                    try:
                        job = self._jobs.get_nowait()
                    except Empty:
                        break
                if jobs:
                    sync_s = self._carry_out(jobs)
                    completed = self._listener.on_writes_completed
                    self._call_on_loop(completed, jobs[-1].write, sync_s)
                    jobs.clear()
                if job is None:
                    return
                if self._jobs.empty():
                    with suppress(DiskFull):
                        self._log.prepare()
        except BaseException as error:  # the thread must not die unnoticed, whatever it died of
            self._call_on_loop(self._listener.on_disk_failed, error)

    def _carry_out(self, jobs: list[Job]) -> float | None:
        """Write in order; one sync covers all records among the jobs. Returns how long it took."""
        chunks: list[Chunk] = []
        unsynced = False
        for job in jobs:
            if isinstance(job, WriteRecords):
                chunks.append(job.chunk)
                continue
            unsynced = self._write(chunks) or unsynced
            if isinstance(job, Truncate):
                self._log.truncate(job.end_offset)
            else:
                self._when_there_is_space(partial(self._save_state, job.state))
        if not self._write(chunks) and not unsynced:
            return None
        started = perf_counter()
        self._log.sync()
        return perf_counter() - started

    def _write(self, chunks: list[Chunk]) -> bool:
        """Put what was collected into the files. Returns False if there was nothing."""
        if not chunks:
            return False
        self._when_there_is_space(partial(self._log.write_many, tuple(chunks)))
        chunks.clear()
        return True

    def _when_there_is_space(self, action: Callable[[], object]) -> None:
        """Carry out an action; while the disk is full, say so and try again."""
        is_full = False
        while True:
            try:
                action()
            except DiskFull:
                if self._stopping.is_set():
                    raise
                if not is_full:
                    self._call_on_loop(self._listener.on_disk_full, True)
                is_full = True
                self._stopping.wait(FULL_DISK_RETRY_S)
            else:
                if is_full:
                    self._call_on_loop(self._listener.on_disk_full, False)
                return
