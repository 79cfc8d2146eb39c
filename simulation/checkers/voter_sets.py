"""Adjacent voter sets differ by one member at most, and a leader changes a set only once it is committed.

The first set is what configuration says; while nothing is written it may be replaced by one with the same
ids and other storage ids. Source: KIP-856, "one change at a time".
"""

from __future__ import annotations

from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Change


class VoterSets(Checker):
    """See the module's docstring."""

    name = "one voter changes at a time"

    def on_change(self, seen: Observation, change: Change) -> None:
        former, named = change.former, change.named
        if former is None or change.is_first:
            return
        if len(change.added) + len(change.removed) > 1:
            raise self.fail(
                f"{seen.now.local} makes {_listed(former.keys)} at {former.batch} the voters"
                f" {_listed(named.keys)} at {named.batch}"
            )
        if former.batch.end_offset > seen.now.committed_offset:
            raise self.fail(
                f"{seen.now.local} changes the voters at {named.batch}; those at {former.batch} are not"
                f" committed, its high watermark is {seen.now.committed_offset}"
            )


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
