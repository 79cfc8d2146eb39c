"""Options of an accepted connection's socket, and writes to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

from quorumd.wire.errors import MalformedMessage
from quorumd.wire.fast import JOIN_BYTES_MAX

PLAINTEXT: Final = b"\0\0\0\x04\xff\xff\xff\xff"
"""A frame of no request's, for who begins with TLS: what is no TLS tells it that there is none here."""
TLS_BEGINNING: Final = b"\x16\x03"
"""Of a client's first message in TLS."""
TLS_HERE: Final = "TLS on a listener that is plaintext here"


class Ends(NamedTuple):
    """Both ends of a connection. `is_local`: the other end is on this host."""

    peer: str = "?"
    ip: str = ""
    is_local: bool = False


def ends_of(transport: asyncio.BaseTransport) -> Ends:
    """The two ends of a connection, as far as its socket still knows them."""
    name, own_name = (transport.get_extra_info(key) for key in ("peername", "sockname"))
    if not name:
        return Ends()
    is_local = bool(own_name) and own_name[0] == name[0]
    return Ends(f"{name[0]}:{name[1]}", name[0].removeprefix("::ffff:"), is_local)


def set_options(transport: asyncio.BaseTransport) -> None:
    """Nothing waits to be sent with what comes later; a host that has gone is noticed some day."""
    connected: socket.socket = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def write_together(transport: asyncio.Transport, buffers: Sequence[bytes | memoryview]) -> None:
    """Write all of them, in one system call where possible."""
    if len(buffers) == 1:
        transport.write(buffers[0])
    elif sum(map(len, buffers)) <= JOIN_BYTES_MAX:
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)


def explained(
    error: MalformedMessage, data: bytes, *, is_tls: bool
) -> tuple[MalformedMessage, list[bytes]]:
    """The fault of bytes that are no request, and what else is sent: PLAINTEXT in response to TLS."""
    if is_tls or not data.startswith(TLS_BEGINNING):
        return error, []
    return MalformedMessage(TLS_HERE), [PLAINTEXT]
