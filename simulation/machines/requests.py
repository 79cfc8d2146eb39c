"""The response to a request of the simulated network goes back into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumd.security.identity import ANONYMOUS, Identity
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.headers import decode_request_header
from simulation.machines.channel import Channel, Reply
from simulation.machines.process import Process


def sim_request(
    process: Process,
    channel: Channel,
    frame: bytes,
    received_ns: int,
    reply: Reply,
    reset: Callable[[], None],
) -> InboundRequest:
    """A request that responds into the simulated network. `frame` has no length in front."""
    header, body_at = decode_request_header(frame)
    return InboundRequest(
        _WayBack(process, channel, reply, reset),
        header.api_key,
        header.api_version,
        header.correlation_id,
        frame,
        body_at,
        received_ns,
    )


class _WayBack:
    """The connection of one request, as the request and its handler see it.

    The simulated network holds any number of bytes, and brings responses in the order in which they leave.
    """

    def __init__(
        self, process: Process, channel: Channel, reply: Reply, reset: Callable[[], None]
    ) -> None:
        self.listener = channel.listener
        self.peer = channel.peer
        self.identity: Identity | None = None
        self.principal = ANONYMOUS
        self.in_flight_bytes = 0
        self._arrived_us = process.scheduler.now_us
        self._process = process
        self._channel = channel
        self._reply = reply
        self._reset = reset

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    @property
    def client_software_name(self) -> str:
        return self._channel.client_software_name

    @client_software_name.setter
    def client_software_name(self, name: str) -> None:
        self._channel.client_software_name = name

    @property
    def client_software_version(self) -> str:
        return self._channel.client_software_version

    @client_software_version.setter
    def client_software_version(self, version: str) -> None:
        self._channel.client_software_version = version

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        self._process.on_effect()
        frame = b"".join(buffers)
        if frame:
            self._process.on_response(request, self._arrived_us, frame)
            self._reply(frame)

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        self._reset()

    def close(self, closed: CloseReason, reason: str) -> None:
        self._reset()
