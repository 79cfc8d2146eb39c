"""The high watermark is at most what a majority of the voters has synced.

Source: KIP-595, Fetch request handling, step 4: a replica's own log end counts once it is flushed. Here
that is what its disk thread has finished, whatever the rules believe.
"""

from __future__ import annotations

from quorumd.raft.quorum import majority
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, VoterSet
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.history.replica import Batch


class MajoritySynced(Checker):
    """See the module's docstring."""

    name = "the high watermark is synced by a majority"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.checked = 0

    def on_event(self, seen: Observation) -> None:
        committed = self.facts.committed
        if len(committed) == self.checked:
            return
        self.checked = len(committed)
        last = committed[-1]
        if not any(self._is_majority(voters.keys, last) for voters in _counted(seen)):
            raise self.fail(
                f"{seen.now.local}, {seen.now.role} of epoch {seen.now.epoch}, takes {last} for"
                f" committed; of its voters {', '.join(map(str, seen.node.voters.keys))} only"
                f" {', '.join(self._holding(seen.node.voters.keys, last)) or 'none'} synced it"
            )

    def on_cut_short(self, seen: Observation) -> None:
        # The others may not know the voters whom a leader has counted in its last moment.
        self.on_event(seen)

    def _is_majority(self, voters: tuple[ReplicaKey, ...], batch: Batch) -> bool:
        return len(self._holding(voters, batch)) >= majority(len(voters))

    def _holding(self, voters: tuple[ReplicaKey, ...], batch: Batch) -> list[str]:
        return [str(key) for key in voters if self._has_synced(key, batch)]

    def _has_synced(self, key: ReplicaKey, batch: Batch) -> bool:
        replica = self.facts.replicas.get(key)
        if replica is None:
            return False
        # A log that holds this batch holds all before it, by log matching.
        at = len(self.facts.committed) - 1
        return len(replica.synced) > at and replica.synced[at] == batch


def _counted(seen: Observation) -> list[VoterSet]:
    """The set that a leader has counted: its latest one, but for what it has appended just now.

    If another replica is the first to announce the commit, any set that it knows may count.
    """
    entries = seen.node.core.log.voter_entries
    if seen.before is None or seen.before.role is not Role.LEADER:
        return [entry.record.voters for entry in entries]
    end_offset = seen.before.log_end_offset
    return [next(e.record.voters for e in reversed(entries) if e.offset < end_offset)]
