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
