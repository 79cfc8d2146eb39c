"""The base of checkers: the events that they are shown, and the parts that they share.

A checker is called after every event of a process. It raises `Violation` with offsets and epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorumd.raft.invariants import CapturedState
from quorumd.raft.node import RaftNode
from quorumd.raft.types import ReplicaKey
from quorumd.storage.quorum_state import QuorumState
from simulation.history.facts import Change, Facts
from simulation.history.replica import Batch, Replica
from simulation.violation import Violation


@dataclass(slots=True)
class Observation:
    """A process after an event; `before` is its state after the event before that, None after a start."""

    replica: Replica
    node: RaftNode
    now: CapturedState
    before: CapturedState | None
    disk_files: Sequence[str] = ()
    """Names in the log's directory, where they are needed."""
    now_us: int = 0
    is_clock_true: bool = True
    """The clock of its machine has never been wrong."""
    is_prompt: bool = True
    """Nor was it paused lately."""


class Checker:
    """Does nothing; each property overrides what it needs. `name` is the property's."""

    name = ""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def fail(self, what: str) -> Violation:
        """A violation of this checker's property, to be raised."""
        return Violation(self.name, what)

    def on_append(self, replica: Replica, batches: list[Batch], before: Batch | None) -> None:
        """Batches follow `before` in a replica's log; they are in `replica.log` already."""

    def on_truncate(self, replica: Replica, dropped: list[Batch]) -> None:
        """Batches are dropped from a replica's log."""

    def on_event(self, seen: Observation) -> None:
        """A process has had an event that changed something of its snapshot."""

    def on_cut_short(self, seen: Observation) -> None:
        """A process has died in the midst of an append: its log is not what its snapshot says."""

    def on_change(self, seen: Observation, change: Change) -> None:
        """A leader has appended a voter set; `on_event` has been called before."""

    def on_own_request(self, node: RaftNode) -> None:
        """A replica asks its leader to change the voters in its favour."""

    def on_recovered(self, replica: Replica, found: list[Batch], state: QuorumState | None) -> None:
        """A new process has opened its directory; `replica` still holds what was known before."""

    def on_snapshot(self, replica: Replica, snapshot: tuple[int, int], data: bytes) -> None:
        """A replica takes a snapshot, (end offset, epoch), for complete and sound."""

    def on_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        """A vote leaves a process."""

    def on_pre_vote(self, node: RaftNode, asked_us: int, *, is_prompt: bool) -> None:
        """A process grants a pre-vote that it was asked for at this time."""
