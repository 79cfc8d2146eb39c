"""Errors that leave a callback or a task: no caller handles them, so the process ends with a report.

A callback catches the errors that it expects. Any other error is a broken invariant, which asyncio would only
log, and go on with half of a change made.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from quorumd.server.model.logs import Logger

LOG = Logger("node")

NETWORK_ERRORS = (ConnectionError, TimeoutError, socket.gaierror)
SHORTAGE = (
    "this process may not have more memory, or more threads: raise its limits (ulimit -v and -u, MemoryMax, "
    "TasksMax), then start again"
)

T = TypeVar("T")


def end_on_unhandled(
    loop: asyncio.AbstractEventLoop, fail: Callable[[str, BaseException | None], None]
) -> None:
    """Call `fail(reason, error)` for each error that would end in the loop's exception handler.

    Errors of the network, and messages of asyncio without an error, are only logged.
    """

    def handle(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        message, error = str(context.get("message", "")), context.get("exception")
        if error is None or isinstance(error, NETWORK_ERRORS):
            LOG.warning("left over by the event loop", what=message, error=error)
        else:
            fail(f"nothing handles this error; it is a bug, please report it: {message}", error)

    loop.set_exception_handler(handle)


def is_shortage(error: BaseException) -> bool:
    """True for an error by which the system refuses memory or a thread, which is no bug."""
    refused = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    return refused or isinstance(error, MemoryError)


def unawaited(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Make an error in a task that is not awaited an unhandled one at once, not when the task is freed."""
    task.add_done_callback(_raise_error)
    return task


def _raise_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.result()
