"""What all inbound connections of a node share: limits, counts, and the turn's unwritten responses.

Knows no bytes and no message. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.inbound_request import Dispatcher, RequestConnection
from quorumd.server.net.places import KnownPeers, Placed, Places
from quorumd.server.net.turns import Turns

_LOGGER = Logger("net")


class Flushable(Placed, Protocol):
    """A connection, as its group knows it."""

    def flush(self) -> None:
        """Write the responses that are collected."""


C = TypeVar("C", bound=Flushable)


class ConnectionGroup(Generic[C]):
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
        "places",
        "turns",
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
        known: KnownPeers | None = None,
    ) -> None:
        self.loop = loop
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.max_frame_bytes = max_frame_bytes
        self.max_connections = max_connections
        self.connections: set[C] = set()
        self.places: Places[C] = Places(max_connections, known, metrics.connections_by_kind)
        self.partial_bytes = 0
        """Bytes of frames that are not whole yet, all connections together."""
        self.max_partial_bytes = 2 * max_frame_bytes
        self.close_lines = RateLimit(per_second=20, burst=100)
        self.turns = Turns(loop)
        self.unflushed: list[C] = []
        """Those with responses that are collected for one write at the end of this turn."""

    def flush_later(self, connection: C) -> None:
        """Have this connection write before the event loop waits again."""
        if not self.unflushed:
            self.loop.call_soon(self._flush)
        self.unflushed.append(connection)

    def _flush(self) -> None:
        connections, self.unflushed = self.unflushed, []
        for connection in connections:
            connection.flush()

    def log(self, connection: RequestConnection, message: str, **fields: object) -> None:
        """Write a line about a connection, unless there were too many of late."""
        suppressed = self.close_lines.take()
        if suppressed is None:
            return
        if suppressed:
            fields["lines_suppressed"] = suppressed
        name, version = connection.client_software_name, connection.client_software_version
        if client := f"{name} {version}".strip():
            fields["client"] = client
        at = {"peer": connection.peer, "listener": connection.listener.name}
        _LOGGER.warning(message, **at, **fields)
