"""The HTTP pages on a real socket: what they say, and what abuse does to them."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.raft.types import Address
from quorumd.server.http import http_server as http
from quorumd.server.http.exposition import MetricsText
from quorumd.server.http.http_server import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    TLS_HERE,
    HttpServer,
    MetricsPage,
    Pages,
)
from quorumd.server.model.logs import RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.unhandled import end_on_unhandled
from quorumd.server.net.listeners import ListenError
from tests.support.loop_turns import LoopTurns
from tests.support.ports import free_port, loopbacks
from tests.support.serving import run

ANY_PORT = Address("127.0.0.1", 0)


@dataclass(slots=True)
class State:
    """What the pages tell."""

    is_ready: bool = True
    reason: str = "follows node 2 in epoch 7"
    facts: Mapping[str, object] = field(default_factory=lambda: {"role": "follower", "epoch": 7})
    accepts: list[str] = field(default_factory=list)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        self.accepts.append(accept)
        return b"a 1\n" * 50_000, "text/plain; version=0.0.4"

    def status(self) -> Mapping[str, object]:
        return self.facts


@asynccontextmanager
async def serving(
    state: State, others: Pages | None = None, at: Address = ANY_PORT
) -> AsyncIterator[HttpServer]:
    pages = HttpServer(
        at,
        ready=lambda: (state.is_ready, state.reason),
        status=state.status,
        metrics=state.metrics,
        pages=others,
    )
    await pages.open()
    try:
        yield pages
    finally:
        await pages.close()


async def send(pages: HttpServer, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case) and body; the server closes behind them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
    try:
        writer.write(data)
        answer = await reader.read()
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert headers["connection"] == "close"
    return int(first.split(" ")[1]), headers, body


async def get(pages: HttpServer, path: str, method: str = "GET") -> tuple[int, str]:
    status, headers, body = await send(
        pages, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    )
    if method != "HEAD":
        assert int(headers["content-length"]) == len(body)
    return status, body.decode()


def test_a_working_process_is_alive_even_without_a_quorum() -> None:
    async def work() -> None:
        async with serving(State(is_ready=False, reason="no leader for 12 s")) as pages:
            assert await get(pages, "/livez") == (200, "ok\n")
            assert await get(pages, "/readyz") == (503, "no leader for 12 s\n")

    run(work())


@pytest.mark.parametrize("host", ["", "::"])
def test_every_interface_is_ipv4_and_ipv6(host: str) -> None:
    async def work() -> None:
        port = free_port()
        async with serving(State(), at=Address(host, port)):
            for local in loopbacks():
                _, writer = await asyncio.open_connection(local, port)
                writer.transport.abort()

    run(work())


def test_readiness_status_and_metrics_are_told() -> None:
    async def work() -> None:
        state = State()
        async with serving(state) as pages:
            assert await get(pages, "/readyz") == (200, "follows node 2 in epoch 7\n")
            status, body = await get(pages, "/status?pretty=1")
            assert (status, json.loads(body)) == (200, {"role": "follower", "epoch": 7})
            request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nACCEPT:  text/plain \r\n\r\n"
            status, headers, metrics = await send(pages, request)
            assert (status, len(metrics)) == (200, 200_000)
            assert headers["content-type"] == "text/plain; version=0.0.4"
            assert state.accepts == ["text/plain"]

    run(work())


def test_head_gives_the_length_without_the_body() -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            request = b"HEAD /livez HTTP/1.0\r\n\r\n"
            status, headers, body = await send(pages, request)
            assert (status, headers["content-length"], body) == (200, "3", b"")
            status, headers, body = await send(pages, b"HEAD /none HTTP/1.0\r\n\r\n")
            assert (status, int(headers["content-length"]) > 0, body) == (404, True, b"")

    run(work())


def test_an_unknown_page_names_the_known_ones() -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            status, body = await get(pages, "/")
            assert status == 404
            assert all(path in body for path in ("/metrics", "/livez", "/readyz", "/status"))

    run(work())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_told_the_permitted_ones(method: str) -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            body = b"x" * 50_000
            data = f"{method} /status HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            status, headers, _ = await send(pages, data + body)
            assert (status, headers["allow"]) == (405, "GET, HEAD")

    run(work())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /livez\r\n\r\n", 400),
        (b"GET livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/2\r\n\r\n", 400),
        (b"GET  /livez HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff\xfe\r\n\r\n", 400),
        (b"\0\0\0\x20\0\x12\0\x03\0\0\0\1", 400),  # Kafka's protocol, and no end of a head
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /livez/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /" + b"x" * REQUEST_BYTES_MAX * 2 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nA: " + b"x" * REQUEST_BYTES_MAX * 4, 431),
    ],
)
def test_a_bad_request_is_answered_with_its_fault(data: bytes, status: int) -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            assert (await send(pages, data))[0] == status
            assert await get(pages, "/livez") == (200, "ok\n")

    run(work())


def test_tls_is_told_that_there_is_none_and_one_line_says_just_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            tls = ssl.create_default_context()
            with pytest.raises(OSError, match="WRONG_VERSION_NUMBER"):
                await asyncio.open_connection("127.0.0.1", pages.port, ssl=tls)
            # Other bytes that are no request are no news.
            for data in (b"\x16\x16\x16", b"\0\0\0\x20\0\x12", b"\x15\x03\x01", b"get\r\n\r\n"):
                assert (await send(pages, data + b"\r\n\r\n"))[0] == 400
            status, _, body = await send(pages, b"\x16\x03\x01\x02\x00\x01")
            assert (status, body.startswith(TLS_HERE.encode())) == (400, True)
            assert await get(pages, "/livez") == (200, "ok\n")

    with caplog.at_level("INFO"):
        run(work())
    fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
    assert [each.getMessage() for each in caplog.records] == ["connection closed"] * 2
    assert {each.pop("peer").partition(":")[0] for each in fields} == {"127.0.0.1"}
    expected = {"listener": "http", "why": "malformed"}
    assert fields == [{**expected, "reason": "TLS on a listener that is plaintext here"}] * 2


def test_of_many_clients_with_tls_some_are_told_of_and_the_others_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    limit = partial(RateLimit, clock=lambda: now_s)
    monkeypatch.setattr(http, "RateLimit", limit)

    async def work() -> None:
        nonlocal now_s
        async with serving(State()) as pages:
            for _ in range(30):
                assert (await send(pages, b"\x16\x03\x01"))[0] == 400
            now_s = 60.0
            assert (await send(pages, b"\x16\x03\x01"))[0] == 400

    run(work())
    assert len(caplog.records) == 21
    assert caplog.records[-1].__dict__["quorumd_fields"]["lines_suppressed"] == 10


def test_random_bytes_harm_nobody() -> None:
    async def work() -> None:
        draw = random.Random(11)
        async with serving(State()) as pages:
            for _ in range(50):
                assert (await send(pages, draw.randbytes(200) + b"\r\n\r\n"))[0] == 400
            assert await get(pages, "/livez") == (200, "ok\n")

    run(work())


def test_half_a_request_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.05)

    async def work() -> None:
        async with serving(State()) as pages:
            assert (await send(pages, b"GET /livez HT"))[0] == 408

    run(work())


def test_a_crowd_that_asks_for_nothing_and_comes_back_keeps_nobody_from_being_served() -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            is_crowded, is_over = asyncio.Event(), asyncio.Event()
            open_: set[asyncio.StreamWriter] = set()

            async def stay() -> None:
                while not is_over.is_set():
                    reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
                    open_.add(writer)
                    if not is_over.is_set():
                        with suppress(ConnectionResetError):
                            await reader.read()
                        is_crowded.set()
                    open_.remove(writer)
                    writer.transport.abort()

            async with asyncio.TaskGroup() as crowd:
                for _ in range(CONNECTIONS_MAX + 20):
                    crowd.create_task(stay())
                await is_crowded.wait()
                for _ in range(20):
                    assert (await get(pages, "/livez"))[0] == 200
                    assert (await get(pages, "/metrics"))[0] == 200
                is_over.set()
                for writer in open_:
                    writer.transport.abort()

    run(work())


def test_the_oldest_connection_goes_first() -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            open_ = [
                await asyncio.open_connection("127.0.0.1", pages.port)
                for _ in range(CONNECTIONS_MAX)
            ]
            assert (await get(pages, "/livez"))[0] == 200
            with suppress(ConnectionResetError):
                assert await open_[0][0].read() == b""
            reader, writer = open_[1]
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"ok\n")
            for _, writer in open_:
                writer.transport.abort()

    run(work())


def test_many_that_come_in_one_turn_are_no_more_than_there_may_be() -> None:
    """Whoever is displaced ends in a later turn."""

    class Writer:
        def __init__(self) -> None:
            self.transport = SimpleNamespace(
                set_write_buffer_limits=lambda high: None,
                get_extra_info=lambda name: None,
                abort=lambda: None,
            )

    async def work() -> None:
        async with serving(State()) as pages:
            for _ in range(CONNECTIONS_MAX + 3):
                pages._accept(asyncio.StreamReader(), cast(asyncio.StreamWriter, Writer()))
            assert len(pages._tasks) == CONNECTIONS_MAX

    run(work())


def test_of_many_pages_that_are_asked_for_together_one_is_made_a_turn() -> None:
    async def work() -> None:
        turns, made = LoopTurns(), []

        class Counting(State):
            def status(self) -> Mapping[str, object]:
                made.append(turns.count)
                return {}

        async with serving(Counting()) as pages:
            opened = [await asyncio.open_connection("127.0.0.1", pages.port) for _ in range(30)]
            for _, writer in opened:
                writer.write(b"GET /status HTTP/1.1\r\n\r\n")
            for reader, writer in opened:
                assert (await reader.read()).endswith(b"{}\n")
                writer.transport.abort()
        turns.end()
        assert len(made) == len(set(made)) == len(opened)

    run(work())


def test_of_many_scrapes_that_wait_for_the_disk_together_one_is_rendered_a_turn(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        turns, made = LoopTurns(), []

        def render(accept: str, disk_bytes: tuple[int, int] | None) -> tuple[bytes, str]:
            assert disk_bytes is not None
            made.append(turns.count)
            return b"", accept

        page = MetricsPage(Metrics(), cast(PartitionView, None), "1", tmp_path, lambda: True)
        page._text = cast(MetricsText, SimpleNamespace(render=render))
        await asyncio.gather(*(page.render("") for _ in range(30)))
        turns.end()
        assert len(made) == len(set(made)) == 30

    run(work())


def test_a_disk_that_does_not_say_how_full_it_is_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert http._disk_bytes(tmp_path / "file" / "below") is None
    found = http._disk_bytes(tmp_path)
    assert found is not None
    assert 0 <= found[0] <= found[1]


def test_a_storm_from_one_address_keeps_no_other_from_its_page() -> None:
    async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))

    async def work() -> None:
        async with serving(State()) as pages:
            reader, writer = await connect("127.0.0.8", pages.port)
            storm = [await connect("127.0.0.9", pages.port) for _ in range(3 * CONNECTIONS_MAX)]
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"ok\n")
            for _, each in [*storm, (reader, writer)]:
                each.transport.abort()

    run(work())


def test_a_page_that_fails_is_a_500_and_the_next_works() -> None:
    async def work() -> None:
        state = State(facts={"not": object()})
        async with serving(state) as pages:
            status, body = await get(pages, "/status")
            assert status == 500
            assert "log says why" in body
            state.facts = {"role": "leader"}
            assert (await get(pages, "/status"))[0] == 200

    run(work())


def test_a_page_that_fails_time_after_time_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(State(facts={"not": object()})) as pages:
            for _ in range(12):
                assert (await get(pages, "/status"))[0] == 500

    run(work())
    assert 0 < len(caplog.records) < 8


def test_the_head_of_a_page_that_fails_has_no_body() -> None:
    async def work() -> None:
        async with serving(State(facts={"not": object()})) as pages:
            assert await get(pages, "/status", "HEAD") == (500, "")

    run(work())


@pytest.mark.parametrize("path", ["/livez", "/status", "/metrics"])
def test_a_client_that_resets_while_its_page_is_made_ends_nothing(path: str) -> None:
    async def work() -> list[BaseException | None]:
        failures: list[BaseException | None] = []
        end_on_unhandled(asyncio.get_running_loop(), lambda _, error: failures.append(error))
        is_asked, is_made = asyncio.Event(), asyncio.Event()

        async def made(accept: str) -> http.Page:
            is_asked.set()
            await is_made.wait()
            return http.Page(b"late" * 100_000)

        async with serving(State(), {path: made}) as pages:
            with socket.create_connection(("127.0.0.1", pages.port)) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                await is_asked.wait()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0.05)
            is_made.set()
            assert (await get(pages, "/readyz"))[0] == 200
        return failures

    assert run(work()) == []


def test_the_end_of_a_page_waits_for_a_client_that_reads_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However small what is left of it: after the end the client has a second to take it."""
    body, is_ended = b"x" * 60_000, asyncio.Event()

    async def linger(reader: asyncio.StreamReader) -> None:
        is_ended.set()

    async def made(accept: str) -> http.Page:
        return http.Page(body)

    monkeypatch.setattr(http, "_linger", linger)

    async def work() -> None:
        async with serving(State(), {"/page": made}) as pages:
            assert pages._server is not None
            for listening in pages._server.sockets:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", pages.port))
                client.sendall(b"GET /page HTTP/1.1\r\n\r\n")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(is_ended.wait(), 0.2)
                reader, writer = await asyncio.open_connection(sock=client)
                assert (await reader.read()).endswith(b"\r\n\r\n" + body)
                writer.close()

    run(work())


def test_closing_ends_open_connections() -> None:
    async def work() -> None:
        async with serving(State()) as pages:
            reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
            assert (await get(pages, "/livez"))[0] == 200
            await pages.close()
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.transport.abort()

    run(work())


def test_a_port_in_use_names_the_key() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = Address("127.0.0.1", taken.getsockname()[1])
            state = State()
            pages = HttpServer(
                address, ready=lambda: (True, ""), status=state.status, metrics=state.metrics
            )
            with pytest.raises(ListenError, match=r"^http\.listen: .*the port is in use"):
                await pages.open()

    run(work())
