"""Epoch and high watermark never go back, and every single state is a possible one.

Sources: KIP-595, state machine and high watermark; `quorumd.raft.invariants`, which the daemon only asserts
in part. A new process may know less of the high watermark, but no smaller epoch than it had on disk.
"""

from __future__ import annotations

from quorumd.raft.invariants import InvariantViolation, check_state, check_step
from quorumd.storage.quorum_state import QuorumState
from simulation.checkers.base import Checker, Observation
from simulation.history.replica import Batch, Replica


class Monotonic(Checker):
    """See the module's docstring."""

    name = "epoch and high watermark never go back"

    def on_event(self, seen: Observation) -> None:
        try:
            check_state(seen.now)
            if seen.before is not None:
                check_step(seen.before, seen.now)
        except InvariantViolation as error:
            raise self.fail(f"{seen.now.local}: {error}") from error

    def on_recovered(self, replica: Replica, found: list[Batch], state: QuorumState | None) -> None:
        if replica.state is None or replica.key in self.facts.excused:
            return
        possible = [replica.state, *replica.pending_states]
        if state not in possible:
            raise self.fail(
                f"{replica.key} comes back with {state}, its disk had {replica.state}"
                f" and was writing {replica.pending_states}"
            )
