"""TLS on listeners, over real sockets: who is there, and what others get."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from quorumd.security.credentials import Credentials
from quorumd.security.identity import ANONYMOUS
from quorumd.security.tls_records import UNEXPECTED_MESSAGE
from tests.support.certificates import Certificates
from tests.support.serving import (
    DEADLINE_S,
    Client,
    Parking,
    Served,
    answering,
    request_frame,
    run,
    serving,
    until,
)


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def sides(made: Certificates) -> dict[str, Credentials]:
    return {"SECURE": Credentials(made.config("node", "localhost", "127.0.0.1"), is_server=True)}


def test_a_request_says_whose_certificate_it_came_with(
    made: Certificates, sides: dict[str, Credentials]
) -> None:
    async def work() -> None:
        parking = Parking(answering)
        async with serving(parking, names=("SECURE", "PLAIN"), sides=sides) as served:
            for at, tls in enumerate((made.client_context("a-client"), None)):
                client = await served.connect(at, tls)
                await client.send(request_frame(at, body=b"hello"))
                assert await client.answer() == (at, b"hello")
            secure, plain = (request.connection for request in parking.requests)
            assert "CN=a-client" in secure.principal
            assert secure.identity is not None
            assert secure.identity.principal == secure.principal
            assert (plain.principal, plain.identity) == (ANONYMOUS, None)

    run(work())


def test_who_has_no_certificate_gets_no_answer_but_an_alert(
    made: Certificates, sides: dict[str, Credentials]
) -> None:
    async def work() -> None:
        parking = Parking(answering)
        async with serving(parking, names=("SECURE",), sides=sides) as served:
            client = await served.connect(0, made.client_context())
            await client.send(request_frame(1))
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                await client.answer()
            assert parking.requests == []

    run(work())


def test_what_handshakes_end_with_is_counted_and_written_once(
    made: Certificates, sides: dict[str, Credentials], caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(Parking(answering), names=("SECURE",), sides=sides) as served:
            counts = served.metrics.tls_handshakes
            assert set(counts.values()) == {0}, "from the start"
            await served.connect(0, made.client_context("a-client"))
            await until(lambda: counts["SECURE", "done"] == 1)
            assert served.metrics.connections_at == {("SECURE", "SSL"): 1}
            plain = await served.connect(0)
            await plain.send(request_frame(1))
            assert await plain.rest() == UNEXPECTED_MESSAGE, "a client can tell what is spoken here"
            (await served.connect(0)).close()
            await until(lambda: counts["SECURE", "broken"] == 1)
            assert counts["SECURE", "plaintext"] == 1
            assert sum(counts.values()) == 3

    with caplog.at_level("WARNING"):
        run(work())
    fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
    assert [(each["listener"], each["why"]) for each in fields] == [("SECURE", "plaintext")], (
        "who only looks whether somebody listens is not told of"
    )
    assert fields[0]["reason"] == "sent plaintext on a listener that is TLS here"


def test_a_handshake_that_goes_on_is_not_silent_and_half_a_request_before_it_none(
    made: Certificates, sides: dict[str, Credentials]
) -> None:
    async def work() -> None:
        async with serving(Parking(answering), names=("SECURE",), sides=sides) as served:
            half = await served.connect(0)
            await half.send(b"\x16\x03\x01")
            silent = await served.connect(0)
            await until(lambda: len(served.listeners.connections) == 2)
            await until(lambda: len({each.is_silent for each in served.listeners.connections}) == 2)
            ready = await served.connect(0, made.client_context("a-client"))
            await until(lambda: served.metrics.tls_handshakes["SECURE", "done"] == 1)
            silent.close()
            half.close()
            await until(lambda: len(served.listeners.connections) == 1)
            assert [each.is_silent for each in served.listeners.connections] == [True]
            ready.close()

    run(work())


def test_the_time_for_the_first_request_begins_when_the_handshake_has_ended(
    made: Certificates, sides: dict[str, Credentials]
) -> None:
    async def work() -> None:
        async with serving(Parking(answering), names=("SECURE",), sides=sides) as served:
            client = await served.connect(0)
            await until(lambda: len(served.listeners.connections) == 1)
            (connection,) = served.listeners.connections
            connection.active_ns = 0
            await client.writer.start_tls(
                made.client_context("a-client"), server_hostname="localhost"
            )
            await until(lambda: served.metrics.tls_handshakes["SECURE", "done"] == 1)
            assert connection.active_ns > 0

    run(work())


def test_listeners_close_in_time_with_handshakes_in_progress(
    made: Certificates, sides: dict[str, Credentials]
) -> None:
    async def work() -> None:
        async with serving(Parking(answering), names=("SECURE",), sides=sides) as served:
            half = [await served.connect(0) for _ in range(20)]
            for each in half[::2]:
                await each.send(b"\x16\x03\x01")
            await until(lambda: len(served.listeners.connections) == 20)
            await served.listeners.close(0.2)
            assert not served.listeners.connections

    run(work())


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time can be stopped: then it goes on when the test says so, and never else."""

    now_s: float | None = None

    def time(self) -> float:
        return super().time() if self.now_s is None else self.now_s

    @contextmanager
    def stopped(self) -> Iterator[Callable[[float], None]]:
        self.now_s = super().time()
        try:
            yield self._go_on
        finally:
            self.now_s = None

    def _go_on(self, seconds: float) -> None:
        assert self.now_s is not None
        self.now_s += seconds


