"""The sender of the requests of an inbound connection, as far as it is known."""

from __future__ import annotations

from quorumd.raft.types import Endpoint
from quorumd.security.identity import ANONYMOUS, Identity
from quorumd.server.net.sockets import Ends


class Caller:
    """See the module's docstring; the base of the connection itself."""

    __slots__ = (
        "active_ns",
        "client_software_name",
        "client_software_version",
        "identity",
        "ip",
        "is_local",
        "listener",
        "peer",
        "principal",
        "stalled_since_ns",
    )

    def __init__(self, listener: Endpoint, now_ns: int) -> None:
        self.listener = listener
        self.peer, self.ip, self.is_local = Ends()
        self.client_software_name = self.client_software_version = ""
        """From ApiVersions on this connection, empty before it; set by the handler."""
        self.identity: Identity | None = None
        self.principal = ANONYMOUS
        self.active_ns = now_ns
        """When its last whole request came in, or the connection was opened."""
        self.stalled_since_ns: int | None = None
        """Since when it does not read: more waits for it than the transport's limit; None if it reads."""
