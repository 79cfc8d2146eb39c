"""How many connections an address may have, and how many are taken a second, over real sockets."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

from quorumd.config.connection_limits import ConnectionLimits, ListenerLimits
from quorumd.security.credentials import Credentials
from quorumd.server.net import connection_quotas
from quorumd.server.net.connection_quotas import ConnectionQuotas
from quorumd.server.net.connection_slots import ConnectionSlots
from tests.support.certificates import Certificates
from tests.support.serving import (
    Client,
    Parking,
    Served,
    answering,
    request_frame,
    run,
    serving,
    until,
)


async def is_served(client: Client) -> bool:
    try:
        await client.send(request_frame(1, body=b"hello"))
        await client.answer()
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return True


def test_an_address_has_as_many_connections_as_it_may_and_no_more() -> None:
    limits = ConnectionLimits(per_ip=2, per_ip_overrides={"127.0.0.3": 1})

    async def work() -> None:
        async with serving(Parking(answering), limits=limits) as served:
            clients = [await served.connect(ip="127.0.0.2") for _ in range(3)]
            assert [await is_served(each) for each in clients] == [True, True, False]
            others = [await served.connect(ip="127.0.0.3") for _ in range(2)]
            assert [await is_served(each) for each in others] == [True, False]
            own = [await served.connect(ip="127.0.0.1") for _ in range(4)]
            assert all([await is_served(each) for each in own]), "this host is free of it"
            assert served.metrics.connections_refused == 2
            clients[0].close()
            while served.open_count > 6:  # noqa: ASYNC110 - a counter has no event to wait for
                await asyncio.sleep(0.001)
            assert await is_served(await served.connect(ip="127.0.0.2"))

    run(work())


def test_more_new_connections_than_a_second_may_have_are_closed() -> None:
    async def work() -> None:
        async with serving(Parking(answering), limits=ConnectionLimits(per_second=3)) as served:
            clients = [await served.connect(ip="127.0.0.2") for _ in range(8)]
            served_ones = [await is_served(each) for each in clients]
            assert served_ones[:3] == [True] * 3
            assert served.metrics.connections_refused >= 4
            own = [await served.connect(ip="127.0.0.1") for _ in range(8)]
            assert all([await is_served(each) for each in own])
            await asyncio.sleep(0.7)
            assert await is_served(await served.connect(ip="127.0.0.2"))

    run(work())


LISTENERS = ("INSIDE", "OUTSIDE")


def refusing_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The limits of which the log says that they are exceeded."""
    fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
    return [each["limit"] for each in fields if "limit" in each]


def test_a_listener_has_limits_of_its_own_beside_the_nodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits_of = {"OUTSIDE": ListenerLimits(quotas=ConnectionLimits(1, {"127.0.0.3": 2}))}

    async def work() -> None:
        async with serving(
            Parking(answering),
            names=LISTENERS,
            limits=ConnectionLimits(per_ip=3),
            limits_of=limits_of,
        ) as served:

            async def taken(listener: int, ip: str, count: int) -> list[bool]:
                made = [await served.connect(listener, ip=ip) for _ in range(count)]
                return [await is_served(each) for each in made]

            assert await taken(1, "127.0.0.2", 2) == [True, False]
            assert await taken(0, "127.0.0.2", 3) == [True, True, False], "all together three"
            assert await taken(1, "127.0.0.3", 3) == [True, True, False]
            assert await taken(1, "127.0.0.1", 5) == [True] * 5, "this host is free of both"
            served.close_clients()
            await until(lambda: not served.listeners.connections)
            assert await taken(0, "127.0.0.2", 3) == [True] * 3
            assert await taken(1, "127.0.0.2", 1) == [False], "the node's limit holds there too"
            served.close_clients()
            await until(lambda: not served.listeners.connections)
            assert await taken(1, "127.0.0.2", 1) == [True], "whom the node refused takes no share"

    with caplog.at_level("WARNING"):
        run(work())
    own = "listener.name.outside.max.connections.per.ip"
    assert refusing_lines(caplog) == [
        f"{own}=1",
        "max.connections.per.ip=3",
        f"{own}=2",
        "max.connections.per.ip=3",
    ]


