"""Requests that are not whole yet: their bytes over all connections, and which one is closed at the bound.

A client that dies, or stops, in the middle of a large request leaves what it has sent in memory. Belongs to
the event loop's thread.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from quorumd.server.net.connection_state import CloseReason

UNFINISHED_BYTES_MIN: Final = 16 << 20
"""The bound is no less, however small requests have to be: many clients may send theirs slowly at once."""
SMALL_BYTES: Final = 64 << 10
"""Bytes below which a connection is closed last: little would be won."""


class Refusable(Protocol):
    """A connection that can be closed behind the responses to what came before."""

    def refuse(self, closed: CloseReason, reason: str) -> None: ...


C = TypeVar("C", bound=Refusable)


class UnfinishedRequests(Generic[C]):
    """Bytes of requests that are not whole; `total_bytes` is at most `max_bytes` after each `hold`."""

    __slots__ = ("_bytes_of", "max_bytes", "total_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_bytes = max(2 * max_frame_bytes, UNFINISHED_BYTES_MIN)
        self.total_bytes = 0
        self._bytes_of: dict[C, int] = {}
        """The connection from which nothing has come for longest comes first."""

    def hold(self, connection: C, held_bytes: int) -> None:
        """Something has come from a connection, which holds so much now.

        Above the bound those are closed from which nothing has come for longest.
        """
        self.total_bytes += held_bytes - self._bytes_of.pop(connection, 0)
        if held_bytes:
            self._bytes_of[connection] = held_bytes
        while self.total_bytes > self.max_bytes:
            longest = self._longest()
            self.forget(longest)
            longest.refuse(CloseReason.MEMORY, "too many unfinished requests are held in memory")

    def _longest(self) -> C:
        for connection, held_bytes in self._bytes_of.items():
            if held_bytes >= SMALL_BYTES:
                return connection
        return next(iter(self._bytes_of))

    def forget(self, connection: C) -> None:
        """Drops the count of a connection's bytes."""
        self.total_bytes -= self._bytes_of.pop(connection, 0)
