"""A request as a simulated node sees it: real frames, answered into the simulated network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.wire.headers import decode_request_header
from simulation.machines.channel import Channel, Reply
from simulation.machines.process import Process


class SimRequest(InboundRequest):
    """A request that answers into the simulated network. `frame` has no length in front."""

    def __init__(
        self,
        process: Process,
        channel: Channel,
        frame: bytes,
        received_ns: int,
        reply: Reply,
        reset: Callable[[], None],
    ) -> None:
        header, body_at = decode_request_header(frame)
        super().__init__(
            cast(RequestConnection, channel),
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            frame,
            body_at,
            received_ns,
        )
        self._arrived_us = process.scheduler.now_us
        self._process = process
        self._reply = reply
        self._reset = reset

    def reserve(self, size_bytes: int) -> None:
        """The simulated network holds any number of bytes."""

    def respond(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self.response is None, "a request is answered twice"
        self.response = buffers
        self._process.on_effect()
        frame = b"".join(buffers)
        if frame:
            self._process.on_response(self, self._arrived_us, frame)
            self._reply(frame)

    def close(self, reason: str, closed: CloseReason = CloseReason.REFUSED) -> None:
        assert self.response is None, "a request is answered twice"
        self.response = closed
        self._reset()
