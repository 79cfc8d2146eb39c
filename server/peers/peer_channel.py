"""Connections to other replicas, made again and again; `call_sequence` has the requests on one.

A channel is one connection to one peer. It begins with ApiVersions, which says what the peer serves.
Addresses are resolved anew at each attempt. What failed is reported at once; whether and when to ask again
is the rules' business.

The peer's own addresses are tried first. Others are tried only while a request waits, and such a
connection counts as the peer's once a response has shown that it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import HungUp, PeerCall, PeerListener
from quorumd.server.model.unhandled import unawaited
from quorumd.server.peers.address_book import AddressBook
from quorumd.server.peers.call_sequence import CallSequence
from quorumd.server.peers.dialing import HostResolver, happy_eyeballs
from quorumd.server.peers.link_security import LinkSecurity, NotThisPeer
from quorumd.server.peers.peer_connection import API_VERSIONS_VERSION, HANDSHAKE_ID, PeerConnection
from quorumd.wire.codec import encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.registry import API_VERSIONS_KEY
from quorumd.wire.schema import Message

LOG: Final = Logger("peers")

NODE_SOFTWARE: Final = "quorumd"
"""Name of nodes when they connect to each other."""
RECONNECT_MS = 20
RECONNECT_MAX_MS = 1000
DOUBT_S = 1.0
"""Time for which a connection is kept on which no response has identified the peer yet."""
REFUSALS: Final = (ConnectionRefusedError, ConnectionResetError)


def request_frame(
    api_key: int, message: Message, version: int, correlation_id: int, client_id: str
) -> bytes:
    """A complete request: length, header and body."""
    header = encode_request_header(api_key, version, correlation_id, client_id)
    body = encode(message, version)
    return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))


@dataclass(slots=True)
class _Search:
    """One search for the peer: which addresses were begun with, and which refused."""

    begun: dict[Address, bool] = field(default_factory=dict)
    """True for those that were trusted then."""
    refused: set[Address] = field(default_factory=set)


class TcpPeerChannel:
    """One connection to one peer, kept up from `open` to `close`."""

    def __init__(
        self,
        name: str,
        addresses: Callable[[], Sequence[Address]],
        client_id: str,
        software_version: str,
        listener: PeerListener,
        connect_timeout_ms: int,
        metrics: Metrics,
        security: LinkSecurity | None = None,
    ) -> None:
        """`addresses` are the peer's own: the node there is taken for it until a response shows another.

        Without `security` the link is plaintext.
        """
        self._name = name
        self._listener = listener
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._metrics = metrics
        self._security = security
        hello = ApiVersionsRequest(
            client_software_name=NODE_SOFTWARE, client_software_version=software_version
        )
        self._handshake = request_frame(
            API_VERSIONS_KEY, hello, API_VERSIONS_VERSION, HANDSHAKE_ID, client_id
        )
        self._loop = asyncio.get_running_loop()
        self._names = HostResolver()
        self._where = AddressBook(addresses, listener.elsewhere, self._loop.time)
        self._search = _Search()
        self._transport: asyncio.Transport | None = None
        self._address = Address("", 0)
        self._is_trusted = False
        self._is_behind = False
        self._queue: deque[PeerCall] = deque()
        self._calls = CallSequence(name, self._loop, metrics, HANDSHAKE_ID, self._give_up)
        self._last_error = "not connected yet"
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._wake = asyncio.Event()
        self._connecting = False
        self._is_closed = False
        self._failures = 0
        self._made_at = 0.0
        self._given_up: str | None = None

    # -- life

    def open(self) -> None:
        """Connect, and connect again whenever the connection is lost: at once after one that was in
        use, else later and later."""
        self._connecting = True
        self._keeper = unawaited(
            self._loop.create_task(self._keep_connected(), name=f"link {self._name}")
        )

    async def close(self) -> None:
        """Give the connection up; requests without a response fail."""
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

    def wake(self) -> None:
        """The peer's process runs: connect now, if a wait before the next attempt is going on."""
        if self._transport is None and not self._is_closed:
            self._connecting = True
            self._wake.set()

    async def _keep_connected(self) -> None:
        while True:
            self._connecting = True
            self._wake.clear()
            if await self._connect():
                self._connecting = False
                await self._until_lost()
                if not self._failures:
                    continue
            self._connecting = False
            self._fail_all(self._last_error)
            delay_ms = min(RECONNECT_MAX_MS, RECONNECT_MS << min(self._failures, 10))
            self._failures += 1
            await _wait(self._wake, delay_ms / 1000)

    async def _until_lost(self) -> None:
        while not self._is_trusted and not self._lost.is_set():
            await _wait(self._lost, DOUBT_S)
            if not self._is_trusted and not self._calls.is_waiting:
                self._reject_address("no node there has identified itself")
        await self._lost.wait()

    # -- the search for the peer

    async def _connect(self) -> bool:
        """Try each address once. Returns False if the peer responds nowhere; the listener hears of it
        when all of its own addresses have refused."""
        self._lost.clear()
        self._search = _Search()
        won = await happy_eyeballs(
            self._next_address, self._dial, self._on_dial_failed, PeerConnection.abort
        )
        if won is not None:
            return self._begin(*won)
        if not self._search.begun:
            self._last_error = f"no address is known of {self._name}"
        return False

    def _untried(self) -> list[Address]:
        """The peer's own addresses that became known since the search began."""
        return [at for at in self._where.trusted() if at not in self._search.begun]

    def _next_address(self) -> Address | None:
        begun = self._search.begun
        trusted = self._untried()
        others = self._where.candidates() if self._queue and not trusted else []
        address = next((at for at in (*trusted, *others) if at not in begun), None)
        if address is not None:
            begun[address] = bool(trusted)
        return address

    def _on_dial_failed(self, address: Address, error: BaseException) -> None:
        self._metrics.peer_connect_failures += 1
        reason = "timed out" if isinstance(error, TimeoutError) else str(error)
        is_own = self._search.begun[address]
        if is_own or True not in self._search.begun.values():
            self._last_error = f"cannot connect to {address[0]}:{address[1]}: {reason}"
        if self._where.is_own(address):
            self._listener.on_unreachable(address, error)
        if isinstance(error, MalformedMessage):
            LOG.info("connection given up", peer=self._name, reason=reason)
        if isinstance(error, NotThisPeer):
            self._where.deny(address)
        else:
            self._where.miss(address)
        if is_own and isinstance(error, REFUSALS):
            self._search.refused.add(address)
            if self._search.refused.issuperset(self._where.trusted()):
                self._listener.on_connection_refused()

    async def _dial(self, address: Address) -> PeerConnection:
        """A connection to this address on which ApiVersions got a response."""
        host, port = address
        async with asyncio.timeout(self._connect_timeout_s):
            ips = await self._names.ips_of(host)
            if len(ips) == 1:
                return await self._greet(host, ips[0], port)
            errors: list[BaseException] = []
            left = iter(ips)
            won = await happy_eyeballs(
                lambda: next(left, None),
                lambda ip: self._greet(host, ip, port),
                lambda ip, error: errors.append(error),
                PeerConnection.abort,
            )
        if won is None:
            raise next((error for error in errors if not isinstance(error, REFUSALS)), errors[0])
        return won[1]

    async def _greet(self, host: str, ip: str, port: int) -> PeerConnection:
        connection = PeerConnection(self._metrics)
        security = self._security
        lowest = (
            connection
            if security is None
            else security.stream(connection, host, self._listener.peer_id)
        )
        try:
            protocol = cast("asyncio.Protocol", lowest)
            await self._loop.create_connection(lambda: protocol, ip, port)
            await connection.shake_hands(self._handshake)
            self._listener.on_announced(connection.announced)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _begin(self, address: Address, connection: PeerConnection) -> bool:
        """Use a new connection. Returns False if it is gone already, or not wanted any more."""
        if self._is_closed or connection.is_lost:
            self._last_error = f"the connection to {self._name} was lost at once"
            connection.abort()
            return False
        self._transport = connection.transport
        announced = connection.announced
        versions = {key.api_key: (key.min_version, key.max_version) for key in announced.api_keys}
        self._calls.begin(connection.transport, versions)
        self._address = address
        self._is_trusted = self._search.begun[address]
        self._made_at = self._loop.time()
        self._given_up = None
        self._metrics.peer_connections_opened += 1
        self._is_behind = announced.peers_in_plaintext
        if self._is_trusted:
            self._where.confirm(address)
            self._listener.on_connection_made(self._ip(), self._is_behind)
        connection.hand_to(self)
        queue, self._queue = self._queue, deque()
        for call in queue:
            self._calls.send(call)
        return True

    def _confirm(self) -> None:
        """The peer itself has responded at an address that was not trusted."""
        self._where.confirm(self._address)
        self._is_trusted = True
        self._listener.on_connection_made(self._ip(), self._is_behind)

    def _ip(self) -> str:
        """Address to which the connection leads."""
        assert self._transport is not None, "used on a connection"
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    def _reject_address(self, reason: str) -> None:
        """The peer is not at this address: search for it at the others."""
        if self._transport is not None:
            host, port = self._address
            self._give_up(
                f"{self._name} is not at {host}:{port}: {reason}", is_news=self._is_trusted
            )
            self._is_trusted = False

    def on_lost(self, exc: Exception | None) -> None:
        """The connection is gone; either end may have closed it."""
        self._transport = None
        lost = f"the connection to {self._name} was lost: {exc or 'closed by the peer'}"
        self._last_error = self._given_up or lost
        was_used = (
            self._calls.has_responded or self._loop.time() - self._made_at > RECONNECT_MAX_MS / 1000
        )
        if not self._is_trusted:
            self._where.deny(self._address)
        elif not self._is_closed:
            self._listener.on_connection_lost()
            if isinstance(exc, CertificateProblem):
                self._listener.on_unreachable(self._address, exc)
            elif exc is None and self._given_up is None and self._is_unanswered:
                self._listener.on_unreachable(self._address, HungUp())
        if was_used:
            self._failures = 0
        else:
            # The node there serves nothing: to try again at once would make a busy loop.
            self._failures = max(1, self._failures)
        self._connecting = not self._failures and not self._is_closed
        self._fail_all(self._last_error)
        self._lost.set()

    @property
    def _is_unanswered(self) -> bool:
        """The peer was asked on this connection, and has given no response."""
        return self._calls.is_waiting and not self._calls.has_responded

    # -- asking

    def call(self, call: PeerCall) -> None:
        """Send a request as soon as the connection is there; fail at once if it is not to be had."""
        if self._transport is not None:
            self._calls.send(call)
        elif self._connecting:
            self._queue.append(call)
        elif not self._is_closed and (self._untried() or self._where.candidates()):
            self._queue.append(call)
            self.wake()
        else:
            self._loop.call_soon(call.failed, self._last_error, None)

    def on_frame(self, frame: bytes) -> None:
        """A response. Raises MalformedMessage if it is none to what was asked."""
        is_peer = self._calls.take(frame, self._address, is_trusted=self._is_trusted)
        if is_peer is True:
            if not self._is_trusted:
                self._confirm()
        elif is_peer is False:
            self._reject_address("another node responded")

    def on_malformed(self, error: MalformedMessage) -> None:
        """Gives the connection up: the bytes that came are no response."""
        self._give_up(f"{self._name} sent what is no response: {error}")

    def _give_up(self, reason: str, *, is_news: bool = True) -> None:
        """Close, and connect again."""
        if is_news:
            LOG.info("connection given up", peer=self._name, reason=reason)
        self._given_up = reason
        if self._transport is not None:
            self._transport.abort()

    def _fail_all(self, reason: str) -> None:
        self._calls.fail_all(reason)
        queue, self._queue = self._queue, deque()
        for call in queue:
            call.failed(reason, None)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until it happens, or so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
