"""Open connections end with what they rest on: certificates, CAs, and revocation lists."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.raft.types import Endpoint
from quorumd.security.credentials import Credentials
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity
from quorumd.security.tls_stream import TlsStream
from quorumd.server.net import renewal
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.renewal import Renewal
from tests.support.certificates import Certificates
from tests.support.serving import Client, Parking, Served, answering, request_frame, run, serving


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def served_with(
    made: Certificates, parking: Parking, peers: AbstractSet[str] = frozenset()
) -> AsyncIterator[tuple[Served, Renewal]]:
    """A TLS listener, and a plaintext one; connections of clients with these names are peers'."""
    sides = {"SECURE": Credentials(made.config("node", "localhost", "127.0.0.1"), is_server=True)}
    async with serving(parking, names=("SECURE", "PLAIN"), sides=sides) as served:
        yield (
            served,
            Renewal(
                lambda: served.listeners.connections,
                lambda connection: any(name in connection.principal for name in peers),
                list,
            ),
        )


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited 5 s")


async def heard(client: Client) -> None:
    await client.send(request_frame(1))
    await client.answer()


def test_those_of_one_listener_are_closed_one_after_another_and_peers_last(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RENEWAL_S", 1.0)
    monkeypatch.setattr(renewal, "RESPONSE_WAIT_S", 0.2)
    order: list[str] = []

    async def watch(name: str, client: Client) -> None:
        assert await client.reader.read() == b""
        order.append(name)

    async def work() -> None:
        async with served_with(made, Parking(answering), {"node-2", "node-3"}) as (
            served,
            renewal_,
        ):
            names = ("node-2", "a", "node-3", "b", "c")
            clients = {name: await served.connect(0, made.client_context(name)) for name in names}
            plain = await served.connect(1)
            for client in (*clients.values(), plain):
                await heard(client)
            begun = time.monotonic()
            renewal_.renew_connections("SECURE")
            # Asked again, those that wait keep their time.
            renewal_.renew_connections("SECURE")
            await asyncio.gather(*(watch(name, client) for name, client in clients.items()))
            assert 0.6 < time.monotonic() - begun < 3
            assert set(order[-2:]) == {"node-2", "node-3"} or order[-1] in {"node-2", "node-3"}
            await heard(plain)
            for client in clients.values():
                client.close()
            await eventually(lambda: len(served.listeners.connections) == 1)
            assert served.metrics.connections_closed == {"renewed": 5}
            assert not renewal_._waiting, "nothing is kept of those that are gone"

    run(work())


def test_what_was_asked_is_answered_before_the_connection_goes(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RENEWAL_S", 0.0)
    monkeypatch.setattr(renewal, "RESPONSE_WAIT_S", 0.3)

    async def work() -> None:
        parking = Parking()
        async with served_with(made, parking) as (served, renewal_):
            quick, slow = [
                await served.connect(0, made.client_context(name)) for name in ("quick", "slow")
            ]
            for client in (quick, slow):
                await client.send(request_frame(7, body=b"hello"))
            requests = await parking.received(2)
            (first,) = (each for each in requests if "quick" in each.connection.principal)
            renewal_.renew_connections("SECURE")
            await asyncio.sleep(0.1)
            answering(first)
            assert await quick.answer() == (7, b"hello")
            assert await quick.reader.read() == b""
            # The other has waited for longer than anybody is waited for.
            assert await slow.reader.read() == b""

    run(work())


def test_a_connection_ends_when_its_certificate_does(made: Certificates) -> None:
    async def work() -> None:
        async with served_with(made, Parking(answering)) as (served, renewal_):
            client = await served.connect(0, made.client_context("a"))
            plain = await served.connect(1)
            for each in (client, plain):
                await heard(each)
            (ends_s,) = (
                connection.identity.expires_at
                for connection in served.listeners.connections
                if connection.identity is not None
            )
            renewal_.end_expired(ends_s - 1)
            await heard(client)
            renewal_.end_expired(ends_s)
            assert await client.reader.read() == b""
            await heard(plain)
            client.close()
            await eventually(lambda: len(served.listeners.connections) == 1)
            assert served.metrics.connections_closed == {"expired": 1}

    run(work())


class Clock:
    """An event loop as far as a renewal needs one: whatever has a time is done then, at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def call_later(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_s + delay_s, self._count, partial(act, *arguments)))

    def run(self, until_s: float = inf) -> None:
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._due)
            act()


class Opened:
    """A connection, or a link, that notes when it is closed; one that is asked to end may have a request."""

    def __init__(self, clock: Clock, listener: str = "", *, is_waiting: bool = False) -> None:
        self.listener = Endpoint(listener, "127.0.0.1", 0)
        self.is_waiting = is_waiting
        self.is_open = True
        self.asked_s = inf
        """When it was asked to end."""
        self.closed_s = inf
        self._clock = clock

    def close_after_responses(self, reason: CloseReason) -> None:
        self.asked_s = self._clock.now_s
        if not self.is_waiting:
            self.close()

    def close(self, *_: object) -> None:
        self.is_open = False
        self.closed_s = self._clock.now_s


@pytest.mark.pure
def test_all_that_is_open_is_made_anew_within_a_minute_and_never_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower's connections to this node come in the last half of it, one after another, and the links
    of this node in the first: it never has to do without a majority."""
    clock = Clock()
    monkeypatch.setattr(renewal, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    clients = [Opened(clock, "SECURE", is_waiting=bool(number % 2)) for number in range(100)]
    peers = [Opened(clock, "SECURE", is_waiting=bool(number % 2)) for number in range(4)]
    others = [Opened(clock, "CLIENTS") for _ in range(3)]
    links = [Opened(clock) for _ in range(4)]
    renewal_ = Renewal(
        lambda: cast("list[Connection]", [*clients, *peers, *others]),
        lambda connection: connection in cast("list[Connection]", peers),
        lambda: cast("list[TlsStream]", links),
    )
    renewal_.renew_connections("SECURE")
    renewal_.renew_links()
    clock.run(until_s=20.0)
    # The CA was changed again. What waits rests on older files still, and keeps its time.
    late = Opened(clock, "SECURE")
    clients.append(late)
    renewal_.renew_connections("SECURE")
    clock.run()

    for each in clients[:-1]:
        assert 0 < each.asked_s < 55
        assert each.closed_s == each.asked_s + (5 if each.is_waiting else 0)
    assert 20 < late.closed_s < 80
    at_s = sorted(each.asked_s for each in clients[:-1])
    assert max(at_s) - min(at_s) > 50, "nearly the whole minute is used"
    assert max(b - a for a, b in pairwise(at_s)) < 1, "and at no moment many of them are closed"
    assert min(b - a for a, b in pairwise(at_s)) > 0.1
    for found, first_s, last_s in ((links, 0, 30), (peers, 30, 55)):
        times_s = sorted(each.closed_s if found is links else each.asked_s for each in found)
        assert first_s < times_s[0]
        assert times_s[-1] < last_s
        assert min(b - a for a, b in pairwise(times_s)) >= 5, "one after another"
    assert max(each.closed_s for each in peers) <= 60
    assert all(each.is_open for each in others), "that listener has the CA that it had"
    assert not renewal_._waiting


class Link(asyncio.Protocol):
    """This node's end of a link, and what watches it."""

    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    def on_secured(self, stream: TlsStream, identity: Identity) -> None: ...

    def on_failed(self, stream: TlsStream, problem: Exception) -> None: ...


@pytest.mark.parametrize("why", ["expired", "new trust"])
def test_links_end_too(made: Certificates, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(renewal, "RENEWAL_S", 0.2)

    async def work() -> None:
        async with served_with(made, Parking(answering)) as (served, _):
            links: list[tuple[Link, TlsStream]] = []
            side = Credentials(made.config("other", "localhost"), is_server=False)
            handshakes = Handshakes()

            def make() -> asyncio.Protocol:
                link = Link()
                links.append((link, TlsStream(link, side, handshakes, link, "127.0.0.1")))
                return cast(asyncio.Protocol, links[-1][1])

            at = served.listeners.addresses[0]
            await asyncio.get_running_loop().create_connection(make, at.host, at.port)
            ((link, stream),) = links
            await eventually(lambda: stream.identity is not None)
            assert stream.identity is not None
            renewal_ = Renewal(list, lambda _: False, lambda: [stream])
            if why == "expired":
                renewal_.end_expired(stream.identity.expires_at - 1)
                assert not link.lost.done()
                renewal_.end_expired(stream.identity.expires_at)
            else:
                renewal_.renew_links()
            # The listener closes what is silent by itself, but later.
            async with asyncio.timeout(2):
                assert await link.lost is None
            assert not renewal_._waiting
            handshakes.close()

    run(work())
