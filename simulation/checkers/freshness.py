"""Reads are fresh: nothing is served that is older than what was known to clients before the call.

Only a leader responds, and only once a record of its own epoch is committed (KIP-595, high watermark: before,
it may not know all that was committed under the leader before it). From then on it knows at least what
leaders of its epoch, and of epochs before, have acknowledged or served. A leader that is deposed and does not
know it resigns after its check quorum at the latest: 1.5 fetch timeouts after the last fetch of a majority
(KIP-595, leader progress timeout). What others have acknowledged before that is too old to be unknown to it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from quorumd.raft.roles import Role
from simulation.history.facts import Facts
from simulation.history.served import NodeView, Served
from simulation.scheduler import MS
from simulation.violation import Violation

NAME = "reads are fresh"
LEADERS_ONLY = "only a leader with a commit in its epoch serves clients"
IN_RANGE = "what is committed is in range"
SLACK_US = 300 * MS
"""For timers that are a little late."""


class Known(NamedTuple):
    """At `seen_us` a client got, from a leader of this epoch, that all below `end_offset` is committed."""

    end_offset: int
    epoch: int
    seen_us: int


class Freshness:
    """Checked at every response to a client. `known` ascends by offset and time."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.known: list[Known] = []

    def note(self, end_offset: int, epoch: int, now_us: int) -> None:
        """A client got the response that all below `end_offset` is committed."""
        if not self.known or end_offset > self.known[-1].end_offset:
            self.known.append(Known(end_offset, epoch, now_us))

    def on_served(self, session: str, served: Served, end_offset: int | None, now_us: int) -> None:
        """A response without error; `end_offset` is where the log ends by it, if it says so."""
        self._check_leads(session, served.as_leader)
        if end_offset is None:
            return
        if end_offset > self._facts.committed_end_offset:
            raise Violation(
                NAME,
                f"{session} gets the end {end_offset} from {served.left.key}, and committed is what is"
                f" below {self._facts.committed_end_offset}",
            )
        floor = self._floor(served)
        if floor is not None and end_offset < floor.end_offset:
            raise Violation(
                NAME,
                f"{session}, asking at {served.asked_us} µs, gets the end {end_offset} from"
                f" {served.left.key}, leader of epoch {served.as_leader.epoch}; one of epoch {floor.epoch}"
                f" had sent {floor.end_offset} at {floor.seen_us} µs",
            )
        self.note(end_offset, served.as_leader.epoch, now_us)

    def on_out_of_range(self, session: str, served: Served, offset: int) -> None:
        """A leader says that an offset is below or beyond what it has committed."""
        view, floor = served.left, self._floor(served)
        if floor is not None and view.start_offset <= offset <= floor.end_offset:
            raise Violation(
                IN_RANGE,
                f"{session} gets that {offset} is out of range from {view.key}, whose log begins at"
                f" {view.start_offset}; {floor.end_offset} was known to be committed",
            )

    def _check_leads(self, session: str, view: NodeView) -> None:
        committed = self._facts.committed
        at = bisect_left(committed, view.epoch, key=lambda batch: batch.epoch)
        has_committed = at < len(committed) and committed[at].epoch == view.epoch
        if view.role is not Role.LEADER or not has_committed:
            raise Violation(
                LEADERS_ONLY,
                f"{session} gets a response of {view.key}, {view.role} of epoch {view.epoch}, of which"
                f" {'something' if has_committed else 'nothing'} is committed",
            )

    def _floor(self, served: Served) -> Known | None:
        """The last end that a client had got before this one asked, and that this leader has to know."""
        stale_us = served.fetch_timeout_ms * MS * 3 // 2 + SLACK_US
        for known in reversed(self.known):
            was_seen = known.seen_us <= served.asked_us
            if was_seen and known.epoch <= served.as_leader.epoch:
                return known
            is_old = known.seen_us < served.asked_us - stale_us
            if is_old and served.is_prompt:
                return known
        return None
