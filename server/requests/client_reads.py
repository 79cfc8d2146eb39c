"""Clients' reads from disk: a few at a time, so that little waits in memory for the event loop.

A thread reads four megabytes in a millisecond or two, and the loop takes several to make a response of them
and to encrypt it. What was read ahead would be handed over all at once, and hold the loop for seconds.
Replicas' reads wait for no more than these few. Belongs to the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

UNDER_WAY_MAX: Final = 3
"""One is read, one is handed over, and one is there when the loop comes back to it."""

T = TypeVar("T")


class ReadingClient(Protocol):
    """The connection that a read is for."""

    @property
    def is_open(self) -> bool: ...


class ClientReads:
    """The reads that wait, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ReadingClient, Callable[[], None]]] = deque()
        self._under_way = 0

    def add(
        self,
        client: ReadingClient,
        read: Callable[[Callable[[T | BaseException], None]], None],
        done: Callable[[T | BaseException], None],
    ) -> None:
        """Have `read` begun, which calls what it is given with its outcome; `done` gets that.

        Nothing is read any more for a client that is gone by then.
        """

        def finished(outcome: T | BaseException) -> None:
            try:
                done(outcome)
            finally:
                self._under_way -= 1
                self._begin()

        def begin() -> None:
            read(finished)

        self._waiting.append((client, begin))
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            client, begin = self._waiting.popleft()
            if client.is_open:
                self._under_way += 1
                begin()
