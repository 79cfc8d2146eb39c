"""The book that is kept of one replica: what it appended, what its disk must hold, what it has promised.

Filled from the jobs that the daemon hands to its disk thread, so it sees every batch, truncation and
quorum state in the order in which they are to reach the disk; and from what that thread does to the files,
whatever it says of it. A snapshot counts as the batches that it stands for, so books begin at offset 0
whatever the log begins at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from quorumd.raft.types import ReplicaKey
from quorumd.server.model.disk_jobs import InstallSnapshot, Job, SaveState, Truncate, WriteRecords
from quorumd.storage.log import Chunk
from quorumd.storage.quorum_state import QuorumState
from quorumd.wire.batch_header import BatchHeader, iter_headers
from simulation.violation import Violation

ORDER = "the disk is written in order"


class Identity(NamedTuple):
    """Tells batches apart by what a leader never changes: everything but offset and epoch."""

    crc: int
    base_timestamp: int
    producer_id: int
    base_sequence: int
    producer_epoch: int = -1


class Batch(NamedTuple):
    """A batch of the log; `end_offset` is exclusive."""

    base_offset: int
    end_offset: int
    epoch: int
    identity: Identity

    def __str__(self) -> str:
        return f"{self.base_offset}..{self.end_offset} of epoch {self.epoch}"


def identity_of(header: BatchHeader) -> Identity:
    """The fields of a batch header that offset and epoch do not change."""
    return Identity(
        header.crc,
        header.base_timestamp,
        header.producer_id,
        header.base_sequence,
        header.producer_epoch,
    )


def batch_of(header: BatchHeader) -> Batch:
    """The batch under this header."""
    identity = identity_of(header)
    end_offset = header.base_offset + header.last_offset_delta + 1
    return Batch(header.base_offset, end_offset, header.epoch, identity)


def batches_of(data: bytes | memoryview) -> list[Batch]:
    """The batches in these bytes."""
    return [batch_of(header) for _, header in iter_headers(data)]


def cut(batches: list[Batch], end_offset: int) -> list[Batch]:
    """Drop, in place, every batch that ends beyond `end_offset`; returns what was dropped."""
    kept = len(batches)
    while kept and batches[kept - 1].end_offset > end_offset:
        kept -= 1
    dropped = batches[kept:]
    del batches[kept:]
    return dropped


class DiskUpdate(NamedTuple):
    """Batches that were appended behind `before`, or dropped."""

    is_append: bool
    batches: list[Batch]
    before: Batch | None


class Replica:
    """See the module's docstring. Outlives the processes that run on its storage.

    `committed_below` gives the batches that are committed below an offset, by whatever is known.
    `note_control` gets the control batches that are appended, and their bytes.
    """

    def __init__(
        self,
        key: ReplicaKey,
        committed_below: Callable[[int], list[Batch]],
        note_control: Callable[[ReplicaKey, Batch, bytes | memoryview], None],
    ) -> None:
        self.key = key
        self._committed_below = committed_below
        self._note_control = note_control
        self.log: list[Batch] = []
        """Batches that the process has appended, on disk or not."""
        self.synced: list[Batch] = []
        """Batches that its disk has synced and was not to drop since: no crash may lose one."""
        self.dropped: set[Batch] = set()
        """Batches that its disk has dropped durably and not got again since: no crash may bring one back."""
        self.state: QuorumState | None = None
        """The last quorum state that is on disk for certain."""
        self.pending_states: list[QuorumState] = []
        """States that were asked for since: one of them may be on disk."""
        self._written: dict[int, list[Batch]] = {}
        """Of each chunk that is to be written, by its identity in memory: the batches in it."""
        self._unsynced: list[Batch] = []
        """Batches that are in the files, and not synced."""
        self._dropped: deque[list[Batch]] = deque()
        """Of each truncation and each snapshot to be installed, in order: what goes with it."""
        self.disk_updates: list[DiskUpdate] = []
        """Appends and drops since they were shown to the checkers last."""

    @property
    def end_offset(self) -> int:
        """Exclusive end of the log in memory."""
        return self.log[-1].end_offset if self.log else 0

    @property
    def synced_end_offset(self) -> int:
        """Exclusive end of the log that is synced."""
        return self.synced[-1].end_offset if self.synced else 0

    def submit(self, job: Job) -> None:
        """The rules have asked for this; it changes what the process has in memory."""
        if isinstance(job, WriteRecords):
            batches = self._read(job.chunk.data)
            self._written[id(job.chunk)] = batches
            self.disk_updates.append(DiskUpdate(True, batches, self.log[-1] if self.log else None))
            self.log += batches
            self.dropped.difference_update(batches)
        elif isinstance(job, Truncate):
            batches = cut(self.log, job.end_offset)
            self._dropped.append(batches)
            self.disk_updates.append(DiskUpdate(False, batches, None))
        elif isinstance(job, InstallSnapshot):
            self._dropped.append(self._become(self.log, job.snapshot.end_offset))
        elif isinstance(job, SaveState):
            self.pending_states.append(job.state)

    def _read(self, data: bytes | memoryview) -> list[Batch]:
        batches = []
        for at, header in iter_headers(data):
            batches.append(batch_of(header))
            if header.is_control:
                self._note_control(self.key, batches[-1], data[at : at + header.size_bytes])
        return batches

    def _become(self, log: list[Batch], end_offset: int) -> list[Batch]:
        """Make `log` what a snapshot stands for, in place; returns what is dropped."""
        behind = self._committed_below(end_offset)
        kept = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(log, behind, strict=False))
        )
        dropped = log[kept:]
        del log[kept:]
        if log is self.log:
            self.disk_updates.append(DiskUpdate(False, dropped, None))
            self.disk_updates.append(DiskUpdate(True, behind[kept:], log[-1] if log else None))
        log += behind[kept:]
        return dropped

    # -- what the disk does

    def written(self, chunks: Sequence[Chunk]) -> None:
        """These are in the files, not synced."""
        for chunk in chunks:
            self._unsynced += self._written.pop(id(chunk))

    def was_synced(self) -> None:
        """Everything written is on disk."""
        self.synced += self._unsynced
        self._unsynced.clear()

    def truncates(self, end_offset: int) -> None:
        """The disk begins to drop everything from there on, which may be gone from now on."""
        cut(self.synced, end_offset)
        cut(self._unsynced, end_offset)

    def truncated(self) -> None:
        """The disk has done so, durably."""
        self.dropped.update(set(self._dropped.popleft()).difference(self.log))

    def resets(self, end_offset: int) -> None:
        """The disk begins to put a snapshot in the place of the log."""
        behind = set(self._committed_below(end_offset))
        self.synced[:] = [batch for batch in self.synced if batch in behind]
        self._unsynced.clear()

    def was_reset(self, end_offset: int) -> None:
        """The disk has done so, durably."""
        self._become(self.synced, end_offset)
        self.truncated()

    def saved(self, state: QuorumState) -> None:
        """This quorum state is on disk."""
        self.state = state
        for at, pending in enumerate(self.pending_states):
            if pending is state:
                del self.pending_states[: at + 1]
                return
        raise Violation(ORDER, f"{self.key} saves {state}, which a later one has replaced")

    def recovered(self, batches: Iterable[Batch]) -> None:
        """A new process has found this on its disk, and synced it."""
        self.log = list(batches)
        self.synced = list(self.log)
        self.pending_states.clear()
        self._written.clear()
        self._unsynced.clear()
        self._dropped.clear()
        self.disk_updates = [DiskUpdate(True, list(self.log), None)]
