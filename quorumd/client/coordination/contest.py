"""One client's view of a name: its holder, its queue, and since when, by the client's own clock.

Applied change by change, as they are in the log. Knows no network and no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Final, NamedTuple

from quorumd.client.coordination.claim_record import ClaimRecord, claim_record_of
from quorumd.client.coordination.keys import Place, place_of
from quorumd.client.view import KeyChange

AHEAD_MAX: Final = 64
SILENCE_S: Final = 1.0
"""Twice what the leader lets a reader wait for records."""


class LeaderTime:
    """Seconds in which the leader responded to this client, from any moment on: an outage is nobody's delay.

    Never faster than the monotonic clock. No more than `SILENCE_S` is counted from one response to the next.
    """

    def __init__(self) -> None:
        self._counted_s = 0.0
        self._response_s = float("-inf")

    def at(self, now_s: float) -> float:
        """Seconds that are counted until `now_s`."""
        return self._counted_s + min(max(0.0, now_s - self._response_s), SILENCE_S)

    def is_stopped(self, now_s: float) -> bool:
        """Is the leader silent for so long that it is not counted?"""
        return now_s - self._response_s >= SILENCE_S

    def note(self, now_s: float) -> None:
        """The leader has responded."""
        self._counted_s = self.at(now_s)
        self._response_s = now_s


class SeenRecord(NamedTuple):
    """A record of a claim as this client has read it, at `seen_s` of its monotonic clock (seconds), and at
    `leader_time_s` of the time in which the leader responded. `value` is the same as bytes."""

    record: ClaimRecord
    value: bytes
    offset: int
    timestamp_ms: int
    seen_s: float
    leader_time_s: float

    @property
    def token(self) -> int:
        """The offset of the record that acquired the name."""
        return self.offset if self.record.token is None else self.record.token

    @property
    def place(self) -> int:
        """The offset of the record that took the place in the queue: those below are before it."""
        return self.record.place(self.offset)


class Contest:
    """The holder of a name and the queue behind it, by claim and in the order of their places.

    `free_since_s` is when it was first seen without a holder, by `leader_time`. `own` are the claims of this
    very client in the queue, those that were given up left out.
    """

    __slots__ = ("free_since_s", "holder", "leader_time", "own", "queue")

    def __init__(self, leader_time: LeaderTime, free_since_s: float) -> None:
        self.leader_time = leader_time
        self.free_since_s = free_since_s
        self.holder: SeenRecord | None = None
        self.queue: OrderedDict[str, SeenRecord] = OrderedDict()
        self.own: OrderedDict[str, None] = OrderedDict()

    @property
    def first_own(self) -> str | None:
        """The first claim of this client in the queue: the only one of them that may act."""
        return next(iter(self.own), None)

    def put(self, claim: str, seen: SeenRecord, *, is_own: bool) -> None:
        """A claim takes its place in the queue, or is written again and keeps it."""
        known, last = self.queue.get(claim), next(reversed(self.queue.values()), None)
        self.queue[claim] = seen
        if is_own:
            self.own[claim] = None
        if known is not None and known.place == seen.place:
            return
        self.queue.move_to_end(claim)
        if is_own:
            self.own.move_to_end(claim)
        if last is not None and seen.place < last.place:
            # A reader that came later has not read the record that took the place.
            by_place = sorted(self.queue.items(), key=lambda item: item[1].place)
            self.queue = OrderedDict(by_place)
            self.own = OrderedDict((each, None) for each in self.queue if each in self.own)

    def ahead_of(self, claim: str) -> list[SeenRecord]:
        """The waiters before this one, at most the first `AHEAD_MAX`; none if it does not wait."""
        if claim not in self.queue:
            return []
        ahead = takewhile(lambda item: item[0] != claim, self.queue.items())
        return [seen for _, seen in islice(ahead, AHEAD_MAX)]


NOBODY: Final = Contest(LeaderTime(), float("-inf"))
"""The contest for a name that nobody holds or waits for."""


class ContestBoard:
    """The contests for all names. `wake` is called with a claim when something has changed for it.

    `live` are the claims of this client: they are woken.
    """

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self.leader_time = LeaderTime()
        self.live: set[str] = set()
        self.contests: dict[Place, Contest] = {}

    def contest(self, place: Place) -> Contest:
        """The contest for the name of this place."""
        return self.contests.get(place.holder, NOBODY)

    def apply(self, change: KeyChange, now_s: float) -> Place | None:
        """A committed change, read at `now_s`. Returns the place that changed, None if it is none."""
        place = place_of(change.key)
        if place is None:
            return None
        contest = self.contests.get(place.holder)
        self.leader_time.note(now_s)
        leader_time_s = self.leader_time.at(now_s)
        if contest is None:
            if change.value is None:
                return place
            contest = self.contests[place.holder] = Contest(self.leader_time, leader_time_s)
        seen = None
        if change.value is not None:
            record = claim_record_of(change.value)
            seen = SeenRecord(
                record, change.value, change.offset, change.timestamp, now_s, leader_time_s
            )
        if place.claim:
            self._on_queue(contest, place.claim, seen)
        else:
            self._on_holder(contest, seen, leader_time_s)
        if contest.holder is None and not contest.queue:
            del self.contests[place.holder]
        return place

    def give_up(self, place: Place, claim: str) -> None:
        """A claim of this client waits no more; another one of it may act in its stead."""
        self.live.discard(claim)
        contest = self.contest(place)
        if claim in contest.own:
            del contest.own[claim]
            self._wake_first_own(contest)

    def _on_holder(self, contest: Contest, seen: SeenRecord | None, leader_time_s: float) -> None:
        former, contest.holder = contest.holder, seen
        if seen is None:
            contest.free_since_s = leader_time_s
        for each in (former, seen):
            if each is not None and each.record.claim in self.live:
                self._wake(each.record.claim)
        self._wake_first_own(contest)

    def _on_queue(self, contest: Contest, claim: str, seen: SeenRecord | None) -> None:
        if seen is None:
            contest.queue.pop(claim, None)
            contest.own.pop(claim, None)
        else:
            contest.put(claim, seen, is_own=claim in self.live)
        if claim in self.live:
            self._wake(claim)
        self._wake_first_own(contest)

    def _wake_first_own(self, contest: Contest) -> None:
        first = contest.first_own
        if first is not None:
            self._wake(first)
