"""The listeners of a node: opens them, takes connections, closes idle ones, closes all in order.

What happens on a connection is `net.connection`'s business. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from types import MappingProxyType
from typing import Final, cast

from quorumd.config.connection_limits import NO_LIMITS, ConnectionLimits, ListenerLimits
from quorumd.config.tls import SecurityProtocol
from quorumd.raft.types import Endpoint
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import TlsSide
from quorumd.security.tls_stream import TlsStream, secured
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.connection_slots import KnownPeers
from quorumd.server.net.connection_state import TAKES_REQUESTS, CloseReason
from quorumd.server.net.handshake_watch import HandshakeWatch
from quorumd.server.net.inbound_request import Dispatcher

BACKLOG: Final = 512
SWEEP_S: Final = 1.0
IDLE_SWEEP_MS_MAX: Final = 5_000

_REMEDIES: Final = {
    errno.EADDRINUSE: "the port is in use: end the process that has it (`ss -tanp` names it), "
    "or choose another port",
    errno.EADDRNOTAVAIL: "no interface of this host has that address: use one that `ip addr` shows, "
    "or an empty host for all of them",
    errno.EINVAL: "the kernel does not take that address: one that begins with fe80 needs its interface, "
    "such as [fe80::1%eth0]",
    errno.EACCES: "this user may not listen there: choose a port above 1023",
}


class ListenError(OSError):
    """An address that cannot be listened on; the text names the key, the address and a remedy."""


def listen_error(key: str, address: object, error: OSError) -> ListenError:
    """The error to raise for an address of this configuration key."""
    if isinstance(error, socket.gaierror):
        reason = "the host name cannot be resolved: check its spelling, or use an IP address"
    else:
        reason = _REMEDIES.get(error.errno or 0) or error.strerror or str(error)
    return ListenError(f"{key}: cannot listen on {address}: {reason}")


def hosts_of(host: str) -> str | None:
    """Host to give the event loop for this one: None is every interface, by IPv4 and IPv6.

    So is `[::]`, as in Java: an event loop alone would take no IPv4 there.
    """
    return None if host in ("", "::") else host


class Listeners:
    """All listeners of a node, and the connections that came in on them."""

    def __init__(
        self,
        listeners: Sequence[Endpoint],
        dispatcher: Dispatcher,
        metrics: Metrics,
        *,
        max_frame_bytes: int,
        max_connections: int,
        max_idle_ms: int,
        known: KnownPeers | None = None,
        sides: Mapping[str, TlsSide] = MappingProxyType({}),
        handshakes: Handshakes | None = None,
        may_speak_for: Callable[[str, str, int], bool] | None = None,
        is_behind: Callable[[int], bool] | None = None,
        limits: ConnectionLimits = NO_LIMITS,
        limits_of: Mapping[str, ListenerLimits] = MappingProxyType({}),
    ) -> None:
        """Nothing is opened yet; the event loop runs. `max_idle_ms` of 0 or less: idle ones stay.

        `max_connections` are those of clients; peers that are `known` are counted apart. `sides` are of the
        listeners that speak TLS, by name, and `handshakes` makes theirs; `may_speak_for` says whether a
        principal is a replica's; `is_behind`, given where nodes' links are TLS, whose are plaintext still.
        `limits_of` are those of one listener, by name, beside the node's `limits`.
        """
        self._listeners = listeners
        self._sides = sides
        self._handshakes = handshakes or Handshakes()
        self._max_idle_ms = max_idle_ms
        self._servers: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._group: ConnectionGroup[Connection] = ConnectionGroup(
            asyncio.get_running_loop(),
            dispatcher,
            metrics,
            max_frame_bytes=max_frame_bytes,
            max_connections=max_connections,
            known=known,
            may_speak_for=may_speak_for,
            is_behind=is_behind,
            limits=limits,
            limits_of=limits_of,
            protocols={
                each.name: SecurityProtocol.SSL
                if each.name in sides
                else SecurityProtocol.PLAINTEXT
                for each in listeners
            },
        )
        self._idle_due_ns = 0

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections that are open now."""
        return frozenset(self._group.connections)

    def is_peer(self, connection: Connection) -> bool:
        """True for another node of the quorum, as far as it has shown that it is one."""
        return self._group.slots.is_peer(connection)

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        """Endpoints of the open listeners, with the port that the system chose where 0 was asked for."""
        return tuple(
            listener._replace(port=server.sockets[0].getsockname()[1])
            for listener, server in zip(self._listeners, self._servers, strict=False)
        )

    async def open(self) -> None:
        """Listen on all addresses. Raises ListenError, and listens on none then."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            try:
                server = await loop.create_server(
                    cast("Callable[[], asyncio.Protocol]", self._protocols(listener)),
                    hosts_of(listener.host),
                    listener.port,
                    backlog=BACKLOG,
                )
            except OSError as error:
                self._stop_accepting()
                raise listen_error("listeners", listener, error) from error
            self._servers.append(server)
        self._sweep_later(loop)

    def _protocols(self, listener: Endpoint) -> Callable[[], Connection | TlsStream]:
        """Factory of the protocols of connections that are accepted there."""
        group = self._group
        connections = partial(Connection, group, listener)
        side = self._sides.get(listener.name)
        if side is None:
            return connections
        return secured(connections, side, self._handshakes, HandshakeWatch(group, listener))

    async def close(self, grace_s: float) -> None:
        """Take no further request, respond to those that were taken, and close.

        Connections with requests in flight, or with responses unsent, after `grace_s` are aborted.
        """
        self._stop_accepting()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in self.connections:
            connection.close_after_responses(CloseReason.SHUTDOWN)
        if await self._all_closed_within(grace_s):
            return
        for connection in self.connections:
            connection.abort(CloseReason.SHUTDOWN, "the node stops")
        await self._all_closed_within(1.0)

    async def _all_closed_within(self, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._group.connections:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(min(0.005, timeout_s))
        return True

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        idle_s = self._max_idle_ms / 4_000
        pause_s = min(idle_s, SWEEP_S) if idle_s > 0 else SWEEP_S
        self._sweep_timer = loop.call_later(pause_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_ns = monotonic_ns()
        self._group.slots.sweep(now_ns)
        self._group.requests.sweep(self._group.connections, now_ns)
        if self._max_idle_ms > 0 and now_ns >= self._idle_due_ns:
            pause_ms = min(self._max_idle_ms / 4, IDLE_SWEEP_MS_MAX)
            self._idle_due_ns = now_ns + int(pause_ms * 900_000)
            self._close_idle(now_ns)
        self._sweep_later(loop)

    def _close_idle(self, now_ns: int) -> None:
        """Close connections that have been idle, or whose peer has not read, for too long.

        One with a request in flight is not idle: a long poll may be parked for any time, unless the peer has
        ended. Half a request is no activity: a byte now and then does not keep a connection.
        """
        latest_ns = now_ns - self._max_idle_ms * 1_000_000
        for connection in self.connections:
            stalled_ns = connection.stalled_since_ns
            if stalled_ns is not None:
                if stalled_ns <= latest_ns:
                    connection.abort(CloseReason.STALLED, "the peer does not read its responses")
            elif connection.active_ns <= latest_ns and not connection.in_flight:
                end = connection.close if connection.state in TAKES_REQUESTS else connection.abort
                end(CloseReason.IDLE, "nothing was asked for connections.max.idle.ms")
