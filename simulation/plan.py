"""The schedule of a seed: which fault or operation begins when. To leave some out changes no other one."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import NamedTuple

from simulation.faults import ACTS, Act
from simulation.settings import Settings


class Planned(NamedTuple):
    """A fault or an operation that begins at `at_us`; `number` is its place in the whole schedule."""

    number: int
    at_us: int
    name: str
    random_seed: str

    @property
    def act(self) -> Act:
        """The function that does it."""
        return ACTS[self.name]


def draw_plan(
    seed: int, settings: Settings, only_numbers: Collection[int] | None = None
) -> list[Planned]:
    """All faults and operations of a seed in the order of time, or those of these numbers."""
    found: list[tuple[int, str, str]] = []
    for name, interval_us in settings.faults.items():
        random = Random(f"{seed}/plan/{name}")
        at_us, count = 0, 0
        while (at_us := at_us + int(random.expovariate(1 / interval_us))) < settings.chaos_us:
            found.append((at_us, name, f"{seed}/fault/{name}/{count}"))
            count += 1
    plan = [Planned(number, *what) for number, what in enumerate(sorted(found))]
    return [p for p in plan if only_numbers is None or p.number in only_numbers]
