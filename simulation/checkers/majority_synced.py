"""The high watermark is at most what a majority of the voters has synced.

Source: KIP-595, Fetch request handling, step 4: a replica's own log end counts once it is flushed. Here
that is what its disk thread has finished, whatever the rules believe.
"""

from __future__ import annotations

from raft.quorum import majority
from raft.types import ReplicaKey
from simulation.checkers.base import Checker, Facts, Look
from simulation.replica import Batch


class MajoritySynced(Checker):
    name = "the high watermark is synced by a majority"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.checked = 0

    def on_event(self, look: Look) -> None:
        committed = self.facts.committed
        if len(committed) == self.checked:
            return
        self.checked = len(committed)
        last = committed[-1]
        voters = look.node.voters.keys
        holding = [str(key) for key in voters if self._has_synced(key, last)]
        if len(holding) < majority(len(voters)):
            raise self.fail(
                f"{look.now.local}, {look.now.role} of epoch {look.now.epoch}, takes {last} for"
                f" committed; of {len(voters)} voters only {', '.join(holding) or 'none'} synced it"
            )

    def _has_synced(self, key: ReplicaKey, batch: Batch) -> bool:
        replica = self.facts.replicas.get(key)
        if replica is None:
            return False
        # A log that holds this batch holds all before it, by log matching.
        at = len(self.facts.committed) - 1
        return len(replica.synced) > at and replica.synced[at] == batch
