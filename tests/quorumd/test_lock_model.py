"""The rules of a lock on drawn schedules: never two holders, and every planted mistake is seen."""

from __future__ import annotations

import json

import pytest

from quorumd.client.coordination import contender as rules
from quorumd.client.coordination.contender import ClaimWrite, Contender, Intent, WaitUntil
from quorumd.client.coordination.contest import Contest, LeaderTime, SeenRecord
from tests.quorumd.lock_model import LockModel, MakeContender, NoHeir, Overlap

pytestmark = pytest.mark.sim

SECONDS = 30.0
SEEDS = range(60)
PLANTED_SEEDS = range(400)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 10))
def test_no_two_hold_it_at_a_time_and_all_get_it_in_the_end(first: int) -> None:
    lost = handed_over = 0
    for seed in SEEDS[first : first + 10]:
        model = LockModel(seed)
        model.run(SECONDS)
        assert len(model.tokens) > 30
        assert model.tokens == sorted(set(model.tokens)), "tokens only grow"
        tokens = [
            json.loads(record.value).get("token", record.offset)
            for record in model.log.records
            if record.key == b"quorumd.locks/a" and record.value is not None
        ]
        assert tokens == sorted(tokens), "those in the log, too"
        lost += model.overtaken
        handed_over += model.handed_over
    assert lost, "some were stopped for so long that they lost it"
    assert handed_over > 100


def test_an_outage_costs_nobody_the_place_in_the_queue() -> None:
    for seed in SEEDS:
        model = LockModel(seed, size=5, only_outages=True)
        model.run(SECONDS)
        assert not model.expelled, f"seed {seed}: though all were there to act"


def test_a_turn_that_an_outage_counts_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderTime, "at", lambda self, now_s: now_s)

    def is_seen_here(seed: int) -> bool:
        model = LockModel(seed, size=5, only_outages=True)
        model.run(SECONDS)
        return model.expelled > 0

    assert any(map(is_seen_here, SEEDS))


class CountsFromTheResponse(Contender):
    """The ttl begins when the response comes."""

    def next_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        self._sent_s = dict.fromkeys(self._sent_s, now_s)
        return super().next_step(contest, end_offset, now_s)

    def keep_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        self._sent_s = dict.fromkeys(self._sent_s, now_s)
        return super().keep_step(contest, end_offset, now_s)


class CountsFromTheNewestAttempt(Contender):
    """Takes what it has sent last for what is in the log."""

    def _adopt(self, attempt: int, offset: int) -> None:
        newest = max(self._sent_s.values(), default=float("-inf"))
        if attempt in self._sent_s:
            self._sent_s[attempt] = newest
        super()._adopt(attempt, offset)


class NeverLooksAtTheClock(Contender):
    """Believes until it reads of another holder."""

    def holds(self, now_s: float) -> bool:
        return self.token >= 0 and not self.is_replaced


class Unconditional(Contender):
    """One kind of its writes is made whatever has changed."""

    intent = Intent.ACQUIRE

    def _write(self, *given: object) -> ClaimWrite:
        write = super()._write(*given)  # type: ignore[arg-type]  # handed on as it came
        return write._replace(since=1 << 60) if write.intent is self.intent else write


class RenewsAnything(Unconditional):
    intent = Intent.RENEW


class GivesBackAnything(Unconditional):
    intent = Intent.GIVE_BACK


class HandsOverAnything(Unconditional):
    intent = Intent.HAND_OVER


class HandsOverWithoutALookAtTheQueue(Contender):
    """The heir's place in the queue is not in the batch, and not in its condition."""

    def _hand_over(self, heir: SeenRecord, end_offset: int) -> ClaimWrite:
        write = super()._hand_over(heir, end_offset)
        return write._replace(records=write.records[:1])


class CountsAHandOverFromItsReading(Contender):
    """An heir's ttl begins when it reads that it is one, not when it sent its record."""

    def next_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        holder = contest.holder
        if holder is not None and holder.record.claim == self.claim and self.token < 0:
            self._sent_s[holder.record.attempt] = now_s
        return super().next_step(contest, end_offset, now_s)


class TakesWhatIsUnseenForUnchanged(Contender):
    """A condition from the own record on, though its reader has not come so far."""

    def _acquisition(self, contest: Contest, end_offset: int, now_s: float) -> ClaimWrite:
        write = super()._acquisition(contest, end_offset, now_s)
        return write._replace(since=max(write.since, self._queue_offset + 20))


MISTAKES: dict[MakeContender, int] = {
    CountsFromTheResponse: 1,
    CountsFromTheNewestAttempt: 60,
    NeverLooksAtTheClock: 2,
    Unconditional: 2,
    RenewsAnything: 6,
    GivesBackAnything: 24,
    TakesWhatIsUnseenForUnchanged: 4,
    HandsOverAnything: 1,
    HandsOverWithoutALookAtTheQueue: 69,
    CountsAHandOverFromItsReading: 6,
}
"""And the seed that has seen it before: that one is tried first."""


def is_seen(make: MakeContender, first: int, *, size: int = 4, pace: float = 1.0) -> bool:
    for seed in (first, *PLANTED_SEEDS):
        try:
            LockModel(seed, make, size=size, pace=pace).run(SECONDS)
        except (Overlap, NoHeir):
            return True
    return False


@pytest.mark.parametrize(("make", "first"), MISTAKES.items())
def test_a_planted_mistake_is_seen(make: MakeContender, first: int) -> None:
    assert is_seen(make, first)


def test_clocks_of_different_rates_need_the_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ALLOWANCE", 0.0)
    assert is_seen(Contender, 5, size=3, pace=0.1)


def test_with_it_quick_readers_see_no_two() -> None:
    for seed in range(5):
        LockModel(seed, size=3, pace=0.1).run(SECONDS)


def test_a_renewal_that_is_not_counted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    first_seen: dict[str, float] = {}

    def from_the_first(seen: rules.SeenRecord) -> float:
        began = first_seen.setdefault(seen.record.claim, seen.seen_s)
        return began + seen.record.ttl_s * (1 + rules.ALLOWANCE)

    def is_seen_here(seed: int) -> bool:
        first_seen.clear()
        try:
            LockModel(seed, size=2).run(SECONDS)
        except Overlap:
            return True
        return False

    monkeypatch.setattr(rules, "lapses_s", from_the_first)
    assert any(map(is_seen_here, PLANTED_SEEDS))
