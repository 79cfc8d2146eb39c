"""Servers and raw clients on one event loop, for tests that speak through real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import uvloop

from quorumd.config.connection_limits import NO_LIMITS, ConnectionLimits, ListenerLimits
from quorumd.raft.types import Endpoint
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import TlsSide
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.inbound_request import InboundRequest, Steps
from quorumd.server.net.listeners import Listeners

T = TypeVar("T")
OnRequest = Callable[[InboundRequest], Steps | None]

API_VERSIONS, PRODUCE, DESCRIBE_CLUSTER = 18, 0, 60
DEADLINE_S = 10.0


def run(work: Coroutine[Any, Any, T], deadline_s: float = DEADLINE_S) -> T:
    """Run to the end on an event loop like the daemon's; fails after `deadline_s`."""

    async def bounded() -> T:
        async with asyncio.timeout(deadline_s):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds; the test's deadline bounds it."""
    while not condition():  # noqa: ASYNC110 - counters of the server have no event to wait for
        await asyncio.sleep(0.001)


def frame(body: bytes) -> bytes:
    """A frame: length and body."""
    return struct.pack(">i", len(body)) + body


def request_frame(
    correlation_id: int,
    *,
    key: int = PRODUCE,
    version: int = 9,
    client_id: bytes | None = b"tester",
    tags: bytes = b"\0",
    body: bytes = b"",
) -> bytes:
    """A request; `tags` is the header's tag section, empty for versions that are not flexible."""
    head = struct.pack(">hhi", key, version, correlation_id)
    size = struct.pack(">h", -1 if client_id is None else len(client_id))
    return frame(head + size + (client_id or b"") + tags + body)


def answer_frame(request: InboundRequest, body: bytes = b"") -> bytes:
    """What the tests' handlers answer: the correlation id, and a body."""
    return frame(struct.pack(">i", request.correlation_id) + body)


class Parking:
    """A dispatcher that keeps requests until the test answers them."""

    def __init__(self, on_request: OnRequest | None = None) -> None:
        self.requests: list[InboundRequest] = []
        self._on_request = on_request
        self._changed = asyncio.Condition()
        self._notes: set[asyncio.Task[None]] = set()

    def dispatch(self, request: InboundRequest) -> Steps | None:
        self.requests.append(request)
        note = asyncio.ensure_future(self._note())
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)
        return None if self._on_request is None else self._on_request(request)

    async def received(self, count: int) -> list[InboundRequest]:
        """All requests so far, as soon as there are so many."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def answering(request: InboundRequest) -> None:
    """Answer at once, with the body that was sent."""
    request.respond((answer_frame(request, request.frame[request.body_at :]),))


class Client:
    """A connection that sends any bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Correlation id and body of the next answer."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        data = await self.reader.readexactly(length)
        return struct.unpack_from(">i", data)[0], data[4:]

    async def rest(self) -> bytes:
        """Everything until the server closes; then this side closes too."""
        data = await self.reader.read()
        self.close()
        return data

    def close(self) -> None:
        self.writer.transport.abort()

    def reset(self) -> None:
        """Close so that the server knows at once that nobody reads any more."""
        connected = self.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class Served:
    """Open listeners, and clients that are closed with them."""

    def __init__(self, listeners: Listeners, metrics: Metrics) -> None:
        self.listeners = listeners
        self.metrics = metrics
        self._clients: list[Client] = []

    @property
    def open_count(self) -> int:
        """Of connections."""
        return sum(self.metrics.connections_at.values())

    async def connect(
        self, listener: int = 0, tls: ssl.SSLContext | None = None, *, ip: str = ""
    ) -> Client:
        """From `ip`, of the loopback network: to a node one that is not its own is a stranger's."""
        address, local = self.listeners.addresses[listener], (ip, 0) if ip else None
        opened = await asyncio.open_connection(
            address.host, address.port, ssl=tls, local_addr=local
        )
        client = Client(*opened)
        self.add(client)
        return client

    def add(self, client: Client) -> None:
        """Close this one with the others."""
        self._clients.append(client)

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def serving(
    dispatcher: Parking,
    *,
    names: tuple[str, ...] = ("PLAINTEXT",),
    max_frame_bytes: int = 1 << 20,
    max_connections: int = 100,
    max_idle_ms: int = 0,
    sides: Mapping[str, TlsSide] = MappingProxyType({}),
    limits: ConnectionLimits = NO_LIMITS,
    limits_of: Mapping[str, ListenerLimits] = MappingProxyType({}),
) -> AsyncIterator[Served]:
    """Listeners on free ports of the loopback."""
    metrics = Metrics()
    handshakes = Handshakes()
    listeners = Listeners(
        tuple(Endpoint(name, "127.0.0.1", 0) for name in names),
        dispatcher,
        metrics,
        max_frame_bytes=max_frame_bytes,
        max_connections=max_connections,
        max_idle_ms=max_idle_ms,
        sides=sides,
        handshakes=handshakes,
        limits=limits,
        limits_of=limits_of,
    )
    await listeners.open()
    served = Served(listeners, metrics)
    try:
        yield served
    finally:
        served.close_clients()
        await listeners.close(0)
        handshakes.close()
