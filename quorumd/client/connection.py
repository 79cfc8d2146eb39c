"""One connection to one server: requests out, responses matched to them, versions negotiated.

Knows no leader and does not retry. Any error ends the connection, and every pending request fails with
`ConnectionFailed`, whose text is the reason. That a caller had little time is no error of the connection.
Source: KIP-35 and KIP-511 (ApiVersions); responses come in the order of the requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, TypeVar, cast

from quorumd.client.error_messages import SPEAKS_PLAINTEXT, SPEAKS_TLS
from quorumd.client.errors import (
    ConnectionFailed,
    NotSupported,
    RequestRefused,
    ResponseOverdue,
    error_code,
)
from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem, HandshakeBroken, PeerSpeaksPlaintext
from quorumd.security.tls_records import TLS_ALERT
from quorumd.version import VERSION
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.registry import API_VERSIONS_KEY
from quorumd.wire.schema import Message

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
SILENT_S = 3.0
"""A server that owes a response and sends nothing for so long is given up."""
SOFTWARE_NAME = "quorumctl"
CLIENT_ID_DEFAULT = "quorumd-client"
"""Of programs that use the library; a node keeps slots for `quorumctl`, and for no program."""

R = TypeVar("R", bound=Message)


class SentRequest(NamedTuple):
    """A request that waits for its response; `response` becomes the whole frame."""

    api_key: int
    api_version: int
    correlation_id: int
    response: asyncio.Future[bytes]


class ClientConnection(asyncio.Protocol):
    """An open connection. Made by a Connector."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer(RESPONSE_BYTES_MAX)
        self._waiting: deque[SentRequest] = deque()
        self._next_correlation_id = 0
        self._silent_since_s = 0.0
        """Since when the server owes a response and has sent nothing."""
        self._failure: str | None = None
        self._problem: CertificateProblem | None = None
        self._is_mute = False

    @property
    def is_open(self) -> bool:
        return self._failure is None and self._transport is not None

    def offers(self, request_type: type[Message]) -> bool:
        """True if the server and this client have a version of the request in common."""
        return self._common_version(request_type) is not None

    def version_for(self, request_type: type[Message]) -> int:
        """The highest version that both sides support. Raises NotSupported if there is none."""
        found = self._common_version(request_type)
        if found is None:
            name = request_type.__name__.removesuffix("Request")
            raise NotSupported(
                f"{self.address} is reachable but does not offer {name}, so it is no quorumd node. "
                "A Kafka controller responds to `quorumctl describe`, and `quorumctl dump-log` reads "
                "its directory; for anything else name a quorumd node."
            )
        return found

    async def request(
        self,
        message: Message,
        response_type: type[R],
        *,
        timeout_s: float,
        patience_s: float = 0.0,
        version: int = -1,
    ) -> R:
        """Sends and waits for the response. Raises ConnectionFailed, ResponseOverdue, NotSupported.

        After `timeout_s` the connection is ended if the server had SILENT_S to send anything. As long as it
        does send, a response that is large and a link that is slow may take up to `patience_s`.
        """
        if version < 0:
            version = self.version_for(type(message))
        sent = self.send(message, version)
        begun_s, limit_s = self._loop.time(), timeout_s
        # Not awaited itself, which would end it with the first time limit.
        while not (await asyncio.wait((sent.response,), timeout=limit_s))[0]:
            so_far_s = self._loop.time() - begun_s
            limit_s = min(SILENT_S - self._silent_s(), patience_s - so_far_s)
            if limit_s <= 0:
                name = type(message).__name__.removesuffix("Request")
                waited_s = max(timeout_s, min(so_far_s, patience_s))
                raise self.overdue(f"no response to {name} within {waited_s:.3g} s", waited_s)
        return self.read(sent.response.result(), sent, response_type)

    def overdue(self, reason: str, waited_s: float) -> ConnectionFailed:
        """The error for a response that did not come in this time.

        The connection is ended if the server had SILENT_S to send anything, for this response or another.
        """
        if max(waited_s, self._silent_s()) < SILENT_S:
            return ResponseOverdue(reason)
        self.fail(reason)
        return self._failed()

    def _silent_s(self) -> float:
        """Seconds in which the server has sent nothing while a response was waited for."""
        return self._loop.time() - self._silent_since_s

    def send(self, message: Message, version: int) -> SentRequest:
        """Sends at `version` and returns at once. Raises ConnectionFailed if nothing can be sent.

        Raises RuntimeError in another event loop than that of the connection.
        """
        api_key = type(message).wire_spec.api_key
        assert api_key is not None
        return self.send_body(api_key, version, encode(message, version))

    def send_body(self, api_key: int, version: int, body: bytes) -> SentRequest:
        """As `send`, with a body that is encoded already."""
        transport, loop = self._transport, asyncio.get_running_loop()
        if loop is not self._loop:
            raise RuntimeError(
                "this client has connections of another event loop: make a client in each "
                "`asyncio.run`, or use quorumd.sync"
            )
        if transport is None or self._failure is not None:
            raise self._failed()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        header = encode_request_header(api_key, version, correlation_id, self._client_id)
        response = loop.create_future()
        sent = SentRequest(api_key, version, correlation_id, response)
        if not self._waiting:
            self._silent_since_s = loop.time()
        self._waiting.append(sent)
        transport.write(b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body)))
        return sent

    def read(self, frame: bytes, sent: SentRequest, response_type: type[R]) -> R:
        """The response in a frame. One that can't be read ends the connection: ConnectionFailed."""
        try:
            _, at = decode_response_header(sent.api_key, sent.api_version, frame)
            return decode(response_type, sent.api_version, frame, at)
        except MalformedMessage as error:
            self.fail(f"sent a response that can't be read: {error}")
            raise self._failed() from None

    def fail(self, reason: str) -> None:
        """Ends the connection; every pending request fails with this reason."""
        if self._failure is None:
            self._failure = reason
        if self._transport is not None:
            # Without its loop it is left to the garbage collector, which closes the socket.
            if not self._loop.is_closed():
                self._transport.abort()
            self._transport = None
        while self._waiting:
            response = self._waiting.popleft().response
            if not response.done():
                response.set_exception(self._failed())
                # The sender may have given up: asyncio must not report the exception as never retrieved.
                response.exception()

    def close(self) -> None:
        """Ends the connection because it is not needed any more."""
        self.fail("the connection was closed")

    async def negotiate(self, timeout_s: float) -> None:
        """ApiVersions, at the highest version both know. Raises ConnectionFailed, RequestRefused."""
        highest = ApiVersionsRequest.wire_spec.versions.last
        response = await self._ask_versions(highest, timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = [
                key.max_version for key in response.api_keys if key.api_key == API_VERSIONS_KEY
            ]
            response = await self._ask_versions(min([*offered, highest], default=0), timeout_s)
        if response.error_code:
            raise RequestRefused("agree on versions", error_code(response.error_code))
        self.versions = {
            key.api_key: (key.min_version, key.max_version) for key in response.api_keys
        }

    async def _ask_versions(self, api_version: int, timeout_s: float) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=VERSION
        )
        sent = self.send(request, api_version)
        try:
            async with asyncio.timeout(timeout_s):
                frame = await sent.response
        except TimeoutError:
            self.fail(f"accepts connections but did not respond within {timeout_s:.3g} s")
            raise self._failed() from None
        if frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            # KIP-511: whatever was asked for, this error comes in the body of version 0.
            sent = sent._replace(api_version=0)
        return self.read(frame, sent, ApiVersionsResponse)

    def _common_version(self, request_type: type[Message]) -> int | None:
        spec = request_type.wire_spec
        assert spec.api_key is not None
        offered = self.versions.get(spec.api_key)
        if offered is None:
            return None
        highest = min(offered[1], spec.versions.last)
        return highest if highest >= max(offered[0], spec.versions.first) else None

    def _failed(self) -> ConnectionFailed:
        reason = self._failure or "the connection is not open"
        return ConnectionFailed(reason, self._problem, is_mute=self._is_mute)

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._silent_since_s = self._loop.time()
        try:
            self._frames.feed(data)
            while frames := self._frames.frames():
                for frame in frames:
                    self._take(frame)
        except MalformedMessage as error:
            if data.startswith(b"HTTP"):
                self.fail("responds in HTTP: that is not the port of a listener")
            elif data.startswith(TLS_ALERT):
                self._problem = CertificateProblem(SPEAKS_TLS)
                self.fail(SPEAKS_TLS)
            else:
                self.fail(f"sent something that is not Kafka's protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if isinstance(error, HandshakeBroken):
            reason, self._is_mute = str(error), True
        elif isinstance(error, PeerSpeaksPlaintext):
            reason, self._problem = SPEAKS_PLAINTEXT, PeerSpeaksPlaintext(SPEAKS_PLAINTEXT)
        elif isinstance(error, CertificateProblem):
            reason, self._problem = str(error), error
        elif self._waiting and not self.versions:
            reason, self._is_mute = "closed the connection at once", True
        elif isinstance(error, ConnectionResetError):
            reason = "the connection was reset"
        elif error is not None:
            reason = f"the connection broke: {error}"
        else:
            reason = "closed the connection"
        self.fail(reason)

    def _take(self, frame: bytes) -> None:
        if not self._waiting:
            raise MalformedMessage("a response to no request")
        sent = self._waiting.popleft()
        if int.from_bytes(frame[:4], "big") != sent.correlation_id:
            self._waiting.appendleft(sent)
            raise MalformedMessage("a response to another request")
        if not sent.response.done():
            sent.response.set_result(frame)
