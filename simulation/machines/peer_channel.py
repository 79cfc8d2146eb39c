"""A node's link to a peer: real frames, a simulated transport.

How a link behaves (one connection, reset by what is lost, made again at once and then later and later,
given up when a response is late) is that of `quorumd.server.peers.peer_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorumd.raft.types import Address, ReplicaKey
from quorumd.server.model.peer_calls import PeerCall, PeerListener, StaleRequest
from quorumd.server.peers.address_book import AddressBook
from quorumd.server.peers.peer_channel import DOUBT_S, NODE_SOFTWARE, RECONNECT_MAX_MS, RECONNECT_MS
from quorumd.wire.fast.fetch_response import parse_fetch_response
from quorumd.wire.headers import decode_response_header
from quorumd.wire.registry import APIS
from simulation.history.facts import Heard
from simulation.machines.channel import Channel
from simulation.machines.network import Network, NetworkMessage
from simulation.machines.process import Process
from simulation.scheduler import MS, SECOND, Scheduler, Timer

DOUBT_US = int(DOUBT_S * SECOND)
Following = tuple[int, ReplicaKey | None]
"""An epoch, and its leader as far as it is known."""


class Endpoints(Protocol):
    """The machines of a run, by the names under which they listen."""

    def host_at(self, address: str) -> str:
        """The machine that is reached under this name, as the network knows it."""

    def listening_at(self, address: str) -> Process | None:
        """The process that listens there now, None if none does."""


class _PendingCall:
    __slots__ = ("call", "timer", "version")

    def __init__(self, call: PeerCall, version: int, timer: Timer) -> None:
        self.call = call
        self.version = version
        self.timer = timer


class SimPeerChannel:
    """A `PeerChannel` on the simulated network. Belongs to one process."""

    def __init__(
        self,
        process: Process,
        network: Network,
        endpoints: Endpoints,
        addresses: Callable[[], Sequence[Address]],
        listener: PeerListener,
        connect_timeout_ms: int,
    ) -> None:
        self._process = process
        self._network = network
        self._endpoints = endpoints
        self._listener = listener
        self._connect_timeout_us = connect_timeout_ms * MS
        self._scheduler: Scheduler = process.scheduler
        self._address_book = AddressBook(
            addresses, listener.elsewhere, lambda: self._scheduler.now_us / SECOND
        )
        self._queue: list[tuple[PeerCall, Following]] = []
        """Calls that wait for a connection, and whom the node followed when it made them."""
        self._pending: dict[int, _PendingCall] = {}
        self._correlation_id = 0
        self._target: str | None = None
        self._address = Address("", 0)
        self._is_trusted = False
        self._peer_process: Process | None = None
        self._channel: Channel | None = None
        self._is_connecting = False
        self._is_closed = False
        self._failures = 0
        self._connection = 0

    # -- connection

    def open(self) -> None:
        self._connect()

    def wake(self) -> None:
        self._connect()

    def discard(self) -> None:
        self._is_closed = True
        self._hang_up()
        self._fail_all("the link is closed")

    async def close(self) -> None:
        self.discard()

    @property
    def is_up(self) -> bool:
        return self._target is not None

    def _connect(self) -> None:
        """Try each address once; a machine that is cut off notices only when time is up."""
        if self._is_closed or self.is_up or self._is_connecting:
            return
        self._is_connecting = True
        trusted = self._address_book.trusted()
        self._try([(at, True) for at in trusted], is_refused=bool(trusted))

    def _try(self, own: list[tuple[Address, bool]], *, is_refused: bool) -> None:
        """Connect to the first of these, or else to the next; then to those where the peer may be all
        the same, while a request waits. So far all of its own were refused, or not."""
        me, network = self._process.host, self._network
        tried: list[Address] = []

        def next_address() -> tuple[Address, bool] | None:
            if own:
                return own.pop(0)
            others = self._address_book.candidates() if self._queue else []
            return next(((at, False) for at in others if at not in tried), None)

        def go_on(*, is_refused: bool) -> None:
            found = next_address()
            if found is not None:
                dial(*found, is_refused=is_refused)
            else:
                self._connecting_failed()

        def dial(address: Address, is_own: bool, *, is_refused: bool) -> None:
            tried.append(address)
            host = self._endpoints.host_at(address[0])
            there_us, back_us = network.latency_us(), network.latency_us()
            self._connection += 1
            connection = self._connection

            def arrive() -> None:
                if network.connects(me, host):
                    peer = self._endpoints.listening_at(address[0])
                    self._process.call(back_us, lambda: connected(peer))
                else:
                    self._process.call(self._connect_timeout_us, lambda: missed(is_refused=False))

            def connected(peer: Process | None) -> None:
                if peer is None or not peer.is_alive:
                    missed(is_refused=is_refused)
                elif connection == self._connection and not self._is_closed:
                    self._begin(address, host, peer, is_own)

            def missed(*, is_refused: bool) -> None:
                if connection != self._connection or self._is_closed or self.is_up:
                    return
                self._note_broken(host)
                self._address_book.miss(address)
                if is_own and not own and is_refused:
                    self._listener.on_connection_refused()
                go_on(is_refused=is_refused)

            self._scheduler.call_later(there_us, arrive)

        go_on(is_refused=is_refused)

    def _begin(self, address: Address, host: str, peer: Process, is_own: bool) -> None:
        self._is_connecting = False
        self._failures = 0
        self._target, self._peer_process = host, peer
        self._address, self._is_trusted = address, is_own
        me = self._process
        self._channel = Channel(peer.listener, me.host, NODE_SOFTWARE, me.key)
        peer.connections.append(self)
        peer.call(0, lambda: peer.on_peer_connected(me.key.id))
        if is_own:
            self._address_book.confirm(address)
            self._listener.on_connection_made(self._address[0])
        else:
            self._process.call(DOUBT_US, self._doubt(self._connection))
        queue, self._queue = self._queue, []
        for call, asked_as in queue:
            self._send(call, asked_as)

    def _doubt(self, connection: int) -> Callable[[], None]:
        def ask() -> None:
            if connection != self._connection or self._is_trusted or self._is_closed:
                return
            if self._pending:
                self._process.call(DOUBT_US, ask)
            else:
                self._reject_address()

        return ask

    def _reject_address(self) -> None:
        """Another node is at this address, or none that identifies itself."""
        self._is_trusted = False
        self.reset()

    def _connecting_failed(self) -> None:
        self._is_connecting = False
        self._fail_all("cannot connect")
        delay_ms = min(RECONNECT_MAX_MS, RECONNECT_MS << min(self._failures, 10))
        self._failures += 1
        self._process.call(delay_ms * MS, self._connect)

    def _hang_up(self) -> None:
        if self._peer_process is not None and self in self._peer_process.connections:
            self._peer_process.connections.remove(self)
        if self._channel is not None:
            self._channel.is_open = False
        self._target = self._peer_process = self._channel = None
        self._connection += 1

    def reset(self) -> None:
        """The connection is gone: what waits for a response fails, and a new one is tried at once."""
        if self.is_up and not self._is_closed:
            self._note_broken(self._target)
            self._hang_up()
            if self._is_trusted:
                self._listener.on_connection_lost()
            else:
                self._address_book.deny(self._address)
            self._fail_all("the connection was lost")
            self._connect()

    def peer_died(self) -> None:
        """The peer's process is gone; its system says so, if it still can be heard."""
        target, connection = self._target, self._connection
        if target is None or self._network.conditions.silent_deaths:
            return

        def notice() -> None:
            if connection == self._connection and self._network.reaches(target, self._process.host):
                self.reset()

        self._process.call(self._network.latency_us(), notice)

    # -- asking

    def call(self, call: PeerCall) -> None:
        self._process.on_effect()
        asked_as = self._process.following
        if self.is_up:
            self._send(call, asked_as)
        elif self._is_connecting:
            self._queue.append((call, asked_as))
        elif not self._is_closed and self._address_book.candidates():
            self._queue.append((call, asked_as))
            self._connect()
        else:
            self._process.call(0, lambda: call.failed("not connected", None))

    def _send(self, call: PeerCall, asked_as: Following) -> None:
        target, peer, channel = self._target, self._peer_process, self._channel
        assert target is not None, "sent on a connection"
        assert peer is not None, "sent to a process"
        assert channel is not None, "sent on a channel"
        self._correlation_id += 1
        correlation_id = self._correlation_id
        version = min(call.max_version, APIS[call.api_key].max_version)
        try:
            frame = call.build(version, correlation_id)
        except StaleRequest as error:
            reason = str(error)
            self._process.call(0, lambda: call.failed(reason, None))
            return
        timer = self._process.call(call.timeout_ms * MS, self._time_out)
        self._pending[correlation_id] = _PendingCall(call, version, timer)
        kind = APIS[call.api_key].name
        me, network, connection = self._process.host, self._network, self._connection
        self._process.on_request(call.api_key, version, frame)

        def lost() -> None:
            if connection == self._connection:
                self._process.call(0, self.reset)

        def reply(response: bytes) -> None:
            message = NetworkMessage(target, me, f"{kind} response", response)
            leads = kind == "Fetch" and asked_as[1] is not None and peer.leads(*asked_as)
            of_leader = asked_as if leads else None
            network.send(
                message, lambda data: self._receive(f"{kind} response", data, of_leader), lost
            )

        def deliver(data: bytes) -> None:
            if network.is_shut_out(me, target):
                return
            peer.receive(data, channel, kind, reply, lost)

        network.send(NetworkMessage(me, target, kind, frame), deliver, lost)

    def _receive(self, kind: str, frame: bytes, of_leader: Following | None) -> None:
        """A response has arrived; to a fetch, perhaps, that was asked of the leader of then."""
        process = self._process

        def handle() -> None:
            process.last_message = kind
            process.env.trace.note(process.host, "gets", kind, frame)
            self._on_response(frame, of_leader)

        process.run(handle)

    def _on_response(self, frame: bytes, of_leader: Following | None) -> None:
        """Takes a response, which may have come for the second time, or too late."""
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        pending = self._pending.pop(correlation_id, None)
        if pending is None:
            return
        pending.timer.cancel()
        call, version = pending.call, pending.version
        _, body_at = decode_response_header(call.api_key, version, frame)
        is_peer = call.responded(version, frame, body_at, self._address, self._is_trusted)
        if of_leader is not None and of_leader == self._process.following:
            self._note_heard(version, frame, body_at)
        if is_peer is False and self.is_up:
            self._reject_address()
        elif is_peer and not self._is_trusted and self.is_up:
            self._is_trusted = True
            self._address_book.confirm(self._address)
            self._listener.on_connection_made(self._address[0])

    def _note_heard(self, version: int, frame: bytes, body_at: int) -> None:
        response, process = parse_fetch_response(version, frame, body_at), self._process
        if response is not None and not (response.error_code or response.partition_error_code):
            epoch, _ = process.following
            heard = Heard(self._scheduler.now_us, epoch, self._target or "")
            process.env.facts.heard[process.key] = heard

    def _note_broken(self, host: str | None) -> None:
        heard, key = self._process.env.facts.heard, self._process.key
        if key in heard and heard[key].host in ("", host):
            del heard[key]

    def _time_out(self) -> None:
        """As in `quorumd.server.peers.peer_channel`: a late response costs the connection."""
        self.reset()

    def _fail_all(self, reason: str) -> None:
        pending, self._pending = list(self._pending.values()), {}
        queue, self._queue = self._queue, []
        for sent in pending:
            sent.timer.cancel()
        for call in [*(sent.call for sent in pending), *(call for call, _ in queue)]:
            call.failed(reason, None)
