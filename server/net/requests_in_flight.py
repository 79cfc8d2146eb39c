"""Requests that were taken and have no response yet, of all connections together: how many bytes they hold.

A request stays in memory while it is checked, forwarded or waits for its commit. Each connection has a bound
of its own; a thousand of them have this one: beyond it no client is read from. Belongs to the event loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from quorumd.server.net.connection_state import CloseReason

REQUEST_BYTES_MAX: Final = 128 << 20
"""Room for eight of the largest requests at once."""
READ_BYTES: Final = 256 << 10
"""Bytes that are read at once of a connection."""
AGAIN_S: Final = 0.005
"""After so long further ones are read from, if those that were let go on had nothing to send."""
FULL_NS_MAX: Final = 5_000_000_000
"""Time without reading from any client before one has to go: a leader without a majority resigns sooner."""


class Held(Protocol):
    """A connection whose requests are counted."""

    @property
    def request_bytes(self) -> int:
        """Bytes of its requests in flight."""

    def resume_reading_soon(self) -> None: ...
    def abort(self, closed: CloseReason, reason: str) -> None: ...


C = TypeVar("C", bound=Held)


class RequestsInFlight(Generic[C]):
    """`size_bytes` is added to by connections as they take requests."""

    __slots__ = ("_full_since_ns", "_is_scheduled", "_loop", "_paused", "max_bytes", "size_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int = REQUEST_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._loop = loop
        self._paused: dict[C, None] = {}
        """Connections that are not read from, the first one first."""
        self._is_scheduled = False
        self._full_since_ns: int | None = None

    def has_room_for(self, connection: C) -> bool:
        """True if it may be read from again; else it is told when it may."""
        if 2 * self.size_bytes <= self.max_bytes:
            return True
        self._paused[connection] = None
        return False

    def remove(self, size_bytes: int) -> None:
        """Requests that held so much have their response, or need none any more."""
        self.size_bytes -= size_bytes
        if self._paused and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._resume)

    def forget(self, connection: C) -> None:
        """Forgets a connection that is gone."""
        self._paused.pop(connection, None)

    def _resume(self) -> None:
        """Let as many go on as there is room for what is read of each at once."""
        self._is_scheduled = False
        if 2 * self.size_bytes > self.max_bytes:
            return
        count = max(1, (self.max_bytes - self.size_bytes) // READ_BYTES)
        for connection in list(islice(self._paused, count)):
            del self._paused[connection]
            connection.resume_reading_soon()
        if self._paused:
            self._is_scheduled = True
            self._loop.call_later(AGAIN_S, self._resume)

    def sweep(self, connections: Iterable[C], now_ns: int) -> None:
        """Call it about every second: where nobody could be read from for long, the largest one goes."""
        if 2 * self.size_bytes <= self.max_bytes:
            self._full_since_ns = None
        elif self._full_since_ns is None:
            self._full_since_ns = now_ns
        elif self._paused and now_ns - self._full_since_ns >= FULL_NS_MAX:
            largest = max(connections, key=lambda each: each.request_bytes)
            largest.abort(CloseReason.MEMORY, "its requests hold too much memory for too long")
