"""One inbound connection without a network, and a dispatcher that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from quorumd.raft.types import Endpoint
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.connection_slots import ConnectionSlots
from quorumd.server.net.inbound_request import InboundRequest, Steps
from tests.support.serving import answer_frame


class Transport:
    """Remembers what a connection asks of its transport."""

    def __init__(self, ip: str = "127.0.0.1") -> None:
        self.calls: list[str] = []
        self.sent = b""
        self._ip = ip

    def get_extra_info(self, name: str) -> object:
        addresses = {"peername": (self._ip, 1), "sockname": ("127.0.0.1", 1)}
        return addresses.get(name, self)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def setsockopt(self, *option: int) -> None:
        """As a socket's."""

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


class Keeping:
    """A dispatcher that answers nothing by itself; `work` is what the requests leave to later turns."""

    def __init__(self) -> None:
        self.requests: list[InboundRequest] = []
        self.work: Steps | None = None

    def dispatch(self, request: InboundRequest) -> Steps | None:
        self.requests.append(request)
        return self.work

    def answer_all(self) -> None:
        requests, self.requests = self.requests, []
        for request in requests:
            request.respond((answer_frame(request),))


class At:
    """One connection without a network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, has_place: bool = True) -> None:
        self.loop = loop
        self.transport = Transport()
        self.dispatcher = Keeping()
        group: ConnectionGroup[Connection] = ConnectionGroup(
            loop,
            self.dispatcher,
            Metrics(),
            max_frame_bytes=1 << 20,
            max_connections=1,
        )
        if not has_place:
            group.slots = ConnectionSlots(1, None, group.metrics.connections_by_kind, new_max=0)
        self.group = group
        self.connection = Connection(group, Endpoint("PLAINTEXT", "127.0.0.1", 1))
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.states = [self.connection.state]

    def note(self) -> None:
        if self.connection.state is not self.states[-1]:
            self.states.append(self.connection.state)

    def turn(self) -> None:
        """Let the event loop do what waits for the end of the turn."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        self.note()
