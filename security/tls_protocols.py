"""The protocol above a TLS stream and the turns of the event loop, as far as a stream calls them."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Upper(Protocol):
    """A protocol, as far as a stream calls it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class HasRecords(Protocol):
    """A connection with records that have come and are not decrypted."""

    def go_on(self, until_ns: int) -> None:
        """Decrypt until then, and ask for a further turn if that is not enough."""


class TlsTurns(Protocol):
    """Shares of the event loop's time: `quorumd.server.net.turns`."""

    def share(self, now_ns: int) -> int:
        """Until when this turn may be used at once; in the past if its time is used up."""

    def later(self, connection: HasRecords, *, goes_first: bool) -> None:
        """Let a connection go on in a turn to come; it must not be waiting yet."""
