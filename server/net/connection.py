"""One inbound connection: bytes to requests in the order in which they came, responses in that same order.

Handlers may respond in any order and at any time; a response waits until all earlier requests of its
connection have theirs. A connection with too many requests in flight, or whose peer does not read, is not
read from until that has changed. An error on a connection closes that one and affects no other. Knows
headers, not what messages mean. Belongs to the event loop's thread.
Source: Apache Kafka protocol guide, "Network" (order); KIP-511 (ApiVersions of unknown versions).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct
from time import monotonic_ns
from typing import Final, cast

from quorumd.raft.types import Endpoint
from quorumd.security.tls_stream import TlsStream
from quorumd.server.net.caller import Caller
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.connection_limits import (
    ENDED_S,
    LINGER_S,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_BYTES,
    OUT_BYTES_MAX,
    UNREAD_BYTES_MAX,
)
from quorumd.server.net.connection_state import TAKES_REQUESTS, CloseReason, ConnectionState
from quorumd.server.net.inbound_request import HEAD_BYTES, NO_KEY, InboundRequest, head_of
from quorumd.server.net.incoming import Incoming
from quorumd.server.net.sockets import ends_of, set_options, write_together
from quorumd.server.net.turns import QUICK_BYTES_MAX, STRAYS_MAX, LongRequest, is_quick
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import decode_request_header
from quorumd.wire.registry import PRODUCE_KEY

_LENGTH_BYTES: Final = 4
_HEAD: Final = Struct(">ihhi")  # length, api key, version, correlation id
_OPEN: Final = ConnectionState.OPEN
_now_ns: Final = monotonic_ns  # a compiled module reads a constant, and looks a name up
_NOT_MET: Final = NO_KEY + 1
"""Api key and version of no frame, however short: each is read until a client is known."""


class Connection(Caller):
    """See the module's docstring. The event loop constructs one for each connection it accepts."""

    __slots__ = (
        "_body_at",
        "_client",
        "_end_timer",
        "_goes_first",
        "_group",
        "_incoming",
        "_is_collecting",
        "_is_identified",
        "_is_queued",
        "_key",
        "_out",
        "_out_bytes",
        "_partial_bytes",
        "_reason",
        "_transport",
        "_unread_bytes",
        "_version",
        "_waiting",
        "_work",
        "in_flight_bytes",
        "state",
    )

    def __init__(self, group: ConnectionGroup[Connection], listener: Endpoint) -> None:
        super().__init__(listener, monotonic_ns())
        self._unread_bytes = self._partial_bytes = 0
        self._group = group
        self._transport: asyncio.Transport
        self._incoming = Incoming(group.max_frame_bytes)
        self._waiting: deque[InboundRequest] = deque()
        self._out: list[bytes | memoryview] = []
        self.in_flight_bytes = self._out_bytes = self._body_at = 0
        self._key = self._version = _NOT_MET
        self._client = b""
        self._is_collecting = False
        """While frames that arrived together are dispatched: their responses leave together."""
        self._is_identified = False
        """A request has identified the client for good: `net.connection_slots`."""
        self._goes_first = False
        """True for a peer's connection, or one from where a peer may come and that is not identified yet."""
        self._is_queued = False
        """True while it waits for a turn, with requests in the backlog or work that is not done."""
        self._work: LongRequest | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        """Aborts it, if one of both sides has ended and the other one does not in time."""
        self._reason: CloseReason | None = None
        """The reason why it is closed; None before."""
        self.state = ConnectionState.NEW

    @property
    def is_open(self) -> bool:
        return self.state not in (ConnectionState.NEW, ConnectionState.CLOSED)

    @property
    def in_flight(self) -> int:
        """Requests whose responses have not been sent; none of a peer that has ended, for it may be gone."""
        return len(self._waiting) if self._end_timer is None else 0

    @property
    def request_bytes(self) -> int:
        """Bytes of the requests in flight."""
        return sum(len(request.frame) for request in self._waiting)

    @property
    def is_silent(self) -> bool:
        """No byte has arrived of a request that is not dispatched, nor of a handshake that goes on."""
        tls: TlsStream | None = self._transport.get_extra_info("tls")
        return not (
            self._partial_bytes or self._incoming.backlog or (tls is not None and tls.is_shaking)
        )

    def _enter(self, state: ConnectionState) -> None:
        self.state.check_next(state)
        self.state = state

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        group = self._group
        self.peer, self.ip, self.is_local = ends_of(transport)
        if not group.enter(self):
            self._transport.abort()
            return
        self._goes_first = self.is_local or group.slots.has_voters_ip(self)
        set_options(transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        self._enter(ConnectionState.OPEN)

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self.is_open
        self._enter(ConnectionState.CLOSED)
        if not was_open:
            return
        if self._end_timer is not None:
            self._end_timer.cancel()
        group = self._group
        group.leave(self)
        by_peer = CloseReason.BY_PEER if exc is None else CloseReason.RESET
        group.metrics.count_closed(self._reason or by_peer)
        for request in self._waiting:
            request.frame = b""  # a parked request may stay for long, and needs its bytes no more
        if self._work is not None and len(group.turns) > STRAYS_MAX:
            self._work.close()
            self._work = None
        self._waiting.clear()
        self._incoming.clear()
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._group.metrics.bytes_received += size
        is_between = self.state is _OPEN and not (self._partial_bytes or self._is_queued)
        if is_between and size >= _HEAD.size:
            length, key, version, correlation_id = _HEAD.unpack_from(data)
            if length == size - _LENGTH_BYTES and length <= self._group.max_frame_bytes:
                # One whole request, as nearly all of them come.
                now_ns, turns = _now_ns(), self._group.turns
                if (key != PRODUCE_KEY and not is_quick(data)) or (
                    now_ns >= turns.ends_ns
                    and not (self._goes_first and size <= QUICK_BYTES_MAX)
                    and turns.is_over(now_ns)
                ):
                    self._incoming.backlog.append(data[_LENGTH_BYTES:])
                    self._go_on_later()
                    return
                self.active_ns = now_ns
                self._take(data[_LENGTH_BYTES:], key, version, correlation_id, now_ns)
                waiting, requests = len(self._waiting), self._group.requests
                if (
                    waiting >= MAX_IN_FLIGHT
                    or self.in_flight_bytes >= MAX_IN_FLIGHT_BYTES
                    or (requests.size_bytes >= requests.max_bytes and not self._goes_first)
                ):
                    self._pause_reading()
                return
        if self.state in TAKES_REQUESTS and self._incoming.error is None:
            self._receive_pieces(data)

    def eof_received(self) -> bool:
        """The peer sends nothing more. What it has sent is taken, and responded to, before it is closed."""
        has_more = self._is_queued or bool(self._incoming.backlog)
        if self.state not in TAKES_REQUESTS or not (has_more or self._waiting):
            return False  # the event loop closes the connection
        self._end_timer = self._group.loop.call_later(ENDED_S, self._transport.abort)
        if not has_more:
            self.close_after_responses(CloseReason.BY_PEER)
        return True

    def pause_writing(self) -> None:
        self.stalled_since_ns = monotonic_ns()
        self._unread_bytes = self._transport.get_write_buffer_size()
        self._group.unsent.add(self, self._unread_bytes)
        self._pause_reading()

    def resume_writing(self) -> None:
        self.stalled_since_ns = None
        self._group.unsent.remove(self, self._unread_bytes)
        self.resume_reading_soon()

    # -- called by the listeners

    def close(self, closed: CloseReason, reason: str) -> None:
        """Close as soon as the responses that exist are sent; no further request is read."""
        self._stop_reading(closed, reason)
        self._group.requests.remove(self.request_bytes)
        self._waiting.clear()
        self._linger()

    def close_after_responses(self, closed: CloseReason) -> None:
        """Take no further request, send the responses of those that were taken, then close."""
        self._begin_closing(closed)
        if not self._waiting:
            self._linger()

    def abort(self, closed: CloseReason, reason: str) -> None:
        """Close now, without the responses that have not been sent."""
        self._stop_reading(closed, reason)
        self._transport.abort()

    # -- requests in

    def _receive_pieces(self, data: bytes) -> None:
        incoming, requests = self._incoming, self._group.requests
        self._out += incoming.feed(data, is_tls=self.identity is not None)
        if self._is_queued or (requests.size_bytes >= requests.max_bytes and not self._goes_first):
            self._pause_reading()
        if not self._is_queued and (incoming.backlog or incoming.error is not None):
            self._process_backlog()
        else:
            self._note_unfinished()

    def _note_unfinished(self) -> None:
        self._partial_bytes = self._incoming.uncut_bytes
        if self.state in TAKES_REQUESTS:
            self._group.unfinished.hold(self, self._partial_bytes)

    def _process_backlog(self, until_ns: int = 0) -> None:
        """Dispatch what has been received, until a limit holds this connection up.

        It takes the share of this turn that is left, or goes on `until_ns`, and then takes one at least.
        """
        now_ns = self.active_ns = monotonic_ns()
        is_its_turn, until_ns = until_ns > 0, until_ns or self._group.turns.share(now_ns)
        backlog, waiting, requests = self._incoming.backlog, self._waiting, self._group.requests
        self._is_collecting = True
        while backlog and not self._is_queued and self.state in TAKES_REQUESTS:
            if (
                len(waiting) >= MAX_IN_FLIGHT
                or self.in_flight_bytes >= MAX_IN_FLIGHT_BYTES
                or self._out_bytes >= OUT_BYTES_MAX
                or self.stalled_since_ns is not None
                or (requests.size_bytes >= requests.max_bytes and not self._goes_first)
            ):
                self._pause_reading()
                break
            if not is_its_turn and monotonic_ns() >= until_ns:
                self._go_on_later()
                break
            is_its_turn = False
            frame = backlog.popleft()
            key, version, correlation_id = head_of(frame)
            self._take(frame, key, version, correlation_id, now_ns)
            if not backlog and self.state in TAKES_REQUESTS:
                self._incoming.refill()
        self._is_collecting = False
        self._note_unfinished()
        if not (backlog or self._is_queued):
            if (error := self._incoming.error) is not None:
                self.refuse(CloseReason.MALFORMED, str(error))
            elif self._end_timer is not None:
                self._begin_closing(CloseReason.BY_PEER)
        self.flush()
        if not waiting:
            self._linger()
        self.resume_reading_soon()

    def _go_on_later(self) -> None:
        self._is_queued = True
        self._group.turns.later(self, goes_first=self._goes_first)

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

    def _take(self, frame: bytes, key: int, version: int, correlation_id: int, now_ns: int) -> None:
        """A client's headers differ in little but the correlation id: the last one is remembered."""
        if (
            key != self._key
            or version != self._version
            or frame[HEAD_BYTES : self._body_at] != self._client
        ) and not self._meet(frame, key, version):
            return
        request = InboundRequest(self, key, version, correlation_id, frame, self._body_at, now_ns)
        self._waiting.append(request)
        self.in_flight_bytes += len(frame)
        group = self._group
        group.requests.size_bytes += len(frame)
        group.metrics.requests[key] += 1
        try:
            work = group.dispatcher.dispatch(request)
        except Exception as error:
            # A bug must not reach other connections. Code that changes what they share guards itself.
            request.fail(error)
            return
        if work is not None:
            self._work = LongRequest(request, work)
            self._go_on_later()

    def _meet(self, frame: bytes, key: int, version: int) -> bool:
        """Read a header. False if it is malformed, or if the client that it identifies gets no slot."""
        try:
            header, self._body_at = decode_request_header(frame)
        except MalformedMessage as error:
            self.refuse(self._group.closing_reason(error), str(error))
            return False
        if not self._is_identified:
            has_slot, self._is_identified = self._group.identify(self, key, header.client_id)
            if not has_slot:
                self._begin_closing(CloseReason.LIMIT)
                self._transport.abort()
                return False
        if self._is_identified:
            self._goes_first = self._group.slots.is_peer(self)
            self._key, self._version = key, version
            self._client = frame[HEAD_BYTES : self._body_at]
        return True

    def refuse(self, closed: CloseReason, reason: str) -> None:
        """Respond to the requests that came before, then close."""
        self._waiting.append(last := InboundRequest(self, -1, -1, -1, b"", 0, 0))
        last.close(reason, closed)

    # -- responses out

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        """Send the response of a request as soon as all earlier requests have theirs.

        A lone response leaves at once. Where more are awaited, one system call sends those of a turn.
        """
        if not (waiting := self._waiting):
            return
        if waiting[0] is not request:
            self._group.unsent.add(self, sum(map(len, buffers)))
            return
        is_alone = len(waiting) == len(buffers) == 1 and not (self._out or self._is_collecting)
        if not is_alone or self.state is not _OPEN:
            self._send_responses()
            return
        # The only request of its connection, as with a client that waits for each response.
        waiting.clear()
        self.in_flight_bytes = 0
        self._group.requests.remove(len(request.frame))
        self._group.metrics.bytes_sent += len(buffers[0])
        self._transport.write(buffers[0])

    def _send_responses(self) -> None:
        """Send the responses at the head of the line; the first one is known to be there."""
        waiting, out = self._waiting, self._out
        is_scheduled = bool(out) or self._is_collecting
        waited = -1  # the first response is new; the others had to wait for it
        while waiting:
            request = waiting[0]
            response = request.response
            if response is None:
                break
            waiting.popleft()
            self.in_flight_bytes -= request.held_bytes
            self._group.requests.remove(len(request.frame))
            if isinstance(response, CloseReason):
                self.close(response, "")  # it is closing, and the log says why
                return
            size = sum(map(len, response))
            out.extend(response)
            self._out_bytes += size
            waited = 0 if waited < 0 else waited + size
        if waited > 0:
            self._group.unsent.remove(self, waited)
        if waiting:
            if out and not is_scheduled:
                self._group.flush_later(self)
        elif not self._is_collecting:
            self.flush()
            self._linger()
        self.resume_reading_soon()

    def flush(self) -> None:
        """Write the responses that are collected, in one system call where possible."""
        if not (out := self._out):
            return
        self._out, self._out_bytes, size = [], 0, self._out_bytes
        self._group.metrics.bytes_sent += size
        is_stalled = self.stalled_since_ns is not None
        write_together(self._transport, out)
        if is_stalled:
            self._unread_bytes += size
            self._group.unsent.add(self, size)

    # -- flow

    def _pause_reading(self) -> None:
        if self.state is _OPEN:
            self._enter(ConnectionState.PAUSED)
            self._transport.pause_reading()
            self.resume_reading_soon()

    def resume_reading_soon(self) -> None:
        """Read again at the end of this turn, if there is room for more."""
        if self.state is ConnectionState.PAUSED and self._has_room():
            self._enter(ConnectionState.RESUMING)
            self._group.loop.call_soon(self._resume_reading)

    def _has_room(self) -> bool:
        return (
            not self._is_queued
            and self.stalled_since_ns is None
            and len(self._waiting) <= MAX_IN_FLIGHT // 2
            and self.in_flight_bytes <= MAX_IN_FLIGHT_BYTES // 2
            and (self._goes_first or self._group.requests.has_room_for(self))
        )

    def _resume_reading(self) -> None:
        state = self.state
        if state is not ConnectionState.RESUMING:
            return  # it is being closed
        if not self._has_room():
            self._enter(ConnectionState.PAUSED)
            return
        self._enter(_OPEN)
        if self._incoming.backlog:
            self._process_backlog()
        if self.state is not _OPEN:
            return
        if self._is_queued:
            self._enter(ConnectionState.PAUSED)
        else:
            self._transport.resume_reading()

    # -- the end

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        """Take no further request, and close once all earlier ones have their responses."""
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
        self._incoming.clear()
        self._group.unfinished.forget(self)
        self._transport.pause_reading()
        return True

    def _linger(self) -> None:
        """Send the responses that are left and the end of the stream, and wait for the peer to close.

        Bytes that the peer still sends are read and thrown away: to close with bytes unread makes the kernel
        reset the connection, which destroys responses on their way.
        """
        if self.state is not ConnectionState.CLOSING or self._transport.is_closing():
            return
        self.flush()
        if self._end_timer is not None:
            self._transport.close()  # behind what is not sent yet: no byte of the peer's is left unread
            return
        self._enter(ConnectionState.LINGERING)
        self._transport.write_eof()
        self._transport.resume_reading()
        self._end_timer = self._group.loop.call_later(LINGER_S, self._transport.abort)
