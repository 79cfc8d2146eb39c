"""If quorum.voters names ids, just these vote: none is added, and none vanishes wholly.

Source: KIP-856, "Bootstrapping".
"""

from __future__ import annotations

from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Change


class PermittedVoters(Checker):
    """See the module's docstring."""

    name = "quorum.voters names the ids that vote"

    def on_change(self, seen: Observation, change: Change) -> None:
        permitted = seen.node.config.configured_voters.ids
        ids = change.named.record.voters.ids
        if permitted and ids != permitted:
            raise self.fail(
                f"{seen.now.local} names the voters {ids} at {change.named.batch}; quorum.voters names"
                f" {permitted}"
            )
