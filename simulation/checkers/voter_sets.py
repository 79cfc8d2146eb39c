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
        for earlier, later in pairwise(logged):
            old, new = set(earlier.record.voters.keys), set(later.record.voters.keys)
            is_replacement = {key.id for key in old} == {key.id for key in new}
            if len(old ^ new) > 1 and not is_replacement:
                raise self.fail(
                    f"{look.now.local} has the voters {_names(old)} at {earlier.offset} and then"
                    f" {_names(new)} at {later.offset}"
                )
        uncommitted = [e.offset for e in logged[1:] if e.offset >= look.now.committed_offset]
        is_first_committed = bool(logged) and logged[0].offset < look.now.committed_offset
        if is_first_committed and len(uncommitted) > 1:
            raise self.fail(f"{look.now.local} has uncommitted voter sets at {uncommitted}")


def _names(keys: set[ReplicaKey]) -> str:
    return ", ".join(map(str, sorted(keys, key=lambda key: key.sort_key())))
