"""What leaves a callback or a task ends the process with a report; what the network does never gets there."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import pytest

from quorumd.server.model.unhandled import end_on_unhandled, unawaited
from quorumd.server.net.inbound_request import InboundRequest
from tests.support.serving import Parking, answering, request_frame, run, serving

Failures = list[tuple[str, BaseException | None]]


class Bug(Exception):
    """An error that nobody expects."""


def fails(*_: object) -> None:
    raise Bug("in a callback")


class Faulty(asyncio.Protocol):
    """One of its methods fails."""

    def __init__(self, method: str) -> None:
        self._transport: asyncio.Transport
        self._method = method
        if method != "connection_made":
            setattr(self, method, fails)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._method == "connection_made":
            self._transport.abort()
            fails()

    def data_received(self, data: bytes) -> None:
        if self._method == "pause_writing":
            self._transport.set_write_buffer_limits(high=10)
            self._transport.write(b"x" * 20_000_000)
            self._transport.abort()


async def in_a_protocol(method: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Faulty(method), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"data")
    await asyncio.sleep(0.05)
    if writer.can_write_eof() and method != "pause_writing":
        writer.write_eof()
    await asyncio.sleep(0.05)
    writer.transport.abort()
    await asyncio.sleep(0.05)
    server.close()


async def in_a_task() -> None:
    async def work() -> None:
        fails()

    kept = unawaited(asyncio.get_running_loop().create_task(work()))
    await asyncio.sleep(0.01)
    assert kept.done(), "reported though it is not freed"


async def in_a_futures_callback() -> None:
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(fails)
    future.set_result(None)


async def from_a_thread() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(loop.call_soon_threadsafe, fails)


async def soon() -> None:
    asyncio.get_running_loop().call_soon(fails)


async def later() -> None:
    asyncio.get_running_loop().call_later(0.001, fails)


METHODS = ("connection_made", "data_received", "eof_received", "connection_lost", "pause_writing")
SOURCES: dict[str, Callable[[], Awaitable[None]]] = {
    **{method: partial(in_a_protocol, method) for method in METHODS},
    "task": in_a_task,
    "future": in_a_futures_callback,
    "thread": from_a_thread,
    "call_soon": soon,
    "call_later": later,
}


@pytest.mark.parametrize("source", SOURCES)
def test_an_error_that_leaves_a_callback_ends_the_process(source: str) -> None:
    async def work() -> Failures:
        failures: Failures = []
        loop = asyncio.get_running_loop()
        end_on_unhandled(loop, lambda reason, error: failures.append((reason, error)))
        await SOURCES[source]()
        await asyncio.sleep(0.02)
        return failures

    failures = run(work())
    assert failures, source
    assert all(isinstance(error, Bug) for _, error in failures)
    assert "it is a bug, please report it" in failures[0][0]


def test_what_the_network_does_and_what_has_no_error_ends_nothing() -> None:
    async def work() -> Failures:
        failures: Failures = []
        loop = asyncio.get_running_loop()
        end_on_unhandled(loop, lambda reason, error: failures.append((reason, error)))
        for error in (ConnectionResetError(), BrokenPipeError(), TimeoutError(), socket.gaierror()):
            loop.call_exception_handler({"message": "left over", "exception": error})
        loop.call_exception_handler({"message": "Task was destroyed but it is pending!"})
        return failures

    assert run(work()) == []


def test_clients_that_reset_their_connections_at_any_moment_leave_nothing_unhandled() -> None:
    rng = random.Random(5)
    whole = request_frame(1, body=b"x" * 3000) * 20

    async def abuse(port: int) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
            await loop.sock_sendall(peer, whole[: rng.randrange(len(whole))])
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                peer.shutdown(socket.SHUT_WR)
            if rng.random() < 0.7:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def work() -> Failures:
        failures: Failures = []
        loop = asyncio.get_running_loop()
        end_on_unhandled(loop, lambda reason, error: failures.append((reason, error)))

        def at_random(request: InboundRequest) -> None:
            what = rng.random()
            if what < 0.1:
                loop.call_soon(request.close, "because")
            elif what < 0.5:
                loop.call_later(rng.random() / 100, request.respond, (b"a" * 100_000,))
            else:
                answering(request)

        async with serving(Parking(at_random), max_connections=30) as served:
            port = served.listeners.addresses[0].port
            for _ in range(20):
                await asyncio.gather(*(abuse(port) for _ in range(20)), return_exceptions=True)
            await asyncio.sleep(0.05)
        return failures

    assert run(work()) == []
