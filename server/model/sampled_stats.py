"""Figures over the last minute, as Kafka's clients and brokers compute theirs: two samples of 30 s each.

`Histogram` beside them never forgets, so that Prometheus can form its own rates. Nothing here allocates
when a value is recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

SAMPLE_SECONDS: Final = 30.0


class SampledStats:
    """Average, maximum and rate of the values of the last 30 to 60 seconds."""

    __slots__ = (
        "_clock",
        "_count",
        "_max",
        "_old_count",
        "_old_max",
        "_old_started",
        "_old_sum",
        "_started",
        "_sum",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self._clock = clock
        self._started = clock()
        self._count, self._sum, self._max = 0, 0.0, 0.0
        self._old_started = self._started
        self._old_count, self._old_sum, self._old_max = 0, 0.0, 0.0

    def record(self, value: float, count: int = 1) -> None:
        """Take a value that is 0 or more, `count` times."""
        if self._clock() - self._started >= SAMPLE_SECONDS:
            self._roll()
        self._count += count
        self._sum += value * count
        if value > self._max:
            self._max = value

    def average(self) -> float | None:
        """None without a value in the window: neither 0 nor a number at all would be true."""
        self._roll_if_due()
        count = self._count + self._old_count
        return (self._sum + self._old_sum) / count if count else None

    def maximum(self) -> float | None:
        """None without a value in the window."""
        self._roll_if_due()
        return max(self._max, self._old_max) if self._count or self._old_count else None

    def rate(self) -> float:
        """Sum of the values per second; a young window counts as 30 s, so that a start is no peak."""
        self._roll_if_due()
        elapsed = self._clock() - self._old_started
        return (self._sum + self._old_sum) / max(elapsed, SAMPLE_SECONDS)

    def _roll_if_due(self) -> None:
        if self._clock() - self._started >= SAMPLE_SECONDS:
            self._roll()

    def _roll(self) -> None:
        now = self._clock()
        if now - self._started < 2 * SAMPLE_SECONDS:
            self._old_started = self._started
            self._old_count, self._old_sum, self._old_max = self._count, self._sum, self._max
        else:
            self._old_started = now
            self._old_count, self._old_sum, self._old_max = 0, 0.0, 0.0
        self._started = now
        self._count, self._sum, self._max = 0, 0.0, 0.0


class Histogram:
    """Counts of values by upper bound (inclusive), and their sum."""

    __slots__ = ("_above", "_counts", "_place", "_up_to", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; one more bucket, without a bound, takes what is above the last."""
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        # The bucket of the last value: the next one mostly goes there, too.
        self._place, self._above, self._up_to = 0, -inf, self.bounds[0]

    def observe(self, value: float, count: int = 1) -> None:
        """Take a value `count` times."""
        if not self._above < value <= self._up_to:
            self._find(value)
        self._counts[self._place] += count
        self.sum += value * count

    def _find(self, value: float) -> None:
        bounds = self.bounds
        self._place = place = bisect_left(bounds, value)
        self._above = bounds[place - 1] if place else -inf
        self._up_to = bounds[place] if place < len(bounds) else inf

    def observe_each(self, values: Sequence[float]) -> None:
        """Take these values, at least one."""
        if len(values) == 1:
            self.observe(values[0])
            return
        counts, bounds = self._counts, self.bounds
        self.sum += sum(values)
        smallest = min(values)
        if not self._above < smallest <= self._up_to:
            self._find(smallest)
        if max(values) <= self._up_to:
            counts[self._place] += len(values)
            return
        for value in values:
            counts[bisect_left(bounds, value)] += 1

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus' form: (upper bound as text, how many values are not above it)."""
        total = 0
        pairs: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            pairs.append((bound, total))
        return pairs
