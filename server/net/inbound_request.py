"""One request of an inbound connection, and its response."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from struct import Struct
from typing import Final, Protocol

from quorumd.raft.types import Endpoint
from quorumd.security.identity import Identity
from quorumd.server.model.logs import Logger
from quorumd.server.net.connection_state import CloseReason
from quorumd.wire.codec import encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import encode_response_header
from quorumd.wire.schema import Message

_LENGTH: Final = Struct(">i")
_HEAD: Final = Struct(">hhi")
HEAD_BYTES: Final = _HEAD.size
NO_KEY: Final = 1 << 15
WAITS: Final = True
Steps = Generator[bool | None, None, None]
"""Steps of a request that are left. One that is WAITS has done nothing, since others have to end before."""
LOG: Final = Logger("net")


def head_of(frame: bytes) -> tuple[int, int, int]:
    """Api key, version and correlation id of a request; NO_KEY of one that is too short to have them."""
    if len(frame) < HEAD_BYTES:
        return NO_KEY, NO_KEY, 0
    key, version, correlation_id = _HEAD.unpack_from(frame)
    return key, version, correlation_id


class RequestConnection(Protocol):
    """The connection of a request, as the request and its handler see it."""

    listener: Endpoint
    peer: str
    identity: Identity | None
    """Of the client's certificate; None without TLS."""
    principal: str
    """`User:` and a name; ANONYMOUS without a certificate, and on plaintext."""
    client_software_name: str
    """From ApiVersions on this connection, empty before it; set by the handler."""
    client_software_version: str
    in_flight_bytes: int
    """Of requests without a response, and of responses that are expected for them."""

    @property
    def is_open(self) -> bool: ...

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        """Send the response of a request as soon as all earlier requests have theirs."""

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        """Take no further request, and close once all earlier ones have their responses."""

    def close(self, closed: CloseReason, reason: str) -> None:
        """Close as soon as the responses that exist are sent; no further request is read."""


class InboundRequest:
    """A request that must get a response, be finished or be closed exactly once.

    The body is `frame[body_at:]`. `received_ns` is of `time.monotonic_ns`. Once the connection is gone,
    responses are dropped without an error.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "body_at",
        "connection",
        "correlation_id",
        "frame",
        "held_bytes",
        "received_ns",
        "response",
    )

    def __init__(
        self,
        connection: RequestConnection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        frame: bytes,
        body_at: int,
        received_ns: int,
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.frame = frame
        self.held_bytes = len(frame)
        self.body_at = body_at
        self.received_ns = received_ns
        self.response: Sequence[bytes | memoryview] | CloseReason | None = None
        """The response, or why the connection is closed instead; None before."""

    @property
    def listener(self) -> Endpoint:
        """The listener on which the request came in."""
        return self.connection.listener

    def reserve(self, size_bytes: int) -> None:
        """Count so many bytes of a response to come as if they were in flight.

        A connection takes no further request while too many are in flight: this bounds the responses that
        are read from disk and wait for earlier ones.
        """
        self.held_bytes += size_bytes
        self.connection.in_flight_bytes += size_bytes

    def respond(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Respond with a complete frame, its length and header included, in one or more buffers.

        The buffers must not change any more: they may be sent later, and are not copied.
        """
        assert self.response is None, "a request gets one response"
        self.response = buffers
        self.connection.send(self, buffers)

    def respond_message(self, message: Message, version: int | None = None) -> None:
        """Respond with a message in the request's version, or in another (ApiVersions' error 35).

        A message that does not fit that version closes the connection: a handler that responds later has no
        caller to raise an error to.
        """
        if version is None:
            version = self.api_version
        header = encode_response_header(self.api_key, version, self.correlation_id)
        try:
            body = encode(message, version)
        except MalformedMessage as error:
            self.close(f"the response does not fit version {version}: {error}")
            return
        self.respond((_LENGTH.pack(len(header) + len(body)) + header + body,))

    def finish_without_response(self) -> None:
        """Send nothing: the request wants no response (acks=0)."""
        self.respond(())

    def close(self, reason: str, closed: CloseReason = CloseReason.REFUSED) -> None:
        """Close the connection once all earlier requests have their responses; a log line says why.

        Nothing more is read from it, and requests behind this one get no response.
        """
        assert self.response is None, "a request gets one response"
        self.response = closed
        self.connection.close_behind(self, closed, reason)

    def fail(self, error: Exception) -> None:
        """Close the connection, because bytes are malformed or because of a bug."""
        closed, reason = CloseReason.MALFORMED, str(error)
        if not isinstance(error, MalformedMessage):
            closed, reason = CloseReason.FAILED, f"the request could not be handled: {error}"
            about = {"api_key": self.api_key, "version": self.api_version}
            LOG.exception("request failed", error, peer=self.connection.peer, **about)
        if self.response is None:
            self.close(reason, closed)
        else:
            self.connection.close(closed, reason)


class Dispatcher(Protocol):
    """Takes the requests of all connections."""

    def dispatch(self, request: InboundRequest) -> Steps | None:
        """Take one request, and respond now or later; called while its bytes are received.

        Long work is returned as steps of less than a millisecond each. They are made in later turns of the
        event loop, and no further request of the connection is dispatched before the last step; if the
        connection is gone, the steps may be closed before. MalformedMessage closes the connection as the
        peer's fault, any other exception as a bug.
        """
