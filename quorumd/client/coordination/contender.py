"""The rules of one claim: when to queue, to acquire, to renew, and until when it may be believed.

Without I/O and without a clock: the caller hands in what it sees of the contest and its monotonic time in
seconds, and carries out the step that it gets. Safety needs only this: every write is conditional on what was
seen, so of two that would both be right one is refused; and the holder counts the ttl from before it *sent* a
renewal, others from after they *read* it, each with an allowance for the rate of its clock.
Source: docs/coordination.md.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.contest import Contest, SeenRecord
from quorumd.client.coordination.keys import Place
from quorumd.wire.records import Record

ALLOWANCE: Final = 0.05
"""Of a ttl. The holder believes in itself for so much less, others wait for so much more: clocks may differ
in rate by 10 %, in fact by far less, and what is left is time to notice the end."""
RENEWALS_PER_TTL: Final = 3
OVER_TTLS: Final = 2
"""Number of ttls without a renewal after which a claim is over."""
TURN_S: Final = 2.0
"""Time of the first in the queue to act before the next one may; seconds in which the leader responds."""
HEIR_TTLS: Final = 0.5
"""So many ttls ago the record of the first in the queue may have been read, for it to be handed the name."""
SETTLE_S: Final = 0.05
"""Delay before a client writes that becomes the first in the queue: another one has the name, and begins."""
REMOVED_MAX: Final = 500
"""Of the queue, in one batch."""

_LONG_AGO: Final = float("-inf")


class Intent(Enum):
    """The purpose of a write."""

    QUEUE = "queue"
    ACQUIRE = "acquire"
    RENEW = "renew"
    GIVE_BACK = "give back"
    HAND_OVER = "hand over"


class ClaimWrite(NamedTuple):
    """Append these records as one batch, if their keys are unchanged since the offset `since`."""

    intent: Intent
    records: list[Record]
    since: int
    attempt: int


class WaitUntil(NamedTuple):
    """Nothing to do before `at_s`, unless something is seen to change. None: no moment is known."""

    at_s: float | None


def lapses_s(seen: SeenRecord) -> float:
    """When a holder that is not seen to renew may be taken for gone; of the reader's clock, seconds."""
    return seen.seen_s + seen.record.ttl_s * (1 + ALLOWANCE)


def may_be_over(contest: Contest, wall_ms: int) -> bool:
    """Is it worth while to watch whether the holder is gone, or those who wait for a free name?

    A hint by the wall clock, which may be wrong by any amount: nothing is taken away for it.
    """
    holder = contest.holder
    if holder is None:
        return True
    return wall_ms - holder.timestamp_ms > OVER_TTLS * holder.record.ttl_ms


def watching_s(contest: Contest) -> float:
    """The longest time in seconds until one that queues now may act."""
    holder = contest.holder
    lapse_s = 0.0 if holder is None else holder.record.ttl_s * (1 + ALLOWANCE)
    clients = {seen.record.client for seen in contest.queue.values()}
    return lapse_s + TURN_S * len(clients)


def turn_s(contest: Contest, claim: str, now_s: float) -> float | None:
    """When a claim in the queue may act, if nothing changes until then: once the name is free, and every
    client that waits before it has had its time, in which the leader responded. None: it is silent now."""
    holder = contest.holder
    lapse_s = _LONG_AGO if holder is None else lapses_s(holder)
    own = contest.queue[claim].record.client
    ahead = set()
    for other, seen in contest.queue.items():
        if other == claim:
            break
        if seen.record.client != own:
            ahead.add(seen.record.client)
    if not ahead:
        return lapse_s
    leader_time = contest.leader_time
    free_s = contest.free_since_s
    if holder is not None:
        free_s = holder.leader_time_s + holder.record.ttl_s * (1 + ALLOWANCE)
    left_s = free_s + TURN_S * len(ahead) - leader_time.at(now_s)
    if left_s <= 0:
        return lapse_s
    return None if leader_time.is_stopped(now_s) else max(lapse_s, now_s + left_s)


