"""Responses that wait in memory, of all connections together: bounded, and who goes for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.net.unsent import UnsentResponses
from tests.server.links import until
from tests.support.serving import Client, Parking, Served, answer_frame, request_frame, run, serving

MIB = 1 << 20


@dataclass(eq=False)
class Aborted:
    """A connection that only knows whether it was aborted."""

    closed: list[CloseReason] = field(default_factory=list)

    def abort(self, closed: CloseReason, reason: str) -> None:
        assert reason
        self.closed.append(closed)


def test_who_has_sent_nothing_for_longest_goes_first() -> None:
    unsent: UnsentResponses[Aborted] = UnsentResponses(max_bytes=100)
    slow, busy, late = Aborted(), Aborted(), Aborted()
    for connection in (busy, slow, late):
        unsent.add(connection, 30)
    unsent.remove(busy, 10)
    unsent.add(late, 20)
    assert unsent.total_bytes == 100
    unsent.add(late, 1)
    assert (slow.closed, busy.closed, late.closed) == ([CloseReason.MEMORY], [], [])
    assert unsent.total_bytes == 71
    unsent.remove(slow, 30)
    unsent.forget(slow)
    unsent.remove(busy, 20)
    unsent.remove(late, 100)
    assert unsent.total_bytes == 0


def test_what_is_left_of_one_that_is_gone_counts_no_more() -> None:
    unsent: UnsentResponses[Aborted] = UnsentResponses(max_bytes=100)
    connection = Aborted()
    unsent.add(connection, 90)
    unsent.remove(connection, 60)
    unsent.forget(connection)
    assert unsent.total_bytes == 0


def test_one_that_holds_too_much_alone_goes_too() -> None:
    unsent: UnsentResponses[Aborted] = UnsentResponses(max_bytes=100)
    other, greedy = Aborted(), Aborted()
    unsent.add(other, 10)
    unsent.add(greedy, 200)
    assert (other.closed, greedy.closed) == ([CloseReason.MEMORY], [CloseReason.MEMORY])
    assert unsent.total_bytes == 0


@asynccontextmanager
async def serving_little(parking: Parking) -> AsyncIterator[Served]:
    """All connections together may hold 8 MiB; what is gone is counted no more."""
    async with serving(parking) as served:
        unsent = served.listeners._group.unsent
        unsent.max_bytes = 8 * MIB
        yield served
    assert unsent.total_bytes == 0


def test_clients_that_do_not_read_hold_bounded_memory_together() -> None:
    def answer(request: InboundRequest) -> None:
        request.respond((answer_frame(request, bytes(2 * MIB)),))

    async def work() -> None:
        async with serving_little(Parking(answer)) as served:
            # Some 270 KB each wait in this process; the kernel has the rest.
            served.listeners._group.unsent.max_bytes = 2 * MIB
            for n in range(20):
                client = await served.connect()
                client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # to read nothing
                await client.send(b"".join(request_frame(n) for n in range(4)))
            await until(lambda: served.metrics.connections_closed.get("memory", 0) > 0)
            good = await served.connect()
            for n in range(20):
                await good.send(request_frame(n))
                assert (await good.answer())[0] == n

    run(work())


def test_responses_behind_one_that_is_waited_for_are_bounded_together() -> None:
    """Each connection's first request waits; the responses to the others are held."""

    async def asked(client: Client, parking: Parking, count: int) -> list[InboundRequest]:
        seen = len(parking.requests)
        await client.send(b"".join(request_frame(n) for n in range(count)))
        return (await parking.received(seen + count))[seen:]

    async def work() -> None:
        parking = Parking()
        async with serving_little(parking) as served:
            clients = [await served.connect() for _ in range(3)]
            first = []
            for client in clients:
                head, *others = await asked(client, parking, 4)
                first.append(head)
                for request in others:
                    request.respond((answer_frame(request, bytes(MIB)),))
            await until(lambda: bool(served.metrics.connections_closed))
            assert served.metrics.connections_closed == {"memory": 1}
            assert await clients[0].rest() == b""
            for client, head in zip(clients[1:], first[1:], strict=True):
                head.respond((answer_frame(head),))
                assert [(await client.answer())[0] for _ in range(4)] == [0, 1, 2, 3]

    run(work())


def test_what_a_slow_client_has_read_counts_no_more() -> None:
    def answer(request: InboundRequest) -> None:
        request.respond((answer_frame(request, bytes(8 * MIB)),))

    async def work() -> None:
        async with serving(Parking(answer)) as served:
            unsent = served.listeners._group.unsent
            client = await served.connect()
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # to read nothing
            await client.send(request_frame(1))
            await until(lambda: unsent.total_bytes > 0)
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]  # and go on
            assert (await client.answer())[0] == 1
            await until(lambda: unsent.total_bytes == 0)
            (connection,) = served.listeners.connections
            assert connection.is_open

    run(work())
