"""Connections to other replicas: made again and again, asked one after another, answered in order.

A link is one connection to one peer. It begins with ApiVersions, so that every request is sent in the
highest version that both sides know. Addresses are resolved anew at each attempt. What failed is reported
at once; whether and when to ask again is the rules' business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from server.logs import Logger
from server.metrics import Metrics
from wire.codec import decode, encode
from wire.error_codes import ErrorCode
from wire.errors import MalformedMessage
from wire.framing import FrameBuffer
from wire.headers import decode_response_header, encode_request_header
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.schema import Message

LOG = Logger("peers")

NODE_SOFTWARE = "quorumd"
"""How nodes call themselves when they connect to each other."""
API_VERSIONS_KEY = 18
API_VERSIONS_VERSION = 3
RECONNECT_MS = 20
RECONNECT_MAX_MS = 1000
ANSWER_BYTES_MAX = 128 * 2**20
"""No peer sends a larger answer: a fetch asks for at most 8 MiB plus one batch."""


def request_frame(
    api_key: int, message: Message, version: int, correlation_id: int, client_id: str
) -> bytes:
    """A complete request: length, header and body."""
    header = encode_request_header(api_key, version, correlation_id, client_id)
    body = encode(message, version)
    return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))


class LinkListener(Protocol):
    """Who is told about a peer's process."""

    def on_link_up(self) -> None:
        """A connection was made."""

    def on_link_refused(self) -> None:
        """Nobody listens at any of the peer's addresses."""


class Call(NamedTuple):
    """A request to be sent: `build(version, correlation id)` makes its frame, length and header included.

    Exactly one of `answered(version, frame, body position)` and `failed(reason, error)` is called;
    `error` is the name of a Kafka error code, or None.
    """

    api_key: int
    max_version: int
    build: Callable[[int, int], bytes]
    answered: Callable[[int, bytes, int], None]
    failed: Callable[[str, str | None], None]
    timeout_ms: int


class _Pending(NamedTuple):
    call: Call
    version: int
    correlation_id: int
    deadline: float


class _Connection(asyncio.Protocol):
    """Passes on what comes in once it is a link's connection.

    It is not so from the beginning: uvloop tells of a connection whose attempt was given up in that very
    moment, and never of its end.
    """

    def __init__(self) -> None:
        self.link: Link | None = None
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        if self.link is not None:
            self.link.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.link is not None:
            self.link.on_lost(exc)