def heir_of(contest: Contest, now_s: float) -> SeenRecord | None:
    """The first in the queue, if the name can be handed over to it.

    It holds the name from when it sent its record on, which must leave it time. And a claim that was queued
    lately is alive: a dead one would keep the name for its ttl.
    """
    for claim, seen in contest.queue.items():
        is_young = now_s < seen.seen_s + HEIR_TTLS * seen.record.ttl_s
        return seen if is_young and seen.record.claim == claim else None
    return None


class Contender:
    """One claim to a name, from its first write to the last. `record` is what it writes."""

    def __init__(self, place: Place, record: ClaimRecord) -> None:
        self.token = -1
        """The offset of the record that acquired the name, -1 before."""
        self.held_until_s = _LONG_AGO
        """By the own clock. The claim is to be believed before this moment, if it was not replaced."""
        self.is_replaced = False
        """Another claim's record, or none, was seen in place of its own."""
        self.place = place.holder
        self.claim = record.claim
        self.ttl_s = record.ttl_s
        self._own_place = Place(place.kind, place.name, record.claim)
        self._record = record
        self._attempt = 0
        self._sent_s: dict[int, float] = {}
        self._renewed_s = _LONG_AGO
        self.offset = -1
        """Of its newest record as the holder, -1 before."""
        self._queue_offset = -1
        self._first_s = float("inf")
        """When it was the first in the queue."""
        self._left_offset = -1

    def holds(self, now_s: float) -> bool:
        """True while this claim may be believed to hold the name."""
        return self.token >= 0 and not self.is_replaced and now_s < self.held_until_s

    # -- observations

    def observe(self, contest: Contest, end_offset: int) -> None:
        """The contest as it is in the log below `end_offset`."""
        holder = contest.holder
        if holder is not None and holder.record.claim == self.claim:
            self._adopt(holder.record.attempt, holder.offset)
        elif self.token >= 0 and end_offset > self.offset:
            self.is_replaced = True

    def acknowledged(self, write: ClaimWrite, offset: int) -> None:
        """The write is committed, its first record at `offset`."""
        if write.intent is Intent.QUEUE:
            self._queue_offset = offset
        elif write.intent in (Intent.GIVE_BACK, Intent.HAND_OVER):
            self._on_left({record.key for record in write.records}, offset)
        else:
            self._adopt(write.attempt, offset)

    def _on_left(self, keys: set[bytes | None], offset: int) -> None:
        if self.place.key in keys:
            self.token = -1
            self.held_until_s = _LONG_AGO
        if self._own_place.key in keys:
            self._queue_offset = -1
            self._left_offset = offset + len(keys) - 1

    def _adopt(self, attempt: int, offset: int) -> None:
        """A record of this claim is in the log, as the holder's."""
        if offset <= self.offset:
            return
        self.offset = offset
        if self.token < 0:
            self.token = offset
        sent_s = self._sent_s.get(attempt, _LONG_AGO)
        self._renewed_s = max(self._renewed_s, sent_s)
        self.held_until_s = self._renewed_s + self.ttl_s * (1 - ALLOWANCE)
        self._sent_s = {each: at for each, at in self._sent_s.items() if each > attempt}

    # -- steps

    def next_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        """On the way to the name; None once it `holds` it."""
        self.observe(contest, end_offset)
        if self.holds(now_s):
            return None
        if self.is_replaced:
            # The name was acquired too late for that to be known, and is gone again.
            self.token = self.offset = -1
            self.is_replaced = False
            self.held_until_s = self._renewed_s = _LONG_AGO
        if self.token >= 0:
            return self._renewal(contest, end_offset, now_s)
        if self.claim in contest.queue:
            if contest.first_own != self.claim:
                return WaitUntil(None)
            at_s = turn_s(contest, self.claim, now_s)
            if at_s is None or now_s < at_s:
                return self._waiting(contest, end_offset, now_s, at_s)
            return self._acquisition(contest, end_offset, now_s)
        if self._queue_offset >= end_offset:
            return WaitUntil(None)  # It is in the queue, and does not see itself there yet.
        if contest.holder is None and not contest.queue:
            return self._acquisition(contest, end_offset, now_s)
        return self._write(Intent.QUEUE, [self._set(self._own_place, now_s)], end_offset)

    def _waiting(
        self, contest: Contest, end_offset: int, now_s: float, at_s: float | None
    ) -> ClaimWrite | WaitUntil:
        """In the queue until `at_s`. The first one keeps its record young, to be handed the name."""
        seen = contest.queue[self.claim]
        if at_s is None or next(iter(contest.queue)) != self.claim:
            return WaitUntil(at_s)
        self._first_s = min(self._first_s, now_s)
        due_s = self._sent_s.get(seen.record.attempt, _LONG_AGO) + self.ttl_s / RENEWALS_PER_TTL
        due_s = max(due_s, self._first_s + SETTLE_S)
        if now_s < due_s:
            return WaitUntil(min(at_s, due_s))
        self._sent_s = {
            each: sent_s for each, sent_s in self._sent_s.items() if each >= seen.record.attempt
        }
        record = self._set(self._own_place, now_s, queued=seen.place)
        return self._write(Intent.QUEUE, [record], end_offset)

    def keep_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        """Once it holds the name; None when it is lost."""
        self.observe(contest, end_offset)
        if not self.holds(now_s):
            return None
        due_s = self._renewed_s + self.ttl_s / RENEWALS_PER_TTL
        if now_s < due_s:
            return WaitUntil(due_s)
        return self._renewal(contest, end_offset, now_s)

    def leave_step(self, contest: Contest, end_offset: int, now_s: float) -> ClaimWrite | None:
        """To give the name back and leave the queue, as far as it is known to be in either; else None.

        The first in the queue gets the name in the same batch: its own record becomes that of the holder, as
        if it had acquired the name when it sent the record to the queue.
        """
        self.observe(contest, end_offset)
        places = []
        since = end_offset
        if self.token >= 0 and not self.is_replaced:
            if self.offset >= end_offset:
                return self._write(Intent.GIVE_BACK, [_deleted(self.place)], self.offset + 1)
            heir = heir_of(contest, now_s)
            if heir is not None and self.claim not in contest.queue:
                return self._hand_over(heir, end_offset)
            places.append(self.place)
        if self._queue_offset >= end_offset:
            since = self._queue_offset + 1
            return self._write(Intent.GIVE_BACK, [_deleted(self._own_place)], since)
        if self.claim in contest.queue and end_offset > self._left_offset:
            places.append(self._own_place)
        if not places:
            return None
        return self._write(Intent.GIVE_BACK, [_deleted(place) for place in places], since)

    def _acquisition(self, contest: Contest, end_offset: int, now_s: float) -> ClaimWrite:
        """The name is free, or its holder has lapsed: those who wait ahead of this claim did not act."""
        records = [self._set(self.place, now_s)]
        if self.claim in contest.queue:
            ahead = []
            for claim in islice(contest.queue, REMOVED_MAX):
                if claim == self.claim:
                    break
                ahead.append(_deleted(Place(self.place.kind, self.place.name, claim)))
            records += [*ahead, _deleted(self._own_place)]
        return self._write(Intent.ACQUIRE, records, end_offset)

    def _hand_over(self, heir: SeenRecord, end_offset: int) -> ClaimWrite:
        """Refused if the heir has left the queue, or another claim has the name: it writes both keys."""
        queued = Place(self.place.kind, self.place.name, heir.record.claim)
        records = [Record(key=self.place.key, value=heir.value), _deleted(queued)]
        return self._write(Intent.HAND_OVER, records, end_offset)

    def _renewal(self, contest: Contest, end_offset: int, now_s: float) -> ClaimWrite:
        records = [self._set(self.place, now_s, token=self.token)]
        if self.claim in contest.queue:
            records.append(_deleted(self._own_place))
        return self._write(Intent.RENEW, records, max(end_offset, self.offset + 1))

    def _set(
        self, place: Place, now_s: float, *, token: int | None = None, queued: int | None = None
    ) -> Record:
        self._attempt += 1
        self._sent_s[self._attempt] = now_s
        record = self._record._replace(attempt=self._attempt, token=token, queued=queued)
        return Record(key=place.key, value=record.encoded())

    def _write(self, intent: Intent, records: list[Record], since: int) -> ClaimWrite:
        return ClaimWrite(intent, records, since, self._attempt)


def _deleted(place: Place) -> Record:
    return Record(key=place.key, value=None)
