"""A leader changes the voters only when it has committed a record of its own epoch.

Otherwise it may not know of a set that an earlier leader has committed, and two majorities could miss
each other. Source: Ongaro, "bug in single-server membership changes", raft-dev, 2015; KIP-853.
"""

from __future__ import annotations

from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Change


class OneChangeAtATime(Checker):
    """See the module's docstring."""

    name = "a leader commits in its epoch before it changes the voters"

    def on_change(self, seen: Observation, change: Change) -> None:
        if change.former is None or change.is_first:
            return
        batch, committed = change.named.batch, seen.now.committed_offset
        if not any(
            b.epoch == batch.epoch and b.end_offset <= committed for b in reversed(seen.replica.log)
        ):
            raise self.fail(
                f"{seen.now.local} changes the voters at {batch}, and has committed nothing of its"
                f" epoch yet: its high watermark is {committed}"
            )
