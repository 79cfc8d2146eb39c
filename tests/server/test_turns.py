"""Who has much to do shares the event loop: pipelined requests, long work, and others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from time import monotonic_ns
from typing import cast

import pytest

from quorumd.raft.types import Endpoint
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.inbound_request import WAITS, InboundRequest, Steps
from quorumd.server.net.turns import SHARE_NS, TURN_NS, LongRequest
from quorumd.wire.errors import MalformedMessage
from tests.server.test_connection_state import Transport
from tests.support.serving import answer_frame, request_frame

METADATA, VOTE = 3, 52


def busy(ns: int) -> None:
    until = monotonic_ns() + ns
    while monotonic_ns() < until:
        pass


class Slow:
    """A dispatcher that takes its time; work in steps for bodies that say so."""

    def __init__(self, busy_ns: int) -> None:
        self.busy_ns = busy_ns
        self.taken: list[int] = []
        self.steps = 0

    def dispatch(self, request: InboundRequest) -> Steps | None:
        self.taken.append(request.correlation_id)
        if request.frame.endswith(b"steps"):
            return self._steps(request)
        busy(self.busy_ns)
        request.respond((answer_frame(request),))
        return None

    def _steps(self, request: InboundRequest) -> Steps:
        for _ in range(20):
            busy(self.busy_ns)
            self.steps += 1
            yield None
        if request.frame.endswith(b"bad steps"):
            raise MalformedMessage("found out late")
        request.respond((answer_frame(request),))


class Served:
    def __init__(self, loop: asyncio.AbstractEventLoop, busy_ns: int) -> None:
        self.loop = loop
        self.dispatcher = Slow(busy_ns)
        self.group: ConnectionGroup[Connection] = ConnectionGroup(
            loop, self.dispatcher, Metrics(), max_frame_bytes=1 << 20, max_connections=100
        )

    def connect(self) -> tuple[Connection, Transport]:
        transport = Transport()
        made = Connection(self.group, Endpoint("PLAINTEXT", "127.0.0.1", 1))
        made.connection_made(cast(asyncio.Transport, transport))
        return made, transport

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_requests_that_came_together_do_not_hold_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    served = Served(loop, SHARE_NS)
    connection, _ = served.connect()
    connection.data_received(b"".join(map(request_frame, range(20))))
    taken, turns = served.dispatcher.taken, 0
    while len(taken) < 20:
        before = len(taken)
        served.turn()
        turns += 1
        assert len(taken) - before <= TURN_NS // SHARE_NS
    assert taken == list(range(20))
    assert turns >= 5


def test_a_turn_is_shared_by_the_connections_that_wait(loop: asyncio.AbstractEventLoop) -> None:
    served = Served(loop, SHARE_NS)
    connections = [served.connect()[0] for _ in range(50)]
    for n, connection in enumerate(connections):
        connection.data_received(request_frame(n, key=METADATA, version=12))
    assert served.dispatcher.taken == [], "each waits for its turn"
    served.turn()
    assert len(served.dispatcher.taken) <= TURN_NS // SHARE_NS
    while len(served.dispatcher.taken) < 50:
        served.turn()
    assert served.dispatcher.taken == list(range(50))


def test_a_peers_small_request_is_taken_at_once_whatever_waits(
    loop: asyncio.AbstractEventLoop,
) -> None:
    served = Served(loop, SHARE_NS)
    for n in range(20):
        connection, _ = served.connect()
        connection.data_received(b"".join(request_frame(100 * n + i) for i in range(20)))
    peer, transport = served.connect()
    peer.data_received(request_frame(7, key=VOTE, version=2))
    assert served.dispatcher.taken[-1] == 7
    assert transport.sent


def test_long_work_is_done_in_steps_and_its_connection_waits(
    loop: asyncio.AbstractEventLoop,
) -> None:
    served = Served(loop, SHARE_NS // 2)
    (one, sent), (other, _) = served.connect(), served.connect()
    one.data_received(request_frame(1, body=b"steps"))
    one.data_received(request_frame(2))
    steps = []
    while 2 not in served.dispatcher.taken:
        other.data_received(request_frame(100 + len(steps)))
        served.turn()
        steps.append(served.dispatcher.steps)
    assert all(after - before <= 2 * TURN_NS // SHARE_NS for before, after in pairwise(steps))
    assert steps[-1] == 20, "the request behind was taken before the work was done"
    assert len(served.dispatcher.taken) == 2 + len(steps), "the other one was served in each turn"
    assert sent.sent.index(answer_frame(fake(1))) < sent.sent.index(answer_frame(fake(2)))


def test_a_step_that_waits_for_others_leaves_them_the_rest_of_the_turn() -> None:
    made: list[bool | None] = []

    def steps() -> Steps:
        for step in (None, WAITS, WAITS, None):
            made.append(step)
            yield step

    work = LongRequest(fake(1), steps())
    counts = []
    while not work.go_on(monotonic_ns() + 60 * 10**9):
        counts.append(len(made))
    assert counts == [2, 3]


def test_long_work_that_fails_closes_its_connection_alone(loop: asyncio.AbstractEventLoop) -> None:
    served = Served(loop, 1_000)
    (one, _), (other, answered) = served.connect(), served.connect()
    one.data_received(request_frame(1, body=b"bad steps") + request_frame(2))
    for _ in range(20):
        served.turn()
    assert one.state.value in ("closing", "lingering")
    assert served.dispatcher.taken == [1]
    other.data_received(request_frame(3))
    assert answered.sent


def test_work_goes_on_without_its_connection_unless_many_wait(
    loop: asyncio.AbstractEventLoop,
) -> None:
    served = Served(loop, 1_000)
    connection, _ = served.connect()
    connection.data_received(request_frame(1, body=b"steps"))
    connection.connection_lost(None)
    for _ in range(20):
        served.turn()
    assert served.dispatcher.steps == 20
    connections = [served.connect()[0] for _ in range(20)]
    for connection in connections:
        connection.data_received(request_frame(1, body=b"steps"))
    connections[-1].connection_lost(None)
    for _ in range(20 * 20):
        served.turn()
    assert served.dispatcher.steps == 20 * 20


def test_malformed_bytes_behind_requests_that_wait_close_after_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    served = Served(loop, SHARE_NS)
    connection, transport = served.connect()
    connection.data_received(b"".join(map(request_frame, range(10))) + b"\xff" * 8)
    for _ in range(20):
        served.turn()
    assert served.dispatcher.taken == list(range(10))
    assert connection.state.value == "lingering"
    assert transport.sent.endswith(answer_frame(fake(9)))


def fake(correlation_id: int) -> InboundRequest:
    return InboundRequest(cast("Connection", None), 0, 0, correlation_id, b"", 0, 0)
