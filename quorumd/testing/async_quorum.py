"""`AsyncLocalQuorum`: `LocalQuorum` for programs with an event loop, which goes on while a node starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from quorumd.testing.local_quorum import TIMEOUT_S, LocalQuorum

P = ParamSpec("P")
T = TypeVar("T")


class AsyncLocalQuorum:
    """As `LocalQuorum`, in `async with`; what takes time or waits is awaited.

    `local` is the `LocalQuorum` itself, for what it knows without waiting. A call
    that is cancelled is waited for all the same: what it does to nodes is done or not done, never half.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.local = LocalQuorum(nodes, settings=settings, timeout_s=timeout_s)

    async def __aenter__(self) -> AsyncLocalQuorum:
        try:
            await _in_thread(self.local.__enter__)
        except asyncio.CancelledError:
            await _in_thread(self.local.__exit__, None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _in_thread(self.local.__exit__, kind, error, traceback)

    @property
    def servers(self) -> str:
        """As LocalQuorum.servers."""
        return self.local.servers

    def logs(self) -> str:
        """As LocalQuorum.logs."""
        return self.local.logs()

    async def status(self, node: int) -> dict[str, Any]:
        """As LocalQuorum.status."""
        return await _in_thread(self.local.status, node)

    async def leader(self) -> int:
        """As LocalQuorum.leader."""
        return await _in_thread(self.local.leader)

    async def kill(self, node: int) -> None:
        """As LocalQuorum.kill."""
        await _in_thread(self.local.kill, node)

    async def kill_leader(self) -> int:
        """As LocalQuorum.kill_leader."""
        return await _in_thread(self.local.kill_leader)

    async def stop(self, node: int) -> None:
        """As LocalQuorum.stop."""
        await _in_thread(self.local.stop, node)

    async def restart(self, node: int) -> None:
        """As LocalQuorum.restart."""
        await _in_thread(self.local.restart, node)

    async def pause(self, node: int) -> None:
        """As LocalQuorum.pause."""
        await _in_thread(self.local.pause, node)

    async def resume(self, node: int) -> None:
        """As LocalQuorum.resume."""
        await _in_thread(self.local.resume, node)

    async def partition(self, *sides: Collection[int]) -> None:
        """As LocalQuorum.partition."""
        await _in_thread(self.local.partition, *sides)

    async def heal(self) -> None:
        """As LocalQuorum.heal."""
        await _in_thread(self.local.heal)

    async def restore(self) -> None:
        """As LocalQuorum.restore."""
        await _in_thread(self.local.restore)

    async def wait_ready(self, *nodes: int) -> None:
        """As LocalQuorum.wait_ready."""
        await _in_thread(self.local.wait_ready, *nodes)


async def _in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    task = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
