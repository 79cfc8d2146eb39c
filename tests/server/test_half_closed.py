"""A client that sends its last request and the end of its stream, and goes on to read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from quorumd.security.credentials import Credentials
from quorumd.server.net.connection_limits import MAX_IN_FLIGHT
from quorumd.server.net.inbound_request import InboundRequest, Steps
from tests.support.certificates import Certificates
from tests.support.serving import (
    Parking,
    answer_frame,
    answering,
    frame,
    request_frame,
    run,
    serving,
    until,
)

MIB = 1 << 20
MANY = 2 * MAX_IN_FLIGHT + 500


def requests(count: int) -> bytes:
    return b"".join(request_frame(n) for n in range(count))


def answers(count: int) -> bytes:
    return b"".join(frame(n.to_bytes(4, "big")) for n in range(count))


@pytest.mark.parametrize("new_event_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_what_it_has_asked_is_answered_and_then_it_is_closed(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served, asyncio.timeout(10):
            client = await served.connect()
            await client.send(requests(5) + b"\0\0")
            client.writer.write_eof()
            parked = await parking.received(5)
            await until(lambda: not parked[0].connection.in_flight)
            for request in parked:
                request.respond((answer_frame(request),))
            assert await client.rest() == answers(5)
            await until(lambda: served.metrics.connections_closed == {"peer": 1})
            assert served.open_count == 0

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work())


def test_what_waits_for_its_turn_is_answered_too() -> None:
    async def work() -> None:
        async with serving(Parking(answering)) as served:
            client = await served.connect()
            client.writer.write(requests(MANY))
            client.writer.write_eof()
            assert await client.rest() == answers(MANY)
            await until(lambda: served.metrics.connections_closed == {"peer": 1})

    run(work())


def test_work_that_takes_several_turns_is_answered_too() -> None:
    def steps(request: InboundRequest) -> Steps:
        for _ in range(3):
            yield True
        answering(request)

    async def work() -> None:
        async with serving(Parking(steps)) as served:
            client = await served.connect()
            client.writer.write(requests(3))
            client.writer.write_eof()
            assert await client.rest() == answers(3)

    run(work())


def test_more_than_is_sent_at_once_arrives_whole() -> None:
    def answer(request: InboundRequest) -> None:
        request.respond((answer_frame(request, bytes(MIB)),))

    async def work() -> None:
        async with serving(Parking(answer)) as served:
            client = await served.connect()
            client.writer.write(requests(20))
            client.writer.write_eof()
            assert len(await client.rest()) == 20 * (8 + MIB)

    run(work())


@pytest.mark.parametrize("says_so", [False, True])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_with_tls_it_is_answered_too(
    tmp_path: Path, version: ssl.TLSVersion, *, says_so: bool
) -> None:
    """Whether the closing alert comes before the end, or not."""
    made = Certificates(tmp_path)
    sides = {"SECURE": Credentials(made.config("node", "localhost"), is_server=True)}
    context = made.client_context("client")
    context.maximum_version = version

    def ask(port: int) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port)) as raw:

            def exchange() -> None:
                if outgoing.pending:
                    raw.sendall(outgoing.read())
                if data := raw.recv(MIB):
                    incoming.write(data)
                else:
                    incoming.write_eof()

            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
                exchange()
            tls.write(requests(MANY))
            if says_so:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.unwrap()
            raw.sendall(outgoing.read())
            raw.shutdown(socket.SHUT_WR)
            got = b""
            while True:
                try:
                    if not (data := tls.read(MIB)):
                        return got
                    got += data
                except ssl.SSLWantReadError:
                    exchange()
                except ssl.SSLZeroReturnError:
                    return got

    async def work() -> None:
        parking = Parking()
        async with serving(parking, names=("SECURE",), sides=sides) as served:
            asking = asyncio.create_task(asyncio.to_thread(ask, served.listeners.addresses[0].port))
            for n in range(MANY):
                request = (await parking.received(n + 1))[n]
                request.respond((answer_frame(request),))
            assert await asking == answers(MANY)
            await until(lambda: served.metrics.connections_closed == {"peer": 1})

    run(work())


def test_it_may_wait_no_longer_than_an_idle_one() -> None:
    """For it may be gone altogether, which shows only when it is written to."""

    async def work() -> None:
        parking = Parking()
        async with serving(parking, max_idle_ms=80) as served:
            client = await served.connect()
            await client.send(request_frame(1))
            client.writer.write_eof()
            (request,) = await parking.received(1)
            assert await client.rest() == b""
            await until(lambda: served.metrics.connections_closed == {"peer": 1})
            request.respond((answer_frame(request),))

    run(work())


@pytest.mark.long
def test_one_that_waits_makes_room_for_others() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking, max_connections=1) as served:
            client = await served.connect()
            await client.send(request_frame(1))
            client.writer.write_eof()
            (request,) = await parking.received(1)
            await until(lambda: not request.connection.in_flight)
            # What is idle is looked for every second.
            while len(parking.requests) == 1:
                other = await served.connect()
                await other.send(request_frame(2))
                await asyncio.wait([asyncio.ensure_future(other.reader.read(1))], timeout=0.2)
            assert await client.rest() == b""

    run(work())


def test_one_that_has_gone_is_noticed_when_it_is_written_to() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(requests(2))
            client.writer.close()
            first, second = await parking.received(2)
            await until(lambda: not first.connection.in_flight)
            for request in (first, second):
                request.respond((answer_frame(request),))
            await until(lambda: served.metrics.connections_closed == {"peer": 1})

    run(work())


@pytest.mark.parametrize(("end", "reason"), [(b"", "peer"), (b"\xff" * 4, "malformed")])
def test_more_requests_than_are_taken_at_once_are_answered_whatever_comes_behind(
    end: bytes, reason: str
) -> None:
    async def work() -> None:
        parking = Parking()
        count = MAX_IN_FLIGHT + 5  # so that they arrive together
        async with serving(parking) as served:
            client = await served.connect()
            client.writer.write(requests(count) + end)
            client.writer.write_eof()
            await parking.received(MAX_IN_FLIGHT)
            for n in range(count):
                request = (await parking.received(n + 1))[n]
                request.respond((answer_frame(request),))
            assert await client.rest() == answers(count)
            await until(lambda: served.metrics.connections_closed == {reason: 1})

    run(work())
