"""A new process finds what was synced, in order; nothing that was truncated or never appended.

Source: storage-format, recovery; KIP-595 counts a replica for what it has flushed.
"""

from __future__ import annotations

from quorumd.storage.quorum_state import QuorumState
from simulation.checkers.base import Checker
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Replica


class Durability(Checker):
    """See the module's docstring."""

    name = "what was synced survives"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.ever: set[Batch] = set()

    def on_append(self, replica: Replica, batches: list[Batch], before: Batch | None) -> None:
        self.ever.update(batches)

    def on_recovered(self, replica: Replica, found: list[Batch], state: QuorumState | None) -> None:
        invented = [batch for batch in found if batch not in self.ever]
        if invented:
            raise self.fail(
                f"{replica.key} comes back with {invented[0]}, which was never appended"
            )
        if replica.key in self.facts.excused:
            return
        back = [batch for batch in found if batch in replica.dropped]
        if back:
            raise self.fail(f"{replica.key} comes back with {back[0]}, which it had truncated")
        synced = replica.synced
        if found[: len(synced)] != synced:
            at = next(i for i, batch in enumerate(synced) if found[i : i + 1] != [batch])
            raise self.fail(
                f"{replica.key} synced {synced[at]}, and comes back with"
                f" {found[at] if at < len(found) else 'nothing'} there; it had synced up to"
                f" {replica.synced_end_offset}"
            )
