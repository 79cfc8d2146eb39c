"""Makes the connections of one client: in plaintext, or by TLS with its files as they are at that moment.

Owns the threads that make handshakes. Knows no leader and does not retry.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quorumd.client.connection import ClientConnection
from quorumd.client.error_messages import SPEAKS_PLAINTEXT, SPEAKS_TLS
from quorumd.client.errors import ConnectionFailed, QuorumError
from quorumd.client.name_lookups import NameLookups, SocketAddress
from quorumd.client.timing import Deadline
from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem, PeerSpeaksPlaintext
from quorumd.security.handshakes import Handshakes
from quorumd.security.tls_records import ALERT, HANDSHAKE

if TYPE_CHECKING:
    from quorumd.client.security import Security
    from quorumd.config.tls import TlsConfig
    from quorumd.security.credentials import Credentials
    from quorumd.security.identity import Identity
    from quorumd.security.tls_stream import TlsStream

_CLIENT_ID_BYTES_MAX: Final = (1 << 15) - 1
_PROBE_S: Final = 1.0
_SETTLED_NS: Final = 2_000_000_000
"""A file that is younger than this may be written again without a new time of modification."""
_TLS_RESPONSES: Final = (bytes((ALERT,)), bytes((HANDSHAKE,)))
"""The first byte of the response to a hello."""

T = TypeVar("T")
_ProtocolFactory = Callable[[ClientConnection], asyncio.BaseProtocol]


class Connector:
    """Close it, for it may hold threads."""

    def __init__(self, client_id: str, security: Security | None = None) -> None:
        """Without `security` all is plaintext. Raises TypeError or ValueError for an unfit `client_id`."""
        if not isinstance(client_id, str):
            raise TypeError(f"client_id is of type {type(client_id).__name__}: give text")
        if len(client_id.encode()) > _CLIENT_ID_BYTES_MAX:
            raise ValueError(f"client_id is longer than {_CLIENT_ID_BYTES_MAX} bytes of UTF-8")
        self._client_id = client_id
        self._names = NameLookups()
        tls = None if security is None else security.tls
        self._keys = None if tls is None else _Keys(tls)

    async def connect(self, address: Address, timeout_s: float) -> ClientConnection:
        """A negotiated connection.

        Raises ConnectionFailed with the reason in words, RequestRefused if the server agrees on no versions,
        CertificateProblem if this client's own keys or certificates cannot be used.
        """
        try:
            protocol = await self._protocol(address)
            return await _dialled(self._names, address, self._client_id, timeout_s, protocol)
        except ConnectionFailed as error:
            if error.is_mute:
                # The bytes sent may have been of the wrong kind: neither side can distinguish them.
                problem = await self._mistaken(address, min(timeout_s, _PROBE_S))
            else:
                problem = error.problem
            if problem is None:
                raise
        if self._keys is not None and self._keys.stale:
            problem = type(problem)(f"{problem} ({self._keys.stale})")
        raise ConnectionFailed(str(problem), problem)

    def close(self) -> None:
        """Ends the threads. Connections are closed by their owners."""
        if self._keys is not None:
            self._keys.close()

    async def _protocol(self, address: Address) -> _ProtocolFactory:
        """Factory of the protocol for a socket. Raises CertificateProblem."""
        if self._keys is None:
            return lambda connection: connection
        from quorumd.security.tls_stream import TlsStream

        keys, credentials = self._keys, await self._keys.ready()
        watcher = Unwatched()
        # asyncio asks for no more of a protocol than what a stream has.
        return lambda connection: TlsStream(  # type: ignore[return-value]  # not by inheritance
            connection, credentials, keys.handshakes, watcher, address.host
        )

    async def _mistaken(self, address: Address, timeout_s: float) -> CertificateProblem | None:
        """The problem if plaintext was sent where TLS is spoken, or the other way round."""
        if self._keys is None:
            is_tls = await _speaks_tls(self._names, address, timeout_s)
            return CertificateProblem(SPEAKS_TLS) if is_tls else None
        try:
            made = await _dialled(
                self._names, address, self._client_id, timeout_s, lambda connection: connection
            )
        except QuorumError:
            return None
        made.close()
        return PeerSpeaksPlaintext(SPEAKS_PLAINTEXT)


class _Keys:
    """Keys and certificates as they are in their files now, and the threads that work with them."""

    def __init__(self, tls: TlsConfig) -> None:
        self.stale = ""
        """The reason why the files as they are now are not used; empty if they are."""
        self._tls = tls
        self._handshakes = Handshakes()
        self._is_closed = False
        self._credentials: Credentials | None = None
        self._stamp: tuple[object, ...] = ()
        self._lock = asyncio.Lock()

    @property
    def handshakes(self) -> Handshakes:
        """The threads begin with the first use. Raises ConnectionFailed after `close`."""
        if self._is_closed:
            raise ConnectionFailed("the client was closed")
        return self._handshakes

    async def ready(self) -> Credentials:
        """Keys and certificates of the files, or those from before as long as the files cannot be used.

        Raises CertificateProblem if they never could.
        """
        async with self._lock:
            stamp = self._present_stamp()
            if self._credentials is None or stamp != self._stamp:
                loop = asyncio.get_running_loop()
                try:
                    self._credentials = await loop.run_in_executor(
                        self.handshakes.dialled, self._read
                    )
                    self.stale = ""
                except CertificateProblem as problem:
                    if self._credentials is None:
                        raise
                    self.stale = f"with the files as they were before: {problem}"
                self._stamp = stamp
            return self._credentials

    def close(self) -> None:
        """A step of a handshake takes milliseconds; its end is waited for."""
        self._is_closed = True
        self._handshakes.close()
        self._handshakes.dialled.shutdown()

    def _read(self) -> Credentials:
        from quorumd.security.credentials import Credentials

        return Credentials(self._tls, is_server=False)

    def _present_stamp(self) -> tuple[object, ...]:
        """Differs from the one before if a file may have changed."""
        tls = self._tls
        found: list[object] = []
        for path in (
            tls.ssl_keystore_location,
            tls.ssl_truststore_location,
            tls.ssl_crl_location,
        ):
            if path is None:
                continue
            try:
                seen = os.stat(path)
            except OSError as error:
                found.append(error.errno)
                continue
            found.append((seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns))
            if abs(time.time_ns() - seen.st_mtime_ns) < _SETTLED_NS:
                found.append(object())
        return tuple(found)


class Unwatched:
    """A client counts no handshakes: it gets to know the end of each connection."""

    def on_secured(self, stream: TlsStream, identity: Identity) -> None: ...

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None: ...


async def _dialled(
    names: NameLookups,
    address: Address,
    client_id: str,
    timeout_s: float,
    protocol: _ProtocolFactory,
) -> ClientConnection:
    """Connecting may take `timeout_s`, and so may negotiating. Raises ConnectionFailed, RequestRefused."""
    loop = asyncio.get_running_loop()

    async def dial(
        family: socket.AddressFamily, where: tuple[Any, ...], share_s: float
    ) -> ClientConnection:
        connection = ClientConnection(address, client_id)
        try:
            async with asyncio.timeout(share_s / 2):
                sock = await _connected_to(family, where, share_s / 2)
                await loop.create_connection(lambda: protocol(connection), sock=sock)
            await connection.negotiate(share_s / 2)
        except BaseException:
            connection.close()
            raise
        return connection

    try:
        async with asyncio.timeout(timeout_s):
            found = await names.addresses_of(address)
        return await _at_each(found, 2 * timeout_s, dial)
    except TimeoutError:
        reason = f"no response to the connection attempt within {timeout_s:.3g} s"
        raise ConnectionFailed(reason) from None
    except OSError as error:
        raise ConnectionFailed(_why_not_connected(error)) from None


async def _connected(names: NameLookups, address: Address, timeout_s: float) -> socket.socket:
    """To the first address of the host that responds. Raises OSError."""
    return await _at_each(await names.addresses_of(address), timeout_s, _connected_to)


async def _at_each(
    found: Sequence[SocketAddress],
    timeout_s: float,
    attempt: Callable[[socket.AddressFamily, tuple[Any, ...], float], Awaitable[T]],
) -> T:
    """At the first address of a host where it succeeds. Each gets a share of the time: it may be silent.

    Raises the ConnectionFailed of the last one that took the connection, or else the last OSError.
    """
    deadline = Deadline(round(timeout_s * 1000))
    failure: OSError | ConnectionFailed = OSError("the host name has no address")
    for index, (family, where) in enumerate(found):
        try:
            share_s = deadline.remaining_s() / (len(found) - index)
            return await attempt(family, where, share_s)
        except ConnectionFailed as error:
            failure = error
        except OSError as error:
            if isinstance(failure, OSError):
                failure = error
    raise failure


async def _connected_to(
    family: socket.AddressFamily, where: tuple[Any, ...], timeout_s: float
) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(made, where)
    except BaseException:
        made.close()
        raise
    return made


def _why_not_connected(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host name does not resolve ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return error.strerror or str(error)


async def _speaks_tls(names: NameLookups, address: Address, timeout_s: float) -> bool:
    """True if a hello gets a response of TLS. Nothing is verified, and nothing else sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    hello = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=address.host)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            sock = await _connected(names, address, timeout_s)
            reader, writer = await asyncio.open_connection(sock=sock)
            try:
                writer.write(hello.read())
                return await reader.read(1) in _TLS_RESPONSES
            finally:
                writer.transport.abort()
    return False
