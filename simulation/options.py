"""Parts of a seed that are run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parts of a seed that are run: all of it, unless said otherwise."""

    faults: Collection[str] | None = None
    """Only these kinds of faults, and these in any case."""
    membership: bool = True
    """Voters come and go in every second run."""
    numbers: Collection[int] | None = None
    """Only these faults of the schedule."""
    steps: int | None = None
    """Stop the chaos after so many events."""
