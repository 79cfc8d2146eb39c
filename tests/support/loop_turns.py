"""Counts the turns of the running event loop."""

from __future__ import annotations

import asyncio


class LoopTurns:
    """`count` grows by one each turn, until `end`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.count = 0
        self._turn()

    def _turn(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._turn)

    def end(self) -> None:
        self._handle.cancel()
