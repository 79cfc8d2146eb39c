"""A lock that a process holds for as long as it renews it, with a token to fence what is written under it."""

from __future__ import annotations

from typing import ClassVar

from quorumd.client.coordination.held import HeldName
from quorumd.client.coordination.keys import ClaimKind


class Lock(HeldName):
    """The lock `name` of a quorum. One at a time has it, claims that wait get it in the order of the log.

        async with quorumd.Lock(client, "jobs/nightly", ttl=10, comment="report") as lock:
            while not lock.lost.is_set():
                ...  # write with lock.token

    The lock is renewed at a third of its ttl, and others take it over when they have seen no renewal for
    the ttl and 5 %. The holder's own clock gives it 5 % less: `lost` is set by then. What a
    process has in flight when it is stopped only `token` can refuse: it grows with every acquisition.

    One object holds it once; after `release` it can acquire it again. Several of one client exclude each
    other like any others. The end of `async with` raises LockLost if the lock was lost before.
    """

    _KIND: ClassVar = ClaimKind.LOCK

    async def acquire(self, *, wait_s: float | None = None) -> int:
        """Waits for the lock and returns its token.

        With `wait_s` waits so many seconds at the most, and raises NotAcquired; 0 asks once and does not
        queue. While the holder looks dead, by the wall clock, it goes on until that is sure: for the ttl of
        that one and 5 %, and 2 s for each client that waits before it. The first claim of a client reads the
        log before: that counts, except with 0. Outages while it waits do not end it: raises
        QuorumUnavailable only if no leader responds for the client's timeout in the beginning, while the log
        is read, or with 0. In one that lasts, leaving the queue is tried for 5 s more, as in `release`.
        Raises RuntimeError if this object holds the lock, or waits for it, already.
        """
        return await self._acquire(wait_s)

    async def release(self) -> bool:
        """Gives the lock back; True if it was held until now, and not lost before.

        If the quorum cannot be reached for 5 s, the lock is left to its ttl; it is tried as long where this
        is cancelled. Raises RuntimeError if it was not acquired.
        """
        return await self._release()
