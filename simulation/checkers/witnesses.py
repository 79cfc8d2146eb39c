"""A witness leads only where no other voter can: because none has all that it has.

Judged when nothing is disturbed; otherwise it is not known which voter could have been elected. Nor is it
known where a leader has just yielded to an epoch from before: who lacks records brings it, and asks first.
The former leader has resigned, or died: it need not be waited for. Source: docs/protocol, witness.
"""

from __future__ import annotations

from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.history.replica import Batch


class Witnesses(Checker):
    """See the module's docstring."""

    name = "a witness leads only where no other voter can"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.last_leader: ReplicaKey | None = None

    def on_event(self, seen: Observation) -> None:
        now, before = seen.now, seen.before
        if now.role is not Role.LEADER or (before is not None and before.role is Role.LEADER):
            return
        former, self.last_leader = self.last_leader, now.local
        if not seen.node.config.is_witness or not self.facts.is_undisturbed:
            return
        if now.epoch == self.facts.late_epoch + 1:
            return
        own = [batch for batch in seen.replica.log if batch.epoch < now.epoch]
        for key, other in self.facts.replicas.items():
            is_gone = key in self.facts.excused or key == former or key.id == now.local.id
            if is_gone or not any(key.matches(voter) for voter in seen.node.core.other_voters()):
                continue
            if _position(other.synced) >= _position(own):
                raise self.fail(
                    f"{now.local} leads epoch {now.epoch} with a log that ends at {_position(own)}, and"
                    f" that of {key} ends at {_position(other.synced)}"
                )


def _position(log: list[Batch]) -> tuple[int, int]:
    """Epoch and end offset, by which logs are compared."""
    return (log[-1].epoch, log[-1].end_offset) if log else (0, 0)
