"""The links between nodes, which can be cut: a process that passes on what nodes send to each other.

A node is reached by the others at its link's port; what arrives there is passed on to the node's own port.
A link that is cut passes nothing on in either direction, as a network would that loses packets: connections
stay open, new ones are begun and hang, and what was sent arrives when it is mended. While no process
listens behind a link, it refuses connections as that host would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

HOST = "127.0.0.1"
BACKLOG = 128
PIECE_BYTES = 1 << 16
CHECK_S = 0.01
"""Between two checks whether a process listens behind a link."""
_CLIENT_ID_AT = 14
"""In a request, behind the lengths of the request and of the client id, and three numbers."""
_NODES_CLIENT_ID = re.compile(rb"raft-client-(\d+)")
"""Client id of nodes for each other, as Kafka's have it."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that is reset when it is closed."""


class LinkedNode(NamedTuple):
    """A node behind a link: where others connect to, and where it listens."""

    node: int
    link_port: int
    own_port: int


class Links:
    """All links of one quorum."""

    def __init__(self, nodes: Iterable[LinkedNode]) -> None:
        self._nodes = list(nodes)
        self._cut: set[frozenset[int | None]] = set()
        self._mended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._down = {node.node: asyncio.Event() for node in self._nodes}

    async def serve(self, control: socket.socket) -> None:
        """Until the other end of `control` is closed. It sends the pairs that are cut, and gets them back."""
        tasks = [asyncio.create_task(self._serve(node)) for node in self._nodes]
        while data := await self._loop.sock_recv(control, PIECE_BYTES):
            self._cut = {frozenset(pair) for pair in json.loads(data)}
            self._mended.set()
            self._mended = asyncio.Event()
            await self._loop.sock_sendall(control, data)
        for task in tasks:
            task.cancel()

    async def _serve(self, node: LinkedNode) -> None:
        """Listen whenever the node does."""
        while True:
            await _until_up(node)
            self._down[node.node].clear()
            with socket.create_server((HOST, node.link_port), backlog=BACKLOG) as listener:
                listener.setblocking(False)
                accepting = asyncio.create_task(self._accept(node, listener))
                await self._down[node.node].wait()
                accepting.cancel()

    async def _accept(self, node: LinkedNode, listener: socket.socket) -> None:
        while True:
            near, _ = await self._loop.sock_accept(listener)
            task = asyncio.create_task(self._connect(node, near))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connect(self, to: LinkedNode, near: socket.socket) -> None:
        near.setblocking(False)
        far = socket.socket()
        far.setblocking(False)
        with near, far:
            try:
                first = await self._first_bytes(near)
                pair = frozenset((_node_of(first), to.node))
                await self._passable(pair)
                await self._loop.sock_connect(far, (HOST, to.own_port))
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._loop.sock_sendall(far, first)
                await self._pass_both(near, far, pair)
            except OSError:
                for each in (near, far):
                    with contextlib.suppress(OSError):
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # A peer that sees the end of the connection finds the port closed if the process is gone.
            if not await _is_up(to):
                self._down[to.node].set()
                await asyncio.sleep(0)

    async def _pass_both(
        self, near: socket.socket, far: socket.socket, pair: frozenset[int | None]
    ) -> None:
        """Until one side has closed, or has reset, the connection. Raises OSError for the latter."""
        ways = [
            asyncio.create_task(self._pass_on(near, far, pair)),
            asyncio.create_task(self._pass_on(far, near, pair)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, source: socket.socket, target: socket.socket, pair: frozenset[int | None]
    ) -> None:
        while True:
            await self._passable(pair)
            data = await self._loop.sock_recv(source, PIECE_BYTES)
            await self._passable(pair)
            if not data:
                return
            await self._loop.sock_sendall(target, data)

    async def _passable(self, pair: frozenset[int | None]) -> None:
        while pair in self._cut:
            await self._mended.wait()

    async def _first_bytes(self, near: socket.socket) -> bytes:
        """Of a connection, up to the client id in the first request. Raises OSError if it ends before."""
        data = b""
        while len(data) < _CLIENT_ID_AT or len(data) < _CLIENT_ID_AT + _client_id_bytes(data):
            piece = await self._loop.sock_recv(near, PIECE_BYTES)
            if not piece:
                raise ConnectionAbortedError("nothing was asked")
            data += piece
        return data


def _client_id_bytes(data: bytes) -> int:
    return max(0, int.from_bytes(data[_CLIENT_ID_AT - 2 : _CLIENT_ID_AT], "big", signed=True))


def _node_of(data: bytes) -> int | None:
    """The node that sent this first request; None if it is no node's."""
    client_id = data[_CLIENT_ID_AT : _CLIENT_ID_AT + _client_id_bytes(data)]
    found = _NODES_CLIENT_ID.fullmatch(client_id)
    return None if found is None else int(found[1])


async def _until_up(node: LinkedNode) -> None:
    while True:
        if await _is_up(node):
            return
        await asyncio.sleep(CHECK_S)


async def _is_up(node: LinkedNode) -> bool:
    """True if a process listens at the node's own port."""
    with socket.socket() as probe:
        probe.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(probe, (HOST, node.own_port))
        except OSError:
            return False
    return True


def run(control: int, nodes: Iterable[LinkedNode]) -> None:
    """The main function of the process; `control` is its end of the socket."""

    async def serve() -> None:
        with socket.socket(fileno=control) as channel:
            channel.setblocking(False)
            await Links(nodes).serve(channel)

    asyncio.run(serve())
