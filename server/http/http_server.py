"""A node's HTTP pages for people, probes and Prometheus: /metrics /livez /readyz /status, and those given.

GET and HEAD, one request per connection, bounded in size, time and number. One connection too many ends the
oldest: idle ones never keep a client from being served. A lost quorum makes a node not ready; as long as it
can respond it is alive.

Where a client's certificate is requested, a client without one sees /livez and whether the node is ready, and
nothing else: probes of orchestrators have no certificates.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from quorumd.config.tls_port import HTTP
from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from quorumd.server.http.page_turns import PageTurns
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.unhandled import unawaited
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.displacement import ConnectionsByAddress
from quorumd.server.net.listeners import hosts_of, listen_error
from quorumd.server.net.sockets import TLS_BEGINNING, TLS_HERE, ends_of

if TYPE_CHECKING:
    from quorumd.security.tls_protocols import Upper
    from quorumd.security.tls_stream import TlsStream
    from quorumd.server.http.exposition import MetricsText

REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_SECONDS_MAX: Final = 5.0
RESPONSE_SECONDS_MAX: Final = 10.0
DISK_SECONDS_MAX: Final = 1.0
"""Time that a page waits for a disk to say how full it is; without that it is served all the same."""
LINGER_BYTES_MAX: Final = 64 << 10
CONNECTIONS_MAX: Final = 128
BACKLOG: Final = 64
"""Connections that the kernel accepts in one turn displace none whose request could not be read before."""

NO_HTTP: Final = "this is no HTTP/1 request for a page"
NO_TLS: Final = (
    f"{TLS_HERE}: the pages are at http://, and at https:// with http.security.protocol: SSL"
)

LIVEZ: Final = "/livez"
READYZ: Final = "/readyz"

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
LOG = Logger("http")

Pages = Mapping[str, Callable[[str], Awaitable["Page"]]]


class Page(NamedTuple):
    """A response: `headers` are whole lines."""

    body: bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[str, ...] = ()


class HttpTls(NamedTuple):
    """The TLS side of the HTTP server."""

    secured: Callable[[Callable[[], Upper]], Callable[[], TlsStream]]
    """Puts TLS below protocols of this factory."""
    needs_certificate: bool
    """A client that shows no certificate gets nothing but LIVEZ and READYZ."""


class _Request(NamedTuple):
    method: str
    path: str
    """Without its query."""
    accept: str


class _BadRequest(Exception):
    """A request whose response is this status and text."""

    def __init__(self, status: HTTPStatus, text: str, allow: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.allow = allow


class _TlsRequest(_BadRequest):
    """TLS in the place of a request. Every TLS library can tell from the response that this is none."""

    def __init__(self) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, NO_TLS)


class MetricsPage:
    """The page that Prometheus reads; what it takes to write it is imported when it is first asked for.

    Renders on the event loop's thread, so that all figures are of one moment.
    """

    def __init__(
        self,
        metrics: Metrics,
        view: PartitionView,
        version: str,
        directory: Path,
        is_ready: Callable[[], bool],
    ) -> None:
        """`version` is the program's, for the build info; `directory` is on the disk to watch."""
        self._metrics = metrics
        self._view = view
        self._version = version
        self._directory = directory
        self._is_ready = is_ready
        self._text: MetricsText | None = None
        self._turns = PageTurns()
        self._look: asyncio.Future[tuple[int, int] | None] | None = None
        """At the disk; one that hangs is looked at by one thread at a time."""

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, as the request's Accept header prefers."""
        if self._text is None:
            # 60 ms of importing: on the event loop they would delay everything else.
            await asyncio.to_thread(import_module, "quorumd.server.http.exposition")
            from quorumd.server.http.exposition import MetricsText

            self._text = MetricsText(self._metrics, self._view, self._version, self._is_ready)
        disk_bytes = await self._disk_bytes()
        await self._turns.wait()  # all that have waited for the disk go on together
        return self._text.render(accept, disk_bytes)

    async def _disk_bytes(self) -> tuple[int, int] | None:
        """A disk that hangs holds up neither the event loop nor, for long, the page that tells of it."""
        if self._look is None:
            self._look = asyncio.ensure_future(asyncio.to_thread(_disk_bytes, self._directory))
        look = self._look
        await asyncio.wait([look], timeout=DISK_SECONDS_MAX)
        if not look.done():
            return None
        if self._look is look:
            self._look = None
        return look.result()


