"""The HTTP pages over TLS: who sees what, with which certificate, and the limits during handshakes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trustme

from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.raft.types import Address
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem, HandshakeOutcome
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity
from quorumd.security.tls_records import UNEXPECTED_MESSAGE
from quorumd.security.tls_stream import TlsStream, TlsWatcher, secured
from quorumd.server.http import http_server as http
from quorumd.server.http.http_server import CONNECTIONS_MAX, HttpServer, HttpTls, Page, Pages
from quorumd.server.model.unhandled import end_on_unhandled
from quorumd.server.node_tls import _HttpWatch
from tests.support.serving import run, until


class Watching:
    def __init__(self) -> None:
        self.failed: list[str] = []

    def on_secured(self, stream: TlsStream, identity: Identity) -> None: ...

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        self.failed.append(str(problem))


class Site:
    """A CA, a node's files, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.ca_file))
        self.watching = Watching()
        self.watcher: TlsWatcher = self.watching
        self.is_ready = True

    def files(self, ca: trustme.CA, name: str) -> Path:
        made = ca.issue_cert("localhost", common_name=name)
        path = self.folder / f"{name}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def client(self, ca: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if ca is not None:
            context.load_cert_chain(self.files(ca, "client"))
        return context

    @asynccontextmanager
    async def serving(
        self,
        *,
        needs_certificate: bool,
        auth: ClientAuth | None = None,
        others: Pages | None = None,
    ) -> AsyncIterator[HttpServer]:
        tls = TlsConfig(
            ssl_keystore_location=self.files(self.ca, "node"),
            ssl_truststore_location=self.ca_file,
            ssl_client_auth=auth
            or (ClientAuth.REQUESTED if needs_certificate else ClientAuth.NONE),
        )
        side = Credentials(tls, is_server=True)

        async def metrics(accept: str) -> tuple[bytes, str]:
            return b"a 1\n" * 50_000, accept

        handshakes = Handshakes()
        below = partial(secured, side=side, handshakes=handshakes, watcher=self.watcher)
        pages = HttpServer(
            Address("127.0.0.1", 0),
            ready=lambda: (self.is_ready, "no leader is known in epoch 7"),
            status=lambda: {"role": "follower"},
            metrics=metrics,
            pages=others,
            tls=HttpTls(below, needs_certificate),
        )
        await pages.open()
        try:
            yield pages
        finally:
            await pages.close()
            handshakes.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def get(pages: HttpServer, client: ssl.SSLContext | None, path: str) -> tuple[int, bytes]:
    """Status and body; the server says that nothing more comes before it closes."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", pages.port, ssl=client, server_hostname="localhost" if client else None
    )
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    return int(head.split(b" ")[1]), body


def test_pages_are_served_over_tls(site: Site) -> None:
    async def work() -> None:
        async with site.serving(needs_certificate=False) as pages:
            client = site.client()
            assert await get(pages, client, "/livez") == (200, b"ok\n")
            assert await get(pages, client, "/status") == (200, b'{\n  "role": "follower"\n}\n')
            status, body = await get(pages, client, "/metrics")
            assert (status, len(body)) == (200, 200_000)

    run(work())


def test_who_shows_no_certificate_learns_the_verdict_alone(site: Site) -> None:
    async def work() -> None:
        async with site.serving(needs_certificate=True) as pages:
            stranger, friend = site.client(), site.client(site.ca)
            assert await get(pages, stranger, "/livez") == (200, b"ok\n")
            assert await get(pages, stranger, "/readyz") == (200, b"ready\n")
            site.is_ready = False
            assert await get(pages, stranger, "/readyz") == (503, b"not ready\n")
            reason = b"no leader is known in epoch 7\n"
            assert await get(pages, friend, "/readyz") == (503, reason)
            for path in ("/status", "/metrics", "/", "/page.json", "/nothing"):
                status, body = await get(pages, stranger, path)
                assert status == 403
                assert b"a certificate that it trusts (http.ssl.client.auth)" in body
            assert (await get(pages, friend, "/status"))[0] == 200
            assert (await get(pages, friend, "/nothing"))[0] == 404

    run(work())


def test_where_certificates_are_only_requested_each_page_is_open(site: Site) -> None:
    async def work() -> None:
        requested = ClientAuth.REQUESTED
        async with site.serving(needs_certificate=False, auth=requested) as pages:
            for client in (site.client(), site.client(site.ca)):
                assert (await get(pages, client, "/status"))[0] == 200
            with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
                await get(pages, site.client(trustme.CA()), "/status")

    run(work())


def test_a_client_that_resets_while_its_page_is_made_ends_nothing(site: Site) -> None:
    async def work() -> list[BaseException | None]:
        failures: list[BaseException | None] = []
        end_on_unhandled(asyncio.get_running_loop(), lambda _, error: failures.append(error))
        is_asked, is_made = asyncio.Event(), asyncio.Event()

        async def made(accept: str) -> Page:
            is_asked.set()
            await is_made.wait()
            return Page(b"late" * 100_000)

        async with site.serving(needs_certificate=False, others={"/late": made}) as pages:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", pages.port, ssl=site.client(), server_hostname="localhost"
            )
            writer.write(b"GET /late HTTP/1.1\r\n\r\n")
            await is_asked.wait()
            client: socket.socket = writer.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await asyncio.sleep(0.05)
            is_made.set()
            assert (await get(pages, site.client(), "/livez"))[0] == 200
        return failures

    assert run(work()) == []


def test_a_certificate_of_another_ca_is_refused_by_an_alert(site: Site) -> None:
    async def work() -> None:
        async with site.serving(needs_certificate=True) as pages:
            with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
                await get(pages, site.client(trustme.CA()), "/livez")
            assert len(site.watching.failed) == 1
            assert (await get(pages, site.client(site.ca), "/status"))[0] == 200

    run(work())


def test_plaintext_is_closed_and_nothing_of_it_is_a_failed_page(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with site.serving(needs_certificate=False) as pages:
            reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert await reader.read() == UNEXPECTED_MESSAGE
            writer.close()
            assert site.watching.failed == ["sent plaintext on a listener that is TLS here"]
            assert (await get(pages, site.client(), "/livez"))[0] == 200

    run(work())
    assert not caplog.records


def test_handshakes_are_counted_by_outcome_and_a_storm_fills_no_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    counts: dict[tuple[str, str], int] = {}
    site.watcher = _HttpWatch(counts)
    expected = {("http", outcome.value): 0 for outcome in HandshakeOutcome}
    assert counts == expected

    async def work() -> None:
        async with site.serving(needs_certificate=False) as pages:
            assert (await get(pages, site.client(), "/livez"))[0] == 200
            _, looking = await asyncio.open_connection("127.0.0.1", pages.port)
            looking.transport.abort()
            await until(lambda: counts["http", "broken"] == 1)
            assert caplog.records == [], "who only looks whether somebody listens is not told of"
            for _ in range(40):
                reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
                writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
                assert await reader.read() == UNEXPECTED_MESSAGE
                writer.close()

    run(work())
    expected["http", "done"] = expected["http", "broken"] = 1
    expected["http", "plaintext"] = 40
    assert counts == expected
    fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
    assert 20 <= len(fields) < 40
    for each in fields:
        assert (each["listener"], each["why"]) == ("http", "plaintext")
        assert each["reason"] == "sent plaintext on a listener that is TLS here"
        assert each["peer"].startswith("127.0.0.1:")


def test_half_a_handshake_ends_with_the_requests_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.2)

    async def work() -> None:
        async with site.serving(needs_certificate=False) as pages:
            reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
            writer.write(b"\x16\x03\x01")
            assert await reader.read() == b""
            writer.close()

    run(work())


def test_silent_ones_keep_nobody_from_being_served(site: Site) -> None:
    async def work() -> None:
        async with site.serving(needs_certificate=False) as pages:
            silent = []
            for number in range(CONNECTIONS_MAX + 40):
                _, writer = await asyncio.open_connection("127.0.0.1", pages.port)
                if number % 2:
                    writer.write(b"\x16\x03")
                silent.append(writer)
            assert (await get(pages, site.client(), "/livez"))[0] == 200
            for each in silent:
                each.transport.abort()

    run(work())
