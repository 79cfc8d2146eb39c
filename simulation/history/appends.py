"""Appends that clients want, and what they know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulation.history.replica import Identity


class Wanted(NamedTuple):
    """Append only if none of these keys was written at offset `since` or later."""

    since: int
    keys: tuple[bytes, ...]


class Refusal(NamedTuple):
    """A condition was not met: for a key that was written at `offset`, or for all of what is below it."""

    at_us: int
    key: bytes | None
    offset: int


@dataclass(slots=True)
class Append:
    """One batch that a client wants appended. Times are µs; None is: not yet, or never known."""

    client: str
    identity: Identity
    record_count: int
    is_idempotent: bool
    invoked_us: int
    acknowledged_us: int | None = None
    offset: int | None = None
    is_given_up: bool = False
    """The client does not repeat it any more, and does not learn what became of it."""
    is_fenced: bool = False
    """True if a batch of a later epoch of its producer had been acknowledged when it was sent."""
    wanted: Wanted | None = None
    """Its condition."""
    refusal: Refusal | None = None

    @property
    def is_awaited(self) -> bool:
        """True if the append is repeated until it is acknowledged or refused."""
        is_open = self.offset is None and self.refusal is None
        return self.is_idempotent and is_open and not self.is_given_up
