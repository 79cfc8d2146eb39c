"""The voter set of a replica is the one that its log names last, committed or not.

So a truncation brings the former one back. Source: KIP-856, "Internal Listener".
"""

from __future__ import annotations

from quorumd.raft.control import VotersRecord
from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Replica
from simulation.history.voter_history import NamedVoters


class LogVoters(Checker):
    """See the module's docstring."""

    name = "the voters are those that the log names last"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.named: dict[ReplicaKey, list[NamedVoters]] = {}
        """The sets of each replica's log, in order."""

    def on_append(self, replica: Replica, batches: list[Batch], before: Batch | None) -> None:
        found = (self.facts.voters.named.get(batch) for batch in batches)
        self.named.setdefault(replica.key, []).extend(named for named in found if named)

    def on_truncate(self, replica: Replica, dropped: list[Batch]) -> None:
        named, gone = self.named.get(replica.key, []), set(dropped)
        while named and named[-1].batch in gone:
            named.pop()

    def on_recovered(self, replica: Replica, found: list[Batch], state: object) -> None:
        self.named[replica.key] = []

    def on_event(self, seen: Observation) -> None:
        named = self.named.get(seen.now.local)
        if not named or seen.now.local in self.facts.excused:
            return
        expected, found = named[-1], seen.node.core.electorate.entry.record
        if (expected.record.voters, expected.record.target) != (found.voters, found.target):
            raise self.fail(
                f"{seen.now.local} goes by the voters {_described(found)}; its log names"
                f" {_described(expected.record)} at {expected.batch}"
            )


def _described(record: VotersRecord) -> str:
    target = "" if record.target is None else f" on the way to {record.target}"
    return f"{', '.join(map(str, record.voters.keys))}{target}"
