"""A node's `/status`, read without what a HTTP library takes to load."""

from __future__ import annotations

import json
import socket
from typing import Any

_TIMEOUT_S = 2.0
_PIECE_BYTES = 1 << 16


def status_at(port: int) -> dict[str, Any] | None:
    """The `/status` of the node whose pages are at this port of the loopback; None if it does not respond."""
    try:
        with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as connection:
            connection.sendall(b"GET /status HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            response = bytearray()
            while piece := connection.recv(_PIECE_BYTES):
                response += piece
    except OSError:
        return None
    head, _, body = bytes(response).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        return None
    try:
        found: dict[str, Any] = json.loads(body)
    except ValueError:
        return None
    return found
