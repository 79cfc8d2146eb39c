"""When a TLS handshake of a listener ends: the client's identity, a count, and a line in the log."""

from __future__ import annotations

from time import monotonic_ns
from typing import cast

from quorumd.raft.types import Endpoint
from quorumd.security.errors import CertificateProblem, HandshakeOutcome
from quorumd.security.identity import Identity
from quorumd.security.tls_stream import TlsStream
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_group import ConnectionGroup


class HandshakeWatch:
    """The `TlsWatcher` of a listener's streams, whose protocols are connections."""

    __slots__ = ("_group", "_listener")

    def __init__(self, group: ConnectionGroup[Connection], listener: Endpoint) -> None:
        self._group = group
        self._listener = listener
        # From the start: Prometheus sees no increase in a counter that begins with its first event.
        for outcome in HandshakeOutcome:
            group.metrics.tls_handshakes[listener.name, outcome] = 0

    def on_secured(self, stream: TlsStream, identity: Identity) -> None:
        connection = cast(Connection, stream.get_protocol())
        connection.identity = identity
        connection.principal = identity.principal
        connection.active_ns = monotonic_ns()
        self._count(HandshakeOutcome.DONE)

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        self._count(problem.outcome)
        if stream.has_spoken:
            # A connection without a byte is a port check.
            connection = cast(Connection, stream.get_protocol())
            why = problem.outcome.value
            self._group.log(connection, "TLS handshake failed", why=why, reason=str(problem))

    def _count(self, outcome: HandshakeOutcome) -> None:
        self._group.metrics.tls_handshakes[self._listener.name, outcome] += 1
