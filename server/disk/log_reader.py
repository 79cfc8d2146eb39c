"""Reads from a partition's log: from memory at once, from disk on a thread of its own.

Disk reads never hold the event loop up, nor the thread that writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from quorumd.server.model.runtime import OnUnreadable, reporting_damage
from quorumd.storage.log import Log

T = TypeVar("T")


class LogReader:
    """See the module's docstring. All methods are for the event loop's thread.

    `on_unreadable` gets the damage that `read` has found, or the failure of the disk, before its result is
    handed over.
    """

    def __init__(self, log: Log, on_unreadable: OnUnreadable) -> None:
        self._log = log
        self._on_unreadable = on_unreadable
        self._loop = asyncio.get_running_loop()
        self._reads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        self._look_ups = ThreadPoolExecutor(max_workers=1, thread_name_prefix="look-ups")

    def cached(
        self, offset: int, max_bytes: int, end_offset: int
    ) -> list[bytes | memoryview] | None:
        """Whole batches from the one that holds `offset` up to `end_offset`; None if not in memory."""
        return self._log.read_cached(offset, max_bytes, end_offset)

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        done: Callable[[bytes | BaseException], None],
    ) -> None:
        """The same from disk; `done` gets the bytes, or what went wrong, on the event loop."""
        reported = reporting_damage(self._on_unreadable, done)
        self.run(lambda: self._log.read(offset, max_bytes, end_offset), reported)

    def run(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run an action that reads the disk; `done` gets its result, or what went wrong."""
        self._run(self._reads, action, done)

    def look_up(self, action: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """As `run`, for what takes as long as a client wants: replicas do not wait for it."""
        self._run(self._look_ups, action, done)

    def _run(
        self,
        executor: ThreadPoolExecutor,
        action: Callable[[], T],
        done: Callable[[T | BaseException], None],
    ) -> None:
        def finished(future: Future[T]) -> None:
            if future.cancelled():  # the node stops
                return
            error = future.exception()
            outcome: T | BaseException = future.result() if error is None else error
            self._loop.call_soon_threadsafe(done, outcome)

        executor.submit(action).add_done_callback(finished)

    def close(self) -> None:
        """Let what runs finish; nothing new starts."""
        for executor in (self._reads, self._look_ups):
            executor.shutdown(wait=True, cancel_futures=True)
