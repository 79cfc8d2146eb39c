"""A snapshot is not copied from the same leader again and again.

A replica whose copy failed waits, longer each time, before it copies the same one again. Source:
docs/protocol, snapshots.
"""

from __future__ import annotations

from collections import Counter

from quorumd.raft.types import ReplicaKey, SnapshotId
from simulation.violation import Violation

NAME = "no snapshot is copied again and again"
COPIES_MAX = 8
"""Of one snapshot, in one epoch, by one process: with pauses that double from a second on, a run has no time
for more."""


class Copies:
    """One for each process."""

    def __init__(self, key: ReplicaKey) -> None:
        self._key = key
        self._begun = Counter[tuple[SnapshotId, int]]()

    def on_begun(self, snapshot: SnapshotId, epoch: int) -> None:
        """The first chunk of a copy goes to the disk."""
        self._begun[snapshot, epoch] += 1
        times = self._begun[snapshot, epoch]
        if times > COPIES_MAX:
            raise Violation(NAME, f"{self._key} copies {snapshot} {times} times in epoch {epoch}")
