"""What a connection counts while it holds something, and that all of it is given back."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

import pytest

from quorumd.server.net.connection_limits import (
    LINGER_S,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_BYTES,
    OUT_BYTES_MAX,
)
from quorumd.server.net.connection_state import CloseReason, ConnectionState
from quorumd.server.net.inbound_request import InboundRequest, Steps
from quorumd.server.net.turns import STRAYS_MAX, Turns
from tests.server.bare_connection import At, Keeping
from tests.support.serving import API_VERSIONS, answer_frame, request_frame

S = ConnectionState
MAX_FRAME_BYTES = 1 << 20


class Loop(asyncio.SelectorEventLoop):
    """Remembers what it is to do later."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, asyncio.TimerHandle]] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, **options: Any
    ) -> asyncio.TimerHandle:
        handle = super().call_later(delay, callback, *args, **options)
        self.later.append((delay, handle))
        return handle


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def at(loop: Loop) -> At:
    return At(loop)


def counts(at: At) -> tuple[int, int, int, int]:
    """In flight of the connection and of all, unsent, not whole."""
    group = at.group
    return (
        at.connection.in_flight_bytes,
        group.requests.size_bytes,
        group.unsent.total_bytes,
        group.unfinished.total_bytes,
    )


NOTHING = (0, 0, 0, 0)


@pytest.mark.parametrize(
    "pieces",
    [[request_frame(1)], [request_frame(1, key=3)], [request_frame(1)[:9], request_frame(1)[9:]]],
    ids=["quick", "in its turn", "in pieces"],
)
def test_a_connection_is_as_active_as_its_last_request(at: At, pieces: list[bytes]) -> None:
    """One that asks now and then is neither closed as idle nor displaced."""
    for _ in range(2):
        before_ns = monotonic_ns()
        for piece in pieces:
            at.connection.data_received(piece)
        at.turn()
        assert at.connection.active_ns >= before_ns


@pytest.mark.parametrize("before", [b"", request_frame(1)], ids=["first", "behind another"])
@pytest.mark.parametrize("size", range(1, 10))
def test_a_request_without_room_for_a_header_closes_its_connection(
    at: At, before: bytes, size: int
) -> None:
    """Its api key is none of those that are counted."""
    at.connection.data_received(before + struct.pack(">i", size) + bytes(size))
    at.dispatcher.answer_all()
    at.turn()
    assert at.connection.state is S.LINGERING
    assert bool(at.transport.sent) == bool(before)
    assert not at.dispatcher.requests


def test_a_request_counts_until_its_response_is_sent(at: At) -> None:
    frame = request_frame(1)
    size = len(frame) - 4
    at.connection.data_received(frame)
    assert counts(at) == (size, size, 0, 0)
    at.dispatcher.answer_all()
    assert counts(at) == NOTHING


def test_a_response_counts_while_it_waits_for_those_of_earlier_requests(at: At) -> None:
    for number in (1, 2):
        at.connection.data_received(request_frame(number))
    first, second = at.dispatcher.requests
    response = answer_frame(second)
    second.reserve(1000)
    assert at.connection.in_flight_bytes == 1000 + len(first.frame) + len(second.frame)
    second.respond((response,))
    assert at.group.unsent.total_bytes == len(response)
    first.respond((answer_frame(first),))
    at.turn()
    assert counts(at) == NOTHING
    assert at.transport.sent == answer_frame(first) + response


def test_what_is_not_whole_counts_until_the_connection_is_closed(at: At) -> None:
    at.connection.data_received(request_frame(1)[:10])
    assert counts(at) == (0, 0, 0, 10)
    at.connection.close_after_responses(CloseReason.SHUTDOWN)
    assert counts(at) == NOTHING


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_that_comes_at_once_is_not_larger_than_any_other(at: At, more: int) -> None:
    size = MAX_FRAME_BYTES + more
    head = struct.pack(">ihhihB", size, 0, 9, 1, 0, 0)
    at.connection.data_received(head + bytes(size + 4 - len(head)))
    assert (len(at.dispatcher.requests), at.connection.is_open) == (1 - more, True)
    assert at.connection.state is (S.LINGERING if more else S.OPEN)


def test_so_many_bytes_in_flight_and_no_more_is_read(at: At) -> None:
    at.connection.data_received(request_frame(1))
    at.dispatcher.requests[0].reserve(MAX_IN_FLIGHT_BYTES - at.connection.in_flight_bytes - 1)
    assert at.connection.state is S.OPEN
    at.connection.data_received(request_frame(2))
    assert at.connection.state is S.PAUSED


def test_so_many_requests_in_flight_and_no_more_is_read_though_each_comes_alone(at: At) -> None:
    for number in range(MAX_IN_FLIGHT):
        assert at.connection.state is S.OPEN, number
        at.connection.data_received(request_frame(number))
        at.turn()
    assert len(at.dispatcher.requests) == MAX_IN_FLIGHT
    assert at.connection.state is S.PAUSED


def test_nothing_more_is_read_while_the_requests_of_all_hold_too_much(at: At) -> None:
    at.connection.data_received(request_frame(1))
    at.turn()
    requests = at.group.requests
    held = requests.size_bytes
    requests.max_bytes = 3 * held
    at.connection.data_received(request_frame(2))
    assert at.connection.state is S.OPEN
    at.connection.data_received(request_frame(3))
    assert requests.size_bytes == requests.max_bytes
    assert at.connection.state is S.PAUSED
    at.dispatcher.answer_all()
    at.turn()
    at.turn()
    assert at.connection.state is S.OPEN


