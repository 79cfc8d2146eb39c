"""What checkers are shown, and what they share.

A checker is called after every event of a process. It raises `Violation` with offsets and epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from raft.invariants import Snapshot
from raft.node import RaftNode
from raft.types import ReplicaKey
from simulation.replica import Batch, Identity, Replica
from simulation.violation import Violation
from storage.quorum_state import QuorumState
from wire.records import Record


@dataclass(slots=True)
class Look:
    """A process after an event; `before` is the look before that, None after a start."""

    replica: Replica
    node: RaftNode
    now: Snapshot
    before: Snapshot | None
    disk_files: Sequence[str] = ()
    """Names in the log's directory, where they are needed."""


@dataclass(slots=True)
class Facts:
    """What the checkers share. `committed` grows and never changes otherwise."""

    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)
    committed: list[Batch] = field(default_factory=list)
    records: dict[Identity, list[Record]] = field(default_factory=dict)
    """What clients have put into their batches."""
    commit_epochs: list[int] = field(default_factory=list)
    """The epoch in which each of `committed` was first known to be committed."""
    excused: set[ReplicaKey] = field(default_factory=set)
    """Replicas whose disk was damaged behind their back: what they lost is no fault of the code."""

    @property
    def committed_end_offset(self) -> int:
        return self.committed[-1].end_offset if self.committed else 0

    def committed_below(self, end_offset: int) -> list[Batch]:
        """The committed batches that end at `end_offset` or before."""
        return self.committed[: bisect_right(self.committed, end_offset, key=_end_of)]


def _end_of(batch: Batch) -> int:
    return batch.end_offset


class Checker:
    """Does nothing; each property overrides what it looks at. `name` is the property's."""

    name = ""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def fail(self, what: str) -> Violation:
        return Violation(self.name, what)

    def on_append(self, replica: Replica, batches: list[Batch], before: Batch | None) -> None:
        """Batches follow `before` in a replica's log; they are in `replica.log` already."""

    def on_truncate(self, replica: Replica, dropped: list[Batch]) -> None:
        """Batches are dropped from a replica's log."""

    def on_event(self, look: Look) -> None:
        """A process has had an event that changed something of its snapshot."""

    def on_recovered(self, replica: Replica, found: list[Batch], state: QuorumState | None) -> None:
        """A new process has opened its directory; `replica` still holds what was known before."""

    def on_snapshot(self, replica: Replica, snapshot: tuple[int, int], data: bytes) -> None:
        """A replica takes a snapshot, (end offset, epoch), for complete and sound."""

    def on_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        """A vote leaves a process."""
