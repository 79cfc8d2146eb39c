"""Voters come and go only on request: of an operator, or of a replica for itself.

A replica may ask for itself to take the place of a storage id under its id, unless it knows that it was
removed. One that copies a snapshot does not learn that it was a voter meanwhile. Source: KIP-853, automatic
joining; KIP-642 for the steps of a reassignment.
"""

from __future__ import annotations

from quorumd.raft.node import RaftNode
from quorumd.raft.types import ReplicaKey
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Change, Facts
from simulation.history.voter_change_requests import VoterChangeKind


class RequestedChanges(Checker):
    """See the module's docstring."""

    name = "voters change as was asked for"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.have_voted: set[ReplicaKey] = set()
        """Replicas that have known themselves to be voters."""

    def on_event(self, seen: Observation) -> None:
        if seen.now.is_voter:
            self.have_voted.add(seen.now.local)

    def on_change(self, seen: Observation, change: Change) -> None:
        if change.former is None or change.is_first:
            return
        target, later = change.former.record.target, change.named.record.target
        is_reached = later is None and change.named.record.voters.ids == target
        if later != target and not is_reached and not self._was_target_requested(later):
            raise self.fail(
                f"{seen.now.local} gives the target {target} up for {later} at {change.named.batch},"
                f" with the voters {change.named.record.voters.ids}, unasked"
            )
        for key in change.added:
            if key.id not in (target or ()) and not self._was_requested(VoterChangeKind.ADD, key):
                raise self.fail(f"{seen.now.local} adds {key} at {change.named.batch}, unasked")
        for key in change.removed:
            is_step = target is not None and key.id not in target
            if not is_step and not self._was_requested(VoterChangeKind.REMOVE, key):
                raise self.fail(f"{seen.now.local} removes {key} at {change.named.batch}, unasked")

    def _was_requested(self, kind: VoterChangeKind, key: ReplicaKey) -> bool:
        return any(
            request.kind is kind and request.key == key for request in self.facts.change_requests
        )

    def _was_target_requested(self, target: tuple[int, ...] | None) -> bool:
        requests = self.facts.change_requests
        return any(
            request.kind is VoterChangeKind.REASSIGN and request.target == target
            for request in requests
        )

    def on_own_request(self, node: RaftNode) -> None:
        local = node.local
        known = [
            named
            for named in self.facts.voters.committed
            if named.batch.end_offset <= node.committed_offset
        ]
        was_removed = any(local in n.keys for n in known) and local not in known[-1].keys
        if was_removed and local in self.have_voted and local not in node.voters.keys:
            raise self.fail(f"{local} asks to vote again, though it was removed and knows it")
