"""The common part of locks and elections: a name that one object at a time holds."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

from quorumd.client.coordination.errors import LockLost
from quorumd.client.coordination.named_claim import NamedClaim
from quorumd.client.coordination.tenure import LossEvent, Tenure


class HeldName(NamedClaim):
    """A name of a quorum that one at a time has; see Lock and Election."""

    _is_taken = False

    async def __aenter__(self) -> Self:
        await self._acquire(None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        was_held = await self._release()
        if error is None and not was_held:
            raise LockLost(self._what)

    @property
    def token(self) -> int:
        """The offset of the record that acquired the name: no later holder has a lower one."""
        return self._acquired.token

    @property
    def lost(self) -> LossEvent:
        """Set before another one can have the name, and when it is given back."""
        return self._acquired.lost

    @property
    def is_held(self) -> bool:
        """Does this object hold the name, by the clock of this very moment?"""
        return self._tenure is not None and not self._tenure.lost.is_set()

    def check(self) -> None:
        """Raises LockLost unless the name is held, by the clock of this very moment."""
        if not self.is_held:
            raise LockLost(self._what)

    async def _acquire(self, wait_s: float | None) -> int:
        if self._is_taken:
            raise RuntimeError(f"this object holds {self._what}, or waits for it: make another one")
        if wait_s is not None and math.isnan(wait_s):
            # It would be earlier than no timer of the event loop, which then renews nothing in time.
            raise ValueError("wait_s is nan: give seconds, or None to wait for ever")
        self._is_taken = True
        tenure = self._new_tenure()
        try:
            token = await tenure.acquire(wait_s)
        except BaseException:
            self._is_taken = False
            raise
        self._tenure = tenure
        return token

    async def _release(self) -> bool:
        tenure = self._acquired
        if not self._is_taken:
            raise RuntimeError(f"{self._what} was given back already")
        try:
            return await tenure.release()
        finally:
            self._is_taken = False

    @property
    def _what(self) -> str:
        return self._place.in_words

    @property
    def _acquired(self) -> Tenure:
        if self._tenure is None:
            raise RuntimeError(f"{self._what} was not acquired: use `async with`")
        return self._tenure
