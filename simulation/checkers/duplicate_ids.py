"""A second storage id under one id votes only if the first one neither leads nor has been heard of lately.

Source: KIP-856, disk failure recovery; docs/protocol: for three fetch timeouts, or for one if its process
was gone at a moment since. (What it had sent may arrive behind its end.)
"""

from __future__ import annotations

from quorumd.raft.voter_changes.checks import RIVAL_SILENT_TIMEOUTS
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Change
from simulation.scheduler import MS

ROUNDING_US = 2 * MS


class DuplicateIds(Checker):
    """See the module's docstring."""

    name = "a storage id is added only if that of the same id is silent"

    def on_change(self, seen: Observation, change: Change) -> None:
        if change.former is None or change.is_first:
            return
        timeout_us = seen.node.config.fetch_timeout_ms * MS
        for key in change.added:
            for rival in change.former.keys:
                if rival.id != key.id:
                    continue
                heard_us = self.facts.contacts.get(rival)
                has_ended = self.facts.up_since.get(rival, seen.now_us) > (heard_us or 0)
                silent_us = timeout_us * (1 if has_ended else RIVAL_SILENT_TIMEOUTS) - ROUNDING_US
                is_late = heard_us is not None and seen.now_us - heard_us < silent_us
                if rival == seen.now.local or (is_late and seen.is_clock_true):
                    raise self.fail(
                        f"{seen.now.local} adds {key} at {change.named.batch}; a leader heard of {rival}"
                        f" {seen.now_us - (heard_us or seen.now_us)} µs ago"
                    )
