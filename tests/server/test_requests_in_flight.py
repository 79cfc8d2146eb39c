"""What the requests of all connections together may hold, and who is read from then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from quorumd.raft.types import Endpoint
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_group import ConnectionGroup
from quorumd.server.net.connection_state import CloseReason, ConnectionState
from quorumd.server.net.requests_in_flight import FULL_NS_MAX, READ_BYTES, RequestsInFlight
from tests.server.bare_connection import Keeping, Transport
from tests.server.test_turns import VoterTwo
from tests.support.serving import request_frame

SIZE = 1 << 20
"""Of a request."""
ROOM = 8
"""For so many there is room."""
OPEN, PAUSED = ConnectionState.OPEN, ConnectionState.PAUSED


class Node:
    """Many connections without a network, to a node that responds when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.loop = loop
        self.dispatcher = Keeping()
        self.group: ConnectionGroup[Connection] = ConnectionGroup(
            loop,
            self.dispatcher,
            Metrics(),
            max_frame_bytes=2 * SIZE,
            max_connections=1_000,
            known=VoterTwo(),
        )
        self.group.requests.max_bytes = ROOM * SIZE
        self.group.unfinished.max_bytes = count * READ_BYTES + ROOM * SIZE
        self.read_bytes = 0
        self.connections = [self.connect() for _ in range(count)]

    def connect(self) -> Connection:
        made = Connection(self.group, Endpoint("PLAINTEXT", "127.0.0.1", 1))
        made.connection_made(cast(asyncio.Transport, Transport("10.0.0.9")))
        return made

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def send(self, connection: Connection, number: int = 0) -> None:
        """Send a request in pieces, of which the node reads what its connection takes."""
        frame = request_frame(number, key=0, version=9, body=bytes(SIZE))
        for at in range(0, len(frame), READ_BYTES):
            if connection.state is OPEN:
                connection.data_received(frame[at : at + READ_BYTES])
                self.read_bytes += READ_BYTES
        self.turns()

    @property
    def held(self) -> int:
        return self.group.requests.size_bytes


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_a_hundred_connections_hold_no_more_than_a_few_may(loop: asyncio.AbstractEventLoop) -> None:
    node = Node(loop, 100)
    for connection in node.connections:
        node.send(connection)
        node.send(connection)
    assert len(node.dispatcher.requests) <= ROOM + 1
    assert node.held <= (ROOM + 1) * SIZE
    assert all(each.state is PAUSED for each in node.connections[ROOM:])
    assert node.read_bytes <= (ROOM + 1) * SIZE + 100 * READ_BYTES, "one more read of each"


def test_when_requests_have_their_responses_all_go_on_in_the_end(
    loop: asyncio.AbstractEventLoop,
) -> None:
    node = Node(loop, 30)
    for connection in node.connections:
        node.send(connection)
    while node.dispatcher.requests:
        assert node.held <= (ROOM + 1) * SIZE
        node.dispatcher.answer_all()
        loop.run_until_complete(asyncio.sleep(0.05))
    assert node.held == 0
    assert all(each.state is OPEN for each in node.connections)


def test_what_ends_with_its_connection_is_held_no_more(loop: asyncio.AbstractEventLoop) -> None:
    node = Node(loop, 3)
    lost, closed, failed = node.connections
    for connection in node.connections:
        node.send(connection)
        node.send(connection)
    lost.connection_lost(None)
    closed.close(CloseReason.IDLE, "a test")
    first = next(each for each in node.dispatcher.requests if each.connection is failed)
    first.fail(ValueError("a test"))
    assert node.held == 0
    for connection in (closed, failed):
        connection.connection_lost(None)
    assert node.held == 0


def test_a_connection_that_is_gone_counts_nowhere(loop: asyncio.AbstractEventLoop) -> None:
    node = Node(loop, 1)
    group, (gone,) = node.group, node.connections
    gone.data_received(request_frame(1, body=bytes(SIZE))[:READ_BYTES])
    group.unsent.add(gone, 50)
    group.requests.size_bytes = group.requests.max_bytes
    assert not group.requests.has_room_for(gone)
    assert group.unfinished.total_bytes == READ_BYTES
    gone.connection_lost(None)
    assert (group.unfinished.total_bytes, group.unsent.total_bytes) == (0, 0)
    assert not group.requests._paused


def test_what_is_written_to_one_that_does_not_read_counts_until_it_has_read_it(
    loop: asyncio.AbstractEventLoop,
) -> None:
    node = Node(loop, 1)
    unsent, (slow,) = node.group.unsent, node.connections
    slow.data_received(request_frame(1))
    slow.pause_writing()
    (request,) = node.dispatcher.requests
    request.respond((b"x" * 10, b"y" * 20))
    assert unsent.total_bytes == 30
    slow.resume_writing()
    assert unsent.total_bytes == 0


