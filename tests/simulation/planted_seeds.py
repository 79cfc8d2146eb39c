"""The first seeds that find the planted bugs; `planted_seeds.txt` remembers those above 1.

They change with the simulator. `python -m tests.simulation.planted_seeds` looks for them anew, for a minute
or two, and writes the file: then the tests of the planted bugs take no longer than they must.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from simulation.planted import PLANTED
from simulation.violation import Violation
from simulation.world import World

REMEMBERED = Path(__file__).with_suffix(".txt")


class Caught(NamedTuple):
    """A seed in which a planted bug violates one of its properties, which one, and when in the run."""

    seed: int
    violated: str
    at_us: int


@cache
def catch(name: str) -> Caught | None:
    """The first seed that is tried in which the bug shows; None if it shows in none."""
    bug = PLANTED[name]
    first = _remembered().get(name)
    with bug.applied():
        for seed in sorted(range(1, bug.seeds + 1), key=lambda seed: (seed != first, seed)):
            world = World(seed, bug.options)
            try:
                world.run()
            except Violation as violation:
                if violation.violated in bug.caught_by:
                    return Caught(seed, violation.violated, world.env.scheduler.now_us)
    return None


@cache
def _remembered() -> dict[str, int]:
    lines = (line.split(" ", 1) for line in REMEMBERED.read_text().splitlines())
    return {name: int(seed) for seed, name in lines}


def main() -> None:
    """Write the file anew; bugs that no seed finds are named."""
    lines = []
    for name in sorted(PLANTED):
        found = catch(name)
        if found is None:
            print(f"no seed finds: {name}")
        elif found.seed > 1:
            lines.append(f"{found.seed} {name}\n")
    REMEMBERED.write_text("".join(lines))


if __name__ == "__main__":
    main()
