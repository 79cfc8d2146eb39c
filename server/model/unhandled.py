"""Errors that leave a callback or a task: nobody is there to handle them, so the process ends with a report.

Who asks for a callback says what may go wrong in it, and catches that. Anything else is a broken invariant,
which asyncio would only log, and go on with half of a change made.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from quorumd.server.model.logs import Logger

LOG = Logger("node")

NETWORK_ERRORS = (ConnectionError, TimeoutError, socket.gaierror)

T = TypeVar("T")


def end_on_unhandled(
    loop: asyncio.AbstractEventLoop, fail: Callable[[str, BaseException | None], None]
) -> None:
    """Call `fail(reason, error)` for whatever would end in the loop's exception handler.

    What the network does is no reason to end: it is logged, as is what asyncio remarks without an error.
    """

    def handle(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        message, error = str(context.get("message", "")), context.get("exception")
        if error is None or isinstance(error, NETWORK_ERRORS):
            LOG.warning("left over by the event loop", what=message, error=error)
        else:
            fail(f"nothing handles this error; it is a bug, please report it: {message}", error)

    loop.set_exception_handler(handle)


def unawaited(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """A task whose outcome nobody waits for: an error in it is unhandled at once, not when it is freed."""
    task.add_done_callback(_raise_error)
    return task


def _raise_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.result()