def _disk_bytes(directory: Path) -> tuple[int, int] | None:
    """Free ones, without what is reserved for root, and all; None if the file system does not say."""
    try:
        found = shutil.disk_usage(directory)
    except OSError:
        return None
    return found.free, found.total


class HttpServer:
    """Serves these pages on one address."""

    def __init__(
        self,
        address: Address,
        *,
        ready: Callable[[], tuple[bool, str]],
        status: Callable[[], Mapping[str, object]],
        metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
        pages: Pages | None = None,
        tls: HttpTls | None = None,
    ) -> None:
        """`ready` says whether this node can serve, and in words why not; `status` must be fit for
        JSON; `metrics` takes an Accept header and gives body and content type; `pages` are others, by
        path. Without `tls` it is plaintext."""
        self._address = address
        self._tls = tls
        self._ready = ready
        self._status = status
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._turns = PageTurns()
        self._failure_lines = RateLimit(per_second=0.1, burst=5)
        self._tls_lines = RateLimit(per_second=2, burst=20)
        self._tasks: ConnectionsByAddress[asyncio.Task[None]] = ConnectionsByAddress()
        """One for each connection, with its address, the oldest first."""
        self._pages: Pages = {
            "/metrics": self._metrics_page,
            LIVEZ: self._livez_page,
            READYZ: self._readyz_page,
            "/status": self._status_page,
            **(pages or {}),
        }

    @property
    def port(self) -> int:
        """The port listened on, also where 0 was asked for; only while open."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def open(self) -> None:
        """Listen. Raises ListenError."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                cast("Callable[[], asyncio.Protocol]", self._factory()),
                hosts_of(self._address.host),
                self._address.port,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise listen_error("http.listen", self._address, error) from error

    async def close(self) -> None:
        """Stop listening and end what is being responded to."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _factory(self) -> Callable[[], Upper]:
        def make() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX)
            return asyncio.StreamReaderProtocol(reader, self._accept)

        return make if self._tls is None else self._tls.secured(make)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            oldest = self._tasks.oldest_of_crowd()
            assert oldest is not None, "there is one at least"
            self._tasks.discard(oldest)
            oldest.cancel()
        # For `drain`: everything is sent before the end of it is.
        writer.transport.set_write_buffer_limits(high=0)
        task = unawaited(asyncio.get_running_loop().create_task(self._serve(reader, writer)))
        self._tasks.add(task, ends_of(writer.transport).ip)

        def end(ended: asyncio.Task[None]) -> None:
            # Not in the task: one that is cancelled before its first turn runs no line.
            self._tasks.discard(ended)
            writer.transport.abort()

        task.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX + RESPONSE_SECONDS_MAX):
                response = await self._respond(reader, writer)
                _check_open(writer)
                writer.write(response)
                await writer.drain()
                _check_open(writer)
                writer.write_eof()
                await _linger(reader)
        except (OSError, TimeoutError, CertificateProblem):
            # The client has gone, or does not read, or has no TLS to offer: its own loss.
            pass

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Raises OSError, CertificateProblem."""
        is_head = False
        try:
            request = await _read_request(reader, is_plaintext=self._tls is None)
            is_head = request.method == "HEAD"
            page = self._page_for(request, _has_certificate(writer))
        except _BadRequest as error:
            if isinstance(error, _TlsRequest):
                self._log_tls(writer)
            refusal = Page(error.text.encode() + b"\n", status=error.status)
            return _response(refusal, is_head=is_head, allow=error.allow)
        await self._turns.wait()
        try:
            return _response(await page(request.accept), is_head=is_head)
        except Exception as error:  # a page that fails must not end the server
            fields = self._failure_lines.take_fields()
            if fields is not None:
                LOG.exception("page failed", error, path=request.path, **fields)
            text = b"the page could not be made; the log says why\n"
            failed = Page(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)
            return _response(failed, is_head=is_head)

    def _log_tls(self, writer: asyncio.StreamWriter) -> None:
        fields = self._tls_lines.take_fields()
        if fields is not None:
            peer, why = ends_of(writer.transport).peer, CloseReason.MALFORMED.value
            LOG.warning(
                "connection closed", peer=peer, listener=HTTP, why=why, reason=TLS_HERE, **fields
            )

    def _page_for(
        self, request: _Request, has_certificate: bool
    ) -> Callable[[str], Awaitable[Page]]:
        """Raises _BadRequest."""
        page = self._pages.get(request.path)
        if self._tls is not None and self._tls.needs_certificate and not has_certificate:
            if request.path == READYZ:
                page = self._verdict_page
            elif request.path != LIVEZ:
                text = (
                    "this node shows its pages to those alone who show a certificate that it trusts "
                    f"(http.ssl.client.auth); without one there are\n{LIVEZ}\n{READYZ}"
                )
                raise _BadRequest(HTTPStatus.FORBIDDEN, text)
        if page is None:
            known = "\n".join(self._pages)
            raise _BadRequest(HTTPStatus.NOT_FOUND, f"there is no such page; there are\n{known}")
        if request.method not in ("GET", "HEAD"):
            text = "these pages can only be read: use GET or HEAD"
            raise _BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, text, allow="GET, HEAD")
        return page

    async def _metrics_page(self, accept: str) -> Page:
        body, content_type = await self._metrics(accept)
        return Page(body, content_type)

    async def _livez_page(self, accept: str) -> Page:
        del accept
        return Page(b"ok\n")

    async def _readyz_page(self, accept: str) -> Page:
        del accept
        is_ready, text = self._ready()
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(text.encode() + b"\n", status=status)

    async def _verdict_page(self, accept: str) -> Page:
        """/readyz for clients without a certificate: not why, which would tell them about the quorum."""
        page = await self._readyz_page(accept)
        return page._replace(body=b"ready\n" if page.status is HTTPStatus.OK else b"not ready\n")

    async def _status_page(self, accept: str) -> Page:
        del accept
        return Page(json.dumps(self._status(), indent=2).encode() + b"\n", _JSON)


