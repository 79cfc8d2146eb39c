"""At most one leader in an epoch. Source: KIP-595, Vote; Raft, figure 3, "Election Safety"."""

from __future__ import annotations

from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts


class ElectionSafety(Checker):
    """See the module's docstring."""

    name = "one leader per epoch"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.leaders: dict[int, ReplicaKey] = {}

    def on_event(self, seen: Observation) -> None:
        if seen.now.role is not Role.LEADER:
            return
        known = self.leaders.setdefault(seen.now.epoch, seen.now.local)
        if known != seen.now.local:
            raise self.fail(f"{known} and {seen.now.local} both lead epoch {seen.now.epoch}")
