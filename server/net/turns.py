"""Turns of the event loop: how long connections that have much to do may use it before others get theirs.

A request that is quick, and a Produce, is taken as it comes in, while the time of the turn lasts. What else
waits on a connection, be it further requests or the rest of a long one, is gone on with in turns: connection
by connection, a share of each turn. Every other share is a peer's while one waits, and its quick requests are
taken whatever waits. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from time import monotonic_ns
from typing import Final, Protocol, TypeVar

from quorumd.server.net.inbound_request import InboundRequest, Steps

TURN_NS: Final = 4_000_000
"""Of each turn, for all connections that wait here together; what they ask last may take longer."""
SHARE_NS: Final = 1_000_000
"""Of each turn, for one of them."""
STRAYS_MAX: Final = 16
"""When so many wait for a turn, the rest of a request is not worked on for a connection that is gone."""
STEPS_AT_ONCE: Final = 4
QUICK_BYTES_MAX: Final = 512
_QUICK_KEYS: Final = frozenset(key.to_bytes(2, "big") for key in (0, 1, 52, 53, 54, 59, 82))


def is_quick(data: bytes) -> bool:
    """True for a whole request that is dispatched at once, before others that wait: all those of replicas.

    `data` begins with its length. A Produce request of any size is quick: its long check is returned as work.
    """
    return len(data) <= QUICK_BYTES_MAX and data[4:6] in _QUICK_KEYS


S = TypeVar("S", bound=Iterator[object])


def begun(steps: S) -> S | None:
    """The rest of a request's steps after the first few are made; None if nothing is left."""
    for made, _ in enumerate(steps, 1):
        if made == STEPS_AT_ONCE:
            return steps
    return None


class LongRequest:
    """The work that a request leaves to turns to come."""

    __slots__ = ("_request", "_steps")

    def __init__(self, request: InboundRequest, steps: Steps) -> None:
        self._request = request
        self._steps = steps

    def go_on(self, until_ns: int) -> bool:
        """Make steps until then (`time.monotonic_ns`), at least one; True if the last one is made."""
        try:
            for waits in self._steps:
                if waits or monotonic_ns() >= until_ns:
                    return False
        except Exception as error:  # as where the request was dispatched
            self._request.fail(error)
        return True

    def close(self) -> None:
        """Make no further step."""
        self._steps.close()


class Waiting(Protocol):
    """A connection with something to go on with."""

    def go_on(self, until_ns: int) -> None:
        """Go on with it until then, and ask for a further turn if that is not enough."""


class Turns:
    """The connections of a process that wait for their share, in the order in which they asked."""

    __slots__ = ("_first", "_is_scheduled", "_loop", "_queue", "ends_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: deque[Waiting] = deque()
        """Peers."""
        self._queue: deque[Waiting] = deque()
        self._is_scheduled = False
        self.ends_ns = 0
        """When the time is over that was given last: ask `is_over` from then on."""

    def __len__(self) -> int:
        return len(self._first) + len(self._queue)

    def is_over(self, now_ns: int) -> bool:
        """True if what comes in now has to wait for a turn, since others have used the time of this one.

        When a turn begins is not known as long as nobody waits: one may last twice its time, since nobody has
        to ask while time is left, and a request that comes alone costs nothing.
        """
        if now_ns < self.ends_ns:
            return False
        if self._is_scheduled:
            return True
        self._schedule()
        self.ends_ns = now_ns + TURN_NS
        return False

    def share(self, now_ns: int) -> int:
        """Until when a connection may use this turn at once; in the past if its time is used up."""
        if not self._is_scheduled:
            self._schedule()
            self.ends_ns = now_ns + TURN_NS
        return min(now_ns + SHARE_NS, self.ends_ns)

    def later(self, connection: Waiting, *, goes_first: bool) -> None:
        """Let a connection go on in a turn to come; it must not be waiting yet."""
        (self._first if goes_first else self._queue).append(connection)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        now_ns = monotonic_ns()
        self.ends_ns = now_ns + TURN_NS
        queue, other = self._first, self._queue
        while len(self) and now_ns < self.ends_ns:
            (queue or other).popleft().go_on(now_ns + SHARE_NS)
            queue, other = other, queue
            now_ns = monotonic_ns()
        self._is_scheduled = False
        if len(self):
            self._schedule()
