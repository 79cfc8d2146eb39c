"""How long an operation may take, and how long to wait between two tries of it."""

from __future__ import annotations

import random
import time

BACKOFF_MIN_MS = 20
BACKOFF_MAX_MS = 1000


class Deadline:
    """A moment on the monotonic clock; `timeout_ms` (ms) is how far away it was at first."""

    __slots__ = ("_at", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._at = time.monotonic() + timeout_ms / 1000

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._at - time.monotonic())

    def remaining_ms(self) -> int:
        """Milliseconds left, never below 0."""
        return int(self.remaining_s() * 1000)

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self._at


class RetryBackoff:
    """Waits that double from 20 ms to 1 s, each drawn from the upper half of its span."""

    __slots__ = ("_next_ms", "_random")

    def __init__(self) -> None:
        self._next_ms = BACKOFF_MIN_MS
        self._random = random.Random()

    def next_s(self) -> float:
        """Seconds to wait before the next try."""
        span_ms = self._next_ms
        self._next_ms = min(BACKOFF_MAX_MS, self._next_ms * 2)
        return self._random.uniform(span_ms / 2, span_ms) / 1000

    def reset(self) -> None:
        """After a success: the next wait is short again."""
        self._next_ms = BACKOFF_MIN_MS
