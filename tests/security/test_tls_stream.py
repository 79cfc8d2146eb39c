"""TLS between a socket and a protocol, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import uvloop

from quorumd.security import tls_stream
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity
from quorumd.security.tls_stream import TlsStream, secured
from tests.support.certificates import Certificates


@dataclass
class Heard:
    """What a watcher hears."""

    secured: list[Identity] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def on_secured(self, stream: TlsStream, identity: Identity) -> None:
        self.secured.append(identity)

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        self.failed.append(str(problem))


class Echo(asyncio.Protocol):
    """Sends back what comes, and remembers its end."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Caller(Echo):
    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.got = bytearray()
        self.all: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.wanted = wanted

    def data_received(self, data: bytes) -> None:
        self.got += data
        if len(self.got) >= self.wanted and not self.all.done():
            self.all.set_result(bytes(self.got))


@asynccontextmanager
async def echoed(folder: Path, wanted: int) -> AsyncIterator[tuple[Caller, Heard]]:
    """A caller that wants so many bytes, connected to what sends all back; closed in the end."""
    certificates = Certificates(folder)
    node, client = certificates.config("node", "localhost"), certificates.config("client")
    loop = asyncio.get_running_loop()
    heard = Heard()
    with closing(Handshakes()) as handshakes, ExitStack() as ended:
        here, there = Credentials(node, is_server=True), Credentials(client, is_server=False)
        server = await loop.create_server(secured(Echo, here, handshakes, heard), "127.0.0.1", 0)
        ended.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        callers: list[Caller] = []

        def call() -> Caller:
            callers.append(Caller(wanted))
            return callers[0]

        await loop.create_connection(
            secured(call, there, handshakes, heard, "localhost"), "127.0.0.1", port
        )
        yield callers[0], heard
        callers[0].transport.close()
        assert await callers[0].lost is None


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_both_sides_know_each_other_and_what_is_sent_arrives(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        async with echoed(tmp_path, len(data)) as (caller, heard):
            caller.transport.write(data)
            assert await caller.all == data
            assert sorted("CN=client" in each.principal for each in heard.secured) == [False, True]

    uvloop.run(run())


def test_who_has_no_certificate_gets_the_alert_that_says_so(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    node = certificates.config("node", "localhost")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        heard = Heard()
        with closing(Handshakes()) as handshakes, ExitStack() as ended:
            here = Credentials(node, is_server=True)
            server = await loop.create_server(
                secured(Echo, here, handshakes, heard), "127.0.0.1", 0
            )
            ended.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            context = certificates.client_context()

            def ask() -> bytes:
                raw = socket.create_connection(("127.0.0.1", port))
                with context.wrap_socket(raw, server_hostname="localhost") as tls:
                    return tls.recv(1)

            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                await asyncio.to_thread(ask)
            assert len(heard.failed) == 1

    uvloop.run(run())


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_says_nothing_more_after_its_part_of_the_handshake_hears_the_alert(
    tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """As `openssl s_client </dev/null`: its sending side is closed before the node has looked."""
    certificates = Certificates(tmp_path)
    node = certificates.config("node", "localhost")
    context = certificates.client_context()
    context.maximum_version = newest

    def ask(port: int) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.settimeout(20)
            while True:
                is_done = False
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    is_done = True
                said = outgoing.read()
                raw.sendall(said)
                # By TLS 1.2 its third message is the last that it has to say, and it is not done.
                if is_done or (
                    newest is ssl.TLSVersion.TLSv1_2 and said[0] == 0x16 and said[5] != 1
                ):
                    break
                incoming.write(raw.recv(65536))
            raw.shutdown(socket.SHUT_WR)
            while data := raw.recv(65536):
                incoming.write(data)
        incoming.write_eof()
        tls.do_handshake()
        tls.read(1)

    async def run() -> None:
        heard = Heard()
        with closing(Handshakes()) as handshakes, ExitStack() as ended:
            here = Credentials(node, is_server=True)
            server = await asyncio.get_running_loop().create_server(
                secured(Echo, here, handshakes, heard), "127.0.0.1", 0
            )
            ended.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"):
                await asyncio.to_thread(ask, port)
            assert len(heard.failed) == 1
            assert "certificate" in heard.failed[0]

    uvloop.run(run())


def test_who_offers_an_old_version_and_says_nothing_more_hears_the_alert(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    node = certificates.config("node", "localhost")
    outgoing = ssl.MemoryBIO()
    context = certificates.client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = bytearray(outgoing.read())
    versions = b"\x00\x2b\x00\x05\x04\x03\x04\x03\x03"
    assert versions in hello
    hello = bytearray(bytes(hello).replace(versions, bytes(9)))
    hello[9:11] = b"\x03\x02"

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.settimeout(20)
            raw.sendall(hello)
            raw.shutdown(socket.SHUT_WR)
            found = b""
            while data := raw.recv(65536):
                found += data
            return found

    async def run() -> None:
        heard = Heard()
        with closing(Handshakes()) as handshakes, ExitStack() as ended:
            here = Credentials(node, is_server=True)
            server = await asyncio.get_running_loop().create_server(
                secured(Echo, here, handshakes, heard), "127.0.0.1", 0
            )
            ended.callback(server.close)
            answer = await asyncio.to_thread(ask, server.sockets[0].getsockname()[1])
            assert answer[:1] == b"\x15", answer
            assert len(heard.failed) == 1

    uvloop.run(run())


def test_a_connection_outlives_the_time_that_its_handshake_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKE_S", 0.5)

    async def run() -> None:
        async with echoed(tmp_path, 4) as (caller, heard):
            while len(heard.secured) < 2:
                assert not heard.failed
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.8)
            assert not caller.lost.done()
            caller.transport.write(b"late")
            assert await caller.all == b"late"

    uvloop.run(run())
