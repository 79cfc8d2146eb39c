"""TCP ports on the loopback that a test may give to a server."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path

from quorumd.server.demo.nodes import FIRST_PORT, HTTP_BELOW

# Below the ephemeral range, so that no outgoing connection takes one before the server binds it, and
# below what the demo chooses from; begins elsewhere in every process.
_RANGE = range(5_000, FIRST_PORT - HTTP_BELOW)
_candidates = itertools.cycle(_RANGE)
for _ in range(os.getpid() * 37 % len(_RANGE)):
    next(_candidates)
# Whoever gets a port locks the byte of its number for as long as the process lives: the node may be
# down for a while, and another test process must not take its port meanwhile.
_locks = os.open(
    Path(tempfile.gettempdir()) / f"quorumd-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600
)
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now, and that no test has been given before."""
    while True:
        port = next(_candidates)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def free_ports(count: int) -> list[int]:
    """So many different free ports."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def loopbacks() -> list[str]:
    """The addresses of the loopback interface: of IPv6 as well, where this host has it."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]
