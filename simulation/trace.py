"""Trace of a run: a hash of all of it, and the last events of each node in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from hashlib import blake2b

from simulation.scheduler import SECOND, Scheduler

KEPT_EVENTS = 25


class Trace:
    """Two runs with the same hash have had the same events, bytes of messages included.

    The wording of log lines and errors is shown and not hashed: it may be mended without a change.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hash = blake2b(digest_size=16)
        self._last: dict[str, deque[tuple[int, str, str, int]]] = {}

    def note(
        self, host: str, what: str, kind: str = "", data: bytes = b"", wording: str = ""
    ) -> None:
        """An event of a host. `wording` is shown, and not hashed."""
        now_us = self._scheduler.now_us
        self._hash.update(f"{now_us} {host} {what} {kind} ".encode())
        if data:
            self._hash.update(data)
        events = self._last.get(host)
        if events is None:
            events = self._last[host] = deque(maxlen=KEPT_EVENTS)
        events.append((now_us, f"{what}: {wording}" if wording else what, kind, len(data)))

    @property
    def digest(self) -> str:
        """The hash of all events so far."""
        return self._hash.hexdigest()

    def last_events(self) -> Iterator[tuple[str, list[str]]]:
        """The last lines of each node, nodes in order."""
        for host in sorted(self._last):
            yield host, [_line(*event) for event in self._last[host]]


def _line(now_us: int, what: str, kind: str, size: int) -> str:
    text = f"{now_us / SECOND:>10.6f}  {what}"
    if kind:
        text += f" {kind}"
    return f"{text} ({size} bytes)" if size else text
