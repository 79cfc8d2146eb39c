"""Who is looked after on listeners now and then: nobody too early, and none once they are closed."""

from __future__ import annotations

import asyncio

import pytest

from quorumd.server.net import listeners as module
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.net.requests_in_flight import FULL_NS_MAX
from tests.support.serving import (
    Parking,
    answer_frame,
    answering,
    request_frame,
    run,
    serving,
    until,
)

# Compiled modules take no other constants.
pytestmark = pytest.mark.pure

MIB = 1 << 20
LONG_MS = 60_000


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When it was swept; the first time while what a test has begun is under way."""
    found: list[int] = []
    monkeypatch.setattr(module, "SWEEP_S", 0.2)
    clock = module.monotonic_ns

    def read() -> int:
        found.append(clock())
        return found[-1]

    monkeypatch.setattr(module, "monotonic_ns", read)
    return found


def test_who_has_asked_lately_is_not_idle(sweeps: list[int]) -> None:
    async def work() -> None:
        async with serving(Parking(answering), max_idle_ms=LONG_MS) as served:
            client = await served.connect()
            for number in range(2):
                await client.send(request_frame(number, body=b"hello"))
                assert await client.answer() == (number, b"hello")
                await until(lambda: bool(sweeps))

    run(work())


def test_who_has_read_nothing_for_a_moment_is_not_cut_off(sweeps: list[int]) -> None:
    def answer(request: InboundRequest) -> None:
        request.respond((answer_frame(request, bytes(MIB)),))

    async def work() -> None:
        async with serving(Parking(answer), max_idle_ms=LONG_MS) as served:
            client = await served.connect()
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # to read nothing
            client.writer.write(b"".join(request_frame(n) for n in range(40)))
            (connection,) = served.listeners.connections
            await until(lambda: connection.stalled_since_ns is not None)
            before = len(sweeps)
            await until(lambda: len(sweeps) > before)
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]  # and go on
            for n in range(40):
                correlation_id, body = await client.answer()
                assert (correlation_id, len(body)) == (n, MIB)

    run(work())


def test_requests_that_keep_all_from_being_read_for_too_long_go(
    sweeps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two clients has sent what is never answered, and together that is all that may be held."""

    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            served.listeners._group.requests.max_bytes = 100_000
            clients = [await served.connect() for _ in range(2)]
            for size, client in zip((90_000, 60_000), clients, strict=True):
                client.writer.write(request_frame(1, body=bytes(size)) + request_frame(2))
            await until(lambda: len(sweeps) >= 2)
            assert served.metrics.connections_closed == {}
            real = module.monotonic_ns
            monkeypatch.setattr(module, "monotonic_ns", lambda: real() + FULL_NS_MAX)
            await until(lambda: served.metrics.connections_closed == {"memory": 1})
            assert await clients[0].rest() == b""

    run(work())


def test_listeners_that_are_closed_are_looked_after_no_more(sweeps: list[int]) -> None:
    async def work() -> None:
        async with serving(Parking(answering)) as served:
            await until(lambda: bool(sweeps))
            await served.listeners.close(0)
            count = len(sweeps)
            await asyncio.sleep(0.5)
            assert len(sweeps) == count

    run(work())
