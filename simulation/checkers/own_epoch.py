"""A leader commits by a record of its own epoch, never by counting an earlier one's.

Source: KIP-595, extra condition on commitment; Raft, section 5.4.2 and figure 8.
"""

from __future__ import annotations

from quorumd.raft.roles import Role
from simulation.checkers.base import Checker, Observation


class OwnEpoch(Checker):
    """See the module's docstring."""

    name = "a leader commits with a record of its epoch"

    def on_event(self, seen: Observation) -> None:
        now, before = seen.now, seen.before
        if now.role is not Role.LEADER or before is None or before.role is not Role.LEADER:
            return
        if now.committed_offset == before.committed_offset:
            return
        log = seen.replica.log
        last = next(batch for batch in reversed(log) if batch.end_offset <= now.committed_offset)
        if last.epoch != now.epoch:
            raise self.fail(f"{now.local} commits {last} as the leader of epoch {now.epoch}")
