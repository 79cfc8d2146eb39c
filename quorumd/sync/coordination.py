"""`Lock`, `Election` and `Registration` for code without asyncio: the client's thread renews them."""

from __future__ import annotations

from typing import ClassVar, Self

from quorumd.client.coordination import election, held, lock, registration
from quorumd.client.coordination.keys import TTL_S_DEFAULT
from quorumd.client.coordination.tenure import LossEvent
from quorumd.client.coordination.termination import TERMINATION
from quorumd.sync.client import QuorumClient
from quorumd.sync.loop_thread import EnteredInLoop, LoopThread, blocking, in_loop, iterating


class Loss:
    """Set when what was held is lost, before another one can have it."""

    def __init__(self, thread: LoopThread, inner: LossEvent) -> None:
        self._thread = thread
        self._inner = inner

    is_set = in_loop(LossEvent.is_set)
    wait = blocking(LossEvent.wait)


class _Named(EnteredInLoop):
    """A claim to a name of a quorum, to be used in `with`."""

    _ORIGINAL: ClassVar[type[held.HeldName | registration.Registration]]

    def __init__(
        self,
        client: QuorumClient,
        name: str,
        *,
        value: str = "",
        ttl: float = TTL_S_DEFAULT,
        owner: str | None = None,
        comment: str = "",
    ) -> None:
        self._thread, inner_client = client.twin
        # In the loop: its claims share what belongs to the client.
        self._inner = self._thread.run(
            lambda: self._ORIGINAL(
                inner_client, name, value=value, ttl=ttl, owner=owner, comment=comment
            )
        )
        self.name = name
        self.ttl = ttl

    def __enter__(self) -> Self:
        TERMINATION.arm()
        return super().__enter__()


class _Held(_Named):
    _inner: held.HeldName

    check = in_loop(held.HeldName.check)

    @property
    def token(self) -> int:
        """The offset of the record that acquired the name: no later holder has a lower one."""
        return self._inner.token

    @property
    def lost(self) -> Loss:
        """Set before another one can have the name, and when it is given back."""
        return Loss(self._thread, self._inner.lost)

    @property
    def is_held(self) -> bool:
        """Does this object hold the name, by the clock of this very moment?"""
        return self._thread.run(lambda: self._inner.is_held)


class Lock(_Held):
    """The lock `name` of a quorum: as quorumd.Lock."""

    _ORIGINAL = lock.Lock

    acquire = blocking(lock.Lock.acquire, before=TERMINATION.arm)
    release = blocking(lock.Lock.release)


class Election(_Held):
    """The election `name`, with a `value` that all can read: as quorumd.Election."""

    _ORIGINAL = election.Election

    campaign = blocking(election.Election.campaign, before=TERMINATION.arm)
    resign = blocking(election.Election.resign)
    leader = blocking(election.Election.leader)
    observe = iterating(election.Election.observe)


class Registration(_Named):
    """The key `quorumd.registrations/NAME`, as long as this process has it: as quorumd.Registration."""

    _inner: registration.Registration
    _ORIGINAL = registration.Registration

    @property
    def replaced(self) -> Loss:
        """Set when another process has registered the name."""
        return Loss(self._thread, self._inner.replaced)
