"""Numbers of faults by the role and the message that they met, and those that never occurred."""

from __future__ import annotations

from collections import Counter

Case = tuple[str, str, str]
"""A fault, the role of the process that it hit, and the message that was concerned, or the last one."""

Pair = tuple[str, str]
"""An operation, and a fault that began while it was under way."""


class Coverage:
    """Counts; those of several runs can be added up."""

    def __init__(self) -> None:
        self.cases: Counter[Case] = Counter()
        self.pairs: Counter[Pair] = Counter()

    def count(self, fault: str, role: str, message: str) -> None:
        """One more case."""
        self.cases[fault, role, message] += 1

    def add(self, other: Coverage) -> None:
        """Add the counts of another run."""
        self.cases.update(other.cases)
        self.pairs.update(other.pairs)

    def of_fault(self, fault: str) -> int:
        """Number of times that a fault has hit anything."""
        return sum(count for case, count in self.cases.items() if case[0] == fault)
