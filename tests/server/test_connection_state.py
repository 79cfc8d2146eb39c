"""The states of an inbound connection: the table is sound, and nothing happens that is not in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from quorumd.raft.types import Endpoint
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.connection_limits import ENDED_S, MAX_IN_FLIGHT
from quorumd.server.net.connection_slots import ConnectionSlots
from quorumd.server.net.connection_state import TRANSITIONS, CloseReason, ConnectionState
from quorumd.server.net.inbound_request import InboundRequest
from tests.support.serving import answer_frame, request_frame


class Transport:
    """Remembers what a connection asks of its transport."""

    def __init__(self, ip: str = "127.0.0.1") -> None:
        self.calls: list[str] = []
        self.sent = b""
        self._ip = ip

    def get_extra_info(self, name: str) -> object:
        addresses = {"peername": (self._ip, 1), "sockname": ("127.0.0.1", 1)}
        return addresses.get(name, self)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def setsockopt(self, *option: int) -> None:
        """As a socket's."""

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


class Keeping:
    """A dispatcher that answers nothing by itself."""

    def __init__(self) -> None:
        self.requests: list[InboundRequest] = []

    def dispatch(self, request: InboundRequest) -> None:
        self.requests.append(request)

    def answer_all(self) -> None:
        requests, self.requests = self.requests, []
        for request in requests:
            request.respond((answer_frame(request),))


class At:
    """One connection without a network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, has_place: bool = True) -> None:
        self.loop = loop
        self.transport = Transport()
        self.dispatcher = Keeping()
        group: ConnectionGroup[Connection] = ConnectionGroup(
            loop,
            self.dispatcher,
            Metrics(),
            max_frame_bytes=1 << 20,
            max_connections=1,
        )
        if not has_place:
            group.slots = ConnectionSlots(1, None, group.metrics.connections_by_kind, new_max=0)
        self.connection = Connection(group, Endpoint("PLAINTEXT", "127.0.0.1", 1))
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.states = [self.connection.state]

    def note(self) -> None:
        if self.connection.state is not self.states[-1]:
            self.states.append(self.connection.state)

    def turn(self) -> None:
        """Let the event loop do what waits for the end of the turn."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        self.note()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


S = ConnectionState


def test_every_state_can_end_and_the_last_one_stays() -> None:
    assert set(TRANSITIONS) == set(ConnectionState)
    assert TRANSITIONS[S.CLOSED] == ()
    for state, following in TRANSITIONS.items():
        assert state is S.CLOSED or S.CLOSED in following
        assert state not in following
    assert {state for following in TRANSITIONS.values() for state in following} == set(S) - {S.NEW}


def test_a_connection_pauses_resumes_and_ends_in_order(loop: asyncio.AbstractEventLoop) -> None:
    at = At(loop)
    at.connection.data_received(b"".join(map(request_frame, range(MAX_IN_FLIGHT + 1))))
    while len(at.dispatcher.requests) < MAX_IN_FLIGHT:
        at.turn()  # not all are taken in one
    at.note()
    at.dispatcher.answer_all()
    at.note()
    while not at.dispatcher.requests:
        at.turn()
    at.turn()
    at.connection.close_after_responses(CloseReason.SHUTDOWN)
    at.note()
    at.dispatcher.answer_all()
    at.note()
    at.connection.connection_lost(None)
    at.note()
    assert at.states == [
        *(S.OPEN, S.PAUSED, S.RESUMING, S.OPEN),
        *(S.CLOSING, S.LINGERING, S.CLOSED),
    ]
    assert at.transport.calls == [
        *("pause_reading", "resume_reading"),
        *("pause_reading", "write_eof", "resume_reading"),
    ]


def test_one_that_is_closed_before_it_reads_again_stays_closed(
    loop: asyncio.AbstractEventLoop,
) -> None:
    at = At(loop)
    at.connection.pause_writing()
    at.connection.resume_writing()
    at.note()
    at.connection.abort(CloseReason.STALLED, "a test")
    at.note()
    at.turn()
    assert at.states == [S.OPEN, S.RESUMING, S.CLOSING]


def test_one_whose_peer_stops_reading_again_at_once_stays_paused(
    loop: asyncio.AbstractEventLoop,
) -> None:
    at = At(loop)
    at.connection.pause_writing()
    at.connection.resume_writing()
    at.connection.pause_writing()
    at.turn()
    assert at.connection.state is S.PAUSED
    assert "resume_reading" not in at.transport.calls


def test_one_that_ends_its_side_waits_so_long_for_its_responses() -> None:
    later: list[tuple[float, Callable[..., object]]] = []

    class Later(asyncio.SelectorEventLoop):
        def call_later(
            self, delay: float, callback: Callable[..., object], *args: object, **options: Any
        ) -> asyncio.TimerHandle:
            later.append((delay, callback))
            return super().call_later(delay, callback, *args, **options)

    with closing(Later()) as loop:
        at = At(loop)
        at.connection.data_received(request_frame(1))
        assert at.connection.eof_received()
        assert (at.connection.state, at.connection.in_flight) == (S.CLOSING, 0)
        [(delay, end)] = later
        assert delay == ENDED_S
        end()
        assert at.transport.calls == ["pause_reading", "abort"]


def test_one_too_many_is_never_open(loop: asyncio.AbstractEventLoop) -> None:
    at = At(loop, has_place=False)
    assert at.states == [S.NEW]
    assert not at.connection.is_open
    at.connection.connection_lost(None)
    assert at.connection.state is S.CLOSED


def test_what_the_table_does_not_hold_is_an_assertion(loop: asyncio.AbstractEventLoop) -> None:
    at = At(loop)
    at.connection.connection_lost(None)
    with pytest.raises(AssertionError, match="does not follow"):
        at.connection.connection_lost(None)
    with pytest.raises(AssertionError, match="does not follow"):
        at.connection.connection_made(cast(asyncio.Transport, at.transport))
