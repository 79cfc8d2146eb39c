"""One inbound connection: bytes to requests in the order in which they came, answers in that same order.

Handlers may answer in any order and at any time; an answer waits until all earlier requests of its
connection are answered. A connection that has too many requests unanswered, or whose peer doesn't read, is
not read from until that has changed. Whatever goes wrong on a connection closes it and touches no other.
Knows headers, not what messages mean. Belongs to the event loop's thread.
Source: Apache Kafka protocol guide, "Network" (order); KIP-511 (ApiVersions of unknown versions).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from struct import Struct
from time import monotonic_ns
from typing import Final, cast

from quorumd.config.model import Listener
from quorumd.server.model.logs import Logger
from quorumd.server.net.connection_group import CloseReason, ConnectionGroup
from quorumd.wire.codec import encode
from quorumd.wire.errors import MalformedMessage, UnsupportedVersion
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.headers import decode_request_header, encode_response_header
from quorumd.wire.schema import Message

MAX_IN_FLIGHT: Final = 1_000
NO_KEY: Final = 1 << 15
MAX_IN_FLIGHT_BYTES: Final = 16 << 20
WRITE_BUFFER_BYTES: Final = 1 << 20
LINGER_S: Final = 1.0
JOIN_BYTES_MAX: Final = 8 << 10

_INT32 = Struct(">i")
_KEY_AND_VERSION = Struct(">hh")
_HEAD = Struct(">ihhi")
_LOGGER = Logger("net")


class InboundRequest:
    """A request that must be answered, finished or closed exactly once.

    The body is `frame[body_at:]`. `received_ns` is of `time.monotonic_ns`. Once the connection is gone,
    answers go nowhere without an error.
    """

    __slots__ = (
        "_answer",
        "api_key",
        "api_version",
        "body_at",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "received_ns",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str,
        frame: bytes,
        body_at: int,
        received_ns: int,
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.frame = frame
        self.body_at = body_at
        self.received_ns = received_ns
        self._answer: Sequence[bytes | memoryview] | CloseReason | None = None

    @property
    def listener(self) -> Listener:
        """The listener on which the request came in."""
        return self.connection.listener

    def respond(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Answer with a complete frame, its length and header included, in one or more pieces.

        The pieces must not change any more: they may be sent later, and are not copied.
        """
        assert self._answer is None, "a request is answered twice"
        self._answer = buffers
        connection = self.connection
        waiting = connection._waiting
        if not waiting or waiting[0] is not self:
            return
        if (
            len(waiting) > 1
            or len(buffers) != 1
            or connection._out
            or connection._is_collecting
            or connection._is_held
            or connection._reason is not None
        ):
            connection._send_finished()
            return
        # The only request of its connection, as with a client that waits for each answer.
        waiting.clear()
        connection._in_flight_bytes = 0
        data = buffers[0]
        connection._group.metrics.bytes_sent += len(data)
        connection._transport.write(data)

    def respond_message(self, message: Message, version: int | None = None) -> None:
        """Answer with a message in the request's version, or in another (ApiVersions' error 35)."""
        if version is None:
            version = self.api_version
        header = encode_response_header(self.api_key, version, self.correlation_id)
        body = encode(message, version)
        self.respond((_INT32.pack(len(header) + len(body)) + header + body,))

    def finish_without_response(self) -> None:
        """Nothing is sent: the request asked for no answer."""
        self.respond(())

    def close(self, reason: str, closed: CloseReason = CloseReason.REFUSED) -> None:
        """Close the connection once all earlier requests are answered; one line in the log says why.

        Nothing more is read from it, and requests behind this one get no answer.
        """
        assert self._answer is None, "a request is answered twice"
        self._answer = closed
        self.connection._stop_reading(closed, reason)
        if self.connection._waiting and self.connection._waiting[0] is self:
            self.connection._send_finished()


