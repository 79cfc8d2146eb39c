"""The snapshots of a replica: their facts, which are damaged, and which of these are to be built anew."""

from __future__ import annotations

from collections.abc import Sequence

from quorumd.raft.types import SnapshotId
from quorumd.storage.snapshot_file import SnapshotFacts


class KnownSnapshots:
    """See the module's docstring. Belongs to the event loop's thread."""

    def __init__(self, found: Sequence[SnapshotFacts]) -> None:
        self.facts = {facts.id: facts for facts in found}
        self.damaged: set[SnapshotId] = set()
        """Not served any more."""
        self.to_repair: list[SnapshotId] = []
        """Of the damaged ones those to be built anew, ascending."""

    def keep(self, facts: Sequence[SnapshotFacts]) -> None:
        """Only these snapshots are left."""
        self.facts = {each.id: each for each in facts}
        self.damaged &= self.facts.keys()
        self.to_repair = [snapshot for snapshot in self.to_repair if snapshot in self.facts]

    def withdraw(self, snapshot: SnapshotId) -> None:
        """Notes that a snapshot is damaged: it is to be built anew, and not served until then."""
        self.damaged.add(snapshot)
        self.to_repair = sorted([*self.to_repair, snapshot])

    def give_up(self, snapshot: SnapshotId) -> None:
        """Notes that a snapshot is not built anew, and stays damaged."""
        self.to_repair.remove(snapshot)

    def repaired(self, facts: SnapshotFacts) -> None:
        """Notes that a snapshot was built anew."""
        self.facts[facts.id] = facts
        self.damaged.discard(facts.id)
        self.to_repair.remove(facts.id)

    def is_sound_after_all(self, snapshot: SnapshotId) -> None:
        """Notes that a snapshot was read once more, and is not damaged."""
        self.damaged.discard(snapshot)
        self.to_repair = [other for other in self.to_repair if other != snapshot]
