"""Ports of the loopback that are kept for nodes, also while a node is down."""

from __future__ import annotations

import socket


class KeptPorts:
    """Free ports, by number; no other process gets one of them before `close`.

    Each is bound here and not listened on. The system gives such a port to no process, not to an outgoing
    connection either, but permits a program that asks for it by number, and may share it, to listen there.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [each.getsockname()[1] for each in self._sockets]

    def close(self) -> None:
        """Anybody may have them."""
        for each in self._sockets:
            each.close()
