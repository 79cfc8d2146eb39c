"""What all inbound connections of a node share: limits, counts, the turn's unwritten answers, and the
words for why a connection has ended.

Knows no bytes and no message. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from quorumd.server.model.logs import RateLimit
from quorumd.server.model.metrics import Metrics

if TYPE_CHECKING:
    from quorumd.server.net.connection import Connection, InboundRequest


class CloseReason(StrEnum):
    """Why a connection has ended, as the metrics have it."""

    BY_PEER = "peer"
    RESET = "reset"
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    FAILED = "failed"
    IDLE = "idle"
    STALLED = "stalled"
    MEMORY = "memory"
    SHUTDOWN = "shutdown"


class Dispatcher(Protocol):
    """Who takes requests."""

    def dispatch(self, request: InboundRequest) -> None:
        """Take one request, and answer it now or later; called while its bytes are received.

        MalformedMessage closes the connection as the peer's fault, any other exception as ours.
        """


class ConnectionGroup:
    """What the connections of one process have in common."""

    __slots__ = (
        "close_lines",
        "connections",
        "dispatcher",
        "loop",
        "max_connections",
        "max_frame_bytes",
        "max_partial_bytes",
        "metrics",
        "partial_bytes",
        "unflushed",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        metrics: Metrics,
        *,
        max_frame_bytes: int,
        max_connections: int,
    ) -> None:
        self.loop = loop
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.max_frame_bytes = max_frame_bytes
        self.max_connections = max_connections
        self.connections: set[Connection] = set()
        self.partial_bytes = 0
        """Bytes of frames that are not whole yet, all connections together."""
        self.max_partial_bytes = 2 * max_frame_bytes
        self.close_lines = RateLimit(per_second=20, burst=100)
        self.unflushed: list[Connection] = []
        """Those with answers that are collected for one write at the end of this turn."""

    def flush_later(self, connection: Connection) -> None:
        """Have this connection write before the event loop waits again."""
        if not self.unflushed:
            self.loop.call_soon(self._flush)
        self.unflushed.append(connection)

    def _flush(self) -> None:
        connections, self.unflushed = self.unflushed, []
        for connection in connections:
            connection.flush()
