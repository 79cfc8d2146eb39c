"""The threads of a node, simulated: the one that writes to the disk and the one that reads from it.

What is done on them is the daemon's own code; each step of it happens at one moment, and other things
happen in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import TypeVar

from quorumd.server.disk.disk_worker import FULL_DISK_RETRY_S, IDLE_S, NotStored, Step, carry_out
from quorumd.server.model.disk_jobs import DiskListener, Files, Job, StoreChunk, Truncate
from quorumd.server.model.snapshot_builds import BuildFailed, BuildResult
from quorumd.server.snapshots.build_process import damaged_snapshot
from quorumd.server.snapshots.builder import BuiltSnapshot, SnapshotBuilder
from quorumd.storage.errors import DiskFull, StorageError
from quorumd.storage.log import Log
from simulation.checkers.copies import Copies
from simulation.machines.disk import ProcessKilled
from simulation.machines.process import Process
from simulation.scheduler import SECOND, Timer
from simulation.violation import ProcessEnded

T = TypeVar("T")


class SimDiskThread:
    """A `PartitionDisk`. The replica's book gets every job submitted and completed."""

    def __init__(
        self,
        process: Process,
        files: Files,
        listener: DiskListener,
    ) -> None:
        self._process = process
        self._files = files
        self._listener = listener
        self._copies = Copies(process.key)
        self._taken: list[Job] = []
        self._queue: list[Job] = []
        self._under_way: Iterator[Step | NotStored | DiskFull] = iter(())
        self._is_busy = False
        self._is_full = False
        self._notified_us = 0
        self._idle: Timer | None = None

    def start(self) -> None:
        """Nothing to do before the first job."""

    def stop(self) -> None:
        """Finish what is under way and what is queued, at once. Raises DiskFull, DiskFailed."""
        self.submit_all()
        jobs, self._queue = self._queue, []
        for step in chain(self._under_way, carry_out(self._files, jobs)):
            if isinstance(step, DiskFull):
                raise step

    def submit_all(self) -> None:
        self._queue += self._taken
        self._taken = []

    def submit(self, job: Job) -> None:
        self._process.on_effect()
        if isinstance(job, Truncate):
            self._count(job)
        elif isinstance(job, StoreChunk) and job.position == 0:
            epoch, _ = self._process.following
            self._copies.on_begun(job.snapshot, epoch)
        self._process.replica.submit(job)
        self._taken.append(job)

    def _count(self, job: Truncate) -> None:
        """Of how many epochs records are dropped, and whether what is left is in memory."""
        dropped = self._process.replica.log[::-1]
        epochs = {
            batch.epoch for batch in takewhile(lambda b: b.end_offset > job.end_offset, dropped)
        }
        self._process.count_case("truncation", f"{len(epochs)} epochs")
        log, last = self._files.log, job.end_offset - 1
        if last >= log.log_start_offset and log.read_cached(last, 1, job.end_offset) is None:
            self._process.count_case("truncation", "behind the tail cache")

    def flush(self) -> None:
        if self._taken:
            self.submit_all()
            if not self._is_busy:
                self._begin()

    def _begin(self) -> None:
        self._is_busy = True
        if self._idle is not None:
            self._idle.cancel()
        self._process.call(self._process.machine.thread_us(), self._carry_out)

    def _carry_out(self) -> None:
        jobs, self._queue = self._queue, []
        self._process.replica.begin(jobs)
        self._under_way = carry_out(self._files, jobs)
        self._continue(jobs, self._under_way)

    def _continue(self, jobs: list[Job], steps: Iterator[Step | NotStored | DiskFull]) -> None:
        machine = self._process.machine
        try:
            step = next(steps, None)
        except (ProcessKilled, ProcessEnded):
            raise
        except StorageError as error:
            self._listener.on_disk_failed(error)
            return
        if isinstance(step, DiskFull):
            self._process.count("full disk")
            if not self._is_full:
                self._is_full = True
                self._listener.on_disk_full(True)
            wait_us = int(FULL_DISK_RETRY_S * SECOND)
        else:
            if self._is_full:
                self._is_full = False
                self._listener.on_disk_full(False)
            if isinstance(step, NotStored):
                self._process.count("full disk")
                self._listener.on_chunk_not_stored(*step)
            wait_us = machine.sync_us() if step is Step.SYNC_NEXT else machine.write_us()
            if step is Step.SYNC_NEXT and machine.on_written is not None:
                machine.on_written()
        if step is not None:
            self._process.call(wait_us, lambda: self._continue(jobs, steps))
            return
        self._process.replica.complete(jobs)
        # The event loop is notified in order, as by call_soon_threadsafe.
        now_us = self._process.scheduler.now_us
        self._notified_us = max(self._notified_us, now_us + machine.thread_us())
        self._process.call(self._notified_us - now_us, lambda: self._completed(jobs[-1].write))
        if self._queue:
            self._begin()
        else:
            self._is_busy = False
            self._idle = self._process.call(int(IDLE_S * SECOND), self._prepare)

    def _completed(self, write: int) -> None:
        self._listener.on_writes_completed(write, None)

    def _prepare(self) -> None:
        try:
            self._files.log.prepare()
        except DiskFull:
            return
        except StorageError as error:
            self._listener.on_disk_failed(error)


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
            self._done(BuildFailed(str(error), damaged_snapshot(type(error).__name__, error.path)))
        else:
            if progress.total_bytes:
                self._progress(progress.done_bytes / progress.total_bytes)
            self._next()


class SimReader:
    """A `quorumd.server.model.runtime.Reader`."""

    def __init__(self, process: Process, log: Log) -> None:
        self._process = process
        self._log = log

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
        self.run(lambda: self._log.read(offset, max_bytes, end_offset), done)

    def run(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def work() -> None:
            outcome: T | BaseException
            try:
                outcome = action()
            except Exception as error:  # as the daemon's reader: the caller decides
                outcome = error
            self._process.call(self._process.machine.thread_us(), lambda: done(outcome))

        self._process.call(self._process.machine.read_us(), work)

    def close(self) -> None:
        """Nothing to wait for."""