def test_new_connections_that_a_listener_refuses_are_none_of_the_nodes_second() -> None:
    limits_of = {"OUTSIDE": ListenerLimits(quotas=ConnectionLimits(per_second=1))}

    async def work() -> None:
        async with serving(
            Parking(answering),
            names=LISTENERS,
            limits=ConnectionLimits(per_second=30),
            limits_of=limits_of,
        ) as served:
            outside = [await served.connect(1, ip="127.0.0.2") for _ in range(40)]
            assert [await is_served(each) for each in outside].count(True) <= 3
            inside = [await served.connect(0, ip="127.0.0.2") for _ in range(20)]
            assert all([await is_served(each) for each in inside])

    run(work())


def test_clients_of_a_listener_at_its_limit_are_refused_with_its_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with serving(
            Parking(answering), names=LISTENERS, limits_of={"OUTSIDE": ListenerLimits(2)}
        ) as served:
            outside = [await served.connect(1, ip="127.0.0.2") for _ in range(3)]
            assert [await is_served(each) for each in outside] == [True, True, False]
            inside = [await served.connect(0, ip="127.0.0.2") for _ in range(5)]
            assert all([await is_served(each) for each in inside])

    with caplog.at_level("WARNING"):
        run(work())
    assert refusing_lines(caplog) == ["listener.name.outside.max.connections=2"]


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def serving_tls(
    made: Certificates, limits: ConnectionLimits
) -> AbstractAsyncContextManager[Served]:
    sides = {"SECURE": Credentials(made.config("node", "localhost"), is_server=True)}
    return serving(Parking(answering), names=("SECURE",), sides=sides, limits=limits)


async def is_served_by_tls(served: Served, ip: str, tls: ssl.SSLContext) -> bool:
    try:
        return await is_served(await served.connect(tls=tls, ip=ip))
    except OSError:
        return False


def test_by_tls_an_address_has_no_more_from_the_accept_on(made: Certificates) -> None:
    async def work() -> None:
        tls, stranger = made.client_context("a-client"), made.client_context()
        async with serving_tls(made, ConnectionLimits(per_ip=2)) as served:
            silent = await served.connect(ip="127.0.0.2")
            await until(lambda: len(served.listeners.connections) == 1)
            assert await is_served_by_tls(served, "127.0.0.2", tls)
            assert not await is_served_by_tls(served, "127.0.0.2", tls)
            assert served.metrics.connections_refused == 1
            assert served.metrics.tls_handshakes["SECURE", "done"] == 1
            assert await is_served_by_tls(served, "127.0.0.3", tls)
            assert await is_served_by_tls(served, "127.0.0.1", tls), "this host is free of it"
            # Who fails a handshake, or never begins one, leaves its share to others.
            silent.close()
            await until(lambda: len(served.listeners.connections) == 3)
            assert not await is_served_by_tls(served, "127.0.0.2", stranger)
            await until(lambda: len(served.listeners.connections) == 3)
            assert served.metrics.connections_refused == 1
            assert await is_served_by_tls(served, "127.0.0.2", tls)

    run(work())


def test_by_tls_more_new_connections_than_a_second_may_have_cost_no_handshake(
    made: Certificates,
) -> None:
    async def work() -> None:
        tls = made.client_context("a-client")
        async with serving_tls(made, ConnectionLimits(per_second=1)) as served:
            tries = (is_served_by_tls(served, "127.0.0.2", tls) for _ in range(12))
            served_ones = await asyncio.gather(*tries)
            assert served_ones.count(True) >= 1
            refused = served_ones.count(False)
            assert refused >= 6
            assert served.metrics.connections_refused == refused
            assert sum(served.metrics.tls_handshakes.values()) == 12 - refused
            await asyncio.sleep(1.1)
            assert await is_served_by_tls(served, "127.0.0.2", tls)

    run(work())


