"""A replica in contact with its leader neither campaigns nor grants a pre-vote.

It is in contact if its last Fetch response, without error, came less than a fetch timeout ago, and the
connection has not been lost or refused since. A leader that resigns in that epoch is excepted. So no replica
deposes a leader that a majority reaches. Source: KIP-996; Ongaro's dissertation, 4.2.3.
"""

from __future__ import annotations

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.scheduler import MS

SLACK_US = 2 * MS
"""Clocks of nodes count in ms."""


class Contact(Checker):
    """See the module's docstring."""

    name = "a replica in contact with its leader lets it lead"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.ended: set[int] = set()
        """Epochs whose leader has resigned."""

    def on_event(self, seen: Observation) -> None:
        role, before = seen.now.role, seen.before
        if role is Role.RESIGNED:
            self.ended.add(seen.now.epoch)
        if role is Role.PROSPECTIVE and before is not None and before.role is Role.FOLLOWER:
            self._check(seen.node, seen.now_us, seen.is_prompt, "campaigns")

    def on_cut_short(self, seen: Observation) -> None:
        if seen.now.role is Role.RESIGNED:
            self.ended.add(seen.now.epoch)

    def on_pre_vote(self, node: RaftNode, asked_us: int, *, is_prompt: bool) -> None:
        self._check(node, asked_us, is_prompt, "grants a pre-vote")

    def _check(self, node: RaftNode, at_us: int, is_prompt: bool, what: str) -> None:
        heard = self.facts.heard.get(node.local)
        if heard is None or not is_prompt or heard.epoch != node.epoch or heard.epoch in self.ended:
            return
        silent_us = at_us - heard.at_us
        if 0 <= silent_us < node.config.fetch_timeout_ms * MS - SLACK_US:
            raise self.fail(
                f"{node.local} {what} in epoch {node.epoch}; its leader {node.leader} has responded to its"
                f" fetch {silent_us} µs before"
            )
