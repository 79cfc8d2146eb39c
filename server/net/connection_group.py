"""The state that all inbound connections of a node share: limits, counts, unwritten responses.

Knows no bytes and no message. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from quorumd.config.connection_limits import NO_LIMITS, ConnectionLimits, ListenerLimits
from quorumd.config.keys import scope_of
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection_quotas import ConnectionQuotas
from quorumd.server.net.connection_slots import ConnectionSlots, KnownPeers, SlotHolder
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import Dispatcher, RequestConnection
from quorumd.server.net.requests_in_flight import Held, RequestsInFlight
from quorumd.server.net.turns import Turns
from quorumd.server.net.unfinished import Refusable, UnfinishedRequests
from quorumd.server.net.unsent import UnsentResponses
from quorumd.wire.errors import MalformedMessage, UnsupportedVersion

LOG: Final = Logger("net")
CLOSE_LINES_PER_S: Final = 20
"""Of the log, for connections that end, after a burst: a stranger can cause them at will."""


class Flushable(SlotHolder, RequestConnection, Held, Refusable, Protocol):
    """A connection, as its group knows it."""

    def flush(self) -> None:
        """Write the responses that are collected."""


C = TypeVar("C", bound=Flushable)


class ConnectionGroup(Generic[C]):
    """Limits, counts and unwritten responses of all connections of one process."""

    __slots__ = (
        "_quotas",
        "_quotas_of",
        "close_lines",
        "connections",
        "dispatcher",
        "loop",
        "max_connections",
        "max_frame_bytes",
        "metrics",
        "protocols",
        "requests",
        "slots",
        "turns",
        "unfinished",
        "unflushed",
        "unsent",
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
        may_speak_for: Callable[[str, str, int], bool] | None = None,
        is_behind: Callable[[int], bool] | None = None,
        limits: ConnectionLimits = NO_LIMITS,
        limits_of: Mapping[str, ListenerLimits] = MappingProxyType({}),
        protocols: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`protocols` and `limits_of` are the listeners', by name."""
        self.loop = loop
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.max_frame_bytes = max_frame_bytes
        self.max_connections = max_connections
        self.connections: set[C] = set()
        self.slots: ConnectionSlots[C] = ConnectionSlots(
            max_connections,
            known,
            metrics.connections_by_kind,
            may_speak_for=may_speak_for,
            is_behind=is_behind,
            max_clients_of={
                name: each.clients for name, each in limits_of.items() if each.clients is not None
            },
        )
        self.protocols = protocols
        for at in protocols.items():
            metrics.connections_at[at] = 0
        self._quotas = ConnectionQuotas(limits)
        self._quotas_of = {
            name: ConnectionQuotas(each.quotas, scope_of(name))
            for name, each in limits_of.items()
            if each.quotas != NO_LIMITS
        }
        self.close_lines = RateLimit(per_second=CLOSE_LINES_PER_S, burst=100)
        self.turns = Turns(loop)
        self.requests: RequestsInFlight[C] = RequestsInFlight(loop)
        self.unsent: UnsentResponses[C] = UnsentResponses()
        self.unfinished: UnfinishedRequests[C] = UnfinishedRequests(max_frame_bytes)
        self.unflushed: list[C] = []
        """Connections with responses that are collected for one write at the end of this turn."""

    def enter(self, connection: C) -> bool:
        """Take a new connection. False if a quota or a lack of slots forbids it; the log says so."""
        is_exempt = connection.is_local or self.slots.has_voters_ip(connection)
        limit = self._enter_quotas(connection, is_exempt=is_exempt)
        if limit is None and not self.slots.enter(connection):
            self._leave_quotas(connection)
            limit = "of connections without a request"
        if limit is not None:
            self.note_refused(connection, limit)
            return False
        self.metrics.connections_opened += 1
        self._count(connection, 1)
        self.connections.add(connection)
        return True

    def _enter_quotas(self, connection: C, *, is_exempt: bool) -> str | None:
        """Enters the listener's quotas first: a connection that they refuse takes nothing from the node's."""
        own = self._quotas_of.get(connection.listener.name)
        if own is not None and (limit := own.enter(connection.ip, is_exempt=is_exempt)):
            return limit
        limit = self._quotas.enter(connection.ip, is_exempt=is_exempt)
        if own is not None and limit is not None:
            own.leave(connection.ip)
        return limit

    def _leave_quotas(self, connection: C) -> None:
        self._quotas.leave(connection.ip)
        if (own := self._quotas_of.get(connection.listener.name)) is not None:
            own.leave(connection.ip)

    def identify(self, connection: C, api_key: int, client_id: str) -> tuple[bool, bool]:
        """As `ConnectionSlots.identify`; the log says so if there is no slot."""
        has_slot, is_final = self.slots.identify(connection, api_key, client_id)
        if not has_slot:
            name = connection.listener.name
            own = self.slots.limit_of(name)
            scope, limit = ("", self.max_connections) if own is None else (scope_of(name), own)
            self.note_refused(connection, f"{scope}max.connections={limit}")
        return has_slot, is_final

    def leave(self, connection: C) -> None:
        """A connection that was taken is closed."""
        self.connections.discard(connection)
        self.slots.leave(connection)
        self.unsent.forget(connection)
        self.unfinished.forget(connection)
        self.requests.forget(connection)
        self.requests.remove(connection.request_bytes)
        self._leave_quotas(connection)
        self._count(connection, -1)

    def _count(self, connection: C, change: int) -> None:
        name = connection.listener.name
        at = name, self.protocols.get(name, "PLAINTEXT")
        counts = self.metrics.connections_at
        counts[at] = counts.get(at, 0) + change

    def flush_later(self, connection: C) -> None:
        """Have this connection write before the event loop waits again."""
        if not self.unflushed:
            self.loop.call_soon(self._flush)
        self.unflushed.append(connection)

    def _flush(self) -> None:
        connections, self.unflushed = self.unflushed, []
        for connection in connections:
            connection.flush()

    def note_refused(self, connection: RequestConnection, limit: str) -> None:
        """Count and log a connection that a limit forbids."""
        self.metrics.connections_refused += 1
        self.log(connection, "too many connections", limit=limit)

    def closing_reason(self, error: MalformedMessage) -> CloseReason:
        """Reason for closing a connection after such a request; an unknown version is counted by name."""
        if not isinstance(error, UnsupportedVersion):
            return CloseReason.MALFORMED
        self.metrics.count_unknown(f"request: {error}")
        return CloseReason.UNSUPPORTED

    def log(self, connection: RequestConnection, message: str, **fields: object) -> None:
        """Write a line about a connection, unless there were too many of late."""
        more = self.close_lines.take_fields()
        if more is None:
            return
        fields |= more
        name, version = connection.client_software_name, connection.client_software_version
        if client := f"{name} {version}".strip():
            fields["client"] = client
        at = {"peer": connection.peer, "listener": connection.listener.name}
        # A client that asks nothing for long is as usual as one that goes.
        write = LOG.info if fields.get("why") == CloseReason.IDLE else LOG.warning
        write(message, **at, **fields)