def test_a_request_that_waits_on_when_its_client_has_gone_holds_no_bytes(at: At) -> None:
    at.connection.data_received(request_frame(1, body=bytes(10_000)))
    (request,) = at.dispatcher.requests
    at.connection.connection_lost(None)
    assert request.frame == b""
    assert counts(at)[1:] == NOTHING[1:]
    at.dispatcher.answer_all()
    assert at.transport.sent == b""


def test_what_was_received_waits_while_the_peer_reads_nothing(at: At) -> None:
    at.connection.data_received(b"".join(request_frame(number, key=3) for number in range(2)))
    at.connection.data_received(request_frame(2, key=3))
    before = len(at.dispatcher.requests)
    at.connection.pause_writing()
    for _ in range(3):
        at.turn()
    assert len(at.dispatcher.requests) == before
    at.connection.resume_writing()
    for _ in range(3):
        at.turn()
    assert len(at.dispatcher.requests) == 3


def test_a_response_that_waits_on_counts_when_others_before_it_leave(at: At) -> None:
    for number in range(4):
        at.connection.data_received(request_frame(number))
        at.turn()
    first, second, third, fourth = at.dispatcher.requests
    frames = [answer_frame(request) for request in at.dispatcher.requests]
    fourth.respond((frames[3],))
    second.respond((frames[1],))
    assert at.group.unsent.total_bytes == len(frames[3]) + len(frames[1])
    first.respond((frames[0],))
    assert at.group.unsent.total_bytes == len(frames[3])
    third.respond((frames[2],))
    assert at.group.unsent.total_bytes == 0
    assert at.transport.sent == b"".join(frames)


def test_it_is_read_again_when_half_of_the_requests_have_their_responses(at: At) -> None:
    at.connection.data_received(b"".join(map(request_frame, range(MAX_IN_FLIGHT + 1))))
    while len(at.dispatcher.requests) < MAX_IN_FLIGHT:
        at.turn()  # not all are taken in one
    assert at.connection.state is S.PAUSED
    for answered, request in enumerate(at.dispatcher.requests[: MAX_IN_FLIGHT // 2], 1):
        request.respond((answer_frame(request),))
        assert (at.connection.state is S.PAUSED) == (answered < MAX_IN_FLIGHT // 2), answered


@pytest.mark.parametrize("more", [0, 1])
def test_it_is_read_again_when_half_of_the_bytes_have_their_responses(at: At, more: int) -> None:
    frames = [request_frame(number) for number in range(3)]
    for frame in frames[:2]:
        at.connection.data_received(frame)
        at.turn()
    first, second = at.dispatcher.requests
    first.reserve(MAX_IN_FLIGHT_BYTES // 2)
    last_bytes = len(frames[2]) - 4
    second.reserve(MAX_IN_FLIGHT_BYTES // 2 + more - second.held_bytes - last_bytes)
    at.connection.data_received(frames[2])
    assert at.connection.state is S.PAUSED
    first.respond((answer_frame(first),))
    assert at.connection.in_flight_bytes == MAX_IN_FLIGHT_BYTES // 2 + more
    assert (at.connection.state is S.PAUSED) == (more == 1)


class Answering(Keeping):
    """Answers at once, with much."""

    def dispatch(self, request: InboundRequest) -> Steps | None:
        super().dispatch(request)
        request.respond((answer_frame(request, bytes(OUT_BYTES_MAX // 4)),))
        return None


def test_responses_that_are_collected_hold_up_the_requests_behind_them(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "share", lambda self, now_ns: now_ns + (1 << 62))
    answering = at.group.dispatcher = Answering()
    at.connection.data_received(b"".join(map(request_frame, range(12))))
    assert len(answering.requests) == 4
    assert len(at.transport.sent) > OUT_BYTES_MAX
    while len(answering.requests) < 12:
        at.turn()
    at.turn()
    assert at.connection.state is S.OPEN


def test_one_that_ends_its_side_is_closed_behind_what_it_has_sent(at: At) -> None:
    at.connection.data_received(request_frame(1, key=API_VERSIONS))
    assert not at.dispatcher.requests, "it waits for its turn"
    assert at.connection.eof_received()
    while not at.dispatcher.requests:
        at.turn()
    assert at.connection.state is S.CLOSING
    at.dispatcher.answer_all()
    assert at.transport.calls[-1] == "close"


def test_a_peer_that_does_not_close_is_aborted_and_a_timer_ends_with_the_connection(
    at: At, loop: Loop
) -> None:
    at.connection.close(CloseReason.REFUSED, "a test")
    [(delay, timer)] = loop.later
    assert (delay, timer.cancelled()) == (LINGER_S, False)
    at.connection.connection_lost(None)
    assert timer.cancelled()


@pytest.mark.parametrize("others", [STRAYS_MAX - 1, STRAYS_MAX])
def test_work_for_one_that_is_gone_is_dropped_only_where_many_wait(at: At, others: int) -> None:
    made = []

    def steps() -> Steps:
        try:
            yield None
            made.append("all")
        finally:
            made.append("end")

    at.dispatcher.work = steps()
    next(at.dispatcher.work)
    at.connection.data_received(request_frame(1))
    for _ in range(others):
        at.group.turns.later(Idle(), goes_first=False)
    at.connection.connection_lost(None)
    assert made == ([] if others < STRAYS_MAX else ["end"])
    at.turn()
    assert made == (["all", "end"] if others < STRAYS_MAX else ["end"])


class Idle:
    """Has nothing to go on with."""

    def go_on(self, until_ns: int) -> None:
        """As the turns want it."""
