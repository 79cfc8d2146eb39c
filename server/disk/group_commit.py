"""The disk thread: it writes the jobs that it is handed to a partition's directory.

Jobs arrive in the order in which they must reach the disk. Everything that waits when the thread gets to
it is written, and then synced once: group commit. A disk that is full holds the thread up until there is
space again: nothing is dropped, and nothing overtakes records but the quorum state, which has space in
reserve, and what is to be deleted, which makes space. Any other failure is fatal: a failed fsync is never
retried.

`DiskLoop` has no thread of its own. `run` pauses where it waits: the daemon waits on a thread
(`quorumd.server.disk.disk_worker`), a simulator on its own clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from queue import SimpleQueue
from typing import Final, NamedTuple

from quorumd.raft.types import SnapshotId
from quorumd.server.model.disk_jobs import (
    DeleteFiles,
    DiskListener,
    DoneAhead,
    DropChunks,
    Files,
    InstallSnapshot,
    Job,
    LogFiles,
    SaveState,
    StoreChunk,
    Truncate,
    WriteRecords,
)
from quorumd.storage.errors import DiskFull
from quorumd.storage.log import Chunk
from quorumd.storage.snapshot_store import SnapshotStore

FULL_DISK_RETRY_S = 0.5
IDLE_S: Final = 0.05
"""Time without a write after which space is prepared ahead."""


class Step(Enum):
    """The reason why `run` or `carry_out` pauses."""

    DONE = "done"
    """Something was written; it is not synced, unless it was a quorum state or a truncation."""
    SYNC_NEXT = "sync next"
    BRIEF_WAIT = "brief wait"
    """There are no jobs: `run` is to be sent the next ones, or no jobs after `IDLE_S`."""
    LONG_WAIT = "long wait"
    """The same, for as long as it takes."""


# To look up a member of an enum costs as much as several calls.
_DONE: Final = Step.DONE
_SYNC_NEXT: Final = Step.SYNC_NEXT
_BRIEF_WAIT: Final = Step.BRIEF_WAIT


class NotStored(NamedTuple):
    """`carry_out` pauses: there was no room for a chunk of this snapshot, and it is given up."""

    snapshot: SnapshotId
    problem: str


class NoSpace(NamedTuple):
    """The reason why `carry_out` pauses: to go on is to try again. `run` is to be sent the next jobs, or no
    jobs after `FULL_DISK_RETRY_S`.

    From `behind` on the jobs wait for records alone; None if what needs space is something else.
    """

    error: DiskFull
    behind: int | None


_OVERTAKEN: Final = (WriteRecords, DoneAhead, StoreChunk, DropChunks)
"""The jobs that a quorum state and a deletion overtake where there is no space: they say nothing of them."""
Pause = Step | NotStored | NoSpace
Jobs = list[Job] | None
"""Jobs that were handed over together; None behind the last."""


def carry_out(files: Files, jobs: Sequence[Job]) -> Iterator[Pause]:
    """Write in order; one sync at the end covers all records among the jobs.

    Everything is durable when this has ended. It pauses after each step, so that a simulator can let
    other things happen in between, and where the disk is full: to go on is to try again.
    """
    log = files.log
    chunks: list[Chunk] = []
    unsynced = False
    for at, job in enumerate(jobs):
        if isinstance(job, WriteRecords):
            chunks.append(job.chunk)
            continue
        if chunks:
            while (problem := _write(log, chunks, at)) is not None:
                yield problem
            yield _DONE
            chunks.clear()
            unsynced = True
        if isinstance(job, StoreChunk):
            yield _store_chunk(files.snapshots, job)
        elif not _is_superseded(jobs, at):
            # Perhaps another one than before: a quorum state may have been saved meanwhile.
            due = jobs[at]
            while (problem := _carry_out_if_there_is_space(files, due)) is not None:
                yield problem
            yield _DONE
    if chunks:
        while (problem := _write(log, chunks, len(jobs))) is not None:
            yield problem
        yield _DONE
        unsynced = True
    if unsynced:
        yield _SYNC_NEXT
        log.sync()


def _groups(jobs: list[Job]) -> Iterator[list[Job]]:
    """What is written, and told, together. Leading quorum states go first: votes and a leader's announcement
    wait for them, and not for the records behind them."""
    states = 0
    while states < len(jobs) and isinstance(jobs[states], SaveState):
        states += 1
    if states:
        yield jobs[:states]
    if states < len(jobs):
        yield jobs[states:] if states else jobs


def _is_superseded(jobs: Sequence[Job], at: int) -> bool:
    """True of a quorum state that the next job replaces: nothing is told of either before both are done.

    A vote in a later epoch is two of them, and each costs two syncs that a candidate waits for.
    """
    return (
        isinstance(jobs[at], SaveState)
        and at + 1 < len(jobs)
        and isinstance(jobs[at + 1], SaveState)
    )


def _store_chunk(snapshots: SnapshotStore, job: StoreChunk) -> Step | NotStored:
    """Durable only with the whole snapshot. A download never waits for space: votes wait behind it."""
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
        case DoneAhead():
            pass
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
    """Newer snapshots were completed after this job was submitted: the rules count on them already."""
    for snapshot in snapshots.ids:
        if snapshot not in kept and snapshot.end_offset < kept[-1].end_offset:
            snapshots.delete(snapshot)


def _write(log: LogFiles, chunks: Sequence[Chunk], behind: int) -> NoSpace | None:
    try:
        log.write_many(tuple(chunks))
    except DiskFull as error:
        return NoSpace(error, behind)
    return None


def _carry_out_if_there_is_space(files: Files, job: Job) -> NoSpace | None:
    try:
        _carry_out_alone(files, job)
    except DiskFull as error:
        return NoSpace(error, None)
    return None


class DiskLoop:
    """See the module. `call_on_loop` runs a callback on the event loop, in the order of the calls."""

    def __init__(
        self,
        files: Files,
        listener: DiskListener,
        call_on_loop: Callable[..., object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._files = files
        self._listener = listener
        self._call_on_loop = call_on_loop
        self._monotonic_s = monotonic_s
        self._begun_s: float | None = None
        """When the write or the sync that is under way began; None if none is."""
        self._taken: list[Job] = []
        self.jobs: SimpleQueue[Jobs] = SimpleQueue()
        """Jobs that were handed over and not begun; the runner takes them: see `Step.BRIEF_WAIT`."""
        self._ahead: deque[Jobs] = deque()
        """Jobs that were taken before their turn, because the disk is full."""
        self._is_full = False
        self._is_stopping = False

    # -- on the event loop

    def submit(self, job: Job) -> None:
        self._taken.append(job)

    def flush(self) -> None:
        # To wake the thread is the last thing that a turn of the event loop does: woken earlier, it
        # would wait for the interpreter's lock, and be woken once more.
        if self._taken:
            self.jobs.put(self._taken)
            self._taken = []

    def end(self) -> None:
        """Hand over the jobs that were taken, and mark the end."""
        self.flush()
        self._is_stopping = True
        self.jobs.put(None)

    def write_age_s(self) -> float:
        """Seconds that the write or the sync under way has taken so far; 0 if none is."""
        begun_s = self._begun_s
        return 0.0 if begun_s is None else self._monotonic_s() - begun_s

    # -- on the disk thread

    def run(self) -> Generator[Pause, Jobs, None]:
        """Carry out all jobs, to the end. Each yield is a pause with its reason, see `Pause`.

        After a step it is sent None. A failure is reported to the listener and ends the loop.
        """
        try:
            is_last = False
            while not is_last:
                jobs, is_last = yield from self._next_jobs()
                for group in _groups(jobs):
                    sync_s = yield from self._carry_out(group)
                    completed = self._listener.on_writes_completed
                    self._call_on_loop(completed, group[-1].write, sync_s)
        except Exception as error:  # the loop must not end unnoticed
            # A full disk does not keep a node from stopping: nothing of what waits was acknowledged.
            if not (self._is_stopping and isinstance(error, DiskFull)):
                self._call_on_loop(self._listener.on_disk_failed, error)

    def _next_jobs(self) -> Generator[Pause, Jobs, tuple[list[Job], bool]]:
        """All jobs that wait, at least one; and whether they are the last."""
        found: list[Job] = []
        if self._ahead:
            jobs = self._ahead.popleft()
        else:
            jobs = yield _BRIEF_WAIT
            if jobs is not None and not jobs:
                self._begun_s = self._monotonic_s()
                with suppress(DiskFull):
                    self._files.log.prepare()
                self._begun_s = None
                jobs = yield Step.LONG_WAIT
        while jobs is not None:
            found += jobs
            if self._ahead:
                jobs = self._ahead.popleft()
            elif self.jobs.empty():  # nobody else takes any
                return found, False
            else:
                jobs = self.jobs.get_nowait()
        return found, True

    def _carry_out(self, jobs: list[Job]) -> Generator[Pause, Jobs, float | None]:
        """Carry the jobs out; returns how long the sync took, if there was one."""
        started = None
        self._begun_s = self._monotonic_s()
        for step in carry_out(self._files, jobs):
            self._begun_s = self._monotonic_s()
            if isinstance(step, Step):
                self._note_space(is_full=False)
                if step is _SYNC_NEXT:
                    started = self._begun_s
            elif isinstance(step, NoSpace):
                self._note_space(is_full=True)
                if self._is_stopping:
                    raise step.error
                if step.behind is not None:
                    self._carry_out_ahead(jobs, step.behind)
                self._begun_s = None
                taken = yield step
                self._begun_s = self._monotonic_s()
                if taken is None or taken:
                    self._ahead.append(taken)
                continue
            else:
                self._call_on_loop(self._listener.on_chunk_not_stored, *step)
            yield step
        self._begun_s = None
        return None if started is None else self._monotonic_s() - started

    def _carry_out_ahead(self, jobs: list[Job], behind: int) -> None:
        """Save the last quorum state that waits for records alone, so that this node can vote, and hears
        who leads. A crash then leaves what one before the records would have left: nobody counts on them.
        Delete what waits for records alone: they may have no space before it is gone.
        """
        waiting: list[tuple[list[Job], int, SaveState]] = []
        for group, start in ((jobs, behind), *((ahead or [], 0) for ahead in self._ahead)):
            for at in range(start, len(group)):
                job = group[at]
                if isinstance(job, SaveState):
                    waiting.append((group, at, job))
                elif isinstance(job, DeleteFiles):
                    _carry_out_alone(self._files, job)
                    group[at] = DoneAhead(job.write)
                elif not isinstance(job, _OVERTAKEN):
                    break
            else:
                continue
            break
        if not waiting:
            return
        newest = waiting[-1][-1]
        with suppress(DiskFull):
            self._files.save_state(newest.state)
            for group, at, job in waiting:
                group[at] = DoneAhead(job.write)
            self._call_on_loop(self._listener.on_state_saved, newest.write)

    def _note_space(self, *, is_full: bool) -> None:
        if is_full != self._is_full:
            self._is_full = is_full
            self._call_on_loop(self._listener.on_disk_full, is_full)
