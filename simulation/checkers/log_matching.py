"""If two logs hold a batch of the same offset and epoch, they are identical up to and with it.

Checked by induction: a batch at (offset, epoch) is the same everywhere, and so is the one before it.
Source: KIP-595, log reconciliation; Raft, figure 3, "Log Matching".
"""

from __future__ import annotations

from simulation.checkers.base import Checker
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Replica

_Place = tuple[int, int]


class LogMatching(Checker):
    """See the module's docstring."""

    name = "log matching"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.known: dict[_Place, tuple[Batch, _Place | None]] = {}

    def on_append(self, replica: Replica, batches: list[Batch], before: Batch | None) -> None:
        place_before = None if before is None else _place(before)
        for batch in batches:
            place = _place(batch)
            known = self.known.setdefault(place, (batch, place_before))
            if known != (batch, place_before):
                raise self.fail(
                    f"{replica.key} has {batch} with {batch.identity} after (offset, epoch) {place_before};"
                    f" elsewhere it is {known[0]} with {known[0].identity} after {known[1]}"
                )
            place_before = place


def _place(batch: Batch) -> _Place:
    return batch.base_offset, batch.epoch
