"""A fixed number of simulated runs, none of which may find anything; `make sim` runs many more."""

from __future__ import annotations

import os

import pytest

from simulation.report import command
from simulation.runner import Tally, Task, run_many, run_one
from simulation.world import Options

SEEDS = range(1, 201)
"""About a minute on two cores."""
REGRESSION_SEEDS = (
    (492, "a read error while a start repaired the log was no storage error"),
    (533, "a control batch that read wrong at a start was no storage error"),
    (3045, "cleaning deleted a snapshot that was completed after it was asked for"),
    (1960, "a replaced first voter set got another cluster id, and shut out who knew the first"),
)
"""Seeds that have found something, with the simulator as it was then, and what that was. Each bug has a
test of its own beside the code that was mended."""


TASK = Task(options=Options(membership=False))
"""Changing voters have runs of their own: `make sim` has them, and what they still find is open."""


@pytest.mark.timeout(600)
def test_no_run_finds_anything() -> None:
    tally = Tally()
    run_many(SEEDS, TASK, len(os.sched_getaffinity(0)), tally)
    assert tally.runs == len(SEEDS)
    failures = sorted(tally.failures, key=lambda failure: failure.seed)
    assert [f"{command(f.seed, Task())}: {f.violated}: {f.what}" for f in failures] == []


@pytest.mark.parametrize(("seed", "why"), REGRESSION_SEEDS)
def test_a_seed_that_found_something_finds_nothing_any_more(seed: int, why: str) -> None:
    failure = run_one(seed, TASK).failure
    assert failure is None, why
