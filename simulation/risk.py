"""What a quorum survives: how many voters may lose their data, and who may be removed meanwhile.

A replica that has lost data has failed for good. A majority must be left of every voter set that may be in
force, now or by a change that somebody has asked for: of the committed one, of those that are in some log,
and of all that can come between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from raft.types import ReplicaKey
from simulation.checkers.base import Facts
from simulation.wishes import Kind, Wish


class Risk:
    """See the module's docstring. With `auto_join` replicas ask for changes by themselves."""

    def __init__(self, facts: Facts, *, auto_join: bool = False) -> None:
        self._facts = facts
        self._auto_join = auto_join

    def may_lose(self, key: ReplicaKey) -> bool:
        """True if this replica's data may be harmed."""
        excused, wishes = self._facts.excused, self._facts.wishes
        if key in excused:
            return True
        left = self._votes_to_spare(excused | {key}, wishes)
        return left > 0 or left == self._votes_to_spare(excused, wishes)

    def may_wish(self, wish: Wish) -> bool:
        """True if an operator may ask for this."""
        return self._votes_to_spare(self._facts.excused, [*self._facts.wishes, wish]) > 0

    def _votes_to_spare(self, lost: Collection[ReplicaKey], wishes: Collection[Wish]) -> int:
        """At least so many more of the voters are there than are lost, whatever set comes."""
        under_way = [wish for wish in wishes if not wish.is_over]
        adding = {wish.key for wish in under_way if wish.kind is Kind.ADD and wish.key}
        removing = {wish.key for wish in under_way if wish.kind is Kind.REMOVE}
        history = self._facts.voters
        targets = [wish.target for wish in under_way if wish.target] + history.targets_in_force()
        ids = {replica_id for target in targets for replica_id in target}
        return min(
            self._least(keys, adding, removing, ids, lost)
            - max((max(0, len(keys) - len(target)) for target in targets), default=0)
            for keys in history.in_force()
        )

    def _least(
        self,
        keys: tuple[ReplicaKey, ...],
        adding: Collection[ReplicaKey],
        removing: Collection[ReplicaKey | None],
        ids: Collection[int],
        lost: Collection[ReplicaKey],
    ) -> int:
        """Counts every lost replica that may get in, and no living one; each removal that may be made."""
        may_vote = set(keys) | set(adding)
        own_ids = {key.id for key in keys} if self._auto_join else set()
        may_vote.update(key for key in self._facts.replicas if key.id in ids or key.id in own_ids)
        living = [key for key in may_vote if key not in lost]
        going = sum(key in removing for key in living)
        if self._auto_join:
            by_id = Counter(key.id for key in living)
            going += sum(count - 1 for count in by_id.values())
        return len(keys) - going - 2 * (len(may_vote) - len(living))
