"""The states of an inbound connection: the table is sound, and nothing happens that is not in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from quorumd.server.net.connection_limits import ENDED_S, MAX_IN_FLIGHT
from quorumd.server.net.connection_state import TRANSITIONS, CloseReason, ConnectionState
from tests.server.bare_connection import At
from tests.support.serving import request_frame


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