class Connection(asyncio.Protocol):
    """See the module's docstring. The event loop constructs one for each connection it accepts."""

    __slots__ = (
        "_backlog",
        "_body_at",
        "_buffer",
        "_client",
        "_client_id",
        "_group",
        "_in_flight_bytes",
        "_is_collecting",
        "_is_going_on",
        "_is_held",
        "_is_write_paused",
        "_key",
        "_lingering",
        "_out",
        "_out_bytes",
        "_partial_bytes",
        "_reason",
        "_transport",
        "_version",
        "_waiting",
        "active_ns",
        "client_software_name",
        "client_software_version",
        "is_open",
        "listener",
        "peer",
        "stalled_since_ns",
    )

    def __init__(self, group: ConnectionGroup, listener: Listener) -> None:
        self.listener = listener
        self.peer = "?"
        self.client_software_name = ""
        """From ApiVersions on this connection, empty before it; set by the handler."""
        self.client_software_version = ""
        self.is_open = False
        self.active_ns = monotonic_ns()
        """When the last whole request came in, or the connection was opened."""
        self.stalled_since_ns: int | None = None
        """Since when more than WRITE_BUFFER_BYTES wait for the peer to read; None if they don't."""
        self._group = group
        self._transport: asyncio.Transport
        self._buffer = FrameBuffer(group.max_frame_bytes)
        self._partial_bytes = 0
        self._backlog: deque[bytes] = deque()
        self._waiting: deque[InboundRequest] = deque()
        self._in_flight_bytes = 0
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._key = self._version = NO_KEY
        self._client = b""
        self._client_id = ""
        self._body_at = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._is_collecting = False
        self._is_held = False
        self._is_write_paused = False
        self._is_going_on = False
        self._reason: CloseReason | None = None

    @property
    def unanswered(self) -> int:
        """Requests that were dispatched and whose answers have not been sent."""
        return len(self._waiting)

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        group = self._group
        if len(group.connections) >= group.max_connections:
            group.metrics.connections_refused += 1
            self._log("too many connections", limit=f"max.connections={group.max_connections}")
            self._transport.abort()
            return
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        group.metrics.connections_opened += 1
        group.connections.add(self)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._lingering is not None:
            self._lingering.cancel()
        group = self._group
        group.connections.discard(self)
        group.partial_bytes -= self._partial_bytes
        if self._reason is None:
            self._reason = CloseReason.BY_PEER if exc is None else CloseReason.RESET
        group.metrics.count_closed(self._reason)
        for request in self._waiting:
            request.frame = b""  # who waits with it may do so for long, but needs it no more
        self._waiting.clear()
        self._backlog.clear()
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._group.metrics.bytes_received += size
        if self._reason is not None:
            return
        if self._partial_bytes or self._backlog or size < _HEAD.size:
            self._receive_pieces(data)
            return
        length, key, version, correlation_id = _HEAD.unpack_from(data)
        if length != size - 4 or length > self._group.max_frame_bytes:
            self._receive_pieces(data)
            return
        # One whole request, as nearly all of them come.
        now_ns = self.active_ns = monotonic_ns()
        if key == self._key and version == self._version and data.startswith(self._client, 12):
            request = InboundRequest(
                self, key, version, correlation_id, self._client_id, data[4:], self._body_at, now_ns
            )
            self._dispatch(request)
        else:
            self._receive(data[4:], now_ns)
        if len(self._waiting) >= MAX_IN_FLIGHT or self._in_flight_bytes >= MAX_IN_FLIGHT_BYTES:
            self._hold()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.stalled_since_ns = monotonic_ns()
        self._hold()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.stalled_since_ns = None
        self._go_on_soon()

    # -- called by whoever looks after the connections

    def close(self, closed: CloseReason, reason: str) -> None:
        """Close as soon as what has been answered is sent; nothing more is read or answered."""
        self._stop_reading(closed, reason)
        self._waiting.clear()
        self._end()

    def close_when_answered(self, closed: CloseReason) -> None:
        """Take no further request, answer those that were taken, then close."""
        if self._reason is None:
            self._reason = closed
            self._transport.pause_reading()
            self._backlog.clear()
        if not self._waiting:
            self._end()

    def abort(self, closed: CloseReason, reason: str) -> None:
        """Close now, whatever has not been sent."""
        self._stop_reading(closed, reason)
        self._transport.abort()

    # -- requests in

    def _receive_pieces(self, data: bytes) -> None:
        group, buffer = self._group, self._buffer
        buffer.feed(data)
        backlog = self._backlog
        try:
            while frames := buffer.frames():
                backlog.extend(frames)
        except MalformedMessage as error:
            self._process_backlog()
            self._refuse(CloseReason.MALFORMED, str(error))
            return
        held = buffer.bytes_held
        group.partial_bytes += held - self._partial_bytes
        self._partial_bytes = held
        if backlog:
            self._process_backlog()
        if held and group.partial_bytes > group.max_partial_bytes:
            self._refuse(CloseReason.MEMORY, "too many unfinished requests are held in memory")

    def _process_backlog(self) -> None:
        """Dispatch what has been received, until a limit holds this connection up."""
        now_ns = self.active_ns = monotonic_ns()
        backlog, waiting = self._backlog, self._waiting
        self._is_collecting = True
        while backlog and self._reason is None:
            if (
                len(waiting) >= MAX_IN_FLIGHT
                or self._in_flight_bytes >= MAX_IN_FLIGHT_BYTES
                or self._out_bytes >= WRITE_BUFFER_BYTES
                or self._is_write_paused
            ):
                self._hold()
                break
            self._receive(backlog.popleft(), now_ns)
        self._is_collecting = False
        self.flush()
        if self._reason is not None and not waiting:
            self._end()
        self._go_on_soon()

    def _receive(self, frame: bytes, now_ns: int) -> None:
        """Take one request.

        A client's headers differ in little but the correlation id: the last one is remembered.
        """
        if (
            len(frame) >= _HEAD.size
            and frame.startswith(self._client, 8)
            and _KEY_AND_VERSION.unpack_from(frame) == (self._key, self._version)
        ):
            (correlation_id,) = _INT32.unpack_from(frame, 4)
        else:
            try:
                header, self._body_at = decode_request_header(frame)
            except MalformedMessage as error:
                unsupported = isinstance(error, UnsupportedVersion)
                self._refuse(
                    CloseReason.UNSUPPORTED if unsupported else CloseReason.MALFORMED, str(error)
                )
                return
            self._key, self._version, correlation_id, self._client_id = header
            self._client = frame[8 : self._body_at]
        request = InboundRequest(
            self,
            self._key,
            self._version,
            correlation_id,
            self._client_id,
            frame,
            self._body_at,
            now_ns,
        )
        self._dispatch(request)

    def _dispatch(self, request: InboundRequest) -> None:
        group = self._group
        self._waiting.append(request)
        self._in_flight_bytes += len(request.frame)
        group.metrics.requests[request.api_key] += 1
        try:
            group.dispatcher.dispatch(request)
        except MalformedMessage as error:
            self._fail(request, CloseReason.MALFORMED, str(error))
        except Exception as error:  # a fault of ours must not reach other connections
            _LOGGER.exception(
                "request failed",
                error,
                peer=self.peer,
                api_key=request.api_key,
                version=request.api_version,
            )
            self._fail(request, CloseReason.FAILED, f"the request could not be handled: {error}")

    def _fail(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        if request._answer is None:
            request.close(reason, closed)
        else:
            self.close(closed, reason)

    def _refuse(self, closed: CloseReason, reason: str) -> None:
        """Answer what came before, then close."""
        last = InboundRequest(self, -1, -1, -1, "", b"", 0, 0)
        self._waiting.append(last)
        last.close(reason, closed)

    # -- answers out

    def flush(self) -> None:
        """Write the answers that are collected, in one system call where possible."""
        out = self._out
        if not out:
            return
        size, self._out_bytes = self._out_bytes, 0
        self._out = []
        self._group.metrics.bytes_sent += size
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _send_finished(self) -> None:
        """Send the answers at the head of the line; the first one is known to be there.

        A lone answer leaves at once. While more are awaited they are collected until the end of the
        turn, because each write is a system call.
        """
        waiting, out = self._waiting, self._out
        is_scheduled = bool(out) or self._is_collecting
        while waiting:
            request = waiting[0]
            answer = request._answer
            if answer is None:
                break
            waiting.popleft()
            self._in_flight_bytes -= len(request.frame)
            if isinstance(answer, CloseReason):
                waiting.clear()
                self._end()
                return
            for buffer in answer:
                out.append(buffer)
                self._out_bytes += len(buffer)
        if waiting:
            if out and not is_scheduled:
                self._group.flush_later(self)
        elif not self._is_collecting:
            self.flush()
            if self._reason is not None:
                self._end()
        if self._is_held:
            self._go_on_soon()

    def _end(self) -> None:
        """Send what is left, say that no more will come, and wait for the peer to close.

        What it still sends is read and thrown away: closing with bytes unread makes the kernel reset the
        connection, which destroys answers on their way.
        """
        if self._lingering is not None or not self.is_open:
            return
        self.flush()
        self._transport.write_eof()
        self._transport.resume_reading()
        self._lingering = self._group.loop.call_later(LINGER_S, self._transport.abort)

    # -- flow

    def _hold(self) -> None:
        if not self._is_held:
            self._is_held = True
            self._transport.pause_reading()

    def _go_on_soon(self) -> None:
        if self._is_held and not self._is_going_on and self._may_go_on():
            self._is_going_on = True
            self._group.loop.call_soon(self._go_on)

    def _may_go_on(self) -> bool:
        return (
            not self._is_write_paused
            and len(self._waiting) <= MAX_IN_FLIGHT // 2
            and self._in_flight_bytes <= MAX_IN_FLIGHT_BYTES // 2
        )

    def _go_on(self) -> None:
        self._is_going_on = False
        if not self.is_open or self._reason is not None or not self._may_go_on():
            return
        self._is_held = False
        self._process_backlog()
        if not self._is_held and self._reason is None:
            self._transport.resume_reading()

    # -- the end

    def _stop_reading(self, closed: CloseReason, reason: str) -> None:
        if self._reason is not None or not self.is_open:
            return
        self._reason = closed
        self._backlog.clear()
        self._transport.pause_reading()
        self._log("connection closed", why=closed.value, reason=reason)

    def _log(self, message: str, **fields: object) -> None:
        suppressed = self._group.close_lines.take()
        if suppressed is None:
            return
        if suppressed:
            fields["lines_suppressed"] = suppressed
        client = f"{self.client_software_name} {self.client_software_version}".strip()
        if client:
            fields["client"] = client
        _LOGGER.warning(message, peer=self.peer, listener=self.listener.name, **fields)
