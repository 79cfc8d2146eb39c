"""One inbound connection: bytes to requests in the order in which they came, responses in that same order.

Handlers may answer in any order and at any time; a response waits until all earlier requests of its
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

from quorumd.config.addresses import Listener
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.connection_state import (
    TAKES_REQUESTS,
    TRANSITIONS,
    CloseReason,
    ConnectionState,
)
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.net.turns import PRODUCE, LongRequest, is_quick
from quorumd.wire.errors import MalformedMessage, UnsupportedVersion
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.headers import decode_request_header
from quorumd.wire.request_limits import frame_bytes_max

MAX_IN_FLIGHT: Final = 1_000
NO_KEY: Final = 1 << 15
HEAD_BYTES_MIN: Final = 12
"""Length, api key, version and correlation id of a request."""
STRAYS_MAX: Final = 16
"""When so many wait for a turn, the rest of a request is not worked on for a connection that is gone."""
MAX_IN_FLIGHT_BYTES: Final = 16 << 20
WRITE_BUFFER_BYTES: Final = 1 << 20
LINGER_S: Final = 1.0
JOIN_BYTES_MAX: Final = 8 << 10

_LENGTH = Struct(">i")
_KEY_VERSION_AND_ID = Struct(">hhi")
_OPEN: Final = ConnectionState.OPEN


class Connection(asyncio.Protocol):
    """See the module's docstring. The event loop constructs one for each connection it accepts."""

    __slots__ = (
        "_backlog",
        "_body_at",
        "_buffer",
        "_client",
        "_client_id",
        "_error",
        "_group",
        "_is_collecting",
        "_is_known",
        "_is_queued",
        "_key",
        "_linger_timer",
        "_out",
        "_out_bytes",
        "_partial_bytes",
        "_reason",
        "_transport",
        "_version",
        "_waiting",
        "_work",
        "active_ns",
        "client_software_name",
        "client_software_version",
        "in_flight_bytes",
        "ip",
        "is_local",
        "listener",
        "peer",
        "stalled_since_ns",
        "state",
    )

    def __init__(self, group: ConnectionGroup[Connection], listener: Listener) -> None:
        self.listener = listener
        self.peer = "?"
        self.ip = ""
        self.is_local = False
        self.client_software_name = ""
        """From ApiVersions on this connection, empty before it; set by the handler."""
        self.client_software_version = ""
        self.active_ns = monotonic_ns()
        """When the last whole request came in, or the connection was opened."""
        self.stalled_since_ns: int | None = None
        """Since when more than WRITE_BUFFER_BYTES wait for the peer to read; None if they don't."""
        self._group = group
        self._transport: asyncio.Transport
        self._buffer = FrameBuffer(group.max_frame_bytes, frame_bytes_max)
        self._partial_bytes = 0
        self._backlog: deque[bytes] = deque()
        self._waiting: deque[InboundRequest] = deque()
        self.in_flight_bytes = 0
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._key = self._version = NO_KEY
        self._client = b""
        self._client_id = ""
        self._body_at = 0
        self._is_collecting = False
        """While frames that arrived together are dispatched: their responses leave together."""
        self._is_known = False
        """A request has shown for good who asks: `net.places`."""
        self._is_queued = False
        """It waits for a turn, with requests in the backlog or work that is not done."""
        self._work: LongRequest | None = None
        self._error: MalformedMessage | None = None
        """What is wrong with the bytes behind the backlog."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self._reason: CloseReason | None = None
        """Why it is closed; None before."""
        self.state = ConnectionState.NEW

    @property
    def is_open(self) -> bool:
        return self.state not in (ConnectionState.NEW, ConnectionState.CLOSED)

    @property
    def unanswered(self) -> int:
        """Requests that were dispatched and whose answers have not been sent."""
        return len(self._waiting)

    @property
    def is_silent(self) -> bool:
        """Not a byte of a request has come that was not dispatched."""
        return not (self._partial_bytes or self._backlog)

    def _enter(self, state: ConnectionState) -> None:
        assert state in TRANSITIONS[self.state], f"{state} does not follow {self.state}"
        self.state = state

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        group = self._group
        name, own_name = (transport.get_extra_info(key) for key in ("peername", "sockname"))
        if name:
            self.peer = f"{name[0]}:{name[1]}"
            self.ip = name[0].removeprefix("::ffff:")
            self.is_local = bool(own_name) and own_name[0] == name[0]
        if not group.places.enter(self):
            self._note_refused("of those that have asked for nothing yet")
            self._transport.abort()
            return
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        group.metrics.connections_opened += 1
        group.connections.add(self)
        self._enter(ConnectionState.OPEN)

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self.is_open
        self._enter(ConnectionState.CLOSED)
        if not was_open:
            return
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        group = self._group
        group.connections.discard(self)
        group.places.leave(self)
        group.partial_bytes -= self._partial_bytes
        if self._reason is None:
            self._reason = CloseReason.BY_PEER if exc is None else CloseReason.RESET
        group.metrics.count_closed(self._reason)
        for request in self._waiting:
            request.frame = b""  # who waits with it may do so for long, but needs it no more
        if len(group.turns) > STRAYS_MAX:
            self._work = None
        self._waiting.clear()
        self._backlog.clear()
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._group.metrics.bytes_received += size
        if self.state not in TAKES_REQUESTS:
            return
        if self._partial_bytes or self._backlog or self._is_queued or size < HEAD_BYTES_MIN:
            self._receive_pieces(data)
            return
        (length,) = _LENGTH.unpack_from(data)
        if length != size - _LENGTH.size or length > self._group.max_frame_bytes:
            self._receive_pieces(data)
            return
        # One whole request, as nearly all of them come.
        if data[4:6] != PRODUCE and not is_quick(data):
            self._backlog.append(data[4:])
            self._go_on_later()
            return
        self.active_ns = monotonic_ns()
        self._receive(data[4:], self.active_ns)
        if len(self._waiting) >= MAX_IN_FLIGHT or self.in_flight_bytes >= MAX_IN_FLIGHT_BYTES:
            self._pause_reading()

    def pause_writing(self) -> None:
        self.stalled_since_ns = monotonic_ns()
        self._pause_reading()

    def resume_writing(self) -> None:
        self.stalled_since_ns = None
        self._resume_reading_soon()

    # -- called by the listeners

    def close(self, closed: CloseReason, reason: str) -> None:
        """Close as soon as what has been answered is sent; nothing more is read or answered."""
        self._stop_reading(closed, reason)
        self._waiting.clear()
        self._linger()

    def close_when_answered(self, closed: CloseReason) -> None:
        """Take no further request, answer those that were taken, then close."""
        self._begin_closing(closed)
        if not self._waiting:
            self._linger()

    def abort(self, closed: CloseReason, reason: str) -> None:
        """Close now, whatever has not been sent."""
        self._stop_reading(closed, reason)
        self._transport.abort()

    # -- requests in

    def _receive_pieces(self, data: bytes) -> None:
        if self._error is not None:
            return
        group, buffer = self._group, self._buffer
        buffer.feed(data)
        backlog = self._backlog
        try:
            while frames := buffer.frames():
                backlog.extend(frames)
        except MalformedMessage as error:
            self._error = error
        held = buffer.bytes_held
        group.partial_bytes += held - self._partial_bytes
        self._partial_bytes = held
        if self._is_queued:
            self._pause_reading()
        elif backlog or self._error is not None:
            self._process_backlog()
        if held and group.partial_bytes > group.max_partial_bytes:
            self._refuse(CloseReason.MEMORY, "too many unfinished requests are held in memory")

    def _process_backlog(self, until_ns: int = 0) -> None:
        """Dispatch what has been received, until a limit holds this connection up.

        It takes the share of this turn that is left, unless it may go on `until_ns`.
        """
        now_ns = self.active_ns = monotonic_ns()
        until_ns = until_ns or self._group.turns.share(now_ns)
        backlog, waiting = self._backlog, self._waiting
        self._is_collecting = True
        while backlog and not self._is_queued and self.state in TAKES_REQUESTS:
            if (
                len(waiting) >= MAX_IN_FLIGHT
                or self.in_flight_bytes >= MAX_IN_FLIGHT_BYTES
                or self._out_bytes >= WRITE_BUFFER_BYTES
                or self.stalled_since_ns is not None
            ):
                self._pause_reading()
                break
            if monotonic_ns() >= until_ns:
                self._go_on_later()
                break
            self._receive(backlog.popleft(), now_ns)
        self._is_collecting = False
        if self._error is not None and not backlog and not self._is_queued:
            self._refuse(CloseReason.MALFORMED, str(self._error))
        self.flush()
        if not waiting:
            self._linger()
        self._resume_reading_soon()

    def _go_on_later(self) -> None:
        self._is_queued = True
        self._group.turns.later(self)

    def go_on(self, until_ns: int) -> None:
        """Go on with work or with the backlog: it is this connection's turn."""
        self._is_queued = False
        if self._work is not None:
            if not self._work.go_on(until_ns):
                self._go_on_later()
                return
            self._work = None
        if self.state in TAKES_REQUESTS:
            self._process_backlog(until_ns)

    def _receive(self, frame: bytes, now_ns: int) -> None:
        """Take one request.

        A client's headers differ in little but the correlation id: the last one is remembered.
        """
        is_known = False
        if len(frame) >= _KEY_VERSION_AND_ID.size:
            key, version, correlation_id = _KEY_VERSION_AND_ID.unpack_from(frame)
            is_known = key == self._key and version == self._version
        if not is_known or not frame.startswith(self._client, 8):
            try:
                header, self._body_at = decode_request_header(frame)
            except MalformedMessage as error:
                unsupported = isinstance(error, UnsupportedVersion)
                self._refuse(
                    CloseReason.UNSUPPORTED if unsupported else CloseReason.MALFORMED, str(error)
                )
                return
            key, version, correlation_id, self._client_id = header
            self._key, self._version, self._client = key, version, frame[8 : self._body_at]
        group = self._group
        if not self._is_known:
            has_place, self._is_known = group.places.show(self, key, self._client_id)
            if not has_place:
                self._note_refused(f"max.connections={group.max_connections}")
                self._begin_closing(CloseReason.LIMIT)
                self._transport.abort()
                return
        request = InboundRequest(
            self, key, version, correlation_id, self._client_id, frame, self._body_at, now_ns
        )
        self._waiting.append(request)
        self.in_flight_bytes += len(frame)
        group.metrics.requests[key] += 1
        try:
            work = group.dispatcher.dispatch(request)
        except Exception as error:  # a fault of ours must not reach other connections
            request.fail(error)
            return
        if work is not None:
            self._work = LongRequest(request, work)
            self._go_on_later()

    def _refuse(self, closed: CloseReason, reason: str) -> None:
        """Answer what came before, then close."""
        last = InboundRequest(self, -1, -1, -1, "", b"", 0, 0)
        self._waiting.append(last)
        last.close(reason, closed)

    # -- responses out

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        """Send the response of a request as soon as all earlier requests are answered.

        A lone response leaves at once. While more are awaited they are collected until the end of the
        turn, because each write is a system call.
        """
        waiting = self._waiting
        if not waiting or waiting[0] is not request:
            return
        if (
            len(waiting) > 1
            or len(buffers) != 1
            or self._out
            or self._is_collecting
            or self.state is not _OPEN
        ):
            self._send_responses()
            return
        # The only request of its connection, as with a client that waits for each response.
        waiting.clear()
        self.in_flight_bytes = 0
        data = buffers[0]
        self._group.metrics.bytes_sent += len(data)
        self._transport.write(data)

    def _send_responses(self) -> None:
        """Send the responses at the head of the line; the first one is known to be there."""
        waiting, out = self._waiting, self._out
        is_scheduled = bool(out) or self._is_collecting
        while waiting:
            request = waiting[0]
            response = request.response
            if response is None:
                break
            waiting.popleft()
            self.in_flight_bytes -= request.held_bytes
            if isinstance(response, CloseReason):
                waiting.clear()
                self._linger()
                return
            for buffer in response:
                out.append(buffer)
                self._out_bytes += len(buffer)
        if waiting:
            if out and not is_scheduled:
                self._group.flush_later(self)
        elif not self._is_collecting:
            self.flush()
            self._linger()
        self._resume_reading_soon()

    def flush(self) -> None:
        """Write the responses that are collected, in one system call where possible."""
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

    # -- flow

    def _pause_reading(self) -> None:
        if self.state is _OPEN:
            self._enter(ConnectionState.PAUSED)
            self._transport.pause_reading()

    def _resume_reading_soon(self) -> None:
        if self.state is ConnectionState.PAUSED and self._has_room():
            self._enter(ConnectionState.RESUMING)
            self._group.loop.call_soon(self._resume_reading)

    def _has_room(self) -> bool:
        return (
            not self._is_queued
            and self._error is None
            and self.stalled_since_ns is None
            and len(self._waiting) <= MAX_IN_FLIGHT // 2
            and self.in_flight_bytes <= MAX_IN_FLIGHT_BYTES // 2
        )

    def _resume_reading(self) -> None:
        state = self.state
        if state is not ConnectionState.RESUMING:
            return  # it is being closed
        if not self._has_room():
            self._enter(ConnectionState.PAUSED)
            return
        self._enter(_OPEN)
        if self._backlog:
            self._process_backlog()
        if self.state is not _OPEN:
            return
        if self._is_queued:
            self._enter(ConnectionState.PAUSED)
        else:
            self._transport.resume_reading()

    # -- the end

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        """Take no further request, and close once all before this one are answered."""
        self._stop_reading(closed, reason)
        if self._waiting and self._waiting[0] is request:
            self._send_responses()

    def _stop_reading(self, closed: CloseReason, reason: str) -> None:
        """Take no further request, and say in the log why, unless it is closing already."""
        if self._begin_closing(closed):
            self._group.log(self, "connection closed", why=closed.value, reason=reason)

    def _begin_closing(self, closed: CloseReason) -> bool:
        """False if it is closing already."""
        if self.state not in TAKES_REQUESTS:
            return False
        self._enter(ConnectionState.CLOSING)
        self._reason = closed
        self._backlog.clear()
        self._transport.pause_reading()
        return True

    def _linger(self) -> None:
        """Send what is left, say that no more will come, and wait for the peer to close.

        What it still sends is read and thrown away: closing with bytes unread makes the kernel reset the
        connection, which destroys responses on their way.
        """
        if self.state is not ConnectionState.CLOSING or self._transport.is_closing():
            return
        self.flush()
        self._enter(ConnectionState.LINGERING)
        self._transport.write_eof()
        self._transport.resume_reading()
        self._linger_timer = self._group.loop.call_later(LINGER_S, self._transport.abort)

    def _note_refused(self, limit: str) -> None:
        self._group.metrics.connections_refused += 1
        self._group.log(self, "too many connections", limit=limit)