def _has_certificate(writer: asyncio.StreamWriter) -> bool:
    tls: TlsStream | None = writer.get_extra_info("tls")
    return tls is not None and tls.identity is not None and tls.identity.certificate is not None


def _check_open(writer: asyncio.StreamWriter) -> None:
    """To be called after each await: uvloop's transports raise RuntimeError once they are closed.

    Raises ConnectionResetError.
    """
    if writer.is_closing():
        raise ConnectionResetError("the client has gone")


async def _read_request(reader: asyncio.StreamReader, *, is_plaintext: bool) -> _Request:
    """Raises _BadRequest, OSError, CertificateProblem."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            head = await reader.readexactly(1)
            if (
                is_plaintext
                and head == TLS_BEGINNING[:1]
                and await reader.readexactly(1) == TLS_BEGINNING[1:]
            ):
                raise _TlsRequest
            if not head.isalpha():
                # As of a client of Kafka's protocol, which would wait for a response as long as it can.
                raise _BadRequest(HTTPStatus.BAD_REQUEST, NO_HTTP)
            head += await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise _BadRequest(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time") from None
    except asyncio.LimitOverrunError:
        raise _BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request's head is larger than {REQUEST_BYTES_MAX} bytes",
        ) from None
    except asyncio.IncompleteReadError:
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "the request is cut short") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, NO_HTTP)
    accept = ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept":
            accept = value.strip()
    return _Request(parts[0], parts[1].partition("?")[0], accept)


def _response(page: Page, *, is_head: bool = False, allow: str = "") -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *page.headers,
    ]
    if allow:
        lines.append(f"Allow: {allow}")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if is_head else head + page.body


async def _linger(reader: asyncio.StreamReader) -> None:
    """Read on for a moment: closing with bytes unread would destroy the response on its way."""
    taken = 0
    async with asyncio.timeout(1.0):
        while taken < LINGER_BYTES_MAX and (data := await reader.read(REQUEST_BYTES_MAX)):
            taken += len(data)
