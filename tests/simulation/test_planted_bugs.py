"""The simulator finds every planted bug within a few seeds, and nothing in the same seeds without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import simulation
from simulation.planted import PLANTED
from simulation.violation import Violation
from simulation.world import World
from tests.simulation import test_checkers, test_membership_checkers

# Whichever test comes first tries all of the bugs.
pytestmark = [
    pytest.mark.sim,
    pytest.mark.timeout(900),
    # A process that is killed while a generator closes its file cannot raise that from there.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FOUND_BEFORE = {
    "a minority elects": 9,
    "consumers see uncommitted records": 13,
    "batches that are late stay counted": 23,
    "end of the committed log is out of range": 6,
    "follower keeps a diverging tail": 6,
    "leader compares offsets alone": 6,
    "leader moves to another epoch": 70,
    "leader without a quorum stays": 9,
    "living voter is doubled": 29,
    "new segment is not synced in its directory": 8,
    "old epoch is committed by counting": 7,
    "producers are forgotten at a restart": 5,
    "recovery cuts one batch too many": 9,
    "removed replica joins again": 9,
    "shorter log gets a vote": 9,
    "smaller epoch is followed": 11,
    "snapshot is named before it is synced": 8,
    "timestamps are looked up among uncommitted records": 36,
    "torn group is taken for damage": 8,
    "voter is added without catching up": 6,
    "voters change before a commit of the epoch": 18,
    "witness campaigns freely": 26,
    "witness holds on to leadership": 5,
}
"""Seeds that found a bug when this was written. They are tried before the others, to save time."""
SOURCES = Path(simulation.__file__).parent


@cache
def catch(name: str) -> tuple[int, str] | None:
    """A seed in which a planted bug violates one of its properties, and which one."""
    bug = PLANTED[name]
    seeds = range(1, bug.seeds + 1)
    with bug.applied():
        for seed in sorted(seeds, key=lambda seed: (seed != FOUND_BEFORE.get(name), seed)):
            try:
                World(seed, bug.options).run()
            except Violation as violation:
                if violation.violated in bug.caught_by:
                    return seed, violation.violated
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert catch(name) is not None, PLANTED[name].what


def test_without_the_bugs_the_same_seeds_find_nothing() -> None:
    caught = [(PLANTED[name], catch(name)) for name in PLANTED]
    runs = dict.fromkeys((found[0], bug.options) for bug, found in caught if found is not None)
    assert len(runs) > len(PLANTED) // 4
    for seed, options in runs:
        World(seed, options).run()


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
    planted = {found[1] for found in map(catch, PLANTED) if found is not None}
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
