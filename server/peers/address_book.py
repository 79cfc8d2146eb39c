"""The addresses of a peer: those that are known, and which node was found there.

Addresses change hands, and a peer may be at one that is not known as its own. Its own addresses are trusted:
the node that listens there is taken for the peer, until a response shows another one. All others are
candidates until a response shows the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from quorumd.raft.types import Address

OWN_AGAIN_S: Final = 0.1
"""So soon an address of its own that was found wrong may be tried again: the peer may have moved back."""
ABSENT_AGAIN_S: Final = 1.0
"""So soon any other, if no node was there."""
OTHER_NODE_AGAIN_S = 10.0
"""So soon any other, if another node was there."""


class AddressBook:
    """Of one peer. `own` are the addresses that are known as its own, the best first; `elsewhere`
    are those where it may be all the same. `now` is a clock in seconds."""

    def __init__(
        self,
        own: Callable[[], Sequence[Address]],
        elsewhere: Callable[[], Sequence[Address]],
        now: Callable[[], float],
    ) -> None:
        self._named = own
        self._elsewhere = elsewhere
        self._now = now
        self._found: Address | None = None
        self._wrong: dict[Address, float] = {}
        self._not_before: dict[Address, float] = {}

    def _own(self) -> list[Address]:
        """Its own addresses; the one at which it was found last is one of them."""
        last = () if self._found is None else (self._found,)
        return list(dict.fromkeys((*self._named(), *last)))

    def is_own(self, address: Address) -> bool:
        """True if the address is the peer's own, though another node may have been found there."""
        return address in self._own()

    def trusted(self) -> list[Address]:
        """Its own addresses that were not found wrong, the best first."""
        return [address for address in self._own() if address not in self._wrong]

    def candidates(self) -> list[Address]:
        """Addresses that are not trusted and may be tried now, the best first."""
        own, now = self._own(), self._now()
        due = [at for at in self._elsewhere() if at not in own and self._due(at) <= now]
        wrong = [at for at in own if at in self._wrong and self._wrong[at] <= now]
        return sorted(due, key=self._due) + sorted(wrong, key=self._wrong.__getitem__)

    def _due(self, address: Address) -> float:
        return self._not_before.get(address, 0.0)

    def confirm(self, address: Address) -> None:
        """The peer is there."""
        self._found = address
        self._wrong.pop(address, None)

    def deny(self, address: Address) -> None:
        """Another node is there, or one that did not identify itself."""
        if address == self._found:
            self._found = None
        if address in self._named():
            self._wrong[address] = self._now() + OWN_AGAIN_S
        else:
            self._not_before[address] = self._now() + OTHER_NODE_AGAIN_S

    def miss(self, address: Address) -> None:
        """No node responded there. Trusted addresses stay trusted."""
        self._not_before[address] = self._now() + ABSENT_AGAIN_S
        if address in self._wrong:
            self._wrong[address] = self._now() + OWN_AGAIN_S
