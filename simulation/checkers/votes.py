"""A replica votes once an epoch, also over restarts, and its vote is on disk before it leaves.

Source: KIP-595, Vote request handling, steps 3 and 4. Taken from the frames that leave the process: a
granted Vote response, or a Vote request, which implies the candidate's vote for itself.
"""

from __future__ import annotations

from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts


class Votes(Checker):
    """See the module's docstring."""

    name = "votes survive restarts"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.given: dict[tuple[ReplicaKey, int], ReplicaKey] = {}

    def on_event(self, seen: Observation) -> None:
        local = seen.now.local
        given = self.given.get((local, seen.now.epoch))
        if given is None or local in self.facts.excused:
            return
        if seen.now.voted is None or seen.now.voted.id != given.id:
            raise self.fail(
                f"{local} gave its vote in epoch {seen.now.epoch} to {given}, and knows of"
                f" {seen.now.voted}"
            )

    def on_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        known = self.given.setdefault((voter, epoch), candidate)
        if not known.matches(candidate):
            raise self.fail(f"{voter} votes for {candidate} and for {known} in epoch {epoch}")
        state = self.facts.replicas[voter].state
        is_saved = state is not None and (
            state.leader_epoch > epoch
            or (state.leader_epoch == epoch and state.voted_id == candidate.id)
        )
        if not is_saved:
            raise self.fail(
                f"the vote of {voter} for {candidate} in epoch {epoch} leaves, but its disk has {state}"
            )
