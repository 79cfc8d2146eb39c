"""The simulator finds every planted bug within a few seeds, and nothing in the same seeds without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simulation
from simulation.options import Options
from simulation.planted import PLANTED
from simulation.world import World
from tests.simulation import test_checkers, test_membership_checkers
from tests.simulation.planted_seeds import catch

# Whichever test comes first tries all of the bugs.
pytestmark = [
    pytest.mark.pure,
    pytest.mark.sim,
    pytest.mark.timeout(900),
    # A process that is killed while a generator closes its file cannot raise that from there.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SOURCES = Path(simulation.__file__).parent


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert catch(name) is not None, PLANTED[name].what


def test_without_the_bugs_the_same_seeds_find_nothing() -> None:
    """Up to where the last of the bugs was caught; `test_no_run_finds_anything` runs whole seeds."""
    caught = [(PLANTED[name], found) for name in PLANTED if (found := catch(name)) is not None]
    ends_us: dict[tuple[int, Options], int] = {}
    for bug, found in caught:
        run = found.seed, bug.options
        ends_us[run] = max(ends_us.get(run, 0), found.at_us)
    assert len(ends_us) > len(PLANTED) // 4
    for (seed, options), end_us in ends_us.items():
        world = World(seed, options)
        if end_us <= world.settings.chaos_us:
            world.run_chaos(end_us)
        else:
            world.run()


def digest_of(world: World) -> str:
    world.run()
    return world.env.trace.digest


def test_the_code_is_whole_again_after_a_planted_bug() -> None:
    before = digest_of(World(1))
    for bug in PLANTED.values():
        with bug.applied():
            pass
    assert digest_of(World(1)) == before


def test_every_property_is_known_to_catch_something() -> None:
    planted = {found.violated for found in map(catch, PLANTED) if found is not None}
    by_hand = {
        name
        for tests in (test_checkers, test_membership_checkers)
        for name in _first_arguments(Path(tests.__file__), "violates")
    }
    properties = set(_properties())
    assert len(properties) > 10
    assert properties - planted - by_hand == set()
    assert {name for bug in PLANTED.values() for name in bug.caught_by} <= properties


def _properties() -> Iterator[str]:
    """Every property that a run can violate: names of checkers and modules, and those in place."""
    for path in sorted(SOURCES.rglob("*.py")):
        yield from _first_arguments(path, "Violation")
        yield from _named_first_arguments(path, "Violation")
    for path in sorted((SOURCES / "checkers").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if names & {"name", "NAME"} and node.value.value:
                    yield str(node.value.value)


def _first_arguments(path: Path, function: str) -> Iterator[str]:
    """The texts that a function is called with in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = node.args[0] if node.args else None
            if node.func.id == function and isinstance(first, ast.Constant):
                yield str(first.value)


def _named_first_arguments(path: Path, function: str) -> Iterator[str]:
    """The same, where it is a constant of the module."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            first = node.args[0]
            if node.func.id == function and isinstance(first, ast.Name) and first.id in constants:
                yield str(constants[first.id])
