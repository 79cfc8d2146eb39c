"""The threads of a node, simulated: the one that writes to the disk and the one that reads from it.

What is done on them is the daemon's own code; each step of it happens at one moment, and other things
happen in between.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from quorumd.server.disk.group_commit import (
    FULL_DISK_RETRY_S,
    IDLE_S,
    DiskLoop,
    Jobs,
    NoSpace,
    NotStored,
    Pause,
    Step,
)
from quorumd.server.model.disk_jobs import DiskListener, Files, Job, StoreChunk, Truncate
from quorumd.server.model.runtime import OnUnreadable, reporting_damage
from quorumd.server.model.snapshot_builds import BuildFailed, BuildResult
from quorumd.server.snapshots.build_subprocess import build_failure
from quorumd.server.snapshots.snapshot_builder import BuiltSnapshot, SnapshotBuilder
from quorumd.storage.errors import StorageError
from quorumd.storage.log import Log
from simulation.checkers.copies import Copies
from simulation.machines.process import Process
from simulation.machines.watched_files import watched
from simulation.scheduler import SECOND, Timer

T = TypeVar("T")


class SimDiskThread:
    """A `PartitionDisk`. The replica's book gets every job submitted, and what is done to the files."""

    def __init__(
        self,
        process: Process,
        files: Files,
        listener: DiskListener,
        monotonic_s: Callable[[], float],
    ) -> None:
        log = files.log
        assert isinstance(log, Log), "a partition opens its log with its directory"
        self._loop = DiskLoop(
            watched(files, log, process.replica, process.machine),
            listener,
            self._notify,
            monotonic_s,
        )
        self.write_age_s = self._loop.write_age_s
        self._process = process
        self._log = log
        self._copies = Copies(process.key)
        self._steps = self._loop.run()
        self._pause: Pause | None = None
        """Pause of the thread; None before it has begun and when it has ended."""
        self._idle: Timer | None = None
        self._is_waiting = False
        """There are no jobs, and it has not been woken up."""
        self._is_stopping = False
        self._notified_us = 0

    # -- on the event loop

    def start(self) -> None:
        self._resume(None)

    def stop(self) -> None:
        """Finish what is under way and what is queued, at once. Raises DiskFull, DiskFailed."""
        self._is_stopping = True
        self._loop.end()
        while self._pause is not None:
            pause = self._pause
            takes_jobs = pause in (Step.BRIEF_WAIT, Step.LONG_WAIT) or isinstance(pause, NoSpace)
            self._step(self._next_jobs() if takes_jobs else None)

    def submit(self, job: Job) -> None:
        self._process.on_effect()
        if isinstance(job, Truncate):
            self._count(job)
        elif isinstance(job, StoreChunk) and job.position == 0:
            epoch, _ = self._process.following
            self._copies.on_begun(job.snapshot, epoch)
        self._process.replica.submit(job)
        self._loop.submit(job)

    def _count(self, job: Truncate) -> None:
        """Of how many epochs records are dropped, and whether what is left is in memory."""
        dropped = self._process.replica.log[::-1]
        epochs = {
            batch.epoch for batch in takewhile(lambda b: b.end_offset > job.end_offset, dropped)
        }
        self._process.count_case("truncation", f"{len(epochs)} epochs")
        log, last = self._log, job.end_offset - 1
        if last >= log.log_start_offset and log.read_cached(last, 1, job.end_offset) is None:
            self._process.count_case("truncation", "behind the tail cache")

    def flush(self) -> None:
        self._loop.flush()
        self._wake()

    def _wake(self) -> None:
        if self._is_waiting and not self._loop.jobs.empty():
            self._is_waiting = False
            if self._idle is not None:
                self._idle.cancel()
            thread_us = self._process.machine.thread_us()
            self._process.call(thread_us, lambda: self._resume(self._loop.jobs.get_nowait()))

    # -- on the disk thread

    def _step(self, jobs: Jobs) -> None:
        try:
            self._pause = self._steps.send(jobs)
        except StopIteration:
            self._pause = None

    def _resume(self, jobs: Jobs) -> None:
        """Do what comes next, up to where the thread waits again."""
        self._step(jobs)
        pause, machine = self._pause, self._process.machine
        if pause is None:
            return
        if pause in (Step.BRIEF_WAIT, Step.LONG_WAIT):
            self._is_waiting = True
            if pause is Step.BRIEF_WAIT:
                self._idle = self._process.call(int(IDLE_S * SECOND), self._be_idle)
            self._wake()
            return
        if isinstance(pause, (NoSpace, NotStored)):
            self._process.count("full disk")
        if isinstance(pause, NoSpace):
            self._process.call(
                int(FULL_DISK_RETRY_S * SECOND), lambda: self._resume(self._next_jobs())
            )
            return
        if pause is Step.SYNC_NEXT:
            wait_us = machine.sync_us()
            if machine.on_written is not None:
                machine.on_written()
        else:
            wait_us = machine.write_us()
        self._process.call(wait_us, lambda: self._resume(None))

    def _next_jobs(self) -> Jobs:
        """Jobs that wait, the next of them; no jobs if there are none."""
        return [] if self._loop.jobs.empty() else self._loop.jobs.get_nowait()

    def _be_idle(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._resume([])

    def _notify(self, callback: Callable[..., None], *args: object) -> None:
        """As by call_soon_threadsafe, in order; but `stop` raises what has failed."""
        for arg in args if self._is_stopping else ():
            if isinstance(arg, StorageError):
                raise arg
        now_us = self._process.scheduler.now_us
        self._notified_us = max(self._notified_us, now_us + self._process.machine.thread_us())
        self._process.call(self._notified_us - now_us, lambda: callback(*args))


class SimBuild:
    """A `Builder`: the real one, step by step; its process dies with the node."""

    def __init__(
        self,
        process: Process,
        directory: Path,
        end_offset: int,
        progress: Callable[[float], None],
        done: Callable[[BuildResult | BuildFailed], None],
    ) -> None:
        machine = process.machine
        self._process = process
        self._progress = progress
        self._done = done
        memory_bytes = process.env.settings.snapshot_memory_bytes
        self._builder = SnapshotBuilder(
            machine.disk, directory, end_offset, memory_bytes=memory_bytes
        )
        self._steps = self._builder.run()
        self._is_cancelled = False
        self._next()

    def cancel(self, ended: Callable[[], None]) -> None:
        """The process is killed: what it has written stays until it is deleted."""
        self._is_cancelled = True
        self._steps.close()
        self._process.call(self._process.machine.thread_us(), ended)

    def _next(self) -> None:
        self._process.call(self._process.machine.write_us(), self._step)

    def _step(self) -> None:
        if self._is_cancelled:
            return
        try:
            progress = next(self._steps)
        except StopIteration as ended:
            built: BuiltSnapshot = ended.value
            self._done(BuildResult(built.id, built.empty_batches))
        except StorageError as error:
            self._process.machine.on_build_failed(error)
            self._done(build_failure(str(error), type(error).__name__, error.path))
        else:
            if progress.total_bytes:
                self._progress(progress.done_bytes / progress.total_bytes)
            self._next()


class SimReader:
    """A `quorumd.server.model.runtime.Reader`."""

    def __init__(self, process: Process, log: Log, on_unreadable: OnUnreadable) -> None:
        self._process = process
        self._log = log
        self._on_unreadable = on_unreadable

    def cached(
        self, offset: int, max_bytes: int, end_offset: int
    ) -> list[bytes | memoryview] | None:
        return self._log.read_cached(offset, max_bytes, end_offset)

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        done: Callable[[bytes | BaseException], None],
    ) -> None:
        reported = reporting_damage(self._on_unreadable, done)
        self.run(lambda: self._log.read(offset, max_bytes, end_offset), reported)

    def run(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def work() -> None:
            outcome: T | BaseException
            try:
                outcome = action()
            except Exception as error:  # as the daemon's reader: the caller decides
                outcome = error
            self._process.call(self._process.machine.thread_us(), lambda: done(outcome))

        self._process.call(self._process.machine.read_us(), work)

    def look_up(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.run(action, done)

    def close(self) -> None:
        """Nothing to wait for."""
