"""What clients want appended, and what they know of it."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.history.replica import Identity


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
    """It was sent when a batch of a later epoch of its producer had been acknowledged."""

    @property
    def is_awaited(self) -> bool:
        """It is repeated until it is acknowledged."""
        return self.is_idempotent and self.offset is None and not self.is_given_up
