"""A leader has every record that was committed in an earlier epoch.

Source: KIP-595, Vote request handling (up-to-date check); Raft, figure 3, "Leader Completeness".
"""

from __future__ import annotations

from bisect import bisect_left

from quorumd.raft.roles import Role
from simulation.checkers.base import Checker, Observation


class LeaderCompleteness(Checker):
    """See the module's docstring."""

    name = "a leader has every committed record"

    def on_event(self, seen: Observation) -> None:
        now, before = seen.now, seen.before
        if now.role is not Role.LEADER or (before is not None and before.role is Role.LEADER):
            return
        # Commit epochs never go back: a deposed leader commits nothing any more.
        count = bisect_left(self.facts.commit_epochs, now.epoch)
        if seen.replica.log[:count] != self.facts.committed[:count]:
            lost = next(
                batch
                for at, batch in enumerate(self.facts.committed)
                if seen.replica.log[at : at + 1] != [batch]
            )
            raise self.fail(
                f"{now.local} leads epoch {now.epoch} without {lost}; its log ends at"
                f" {seen.replica.end_offset}"
            )