def test_a_limit_of_none_keeps_no_count_of_addresses() -> None:
    quotas = ConnectionQuotas(ConnectionLimits())
    assert quotas.enter("10.0.0.1", is_exempt=False) is None
    quotas.leave("10.0.0.1")


def test_who_leaves_makes_room_for_one_other_of_its_address() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(per_ip=3))

    def entered() -> list[bool]:
        return [quotas.enter("10.0.0.1", is_exempt=False) is None for _ in range(4)]

    assert entered() == [True, True, True, False]
    quotas.leave("10.0.0.1")
    assert entered() == [True, False, False, False]


def test_an_exempt_address_takes_part_of_no_limit_and_is_counted_all_the_same() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(per_ip=1))
    assert quotas.enter("10.0.0.1", is_exempt=True) is None
    assert quotas.enter("10.0.0.1", is_exempt=True) is None
    assert quotas.enter("10.0.0.1", is_exempt=False) == "max.connections.per.ip=1"
    for _ in range(2):
        quotas.leave("10.0.0.1")
    assert quotas.enter("10.0.0.1", is_exempt=False) is None


def test_an_address_that_may_have_none_has_none() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(per_ip=5, per_ip_overrides={"10.0.0.2": 0}))
    assert quotas.enter("10.0.0.2", is_exempt=False) == "max.connections.per.ip=0"
    assert quotas.enter("10.0.0.3", is_exempt=False) is None


def test_an_address_without_connections_is_not_remembered() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(per_ip=5))
    for number in range(3):
        assert quotas.enter(f"10.0.0.{number}", is_exempt=False) is None
        quotas.leave(f"10.0.0.{number}")
    assert not quotas._counts


@pytest.mark.pure
def test_a_second_has_its_connections_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0
    monkeypatch.setattr(connection_quotas, "monotonic_ns", lambda: now_ms * 1_000_000)
    quotas = ConnectionQuotas(ConnectionLimits(per_second=2))

    def taken(count: int, *, is_exempt: bool = False) -> int:
        found = [quotas.enter("10.0.0.2", is_exempt=is_exempt) for _ in range(count)]
        return found.count(None)

    assert taken(3) == 2
    now_ms += 60_000
    assert taken(5, is_exempt=True) == 5
    assert taken(5) == 2, "neither idle time nor others of those that are exempt count"
    for _ in range(12):
        now_ms += 40
        assert taken(1) == 0, "what was refused gains nothing"
    now_ms += 40
    assert taken(1) == 1


def test_tls_on_a_plaintext_listener_is_told_so_and_one_line_says_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with serving(Parking(answering)) as served:
            address = served.listeners.addresses[0]
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(bytes.fromhex("16030100f8010000f40303") + bytes(200))
            answer = await reader.read()
            assert answer[:1] not in (b"\x15", b"\x16", b""), "every TLS library can tell"
            writer.close()

    with caplog.at_level("WARNING"):
        run(work())
    assert [each.__dict__["quorumd_fields"]["reason"] for each in caplog.records] == [
        "TLS on a listener that is plaintext here"
    ]


def test_openssl_says_what_a_plaintext_listener_is() -> None:
    async def work() -> None:
        async with serving(Parking(answering)) as served:
            address = served.listeners.addresses[0]
            tls = ssl.create_default_context()
            with pytest.raises(OSError, match="WRONG_VERSION_NUMBER"):
                await asyncio.open_connection(address.host, address.port, ssl=tls)

    run(work())


@pytest.mark.pure
def test_a_connection_that_finds_no_slot_leaves_its_addresss_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with serving(Parking(answering), limits=ConnectionLimits(per_ip=1)) as served:
            with monkeypatch.context() as full:
                full.setattr(ConnectionSlots, "enter", lambda slots, connection: False)
                for _ in range(3):
                    refused = await served.connect(ip="127.0.0.2")
                    with suppress(ConnectionError):
                        assert await refused.rest() == b""
            assert await is_served(await served.connect(ip="127.0.0.2"))

    run(work())
