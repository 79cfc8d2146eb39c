"""Responses that cannot be sent yet: their bytes over all connections, and which one is aborted at the bound.

A response waits in memory behind an earlier request of its connection that is in flight, or because the
peer does not read. Each connection has a bound of its own; a thousand of them have this one. Belongs to the
event loop's thread.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from quorumd.server.net.connection_state import CloseReason

UNSENT_BYTES_MAX: Final = 128 << 20
"""Enough for the responses of 16 replicas that fetch as much as they may and stop reading."""


class Abortable(Protocol):
    """A connection that can be aborted."""

    def abort(self, closed: CloseReason, reason: str) -> None: ...


C = TypeVar("C", bound=Abortable)


class UnsentResponses(Generic[C]):
    """Bytes of responses that wait, by connection; `total_bytes` is at most `max_bytes` after each `add`."""

    __slots__ = ("_bytes_of", "max_bytes", "total_bytes")

    def __init__(self, max_bytes: int = UNSENT_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.total_bytes = 0
        self._bytes_of: dict[C, int] = {}
        """The connection that has sent nothing for longest comes first."""

    def add(self, connection: C, size_bytes: int) -> None:
        """Count bytes that wait. Above the bound, connections that sent nothing for longest are aborted."""
        self._bytes_of[connection] = self._bytes_of.get(connection, 0) + size_bytes
        self.total_bytes += size_bytes
        while self.total_bytes > self.max_bytes:
            longest = next(iter(self._bytes_of))
            self.forget(longest)
            longest.abort(CloseReason.MEMORY, "too many bytes of responses wait to be sent or read")

    def remove(self, connection: C, size_bytes: int) -> None:
        """Count bytes that were sent, or read by the peer."""
        held = self._bytes_of.pop(connection, 0)
        self.total_bytes -= min(held, size_bytes)
        if held > size_bytes:
            self._bytes_of[connection] = held - size_bytes

    def forget(self, connection: C) -> None:
        """A connection is gone, and its responses."""
        self.total_bytes -= self._bytes_of.pop(connection, 0)
