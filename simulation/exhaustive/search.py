"""Breadth-first search through all states of a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

from simulation.exhaustive.scope import Scope
from simulation.exhaustive.space import BUDGET_BITS, Action, PropertyViolation, Space, State

KEY_BYTES = 16


@dataclass(slots=True)
class Count:
    """Progress of a search. `seconds` is by the clock of the machine, everything else is repeatable."""

    states: int = 0
    """Distinct up to the ids of replicas; one that just has fewer losses or crashes left does not count."""
    transitions: int = 0
    depth: int = 0
    replica_states: int = 0
    """Distinct states of a single replica."""
    core_steps: int = 0
    """Steps that the core was run for."""
    waiting: int = 0
    """States of the present depth."""
    seconds: float = 0.0


@dataclass(slots=True)
class Search:
    """Runs once. `layers` holds the keys of all states by depth, for the way back."""

    space: Space
    count: Count = field(default_factory=Count)
    layers: list[bytearray] = field(default_factory=list)

    def run(self, on_layer: Callable[[Count], None] = lambda count: None) -> Count:
        """Visit everything. Raises Violation at a state to which no shorter way leads."""
        space, count, started = self.space, self.count, perf_counter()
        key_of, check, successors = space.key, space.check, space.successors
        covering, budget_mask = _covering_budgets(), (1 << BUDGET_BITS) - 1
        first = key_of(space.initial())
        # By state: the budgets with which it was visited, one bit each.
        visited = {first >> BUDGET_BITS: 1 << (first & budget_mask)}
        self.layers.append(bytearray(first.to_bytes(KEY_BYTES, "big")))
        count.states = 1
        while self.layers[-1]:
            layer, following = self.layers[-1], bytearray()
            for at in range(0, len(layer), KEY_BYTES):
                state = space.state(int.from_bytes(layer[at : at + KEY_BYTES], "big"))
                found = successors(state)
                count.transitions += len(found)
                for action, new in found:
                    key = key_of(new)
                    base, budget = key >> BUDGET_BITS, key & budget_mask
                    known = visited.get(base, 0)
                    if known & covering[budget]:
                        continue
                    visited[base] = known | 1 << budget
                    check(action, new)
                    following += key.to_bytes(KEY_BYTES, "big")
            space.check_room()
            self.layers.append(following)
            waiting = len(following) // KEY_BYTES
            count.states += waiting
            count.waiting = waiting
            count.depth += bool(waiting)
            count.replica_states = len(space.replicas.values)
            count.core_steps = space.replicas.steps_taken
            count.seconds = perf_counter() - started
            on_layer(count)
        return count


def _covering_budgets() -> list[int]:
    """For each pair of losses and crashes the pairs that leave at least as much to happen."""
    table = []
    for budget in range(1 << BUDGET_BITS):
        losses, crashes = budget >> 2, budget & 3
        table.append(
            sum(
                1 << (lost << 2 | crash)
                for lost in range(losses + 1)
                for crash in range(crashes + 1)
            )
        )
    return table


@dataclass(frozen=True, slots=True)
class Failed:
    """A violation, and a shortest way to it from the start: each action with the state before it."""

    text: str
    way: list[tuple[State, Action]]


def explore(
    scope: Scope, on_layer: Callable[[Count], None] = lambda count: None
) -> tuple[Space, Count, Failed | None]:
    """Visit every state of a scope, or as many as it takes to break a property."""
    search = Search(Space(scope))
    try:
        search.run(on_layer)
    except PropertyViolation:
        return search.space, search.count, find_way(search)
    return search.space, search.count, None


def find_way(search: Search) -> Failed:
    """The way to the violation that has ended this search: back through the layers, then forward."""
    space, depth = search.space, search.count.depth
    broken = (key for key in _keys(search.layers[depth]) if _breaks(space, space.state(key)))
    keys = [next(broken)]
    for layer in reversed(search.layers[:depth]):
        keys.append(_predecessor(space, layer, keys[-1]))
    return _walk(space, keys[::-1])


def _keys(layer: bytearray) -> Iterator[int]:
    for at in range(0, len(layer), KEY_BYTES):
        yield int.from_bytes(layer[at : at + KEY_BYTES], "big")


def _breaks(space: Space, state: State) -> PropertyViolation | None:
    """The property that an action in this state breaks, if any."""
    try:
        for action, new in space.successors(state):
            space.check(action, new)
    except PropertyViolation as violation:
        return violation
    return None


def _predecessor(space: Space, layer: bytearray, target: int) -> int:
    for key in _keys(layer):
        if any(space.key(new) == target for _, new in space.successors(space.state(key))):
            return key
    raise AssertionError("a state without predecessor")


def _walk(space: Space, keys: list[int]) -> Failed:
    """The same way with every replica keeping its name."""
    state, way = space.initial(), []
    for key in keys[1:]:
        nexts = space.successors(state)
        action, following = next((action, new) for action, new in nexts if space.key(new) == key)
        way.append((state, action))
        state = following
    violation = _breaks(space, state)
    assert violation is not None, "equal states break equal rules"
    return Failed(violation.text, [*way, (state, violation.action)])
