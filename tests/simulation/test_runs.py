"""A fixed number of simulated runs, none of which may find anything; `make sim` runs many more."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from simulation.faults.chaos import Chaos
from simulation.options import Options
from simulation.report import command
from simulation.runner import Tally, Task, run_many, run_one
from simulation.world import World

pytestmark = pytest.mark.sim

SEEDS = range(1, 9)
"""Of each kind: voters that stay and voters that change, with the faults of the seed, or with all common
ones at once. `make sim` looks for what is new."""
REGRESSIONS = {
    518539: "a leader heard late, by a connection that had died silently, of an epoch from before",
    518552: "the same, and a voter without records asked a witness first",
    518976: "a replica that got a snapshot could not know that it had been a voter meanwhile",
    500469: "a leader that had moved, called ended by a forged request, was never believed again",
    411246: "a look-up by time found what a queued deletion was about to delete",
    429163: "the same, in a log whose committed part is to be deleted whole",
    411346: "a sector of another segment was believed: a truncation cut a batch in two",
    600293: "whoever asked with a shorter log made a voter campaign that had just started, and was led",
    400236: "a fetch of an earlier role waited for a connection, and its response was taken for contact",
    760488: "a look-up by time missed a committed record that the leader's slow disk had not got yet",
    742148: "a look-up by time believed a header in which a bit had flipped, and found nothing",
    913476: "a disk's call hung for longer than what was late was waited for: its leader was deposed",
    926444: "an observer, asked where the leader was not, said that it did not lead: a voter campaigned",
    926027: "the same, and an observer granted a pre-vote",
    730261: "a leader, asked to hand over to itself, had lost its voters when its response left",
}
"""Seeds of changing voters that have found something since the newest faults are in, and what that was. What
others found has a test of its own beside the code that was mended: a seed is a history of one version of the
simulator, and an older one is as good as any."""


FIXED, CHANGING = (Task(options=Options(membership=membership)) for membership in (False, True))
COMMON_FAULTS = (
    "loss,delay,reorder,silent deaths,isolate one,one way,minority partition,kill,pause,clean stop"
)
COMMON = Task(options=Options(faults=frozenset(COMMON_FAULTS.split(",")), membership=False))
REQUESTS = "add voter,remove voter,replace voter,reassign,transfer leader"
COMMON_AND_CHANGING = Task(
    options=Options(faults=frozenset(f"{COMMON_FAULTS},{REQUESTS}".split(",")))
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "task",
    [FIXED, CHANGING, COMMON, COMMON_AND_CHANGING],
    ids=["fixed voters", "changing voters", "common faults", "common faults, changing voters"],
)
def test_no_run_finds_anything(task: Task) -> None:
    tally = Tally()
    run_many(SEEDS, task, len(os.sched_getaffinity(0)), tally)
    assert tally.runs == len(SEEDS)
    failures = sorted(tally.failures, key=lambda failure: failure.seed)
    assert [f"{command(f.seed, task)}: {f.violated}: {f.what}" for f in failures] == []


@pytest.mark.parametrize(("seed", "why"), REGRESSIONS.items())
def test_a_seed_that_found_something_finds_nothing_any_more(seed: int, why: str) -> None:
    failure = run_one(seed, CHANGING).failure
    assert failure is None, why


def test_an_observer_of_an_epoch_that_nobody_else_knows_comes_back_by_what_it_advises() -> None:
    """A forged vote took a voter into that epoch, which told the observer and lost its disk."""
    assert run_one(914761, FIXED).failure is None


@pytest.mark.parametrize("name", ["flapping", "link by link"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_nothing_is_cut_after_all_faults_have_stopped(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    world = World(seed, Options(membership=False, faults=frozenset({name})))
    cut, cut_us = world.env.network.cut, list[int]()

    def note(sources: Iterable[str], targets: Iterable[str], why: str) -> None:
        cut_us.append(world.env.scheduler.now_us)
        cut(sources, targets, why)

    monkeypatch.setattr(world.env.network, "cut", note)
    world.run()
    assert cut_us, "the fault was drawn"
    assert max(cut_us) <= world.settings.chaos_us


def test_a_run_is_not_well_before_all_operators_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(2526, CHANGING.options)
    busy = []

    def note(chaos: Chaos, copies: object) -> None:
        busy.append([operator.name for operator in chaos.operators if operator.is_busy])

    monkeypatch.setattr("simulation.world.start_from_stale_disk", note)
    world.run()
    assert world.chaos.operators, "operators have asked for something"
    assert busy == [[]]
