"""One of many processes leads, until it resigns or dies; all of them can see which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import ClassVar

from quorumd.client.coordination.contender import lapses_s
from quorumd.client.coordination.held import HeldName
from quorumd.client.coordination.keys import ClaimKind
from quorumd.client.coordination.listing import Claimant, claimant_of


class Election(HeldName):
    """The election `name`: of those who campaign one leads, with a `value` that all can read, as its address.

        async with quorumd.Election(client, "scheduler", value="10.0.0.7:8080") as election:
            while not election.lost.is_set():
                ...  # lead, with election.token

    Entering campaigns, leaving resigns. Leading is as holding a Lock is: `lost` is set before another one can
    lead, `token` grows from one leader to the next.
    """

    _KIND: ClassVar = ClaimKind.ELECTION

    async def campaign(self, *, wait_s: float | None = None) -> int:
        """Waits until this process leads, and returns the token. As `Lock.acquire`."""
        return await self._acquire(wait_s)

    async def resign(self) -> bool:
        """Lets another one lead; True if this process led until now. As `Lock.release`."""
        return await self._release()

    async def leader(self) -> Claimant | None:
        """The leader, as far as this client has read the log, its own changes included; None without one.

        Raises QuorumUnavailable if no leader of the quorum responds for the client's timeout meanwhile.
        """
        await self._coordinator.enter()
        try:
            await self._coordinator.reach_own()
            return self._seen_leader()[0]
        finally:
            self._coordinator.leave()

    async def observe(self) -> AsyncGenerator[Claimant | None, None]:
        """The leader, and each one after it, without end; None when there is none.

        One that led for a very short time may be missing. One that has died counts until its ttl is over.
        """
        coordinator = self._coordinator
        await coordinator.enter()
        try:
            await coordinator.reach_own()
            with coordinator.watching(self._place) as changed:
                reported: int | None = None
                while True:
                    changed.clear()
                    coordinator.check()
                    leader, lapses = self._seen_leader()
                    token = -1 if leader is None else leader.token
                    if token != reported:
                        reported = token
                        yield leader
                        continue
                    wait_s = None if lapses is None else max(0.0, lapses - coordinator.now_s())
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await changed.wait()
        finally:
            coordinator.leave()

    def _seen_leader(self) -> tuple[Claimant | None, float | None]:
        """The leader, and when it lapses unless it renews."""
        seen = self._coordinator.contest(self._place).holder
        if seen is None or self._coordinator.now_s() >= lapses_s(seen):
            return None, None
        return claimant_of(seen.record, seen.offset, seen.timestamp_ms), lapses_s(seen)
