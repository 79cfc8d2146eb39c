"""A reader that follows the log in a thread of its own, for clients that only know how to write."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, suppress

from quorumd.client import BatchCommitted, QuorumClient, Record


class LogReader:
    """All records so far, and the newest value of each key."""

    def __init__(self, servers: str) -> None:
        self.records: list[Record] = []
        self._newest: dict[bytes, bytes] = {}
        self._offset = 0
        self._moved = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._following = self._loop.create_task(self._follow(servers))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def know(self) -> tuple[dict[bytes, bytes], int]:
        """The newest value of each key, and up to which offset that is known."""
        with self._moved:
            return dict(self._newest), self._offset

    def wait_beyond(self, offset: int) -> None:
        """Returns when the record at the offset is known, or after a second."""
        with self._moved:
            self._moved.wait_for(lambda: self._offset > offset, timeout=1)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._following.cancel)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._following)

    async def _follow(self, servers: str) -> None:
        async with QuorumClient(servers) as client, aclosing(client.follow()) as events:
            async for event in events:
                if isinstance(event, BatchCommitted):
                    with self._moved:
                        self._take(event)
                        self._moved.notify_all()

    def _take(self, batch: BatchCommitted) -> None:
        self.records += batch.records
        self._newest |= {r.key: r.value or b"" for r in batch.records if r.key is not None}
        self._offset = batch.next_offset
