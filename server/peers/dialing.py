"""Connects to the first of several addresses: names resolved side by side, attempts staggered.

Source: RFC 8305, "Happy Eyeballs"; here over addresses of different hosts, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, TypeVar

HEAD_START_S = 0.25
"""Time that an attempt runs alone before the next one begins beside it."""

C = TypeVar("C")
T = TypeVar("T")


class HostResolver:
    """Resolves host names, each in a thread of its own: one that hangs does not delay the others.

    The event loop's look-ups share a few threads, and wait for each other there. A name is looked up
    once at a time; callers that come meanwhile get the same outcome.
    """

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[list[str] | Exception]] = {}

    async def ips_of(self, host: str) -> list[str]:
        """Its IP addresses, the best first. Raises what the resolver raises (OSError, ValueError)."""
        if _is_ip(host):
            return [host]
        if host not in self._running:
            loop = asyncio.get_running_loop()
            outcome: asyncio.Future[list[str] | Exception] = loop.create_future()
            arguments = (host, loop, outcome)
            Thread(target=self._look_up, args=arguments, name=f"name {host}", daemon=True).start()
            self._running[host] = outcome
        found = await asyncio.shield(self._running[host])
        if isinstance(found, Exception):
            raise found
        return found

    def _look_up(
        self,
        host: str,
        loop: asyncio.AbstractEventLoop,
        outcome: asyncio.Future[list[str] | Exception],
    ) -> None:
        found: list[str] | Exception
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in entries))
        except Exception as error:  # an odd host name provokes more than OSError
            found = error

        def deliver() -> None:
            self._running.pop(host, None)
            if not outcome.done():
                outcome.set_result(found)

        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def happy_eyeballs(
    next_candidate: Callable[[], C | None],
    attempt: Callable[[C], Coroutine[Any, Any, T]],
    on_failed: Callable[[C, BaseException], None],
    discard: Callable[[T], None],
) -> tuple[C, T] | None:
    """Try candidates until an attempt succeeds; None if all of them fail and none is left.

    The next one is begun when an attempt fails, or after HEAD_START_S. `next_candidate` may have none
    now and one later, as long as attempts run. Attempts that come too late are cancelled, and what
    they got is discarded; none runs on when this returns.
    """
    running: dict[asyncio.Task[T], C] = {}
    won: tuple[C, T] | None = None
    try:
        won = await _race(running, next_candidate, attempt, on_failed)
    finally:
        try:
            await _end(list(running), discard)
        except asyncio.CancelledError:
            if won is not None:
                discard(won[1])
            raise
    return won


async def _race(
    running: dict[asyncio.Task[T], C],
    next_candidate: Callable[[], C | None],
    attempt: Callable[[C], Coroutine[Any, Any, T]],
    on_failed: Callable[[C, BaseException], None],
) -> tuple[C, T] | None:
    while True:
        candidate = next_candidate()
        if candidate is not None:
            running[asyncio.create_task(attempt(candidate))] = candidate
        elif not running:
            return None
        await asyncio.wait(running, timeout=HEAD_START_S, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in running if task.done()]:
            candidate = running.pop(task)
            error = task.exception()
            if error is None:
                return candidate, task.result()
            on_failed(candidate, error)


async def _end(tasks: list[asyncio.Task[T]], discard: Callable[[T], None]) -> None:
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                discard(task.result())
