"""Faults by name, in the order in which they are defined: runs are drawn by that order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from simulation.faults.chaos import Chaos

Act = Callable[[Chaos, Random], None]
"""Begins at a moment of the schedule and ends by itself. Its random is its own, so that leaving one out
does not change what the others draw."""


class Faults(dict[str, Act]):
    """Faults of a module, by name."""

    def fault(self, name: str) -> Callable[[Act], Act]:
        """Adds the function that it decorates."""

        def register(act: Act) -> Act:
            self[name] = act
            return act

        return register
