"""Committed batches are the same everywhere and for ever.

Source: KIP-595, high watermark; Raft, figure 3, "State Machine Safety". This checker keeps the one
committed history that the others use.
"""

from __future__ import annotations

from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Replica


class CommittedPrefix(Checker):
    """See the module's docstring."""

    name = "a committed prefix is identical everywhere"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.checked: dict[ReplicaKey, int] = {}
        """Number of batches of a replica's log that are known to be those that are committed."""

    def on_recovered(self, replica: Replica, found: list[Batch], state: object) -> None:
        self.checked[replica.key] = 0

    def on_truncate(self, replica: Replica, dropped: list[Batch]) -> None:
        if len(replica.log) < self.checked.get(replica.key, 0):
            raise self.fail(
                f"{replica.key} drops {dropped[0]} and later, though it knows that to be committed"
            )

    def on_event(self, seen: Observation) -> None:
        replica, offset = seen.replica, seen.now.committed_offset
        at = self.checked.get(replica.key, 0)
        log, committed = replica.log, self.facts.committed
        if at < len(log) and log[at].end_offset <= offset:
            while at < len(log) and log[at].end_offset <= offset:
                if at == len(committed):
                    committed.append(log[at])
                    self.facts.commit_epochs.append(seen.now.epoch)
                elif committed[at] != log[at]:
                    raise self.fail(
                        f"{replica.key} takes {log[at]} for committed, but {committed[at]} is"
                        f" (epoch {self.facts.commit_epochs[at]})"
                    )
                at += 1
            self.checked[replica.key] = at
        end_offset = log[at - 1].end_offset if at else 0
        if offset > end_offset:
            raise self.fail(
                f"{replica.key} takes everything below {offset} for committed; its batches end at"
                f" {end_offset}"
            )

    def on_cut_short(self, seen: Observation) -> None:
        # A leader may have announced already what it had committed before the append. Other replicas
        # announce high watermarks that came with the very records that they were about to append.
        if seen.now.role is Role.LEADER:
            self.on_event(seen)
