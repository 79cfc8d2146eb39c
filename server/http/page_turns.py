"""Pages are made one after the other, with a turn of the event loop between them.

A page takes the loop one to three milliseconds: a hundred clients that ask together would take a third of a
second from everything else. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio


class PageTurns:
    """Of pages that are made in one place."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Return when it is one's turn: what is done then until the next `await` is done by no other."""
        async with self._lock:
            await asyncio.sleep(0)