async def turn(condition: Callable[[], bool]) -> None:
    """As `until`, without the loop's clock."""
    deadline_s = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < deadline_s
        await asyncio.sleep(0)


def test_a_handshake_has_ten_seconds_of_whatever_it_is_and_from_wherever_it_comes(
    made: Certificates, sides: dict[str, Credentials]
) -> None:
    hello = tls_hello(made.client_context("a-client"))
    begins = (hello, hello[: len(hello) // 2], hello[:1])
    ips = [f"127.0.0.{number}" for number in range(1, 7)]

    async def begin(served: Served) -> list[Client]:
        connections = len(served.listeners.connections)
        clients = [await served.connect(ip=ip) for ip in ips for _ in begins]
        connections += len(clients)
        await turn(lambda: len(served.listeners.connections) == connections)
        for client, said in zip(clients, begins * len(ips), strict=True):
            await client.send(said)
        await turn(lambda: not any(each.is_silent for each in served.listeners.connections))
        return clients

    async def ends(served: Served, clients: list[Client], ended: int, left: int) -> None:
        await turn(lambda: served.metrics.tls_handshakes["SECURE", "timeout"] == ended)
        for client in clients:
            await client.rest()
        await turn(lambda: len(served.listeners.connections) == left)

    async def work(go_on: Callable[[float], None], served: Served) -> None:
        early = await begin(served)
        go_on(4)
        late = await begin(served)
        counts, count = served.metrics.tls_handshakes, len(early)
        for at in range(1, 60):
            go_on(0.1)
            for client in early[2::3]:
                await client.send(hello[at : at + 1])
            await asyncio.sleep(0)
        assert sum(counts.values()) == 0, "9.9 s"
        assert len(served.listeners.connections) == 2 * count
        go_on(0.2)
        await ends(served, early, count, left=count)
        go_on(3.8)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(counts.values()) == count, "9.9 s of those that came later"
        go_on(0.2)
        await ends(served, late, 2 * count, left=0)
        assert sum(counts.values()) == 2 * count

    async def whole() -> None:
        clock = asyncio.get_running_loop()
        assert isinstance(clock, Clock)
        async with serving(Parking(answering), names=("SECURE",), sides=sides) as served:
            with clock.stopped() as go_on:
                await work(go_on, served)

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(whole())


def tls_hello(context: ssl.SSLContext) -> bytes:
    """What a client says first."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()
