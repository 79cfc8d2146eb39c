"""Losses that a quorum survives: how many voters may lose their data, and which may be removed meanwhile.

A replica that has lost data has failed for good. A majority must be left of every voter set that may be in
force, now or by a change that was requested: of the committed one, of those that are in some log,
and of all that can come between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorumd.raft.types import ReplicaKey
from simulation.history.facts import Facts
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.history.voter_history import Keys


class Risk:
    """See the module's docstring. With `auto_join` replicas ask for changes by themselves."""

    def __init__(self, facts: Facts, *, auto_join: bool = False) -> None:
        self._facts = facts
        self._auto_join = auto_join

    def may_lose(self, key: ReplicaKey) -> bool:
        """True if this replica's data may be harmed."""
        excused, requests = self._facts.excused, self._under_way()
        if key in excused or self._votes_to_spare(excused | {key}, requests) > 0:
            return True
        return not any(
            key in self._possible_voters(keys, requests) for keys in self._facts.voters.in_force()
        )

    def may_request(self, request: VoterChangeRequest) -> bool:
        """True if an operator may ask for this."""
        return self._votes_to_spare(self._facts.excused, [*self._under_way(), request]) > 0

    def _under_way(self) -> list[VoterChangeRequest]:
        """Changes that may still be made: nothing else counts."""
        return [request for request in self._facts.change_requests if not request.is_over]

    def _votes_to_spare(
        self, lost: Collection[ReplicaKey], requests: Collection[VoterChangeRequest]
    ) -> int:
        """At least so many more of the voters are there than are lost, whatever set comes."""
        targets = self._targets(requests)
        return min(
            self._least(keys, lost, requests)
            - max((max(0, len(keys) - len(target)) for target in targets), default=0)
            for keys in self._facts.voters.in_force()
        )

    def _least(
        self, keys: Keys, lost: Collection[ReplicaKey], requests: Collection[VoterChangeRequest]
    ) -> int:
        """Counts every lost replica that may get in, and no living one; each removal that may be made."""
        may_vote = self._possible_voters(keys, requests)
        living = [key for key in may_vote if key not in lost]
        removing = {request.key for request in requests if request.kind is VoterChangeKind.REMOVE}
        going = sum(key in removing for key in living)
        if self._auto_join:
            by_id = Counter(key.id for key in living)
            going += sum(count - 1 for count in by_id.values())
        return len(keys) - going - 2 * (len(may_vote) - len(living))

    def _possible_voters(
        self, keys: Keys, requests: Collection[VoterChangeRequest]
    ) -> set[ReplicaKey]:
        """By these voters' set, or by one that comes of it."""
        adding = {
            request.key
            for request in requests
            if request.kind is VoterChangeKind.ADD and request.key
        }
        ids = {replica_id for target in self._targets(requests) for replica_id in target}
        if self._auto_join:
            ids.update(key.id for key in keys)
        found = adding.union(keys)
        found.update(key for key in self._facts.replicas if key.id in ids)
        return found

    def _targets(self, requests: Collection[VoterChangeRequest]) -> list[tuple[int, ...]]:
        """The ids that reassignments are, or may be, on their way to."""
        asked = [request.target for request in requests if request.target]
        return asked + self._facts.voters.targets_in_force()
