"""What a quorum survives: how many voters may lose their data, and who may be removed meanwhile.

A replica that has lost data has failed for good. A majority must be left of every voter set that may be in
force, now or by a change that somebody has asked for: of the committed one, of those that are in some log,
and of all that can come between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from raft.types import ReplicaKey
from simulation.checkers.base import Facts
from simulation.wishes import Kind, Wish


class Risk:
    """See the module's docstring. With `auto_join` replicas ask for changes by themselves.

    The first voters must not be lost if they were named with storage ids, before everybody knows that the
    log names them: until then all of them are needed.
    `misplaced` tells which replicas are reached elsewhere than others know: these cannot ask them for
    their votes, so they count as lost until that is committed.
    """

    def __init__(
        self,
        facts: Facts,
        misplaced: Callable[[], set[ReplicaKey]],
        *,
        auto_join: bool = False,
        are_first_named: bool = False,
        witness: int | None = None,
    ) -> None:
        self._facts = facts
        self._misplaced = misplaced
        self._auto_join = auto_join
        self._are_first_named = are_first_named
        self._witness = witness

    def may_lose(self, key: ReplicaKey) -> bool:
        """True if this replica's data may be harmed."""
        if self._are_first_named and key in self._facts.voters.first and not self._is_known():
            return False
        others, wishes = self._lost() - {key}, self._facts.wishes
        if key in self._facts.excused:
            return True
        left = self._votes_to_spare(others | {key}, wishes)
        return left > 0 or left == self._votes_to_spare(others, wishes)

    def _is_known(self) -> bool:
        """Whoever has what a client has written knows that the first voter set is committed."""
        return any(batch.identity in self._facts.records for batch in self._facts.committed)

    def may_move(self, key: ReplicaKey) -> bool:
        """True if this replica may be reached elsewhere from now on."""
        return self._votes_to_spare(self._lost() | {key}, self._facts.wishes) > 0

    def may_wish(self, wish: Wish) -> bool:
        """True if an operator may ask for this. A witness is never left alone."""
        wishes = [*self._facts.wishes, wish]
        going = {w.key for w in wishes if w.kind is Kind.REMOVE and not w.is_over} | self._lost()
        staying = [set(keys) - going for keys in self._facts.voters.in_force()]
        return self._votes_to_spare(self._lost(), wishes) > 0 and all(
            any(key.id != self._witness for key in keys) for keys in staying
        )

    def _lost(self) -> set[ReplicaKey]:
        return self._facts.excused | self._misplaced()

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
