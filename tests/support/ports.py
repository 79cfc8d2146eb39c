"""TCP ports on the loopback that a test may give to a server."""

from __future__ import annotations

import itertools
import os
import socket

# Below the ephemeral range, so that no outgoing connection takes one before the server binds it;
# begins elsewhere in every process, and gives no port out twice.
_candidates = itertools.cycle(range(10_000, 32_000))
for _ in range(os.getpid() * 37 % 22_000):
    next(_candidates)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    while True:
        port = next(_candidates)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """So many different free ports."""
    return [free_port() for _ in range(count)]
