"""The table of planted bugs, filled by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from simulation.options import Options

Plant = Callable[[object, str, object], None]
"""Replaces an attribute of a module or class: `plant(owner, name, value)`."""

POWER = frozenset({"power loss", "power loss of all", "kill"})
SPLITS = frozenset({"isolate one", "minority partition", "kill"})
HOSTILE = frozenset({"hostile frames"})
AT_A_NAME = frozenset({"power loss at a name"})
AT_A_WRITE = frozenset({"power loss at a write"})
LOST_RESPONSES = frozenset({"reset", "kill", "crash at a call"})


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """`what` says which rule is broken, with its source. `caught_by` are names of properties.

    One of them is violated within `seeds` seeds, counted from 1, that run with `options`.
    """

    name: str
    what: str
    caught_by: frozenset[str]
    seeds: int
    options: Options
    apply: Callable[[Plant], None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code is broken inside the block and whole again behind it."""
        with ExitStack() as stack:

            def plant(owner: object, name: str, value: object) -> None:
                stack.enter_context(patch.object(owner, name, value))

            self.apply(plant)
            yield


PLANTED: dict[str, PlantedBug] = {}


def planted(
    name: str,
    what: str,
    *,
    caught_by: Sequence[str],
    seeds: int,
    faults: frozenset[str] | None = None,
    membership: bool = False,
) -> Callable[[Callable[[Plant], None]], Callable[[Plant], None]]:
    """Add an entry to the table. `faults` None: those that each seed draws."""
    options = Options(faults=faults, membership=membership)

    def register(apply: Callable[[Plant], None]) -> Callable[[Plant], None]:
        PLANTED[name] = PlantedBug(name, what, frozenset(caught_by), seeds, options, apply)
        return apply

    return register
