"""A key that is there as long as the process that registered it."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, Final, Self

from quorumd.client.coordination.contender import (
    RENEWALS_PER_TTL,
    ClaimWrite,
    Contender,
    WaitUntil,
)
from quorumd.client.coordination.contest import Contest
from quorumd.client.coordination.keys import ClaimKind
from quorumd.client.coordination.named_claim import NamedClaim
from quorumd.client.coordination.tenure import LossEvent

_ALWAYS: Final = float("inf")


class Registrant(Contender):
    """The rules of a registration: the newest has the name at once, and keeps it until another one comes.

    Where its record was deleted, because an outage lasted, it is written again.
    """

    def observe(self, contest: Contest, end_offset: int) -> None:
        """The name as it is in the log below `end_offset`."""
        super().observe(contest, end_offset)
        if self.is_replaced and contest.holder is None:
            self.is_replaced = False
            self._renewed_s = -_ALWAYS

    def next_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        """To register; None once it is done."""
        self.observe(contest, end_offset)
        if self.token >= 0:
            return None
        return self._acquisition(contest, end_offset, now_s)

    def holds(self, now_s: float) -> bool:
        """True unless another process is registered under the name."""
        return self.token >= 0 and not self.is_replaced

    def keep_step(
        self, contest: Contest, end_offset: int, now_s: float
    ) -> ClaimWrite | WaitUntil | None:
        """Once it is registered; None when another one is."""
        self.observe(contest, end_offset)
        if self.is_replaced:
            return None
        due_s = self._renewed_s + self.ttl_s / RENEWALS_PER_TTL
        return WaitUntil(due_s) if now_s < due_s else self._renewal(contest, end_offset, now_s)


class Registration(NamedClaim):
    """The key `quorumd.registrations/NAME`, with a `value`, from entering to leaving or to the process's end.

        async with quorumd.Registration(client, "web/host-1", value="10.0.0.7:8080"):
            ...  # serve

    `quorumctl get --prefix quorumd.registrations/web/` and a KeyValueView of that prefix show the members of
    `web`. That of a process that died is deleted by any other that uses locks, elections or registrations,
    once it has seen no renewal for twice the `ttl` (seconds, 1 to 86,400). An outage ends no registration: it
    is there again afterwards. Another process that registers the same name replaces this one, whose
    `replaced` is set then. Entering raises QuorumUnavailable if no leader responds for the client's timeout.
    Raises ValueError for a name, ttl or text that is not permitted.
    """

    _KIND: ClassVar = ClaimKind.REGISTRATION
    _RULES: ClassVar = Registrant

    async def __aenter__(self) -> Self:
        if self._tenure is not None:
            raise RuntimeError(
                f"{self.name!r} is registered by this object already: make another one"
            )
        tenure = self._tenure = self._new_tenure()
        try:
            await tenure.acquire(0)
        except BaseException:
            self._tenure = None
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tenure, self._tenure = self._tenure, None
        if tenure is not None:
            await tenure.release()

    @property
    def replaced(self) -> LossEvent:
        """Set when another process has registered the name."""
        if self._tenure is None:
            raise RuntimeError(f"{self.name!r} is not registered: use `async with`")
        return self._tenure.lost
