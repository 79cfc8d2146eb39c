"""A leader stays in office as long as a majority of its voters fetches from it, and no longer.

Observers do not count. The timer is one of 1.5 fetch timeouts, and begins anew when a majority has been
heard, so that a majority has been heard in any two of them. Where nothing is disturbed, a leader is not
deposed at all. Source: KIP-595, leader progress timeout.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft.node import RaftNode
from quorumd.raft.quorum import majority
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, VoterSet
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.scheduler import MS, SECOND

SLACK_US = 300 * MS
SETTLED_US = SECOND
"""After an election so many others may still be under way."""


class Term(NamedTuple):
    """A leader's time in office with one voter set, and by a clock that was right all the time."""

    epoch: int
    voters: VoterSet
    since_us: int


class InOffice(Checker):
    """A leader that a majority has not asked for anything in three fetch timeouts has resigned."""

    name = "a leader that no majority fetches from resigns"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.terms: dict[ReplicaKey, Term] = {}
        self.called_us: dict[ReplicaKey, int] = {}
        """When a replica last had a request for a leader."""

    def on_contact(
        self, leader: RaftNode, replica: ReplicaKey, now_us: int, *, is_prompt: bool
    ) -> None:
        """A request of a replica, voter or not, arrives at a leader."""
        self.called_us[replica] = now_us
        term = self.terms.get(leader.local)
        voters = leader.voters
        if term is None or not is_prompt or term.epoch != leader.epoch or term.voters is not voters:
            self.terms[leader.local] = Term(leader.epoch, voters, now_us)
            return
        bound_us = 3 * leader.config.fetch_timeout_ms * MS + SLACK_US
        if now_us - term.since_us < bound_us:
            return
        heard = [key for key in voters.keys if self._is_heard(key, leader, now_us - bound_us)]
        if len(heard) < majority(len(voters.keys)):
            raise self.fail(
                f"{leader.local} leads epoch {leader.epoch} since {term.since_us} µs or longer; in"
                f" {bound_us} µs only {', '.join(map(str, heard)) or 'none'} of its voters"
                f" {', '.join(map(str, voters.keys))} asked it for anything"
            )

    def _is_heard(self, key: ReplicaKey, leader: RaftNode, since_us: int) -> bool:
        return key.uuid is None or leader.is_local(key) or self.called_us.get(key, -1) >= since_us


class Undisturbed(Checker):
    """Without faults a leader stays leader; but it yields to an epoch that a replica has from before.

    It may hear of that epoch late: a connection that died silently is noticed by a timeout.
    """

    name = "a leader that nothing disturbs is not deposed"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.leads_since_us: dict[ReplicaKey, int] = {}
        self.disturbed_epoch = 0
        """The latest that a replica has got to while there were faults."""

    def on_event(self, seen: Observation) -> None:
        now, before = seen.now, seen.before
        if not self.facts.is_undisturbed:
            self.disturbed_epoch = max(self.disturbed_epoch, now.epoch)
        if now.role is Role.LEADER:
            if before is None or before.role is not Role.LEADER:
                self.leads_since_us[now.local] = seen.now_us
            return
        since_us = self.leads_since_us.pop(now.local, None)
        if since_us is None or before is None or before.role is not Role.LEADER:
            return
        facts = self.facts
        is_settled = seen.now_us - since_us >= SETTLED_US
        has_will = seen.node.config.is_witness or facts.change_requests or facts.excused
        if now.role is Role.RESIGNED and has_will:
            return
        if before.epoch < now.epoch <= self.disturbed_epoch:
            facts.late_epoch = now.epoch
        elif facts.is_undisturbed and is_settled:
            raise self.fail(
                f"{now.local} has led epoch {before.epoch} since {since_us} µs, and is {now.role} of epoch"
                f" {now.epoch} at {seen.now_us} µs"
            )
