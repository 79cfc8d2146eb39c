"""The states of an inbound connection, their transitions, and the reasons for which one ends."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final


class CloseReason(StrEnum):
    """The reason why a connection has ended, as the metrics have it."""

    BY_PEER = "peer"
    RESET = "reset"
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    FAILED = "failed"
    IDLE = "idle"
    STALLED = "stalled"
    MEMORY = "memory"
    LIMIT = "limit"
    DISPLACED = "displaced"
    SILENT = "silent"
    SHUTDOWN = "shutdown"
    EXPIRED = "expired"
    RENEWED = "renewed"


class ConnectionState(Enum):
    """State of a connection: how it treats bytes that arrive, and responses."""

    NEW = "new"
    """Not taken yet: the event loop has not announced it, or there were too many."""
    OPEN = "open"
    """Read from; requests are dispatched."""
    PAUSED = "paused"
    """Not read from: too many requests are in flight, or the peer does not read its responses."""
    RESUMING = "resuming"
    """Not read from, but there is room again: requests are taken at the end of this turn."""
    CLOSING = "closing"
    """Takes no request any more; those in flight get their responses, unless it was aborted."""
    LINGERING = "lingering"
    """All responses and the end of the stream are sent; bytes of the peer are thrown away."""
    CLOSED = "closed"

    def check_next(self, state: ConnectionState) -> None:
        """Raises AssertionError for a transition that is not in the table."""
        assert state in TRANSITIONS[self], f"{state} does not follow {self}"


S = ConnectionState

TRANSITIONS: Mapping[ConnectionState, tuple[ConnectionState, ...]] = MappingProxyType(
    {
        S.NEW: (S.OPEN, S.CLOSED),
        S.OPEN: (S.PAUSED, S.CLOSING, S.CLOSED),
        S.PAUSED: (S.RESUMING, S.CLOSING, S.CLOSED),
        S.RESUMING: (S.OPEN, S.PAUSED, S.CLOSING, S.CLOSED),
        S.CLOSING: (S.LINGERING, S.CLOSED),
        S.LINGERING: (S.CLOSED,),
        S.CLOSED: (),
    }
)
"""The states that may follow a state. Any other one is a broken invariant."""


TAKES_REQUESTS: Final = (S.OPEN, S.PAUSED, S.RESUMING)
"""Requests that arrived before reading was paused are taken, too."""
