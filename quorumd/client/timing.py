"""Deadlines of operations, and the pauses between retries."""

from __future__ import annotations

import math
import random
import time

TRY_TIMEOUT_MS = 3000
"""A leader that does not respond for longer has probably been replaced."""
BACKOFF_MIN_MS = 20
BACKOFF_MAX_MS = 1000
TIMEOUT_MS_MAX = (1 << 31) - 1
"""24 days: a request has 32 bits for it."""
_RANDOM = random.SystemRandom()
"""Forked processes do not draw the same. A generator for each request would take 12 µs to be seeded."""


def whole_ms(timeout_ms: float) -> int:
    """A timeout that a caller gives, in ms, as requests can have it; infinity is the longest.

    Raises TypeError or ValueError for what is no number: by NaN no time would ever be up.
    """
    if not isinstance(timeout_ms, int | float):
        kind = type(timeout_ms).__name__
        raise TypeError(f"a timeout is of type {kind}: give milliseconds, a whole number")
    if math.isnan(timeout_ms):
        raise ValueError("a timeout is NaN: give milliseconds, a whole number")
    return math.ceil(min(max(timeout_ms, 0), TIMEOUT_MS_MAX))


def limit_ms(timeout_ms: int | None, default_ms: int) -> int:
    """The timeout of a call that was given this one, or none. Raises as `whole_ms` does."""
    return default_ms if timeout_ms is None else whole_ms(timeout_ms)


class Deadline:
    """A moment on the monotonic clock, `timeout_ms` (milliseconds) after it was made, at `began_s`."""

    __slots__ = ("_at", "began_s", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.began_s = time.monotonic()
        self._at = self.began_s + timeout_ms / 1000

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._at - time.monotonic())

    def remaining_ms(self) -> int:
        """Milliseconds left, never below 0."""
        return int(self.remaining_s() * 1000)

    def try_s(self) -> float:
        """Seconds that one of several tries may take."""
        return min(TRY_TIMEOUT_MS / 1000, self.remaining_s())

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self._at


class RetryBackoff:
    """Pauses that double from `min_ms` to `max_ms`, each with random jitter of up to one half."""

    __slots__ = ("_max_ms", "_min_ms", "_next_ms")

    def __init__(self, min_ms: int = BACKOFF_MIN_MS, max_ms: int = BACKOFF_MAX_MS) -> None:
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._next_ms = min_ms

    def next_s(self) -> float:
        """Seconds to wait before the next retry."""
        span_ms = self._next_ms
        self._next_ms = min(self._max_ms, self._next_ms * 2)
        return _RANDOM.uniform(span_ms / 2, span_ms) / 1000

    def reset(self) -> None:
        """After a success: the next pause is the shortest again."""
        self._next_ms = self._min_ms
