"""TLS connections end when their trust does: a certificate expires, a CA or a revocation list changes.

Connections that rest on an older CA or revocation list are renewed: closed one after another, spread over
RENEWAL_S, so that clients do not come back all at once, and never all nodes are away. Links come first, and
other nodes' connections last: where all nodes get their files at the same time, the node that made a link
renews it by itself before. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from quorumd.security.identity import Identity
from quorumd.security.tls_stream import TlsStream
from quorumd.server.model.logs import Logger
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_state import CloseReason

RENEWAL_S = 60.0
"""Within this time all connections and links are made anew."""
RESPONSE_WAIT_S = 5.0
"""Part of it that a request may take that was in flight before."""
LOG: Final = Logger("tls")

T = TypeVar("T", Connection, TlsStream)


class Renewal:
    """Of a node's inbound connections, and of its links to others."""

    def __init__(
        self,
        connections: Callable[[], Iterable[Connection]],
        is_peer: Callable[[Connection], bool],
        links: Callable[[], Iterable[TlsStream]],
    ) -> None:
        """The first and the last give those that are open now."""
        self._connections = connections
        self._is_peer = is_peer
        self._links = links
        self._waiting: set[Connection | TlsStream] = set()
        """Connections whose time is set."""

    def renew_connections(self, listener: str) -> None:
        """Make those anew that came in on this listener."""
        found = [each for each in self._connections() if each.listener.name == listener]
        peers = [each for each in found if self._is_peer(each)]
        clients = [each for each in found if not self._is_peer(each)]
        self._spread(clients, 0.0, RENEWAL_S - RESPONSE_WAIT_S, self._renew_connection)
        self._spread(peers, RENEWAL_S / 2, RENEWAL_S - RESPONSE_WAIT_S, self._renew_connection)

    def renew_links(self) -> None:
        """Make those anew that lead to other nodes."""
        self._spread(list(self._links()), 0.0, RENEWAL_S / 2, self._renew_link)

    def end_expired(self, wall_s: float) -> None:
        """Close those whose certificate ends before this time, in seconds since 1970."""
        for connection in list(self._connections()):
            if _is_expired(connection.identity, wall_s):
                connection.close(CloseReason.EXPIRED, "the client's certificate has expired")
        for link in list(self._links()):
            if _is_expired(link.identity, wall_s):
                LOG.warning("link closed: the other node's certificate has expired", host=link.host)
                link.close()

    def _spread(
        self, found: Sequence[T], from_s: float, to_s: float, renew: Callable[[T], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        # One that waits rests on older files still: its time stays.
        new = [each for each in found if each not in self._waiting]
        for number, each in enumerate(new, 1):
            self._waiting.add(each)
            loop.call_later(from_s + (to_s - from_s) * number / (len(new) + 1), renew, each)

    def _renew_connection(self, connection: Connection) -> None:
        self._waiting.discard(connection)
        if connection.is_open:
            connection.close_after_responses(CloseReason.RENEWED)
            asyncio.get_running_loop().call_later(RESPONSE_WAIT_S, self._end, connection)

    def _end(self, connection: Connection) -> None:
        if connection.is_open:
            connection.close(CloseReason.RENEWED, "its request has waited for long")

    def _renew_link(self, link: TlsStream) -> None:
        self._waiting.discard(link)
        link.close()


def _is_expired(identity: Identity | None, wall_s: float) -> bool:
    return identity is not None and identity.expires_at <= wall_s
