"""Adjacent voter sets differ by one member at most, and one change at most is uncommitted.

The first set is what configuration says; while it is not committed it may be replaced by one with the
same ids and other storage ids. Source: KIP-856, "one change at a time".
"""

from __future__ import annotations

from itertools import pairwise

from raft.log_view import VoterEntry
from raft.types import ReplicaKey
from simulation.checkers.base import Checker, Facts, Look


class VoterSets(Checker):
    name = "one voter changes at a time"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.seen: dict[ReplicaKey, list[VoterEntry]] = {}

    def on_event(self, look: Look) -> None:
        entries = look.node.log.voter_entries
        if self.seen.get(look.now.local) == entries:
            return
        self.seen[look.now.local] = list(entries)
        logged = [entry for entry in entries if entry.offset >= 0]
        changes = []
        for earlier, later in pairwise(logged):
            old, new = set(earlier.record.voters.keys), set(later.record.voters.keys)
            if {key.id for key in old} == {key.id for key in new}:
                continue
            changes.append(later.offset)
            if len(old ^ new) > 1:
                raise self.fail(
                    f"{look.now.local} has the voters {_names(old)} at {earlier.offset} and then"
                    f" {_names(new)} at {later.offset}"
                )
        uncommitted = [offset for offset in changes if offset >= look.now.committed_offset]
        if len(uncommitted) > 1:
            raise self.fail(f"{look.now.local} has uncommitted voter sets at {uncommitted}")


def _names(keys: set[ReplicaKey]) -> str:
    return ", ".join(map(str, sorted(keys, key=lambda key: key.sort_key())))
