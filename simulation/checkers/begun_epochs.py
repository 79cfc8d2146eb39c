"""No replica takes over an epoch that none has begun.

Source: Raft, terms (section 5.1); Ongaro's dissertation, 4.2.3 (disruptive servers).
"""

from __future__ import annotations

from quorumd.raft.invariants import CapturedState
from quorumd.raft.roles import Role
from simulation.checkers.base import Checker, Observation

BEGINS = (Role.CANDIDATE, Role.LEADER, Role.RESIGNED)


class BegunEpochs(Checker):
    """A candidate begins one, or a leader whose resignation no voter noticed. A forged Vote begins one, too,
    if it reaches a replica that has no leader."""

    name = "an epoch is begun by a campaign"

    def on_event(self, seen: Observation) -> None:
        begun, now, before = self.facts.begun_epochs, seen.now, seen.before
        if now.role in BEGINS or before is None or _gave_up(before, now):
            begun.add(now.epoch)
        elif now.epoch > before.epoch and now.epoch not in begun | self.facts.forged_epochs:
            raise self.fail(f"{seen.replica.key} moves from {before} to {now}")

    def on_cut_short(self, seen: Observation) -> None:
        if seen.now.role in BEGINS:
            self.facts.begun_epochs.add(seen.now.epoch)


def _gave_up(before: CapturedState, now: CapturedState) -> bool:
    return before.role is Role.RESIGNED and now.epoch == before.epoch + 1
