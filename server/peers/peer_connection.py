"""One connection to a peer: the handshake, and frames in both directions."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Final, Protocol, cast

from quorumd.security.errors import CertificateProblem, PeerSpeaksTls
from quorumd.security.tls_records import TLS_ALERT
from quorumd.server.model.metrics import Metrics
from quorumd.wire.codec import decode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from quorumd.wire.registry import API_VERSIONS_KEY

API_VERSIONS_VERSION: Final = 3
HANDSHAKE_ID: Final = 1
_LENGTH: Final = Struct(">I")
_LENGTH_BYTES: Final = 4
RESPONSE_BYTES_MAX: Final = 128 * 2**20
"""No peer sends a larger response: a fetch asks for at most 8 MiB plus one batch."""


class Receiver(Protocol):
    """The channel that has taken a connection."""

    def on_frame(self, frame: bytes) -> None:
        """A frame has come. Raises MalformedMessage."""

    def on_malformed(self, error: MalformedMessage) -> None:
        """Called when received bytes are malformed; nothing more of them is passed on."""

    def on_lost(self, exc: Exception | None) -> None:
        """The connection is gone; either end may have closed it."""


class PeerConnection(asyncio.Protocol):
    """Makes the ApiVersions exchange, then passes frames on to the channel that has taken the connection.

    Before that it has none: uvloop announces a connection whose attempt was cancelled in that very moment,
    and never announces its end.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._buffer = FrameBuffer(RESPONSE_BYTES_MAX)
        self._first: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
        self._early: list[bytes] = []
        self._problem: MalformedMessage | None = None
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self.is_lost = False
        self.announced = ApiVersionsResponse()
        """ApiVersions response of the peer; empty before the handshake."""

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "used once it is there"
        return self._transport

    async def shake_hands(self, frame: bytes) -> None:
        """Learn what the peer announces.

        Raises MalformedMessage if it refuses, OSError if it hangs up, CertificateProblem.
        """
        self._metrics.peer_bytes_sent += len(frame)
        self.transport.write(frame)
        response = await self._first
        if isinstance(response, Exception):
            raise response
        version = API_VERSIONS_VERSION
        correlation_id, body_at = decode_response_header(API_VERSIONS_KEY, version, response)
        if correlation_id != HANDSHAKE_ID:
            raise MalformedMessage(f"correlation id {correlation_id}, not {HANDSHAKE_ID}")
        code = int.from_bytes(response[body_at : body_at + 2], "big", signed=True)
        if code not in (0, ErrorCode.UNSUPPORTED_VERSION):
            raise MalformedMessage(f"the handshake was refused with error {code}")
        self.announced = decode(ApiVersionsResponse, 0 if code else version, response, body_at)

    def abort(self) -> None:
        """Give it up."""
        self._first.cancel()
        if self._transport is not None:
            self._transport.abort()

    def hand_to(self, receiver: Receiver) -> None:
        """From now on the channel gets the frames, and hears of the end."""
        self._receiver = receiver
        try:
            for frame in self._early:
                receiver.on_frame(frame)
            if self._problem is not None:
                raise self._problem
        except MalformedMessage as error:
            receiver.on_malformed(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._metrics.peer_bytes_received += size
        try:
            if size > _LENGTH_BYTES and not self._buffer.bytes_held:
                (length,) = _LENGTH.unpack_from(data)
                if length == size - _LENGTH_BYTES <= RESPONSE_BYTES_MAX:
                    # One whole response, as nearly all of them come.
                    self._on_frame(data[_LENGTH_BYTES:])
                    return
            self._buffer.feed(data)
            while frames := self._buffer.frames():
                for frame in frames:
                    self._on_frame(frame)
        except MalformedMessage as error:
            if data.startswith(TLS_ALERT) and not self._first.done():
                self._first.set_result(PeerSpeaksTls())
            else:
                self._on_malformed(error)

    def _on_frame(self, frame: bytes) -> None:
        if self._receiver is not None:
            self._receiver.on_frame(frame)
        elif not self._first.done():
            self._first.set_result(frame)
        else:
            self._early.append(frame)

    def _on_malformed(self, error: MalformedMessage) -> None:
        if self._receiver is not None:
            self._receiver.on_malformed(error)
        elif not self._first.done():
            self._first.set_result(error)
        else:
            self._problem = error

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._receiver is not None:
            self._receiver.on_lost(exc)
        elif not self._first.done():
            is_tls = isinstance(exc, CertificateProblem)
            at_once = ConnectionAbortedError(f"closed by the peer at once ({exc})")
            self._first.set_result(exc if is_tls and exc is not None else at_once)