class Link:
    """One connection to one peer, kept up from `open` to `close`."""

    def __init__(
        self,
        name: str,
        addresses: Callable[[], Sequence[tuple[str, int]]],
        client_id: str,
        software_version: str,
        listener: LinkListener,
        connect_timeout_ms: int,
        metrics: Metrics,
    ) -> None:
        self._name = name
        self._addresses = addresses
        self._client_id = client_id
        self._software_version = software_version
        self._listener = listener
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer(ANSWER_BYTES_MAX)
        self._versions: dict[int, tuple[int, int]] | None = None
        self._queue: deque[Call] = deque()
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._last_error = "not connected yet"
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._connecting = False
        self._is_closed = False
        self._failures = 0
        self._made_at = 0.0
        self._has_answered = False
        self._given_up: str | None = None

    # -- life

    def open(self) -> None:
        """Connect, and connect again whenever the connection is lost: at once after one that was in
        use, else later and later."""
        self._connecting = True
        self._keeper = self._loop.create_task(self._keep_connected(), name=f"link {self._name}")

    async def close(self) -> None:
        """Give the connection up; requests without an answer fail."""
        self.discard()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    def discard(self) -> None:
        """As `close`, without waiting for the end of what is going on."""
        if self._keeper is not None:
            self._keeper.cancel()
        self._is_closed = True
        self._connecting = False
        if self._transport is not None:
            self._transport.abort()
        self._fail_all("the link is closed")

    async def _keep_connected(self) -> None:
        while True:
            self._connecting = True
            connected = await self._connect()
            self._connecting = False
            if connected:
                await self._lost.wait()
                if not self._failures:
                    continue
            self._connecting = False
            self._fail_all(self._last_error)
            delay_ms = min(RECONNECT_MAX_MS, RECONNECT_MS << min(self._failures, 10))
            self._failures += 1
            await asyncio.sleep(delay_ms / 1000)

    async def _connect(self) -> bool:
        """Try each address once. Returns False, and says so to the listener, if none answers."""
        self._lost.clear()
        refused = 0
        addresses = self._addresses()
        for host, port in addresses:
            try:
                # Not wait_for: before Python 3.12 it may swallow the cancellation of `close`.
                async with asyncio.timeout(self._connect_timeout_s):
                    made = await self._loop.create_connection(_Connection, host, port)
            except Exception as error:  # whatever an odd host name provokes must not end this link
                refused += isinstance(error, (ConnectionRefusedError, ConnectionResetError))
                self._metrics.peer_connect_failures += 1
                reason = "timed out" if isinstance(error, TimeoutError) else str(error)
                self._last_error = f"cannot connect to {host}:{port}: {reason}"
            else:
                if self._begin(*made):
                    return True
        if not addresses:
            self._last_error = f"no address is known of {self._name}"
        elif refused == len(addresses):
            self._listener.on_link_refused()
        return False

    def _begin(self, transport: asyncio.Transport, connection: _Connection) -> bool:
        """Shake hands on a new connection. Returns False if it is gone already, or not wanted any more."""
        if self._is_closed or connection.is_lost:
            self._last_error = f"the connection to {self._name} was lost at once"
            transport.abort()
            return False
        self._transport = transport
        connection.link = self
        self._frames = FrameBuffer(ANSWER_BYTES_MAX)
        self._versions = None
        self._made_at = self._loop.time()
        self._has_answered = False
        self._given_up = None
        self._metrics.peer_connections_opened += 1
        self._listener.on_link_up()
        request = ApiVersionsRequest(
            client_software_name=NODE_SOFTWARE, client_software_version=self._software_version
        )
        handshake = Call(
            api_key=API_VERSIONS_KEY,
            max_version=API_VERSIONS_VERSION,
            build=lambda version, correlation_id: request_frame(
                API_VERSIONS_KEY, request, version, correlation_id, self._client_id
            ),
            answered=self._on_versions,
            failed=lambda reason, error: None,
            timeout_ms=int(self._connect_timeout_s * 1000),
        )
        self._write(handshake, API_VERSIONS_VERSION)
        return True

    def on_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        self._transport = None
        lost = f"the connection to {self._name} was lost: {exc or 'closed by the peer'}"
        self._last_error = self._given_up or lost
        if self._has_answered or self._loop.time() - self._made_at > RECONNECT_MAX_MS / 1000:
            self._failures = 0
        else:
            # The peer accepts, and serves nothing: to try again at once would make a busy loop.
            self._failures = max(1, self._failures)
        self._connecting = not self._failures and not self._is_closed
        self._fail_all(self._last_error)
        self._lost.set()

    # -- asking

    def call(self, call: Call) -> None:
        """Send a request as soon as the connection is there; fail at once if it is not to be had."""
        if self._transport is not None and self._versions is not None:
            self._send(call)
        elif self._transport is not None or self._connecting:
            self._queue.append(call)
        else:
            self._loop.call_soon(call.failed, self._last_error, None)

    def _send(self, call: Call) -> None:
        assert self._versions is not None
        lowest, highest = self._versions.get(call.api_key, (0, -1))
        version = min(highest, call.max_version)
        if version < lowest:
            # No reason to campaign without pre-votes: it does not know votes at all.
            text = f"{self._name} does not serve api {call.api_key} in a version known here"
            self._loop.call_soon(call.failed, text, None)
            return
        try:
            self._write(call, version)
        except MalformedMessage as error:
            self._loop.call_soon(call.failed, str(error), "UNSUPPORTED_VERSION")

    def _write(self, call: Call, version: int) -> None:
        assert self._transport is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = call.build(version, self._correlation_id)
        deadline = self._loop.time() + call.timeout_ms / 1000
        self._pending.append(_Pending(call, version, self._correlation_id, deadline))
        self._metrics.peer_bytes_sent += len(frame)
        self._transport.write(frame)
        if self._alarm is None or deadline < self._alarm_at:
            self._arm(deadline)

    # -- being answered

    def on_data(self, data: bytes) -> None:
        """The next bytes of the peer's answers."""
        self._metrics.peer_bytes_received += len(data)
        try:
            self._frames.feed(data)
            while frames := self._frames.frames():
                for frame in frames:
                    self._on_frame(frame)
        except MalformedMessage as error:
            self._give_up(f"{self._name} sent what is no answer: {error}")

    def _on_frame(self, frame: bytes) -> None:
        if not self._pending:
            raise MalformedMessage("an answer to nothing that was asked")
        pending = self._pending[0]
        call = pending.call
        correlation_id, body_at = decode_response_header(call.api_key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise MalformedMessage(f"correlation id {correlation_id}, not {pending.correlation_id}")
        self._pending.popleft()
        self._has_answered = self._versions is not None
        call.answered(pending.version, frame, body_at)

    def _on_versions(self, version: int, frame: bytes, body_at: int) -> None:
        code = int.from_bytes(frame[body_at : body_at + 2], "big", signed=True)
        if code not in (0, ErrorCode.UNSUPPORTED_VERSION):
            raise MalformedMessage(f"the handshake was refused with error {code}")
        answer = decode(ApiVersionsResponse, 0 if code else version, frame, body_at)
        self._versions = {
            key.api_key: (key.min_version, key.max_version) for key in answer.api_keys
        }
        queue, self._queue = self._queue, deque()
        for call in queue:
            self._send(call)

    # -- failing

    def _on_alarm(self) -> None:
        self._alarm = None
        if not self._pending:
            return
        first = min(self._pending, key=lambda pending: pending.deadline)
        if first.deadline > self._loop.time():
            self._arm(first.deadline)
        else:
            self._give_up(f"{self._name} did not answer in {first.call.timeout_ms} ms")

    def _arm(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline, self._on_alarm)

    def _give_up(self, reason: str) -> None:
        """An answer that comes late would answer the wrong question: begin anew."""
        LOG.info("connection given up", peer=self._name, reason=reason)
        self._given_up = reason
        if self._transport is not None:
            self._transport.abort()

    def _fail_all(self, reason: str) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        pending, self._pending = self._pending, deque()
        queue, self._queue = self._queue, deque()
        for sent in pending:
            sent.call.failed(reason, None)
        for call in queue:
            call.failed(reason, None)
