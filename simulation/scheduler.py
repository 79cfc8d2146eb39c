"""Simulated time: what is to happen, in the order in which it does. Times are µs since the beginning."""

from __future__ import annotations

import heapq
from collections.abc import Callable

MS = 1_000
SECOND = 1_000_000

Callback = Callable[[], None]


class Timer:
    """Something that waits for its time."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do not call back."""
        self.callback = None


class Scheduler:
    """Whatever is due at the same time happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now_us = 0
        self.steps = 0
        self._asked = 0
        self._heap: list[tuple[int, int, Timer]] = []

    def call_at(self, at_us: int, callback: Callback) -> Timer:
        """Call back at this time, in µs since the beginning."""
        timer = Timer(callback)
        self._asked += 1
        heapq.heappush(self._heap, (max(at_us, self.now_us), self._asked, timer))
        return timer

    def call_later(self, delay_us: int, callback: Callback) -> Timer:
        """Call back after this delay in µs."""
        return self.call_at(self.now_us + delay_us, callback)

    def step(self, until_us: int) -> bool:
        """Let the next thing happen. Returns False, with the time at `until_us`, if none is due by then."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            at_us, _, timer = heapq.heappop(heap)
            callback = timer.callback
            if callback is None:
                continue
            self.now_us = at_us
            self.steps += 1
            timer.callback = None
            callback()
            return True
        self.now_us = max(self.now_us, until_us)
        return False

    def run_until(self, end_us: int, steps: int | None = None) -> None:
        """Let everything happen that is due by then; no more than `steps` since the beginning."""
        while self.step(end_us):
            if steps is not None and self.steps >= steps:
                return
