"""A voter is added only when it has everything that was in the leader's log an election timeout ago.

Otherwise nothing could be committed until it has it. Source: KIP-642, observer promotion.
"""

from __future__ import annotations

from collections import deque

from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Change, Facts
from simulation.scheduler import MS

CLOCK_RATE_LEAST = 2
"""A clock that runs half as fast makes a timeout so many times longer."""


class CaughtUp(Checker):
    """See the module's docstring."""

    name = "a voter is added when it has caught up"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.ends: dict[ReplicaKey, deque[tuple[int, int]]] = {}
        """Of each leader: when its log ended where, as far back as it matters."""

    def on_event(self, seen: Observation) -> None:
        if seen.now.role is not Role.LEADER:
            self.ends.pop(seen.now.local, None)
            return
        ends = self.ends.setdefault(seen.now.local, deque())
        ends.append((seen.now_us, seen.now.log_end_offset))
        since_us = self._since_us(seen)
        while len(ends) > 1 and ends[1][0] <= since_us:
            ends.popleft()

    def on_change(self, seen: Observation, change: Change) -> None:
        ends = self.ends.get(seen.now.local)
        if (
            change.former is None
            or change.is_first
            or not ends
            or ends[0][0] > self._since_us(seen)
        ):
            return
        for key in change.added:
            replica = self.facts.replicas.get(key)
            has = 0 if replica is None else replica.synced_end_offset
            if has < ends[0][1]:
                raise self.fail(
                    f"{seen.now.local} adds {key}, which has everything below {has}, at"
                    f" {change.named.batch}; its log ended at {ends[0][1]} for an election timeout"
                )

    @staticmethod
    def _since_us(seen: Observation) -> int:
        return seen.now_us - CLOCK_RATE_LEAST * seen.node.config.election_timeout_ms * MS
