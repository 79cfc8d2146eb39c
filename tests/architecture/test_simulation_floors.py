"""The simulator is built in floors: modules import from their own floor and those below, in no circle.

Imports for type checkers count: a circle that only they close is one all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.architecture.source_tree import circles, imports_within, modules_below, parse_module

# From the ground up; a name stands for a module, or for all modules of a room.
FLOORS = (
    ("scheduler", "settings", "options", "violation", "coverage", "default_raft_config"),
    ("trace", "history"),
    ("checkers",),
    ("observer",),
    ("machines",),
    ("cluster",),
    ("clients",),
    ("faults",),
    ("draw", "plan", "cases", "recovery", "stale_disks"),
    ("world", "scenario"),
    ("planted", "exhaustive"),
    ("runner",),
    ("shrink", "report", "same"),
    ("progress",),
    ("edges",),
    ("__main__", "merge"),
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}


def floor_of(name: str) -> int | None:
    """Of a dotted name below simulation, None if it has none."""
    top, _, rest = name.partition(".")
    return FLOOR_OF.get(rest.partition(".")[0]) if top == "simulation" else None


def imports_upwards(imports: dict[str, list[str]]) -> Iterator[str]:
    for name, others in imports.items():
        here = floor_of(name)
        for other in others:
            there = floor_of(other)
            if here is None or there is None or there > here:
                yield f"{name} imports {other}"


@cache
def imports() -> dict[str, list[str]]:
    return imports_within([m for m in modules_below("simulation") if m.name != "simulation"])


def test_every_module_of_the_simulator_is_on_a_floor() -> None:
    assert [name for name in imports() if floor_of(name) is None] == []


def test_no_module_of_the_simulator_imports_from_a_higher_floor() -> None:
    assert list(imports_upwards(imports())) == []


def test_no_modules_of_the_simulator_import_each_other_in_a_circle() -> None:
    assert circles(imports()) == []


def test_a_circle_for_type_checkers_and_a_way_up_are_found() -> None:
    machine = "if TYPE_CHECKING:\n    from simulation.world import World\n"
    modules = [
        parse_module("simulation.machines.machine", machine),
        parse_module("simulation.world", "from simulation.machines import machine\n"),
        parse_module("simulation.report", "import simulation.world\n"),
    ]
    imports = imports_within(modules)
    assert circles(imports) == [
        "simulation.machines.machine",
        "simulation.report",
        "simulation.world",
    ]
    assert list(imports_upwards(imports)) == [
        "simulation.machines.machine imports simulation.world"
    ]