def test_a_peer_that_was_held_up_goes_on_whatever_clients_hold(
    loop: asyncio.AbstractEventLoop,
) -> None:
    node = Node(loop, 0)
    peer = node.connect()
    peer.data_received(request_frame(1, key=52, version=2, client_id=b"raft-client-2"))
    node.dispatcher.answer_all()
    node.group.requests.size_bytes = node.group.requests.max_bytes
    peer.pause_writing()
    assert peer.state is PAUSED
    peer.resume_writing()
    node.turns()
    assert peer.state is OPEN


def test_a_peer_is_read_from_whatever_clients_hold(loop: asyncio.AbstractEventLoop) -> None:
    node = Node(loop, 20)
    for connection in node.connections:
        node.send(connection)
    peer = node.connect()
    for number in (1_000, 1_001):
        peer.data_received(request_frame(number, key=52, version=2, client_id=b"raft-client-2"))
        node.turns()
    assert [each.correlation_id for each in node.dispatcher.requests][-2:] == [1_000, 1_001]
    assert peer.state is OPEN


def test_where_nobody_could_be_read_from_for_long_the_largest_goes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    node = Node(loop, ROOM)
    largest, *others = node.connections
    node.send(largest)
    for connection in node.connections:
        node.send(connection)
    node.group.requests.sweep(node.group.connections, 1)
    node.group.requests.sweep(node.group.connections, FULL_NS_MAX)
    assert largest.is_open
    assert largest.state is not ConnectionState.CLOSING
    node.group.requests.sweep(node.group.connections, FULL_NS_MAX + 1)
    assert largest.state is ConnectionState.CLOSING
    assert not [each for each in others if each.state is ConnectionState.CLOSING]


def test_time_in_which_there_was_room_does_not_count(loop: asyncio.AbstractEventLoop) -> None:
    node = Node(loop, ROOM)
    requests, connections = node.group.requests, node.connections
    for connection in connections:
        node.send(connection)
    node.send(connections[0])
    held_bytes = node.held
    for now_ns, size_bytes in ((1, held_bytes), (2, 0), (3, held_bytes), (FULL_NS_MAX + 2, None)):
        requests.size_bytes = held_bytes if size_bytes is None else size_bytes
        requests.sweep(connections, now_ns)
    assert not any(each.state is ConnectionState.CLOSING for each in connections)
    requests.sweep(connections, FULL_NS_MAX + 3)
    assert any(each.state is ConnectionState.CLOSING for each in connections)


def test_those_for_which_there_was_no_room_are_looked_at_again_though_nothing_ends(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """What was counted on for those before them may not have come."""
    node = Node(loop, ROOM)
    group = node.group
    group.requests.max_bytes = 4 * READ_BYTES
    group.requests.size_bytes = group.requests.max_bytes
    for connection in node.connections:
        connection.state = PAUSED
        connection.resume_reading_soon()
    group.requests.remove(group.requests.max_bytes - READ_BYTES)
    loop.run_until_complete(asyncio.sleep(0.3))
    assert all(each.state is OPEN for each in node.connections)
    group.requests.size_bytes = 0


class Paused:
    """A connection that asks for room as one does that is read from again."""

    def __init__(self, held: RequestsInFlight[Paused]) -> None:
        self.held = held
        self.is_read = False

    @property
    def request_bytes(self) -> int:
        return 0

    def resume_reading_soon(self) -> None:
        self.is_read = self.held.has_room_for(self)

    def abort(self, closed: CloseReason, reason: str) -> None:
        raise AssertionError(reason)


def test_there_is_room_again_when_half_of_it_is_free(loop: asyncio.AbstractEventLoop) -> None:
    held: RequestsInFlight[Paused] = RequestsInFlight(loop, 100)
    held.size_bytes = 60
    paused = Paused(held)
    paused.resume_reading_soon()
    for left, is_read in ((51, False), (50, True)):
        held.remove(held.size_bytes - left)
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert paused.is_read is is_read


def test_who_finds_no_room_after_all_waits_again(loop: asyncio.AbstractEventLoop) -> None:
    class Greedy(Paused):
        def resume_reading_soon(self) -> None:
            super().resume_reading_soon()
            self.held.size_bytes += 2 * READ_BYTES * self.is_read

    held: RequestsInFlight[Paused] = RequestsInFlight(loop, 4 * READ_BYTES)
    held.size_bytes = 3 * READ_BYTES
    greedy, paused = Greedy(held), Paused(held)
    greedy.resume_reading_soon()
    paused.resume_reading_soon()
    for ended, read in ((2, (True, False)), (3, (True, True))):
        held.remove(ended * READ_BYTES)
        loop.call_soon(loop.stop)
        loop.run_forever()
        held._resume()
        assert (greedy.is_read, paused.is_read) == read
