"""Looks up host names, each in a thread of its own: a name server that is silent delays nothing else.

The event loop's look-ups share a few threads with what the program runs there, and the end of a program waits
for them. Knows no connections.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from threading import Thread
from typing import Any

from quorumd.raft.types import Address

SocketAddress = tuple[socket.AddressFamily, tuple[Any, ...]]
"""The family of a socket, and where it connects to."""


class NameLookups:
    """A name is looked up once at a time; callers that come meanwhile get the same outcome."""

    def __init__(self) -> None:
        self._running: dict[Address, asyncio.Future[list[SocketAddress] | Exception]] = {}

    async def addresses_of(self, address: Address) -> list[SocketAddress]:
        """The best first. Raises OSError."""
        try:
            return _found(address, socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        except UnicodeError:
            # An empty label, or one of more than 63 characters: no name server is asked.
            raise OSError(f"{address.host!r} is no host name") from None
        outcome = await asyncio.shield(self._looked_up(address))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _looked_up(self, address: Address) -> asyncio.Future[list[SocketAddress] | Exception]:
        loop = asyncio.get_running_loop()
        outcome = self._running.get(address)
        if outcome is None or outcome.get_loop() is not loop:
            outcome = self._running[address] = loop.create_future()
            # No exit waits for it.
            name = f"name {address.host}"
            Thread(target=self._look_up, args=(address, outcome), name=name, daemon=True).start()
        return outcome

    def _look_up(
        self, address: Address, outcome: asyncio.Future[list[SocketAddress] | Exception]
    ) -> None:
        found: list[SocketAddress] | Exception
        try:
            found = _found(address, 0)
        except Exception as error:
            found = error

        def deliver() -> None:
            if self._running.get(address) is outcome:
                del self._running[address]
            outcome.set_result(found)

        with suppress(RuntimeError):  # The loop was closed meanwhile.
            outcome.get_loop().call_soon_threadsafe(deliver)


def _found(address: Address, flags: int) -> list[SocketAddress]:
    entries = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, where) for family, _, _, _, where in entries]
