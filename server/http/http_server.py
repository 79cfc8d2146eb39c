"""A node's HTTP pages for people, probes and Prometheus: /metrics /livez /readyz /status, and those given.

GET and HEAD, one request per connection, bounded in size, time and number. A quorum that is lost makes a
node not ready; as long as it can say so it is alive.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quorumd.raft.types import Address
from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.unhandled import unawaited
from quorumd.server.net.listeners import listen_error

if TYPE_CHECKING:
    from quorumd.server.http.exposition import MetricsText

REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_SECONDS_MAX: Final = 5.0
RESPONSE_SECONDS_MAX: Final = 10.0
LINGER_BYTES_MAX: Final = 64 << 10
CONNECTIONS_MAX: Final = 64

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_LOGGER = Logger("http")

Pages = Mapping[str, Callable[[str], Awaitable["Page"]]]


class Page(NamedTuple):
    """What is answered; `headers` are whole lines."""

    body: bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[str, ...] = ()


class _BadRequest(Exception):
    """A request that is answered with this status and text."""

    def __init__(self, status: HTTPStatus, text: str, allow: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.allow = allow


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

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, as the request's Accept header prefers."""
        if self._text is None:
            # 60 ms of importing: on the event loop they would delay everything else.
            await asyncio.to_thread(import_module, "quorumd.server.http.exposition")
            from quorumd.server.http.exposition import MetricsText

            self._text = MetricsText(self._metrics, self._view, self._version, self._is_ready)
        # A disk that hangs holds up this page, and not the event loop.
        disk = await asyncio.to_thread(_disk_bytes, self._directory)
        return self._text.render(accept, disk)


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
    ) -> None:
        """`ready` says whether this node can serve, and in words why not; `status` must be fit for
        JSON; `metrics` takes an Accept header and gives body and content type; `pages` are others, by
        path."""
        self._address = address
        self._ready = ready
        self._status = status
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pages: Pages = {
            "/metrics": self._metrics_page,
            "/livez": self._livez_page,
            "/readyz": self._readyz_page,
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
            self._server = await asyncio.start_server(
                self._accept,
                self._address.host or None,
                self._address.port,
                limit=REQUEST_BYTES_MAX,
            )
        except OSError as error:
            raise listen_error("http.listen", self._address, error) from error

    async def close(self) -> None:
        """Stop listening and end what is being answered."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = unawaited(asyncio.get_running_loop().create_task(self._serve(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX + RESPONSE_SECONDS_MAX):
                response = await self._answer(reader)
                writer.transport.set_write_buffer_limits(high=0)
                writer.write(response)
                await writer.drain()
                if writer.can_write_eof():
                    writer.write_eof()
                await _linger(reader)
        except (OSError, TimeoutError):
            # The client has gone, or does not read: its own loss.
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        is_head = False
        try:
            method, path, accept = await _read_request(reader)
            is_head = method == "HEAD"
            page = self._pages.get(path)
            if page is None:
                known = "\n".join(self._pages)
                raise _BadRequest(
                    HTTPStatus.NOT_FOUND, f"there is no such page; there are\n{known}"
                )
            if method not in ("GET", "HEAD"):
                text = "these pages can only be read: use GET or HEAD"
                raise _BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, text, allow="GET, HEAD")
            return _response(await page(accept), is_head=is_head)
        except _BadRequest as error:
            refusal = Page(error.text.encode() + b"\n", status=error.status)
            return _response(refusal, is_head=is_head, allow=error.allow)
        except Exception as error:  # a page that fails must not end the server
            _LOGGER.exception("page failed", error)
            failed = Page(b"the page could not be made; the log says why\n")
            return _response(failed._replace(status=HTTPStatus.INTERNAL_SERVER_ERROR))

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

    async def _status_page(self, accept: str) -> Page:
        del accept
        return Page(json.dumps(self._status(), indent=2).encode() + b"\n", _JSON)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, str]:
    """Method, path without query, and Accept header. Raises _BadRequest, OSError."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
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
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request for a page")
    accept = ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept":
            accept = value.strip()
    return parts[0], parts[1].partition("?")[0], accept


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
    """Read on for a moment: closing with bytes unread would destroy the answer on its way."""
    taken = 0
    async with asyncio.timeout(1.0):
        while taken < LINGER_BYTES_MAX and (data := await reader.read(REQUEST_BYTES_MAX)):
            taken += len(data)
