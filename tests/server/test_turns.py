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
from quorumd.server.net.turns import (
    QUICK_BYTES_MAX,
    SHARE_NS,
    TURN_NS,
    LongRequest,
    Turns,
    is_quick,
)
from quorumd.wire.errors import MalformedMessage
from tests.server.bare_connection import Transport
from tests.support.serving import answer_frame, request_frame

PRODUCE, FETCH, METADATA, VOTE = 0, 1, 3, 52


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


class VoterTwo:
    """A quorum of one other voter, that was not reached yet."""

    def is_voter_or_leader(self, replica_id: int) -> bool:
        return replica_id == 2

    def is_voters_ip(self, ip: str) -> bool:
        return False

    def is_ip_of(self, replica_id: int, ip: str) -> bool:
        return False

    def on_peer_connected(self, replica_id: int) -> None: ...


class Served:
    def __init__(self, loop: asyncio.AbstractEventLoop, busy_ns: int) -> None:
        self.loop = loop
        self.dispatcher = Slow(busy_ns)
        self.group: ConnectionGroup[Connection] = ConnectionGroup(
            loop,
            self.dispatcher,
            Metrics(),
            max_frame_bytes=1 << 20,
            max_connections=1_000,
            known=VoterTwo(),
        )

    def connect(self, ip: str = "10.0.0.9") -> tuple[Connection, Transport]:
        transport = Transport(ip)
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


def vote_frame(correlation_id: int) -> bytes:
    return request_frame(correlation_id, key=VOTE, version=2, client_id=b"raft-client-2")


@pytest.mark.parametrize(("key", "version"), [(PRODUCE, 9), (FETCH, 13), (VOTE, 2)])
def test_a_crowd_with_one_request_each_holds_the_loop_for_two_turns_of_time_at_most(
    loop: asyncio.AbstractEventLoop, key: int, version: int
) -> None:
    """All of them are read in one turn of the event loop."""
    served = Served(loop, SHARE_NS)
    peer, transport = served.connect()
    peer.data_received(vote_frame(0))
    for n in range(1, 401):
        served.connect()[0].data_received(request_frame(n, key=key, version=version))
    taken, in_turn = served.dispatcher.taken, 2 * TURN_NS // SHARE_NS
    assert len(taken) <= 1 + in_turn
    transport.sent = b""
    peer.data_received(vote_frame(1_000))
    assert taken[-1] == 1_000, "a peer's request is taken at once"
    assert transport.sent
    while len(taken) < 402:
        before = len(taken)
        served.turn()
        assert 0 < len(taken) - before <= in_turn
    assert [n for n in taken if n < 1_000] == list(range(401))


def test_while_time_is_left_nobody_has_to_wait_for_a_turn(loop: asyncio.AbstractEventLoop) -> None:
    """So the batches of many producers, which are read in one turn, share one append."""
    turns = Turns(loop)
    for _ in range(2):
        assert not turns.is_over(monotonic_ns() + 10 * TURN_NS)
        loop.call_soon(loop.stop)
        loop.run_forever()
        begin_ns = turns.ends_ns - TURN_NS
        assert not any(turns.is_over(begin_ns + n) for n in range(0, 2 * TURN_NS, TURN_NS // 4))
        assert turns.is_over(begin_ns + 2 * TURN_NS)
        loop.call_soon(loop.stop)
        loop.run_forever()


def test_a_peer_with_more_requests_than_one_goes_before_a_crowd_and_halves_its_share(
    loop: asyncio.AbstractEventLoop,
) -> None:
    served = Served(loop, SHARE_NS)
    peer, _ = served.connect()
    peer.data_received(vote_frame(1_000))
    for n in range(100):
        served.connect()[0].data_received(request_frame(n, key=METADATA, version=12))
    peer.data_received(b"".join(vote_frame(1_001 + n) for n in range(20)))
    taken = served.dispatcher.taken
    served.turn()
    assert 1_001 in taken
    while len(taken) < 121:
        served.turn()
    after = taken[taken.index(1_001) :]
    assert len([n for n in after[: after.index(1_020)] if n < 1_000]) <= 22
    assert 0 in after[:4], "the crowd goes on meanwhile"


def test_every_other_share_is_a_peers_while_one_waits(loop: asyncio.AbstractEventLoop) -> None:
    order: list[str] = []

    class Waits:
        def __init__(self, name: str) -> None:
            self.name = name

        def go_on(self, until_ns: int) -> None:
            order.append(self.name)

    turns = Turns(loop)
    for name in ("a", "b", "c", "peer 1", "peer 2"):
        turns.later(Waits(name), goes_first=name.startswith("peer"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert order == ["peer 1", "a", "peer 2", "b", "c"]


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


@pytest.mark.parametrize(
    ("key", "size", "expected"),
    [(VOTE, QUICK_BYTES_MAX, True), (VOTE, QUICK_BYTES_MAX + 1, False), (METADATA, 100, False)],
)
def test_a_request_is_quick_by_its_key_and_up_to_its_size(
    key: int, size: int, expected: bool
) -> None:
    frame = request_frame(1, key=key)
    assert is_quick(frame + bytes(size - len(frame))) is expected


def test_one_has_its_share_and_no_more_than_is_left_of_the_turn() -> None:
    loop = asyncio.new_event_loop()
    turns = Turns(loop)
    assert turns.share(1_000) == 1_000 + SHARE_NS
    assert turns.share(TURN_NS) == 1_000 + TURN_NS
    loop.close()
