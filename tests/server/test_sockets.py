"""Who is at the other end of a connection, and what bytes that are no request may be."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.server.net.sockets import (
    JOIN_BYTES_MAX,
    PLAINTEXT,
    Ends,
    ends_of,
    explained,
    set_options,
    write_together,
)
from quorumd.wire.errors import MalformedMessage


def connected(**names: Any) -> asyncio.BaseTransport:
    return cast(asyncio.BaseTransport, SimpleNamespace(get_extra_info=names.get))


@pytest.mark.parametrize(
    ("peer", "own", "ends"),
    [
        (("10.0.0.9", 5), ("10.0.0.1", 9092), Ends("10.0.0.9:5", "10.0.0.9", False)),
        (("10.0.0.1", 5), ("10.0.0.1", 9092), Ends("10.0.0.1:5", "10.0.0.1", True)),
        (("127.0.0.2", 5), ("127.0.0.1", 9092), Ends("127.0.0.2:5", "127.0.0.2", False)),
        (("::1", 5, 0, 0), ("::1", 9092, 0, 0), Ends("::1:5", "::1", True)),
        (
            ("::ffff:10.0.0.9", 5, 0, 0),
            ("::ffff:10.0.0.1", 9092, 0, 0),
            Ends("::ffff:10.0.0.9:5", "10.0.0.9", False),
        ),
        (("10.0.0.9", 5), None, Ends("10.0.0.9:5", "10.0.0.9", False)),
        (None, None, Ends()),
    ],
)
def test_an_address_is_the_same_on_listeners_of_both_families(
    peer: Any, own: Any, ends: Ends
) -> None:
    assert ends_of(connected(peername=peer, sockname=own)) == ends


def test_a_hello_of_tls_is_explained_where_plaintext_is_spoken_and_nowhere_else() -> None:
    error = MalformedMessage("a frame of 369295616 bytes")
    hello = b"\x16\x03\x01\x02\x00"
    explanation, sent = explained(error, hello, is_tls=False)
    assert (str(explanation), sent) == ("TLS on a listener that is plaintext here", [PLAINTEXT])
    assert explained(error, hello, is_tls=True) == (error, [])
    assert explained(error, b"\x7f" + hello, is_tls=False) == (error, [])


def test_nothing_waits_to_be_sent_with_what_comes_later() -> None:
    with socket.socket() as made:
        set_options(connected(socket=made))
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize(
    ("sizes", "call"),
    [
        ((JOIN_BYTES_MAX + 1,), "write"),
        ((1, JOIN_BYTES_MAX - 1), "write"),
        ((1, JOIN_BYTES_MAX), "writelines"),
    ],
)
def test_what_is_small_is_joined_and_what_is_large_is_not(
    sizes: tuple[int, ...], call: str
) -> None:
    calls: list[tuple[str, int]] = []
    transport = SimpleNamespace(
        write=lambda data: calls.append(("write", len(data))),
        writelines=lambda buffers: calls.append(("writelines", sum(map(len, buffers)))),
    )
    write_together(cast(asyncio.Transport, transport), [bytes(size) for size in sizes])
    assert calls == [(call, sum(sizes))]
