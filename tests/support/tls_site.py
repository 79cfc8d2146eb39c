"""A server of TLS streams and its clients, byte by byte."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import cast

from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity
from quorumd.security.tls_stream import TlsStream
from tests.support.certificates import Certificates


class Above(asyncio.Protocol):
    """Remembers what it is told; sends back what comes if it `echoes`."""

    def __init__(self, *, echoes: bool = False, stays_open: bool = False) -> None:
        self.echoes = echoes
        self.stays_open = stays_open
        self.got: list[bytes] = []
        self.ends = 0
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    @property
    def data(self) -> bytes:
        return b"".join(self.got)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got.append(data)
        if self.echoes:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.ends += 1
        return self.stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Site:
    """A server of TLS streams, and Python's own TLS to speak with it byte by byte."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.side = Credentials(certificates.config("node", "localhost"), is_server=True)
        self.above: list[Above] = []
        self.peers: list[Peer] = []
        self.secured: list[Identity] = []
        self.failed: list[CertificateProblem] = []
        self.on_secured_raises: CertificateProblem | None = None
        self.handshakes = Handshakes()
        self.make: Callable[[], Above] = lambda: Above(echoes=True)
        self.port = 0

    def on_secured(self, stream: TlsStream, identity: Identity) -> None:
        self.secured.append(identity)
        if self.on_secured_raises is not None:
            raise self.on_secured_raises

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        self.failed.append(problem)

    def _accepted(self) -> TlsStream:
        above = self.make()
        self.above.append(above)
        return TlsStream(above, self.side, self.handshakes, self)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        factory = cast("Callable[[], asyncio.Protocol]", self._accepted)
        server = await loop.create_server(factory, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            for above in self.above:
                if not above.lost.done():
                    above.transport.abort()
                    await above.lost
            for peer in self.peers:
                # Closing would wait for what nobody reads any more.
                peer.writer.transport.abort()
                with suppress(OSError):
                    await peer.writer.wait_closed()
            server.close()
            self.handshakes.close()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Meanwhile the thread of handshakes has something else to do."""
        go_on = threading.Event()
        other = self.handshakes.accepted("127.0.0.1", is_local=True).submit(go_on.wait, 10)
        try:
            yield
        finally:
            go_on.set()
        assert other.result(10)

    async def dial(self) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.peers.append(Peer(reader, writer, self.certificates.client_context("a-client")))
        return self.peers[-1]


class Peer:
    """The other side of a stream: what OpenSSL says, sent in any pieces."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        self.reader, self.writer = reader, writer
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def flush(self, piece_bytes: int = 1 << 20) -> None:
        data = self.outgoing.read()
        for at in range(0, len(data), piece_bytes):
            self.writer.write(data[at : at + piece_bytes])
            await self.writer.drain()
            await asyncio.sleep(0)

    async def fill(self) -> None:
        data = await self.reader.read(1 << 16)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    async def shake(self, piece_bytes: int = 1 << 20, *, sends_last: bool = True) -> None:
        """`sends_last`: what is left to be sent when this side is done."""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self.flush(piece_bytes)
                await self.fill()
        if sends_last:
            await self.flush(piece_bytes)

    def reset(self) -> None:
        """End the connection as a client does that has not read all."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def read(self, wanted: int) -> bytes:
        """So many bytes, or fewer and the end."""
        got = bytearray()
        while len(got) < wanted:
            try:
                data = self.tls.read(min(wanted - len(got), 1 << 16))
            except ssl.SSLWantReadError:
                await self.fill()
                continue
            if not data:
                break
            got += data
        return bytes(got)

    async def say(self, data: bytes, piece_bytes: int = 1 << 20) -> None:
        at = 0
        while at < len(data):
            at += self.tls.write(data[at:])
        await self.flush(piece_bytes)
