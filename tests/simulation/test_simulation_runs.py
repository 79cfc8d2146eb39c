"""A fixed number of simulated runs, none of which may find anything; `make sim` runs many more."""

from __future__ import annotations

import os

import pytest

from simulation.report import command
from simulation.runner import Tally, Task, run_many, run_one
from simulation.world import Options

SEEDS = range(1, 51)
"""Of each kind: voters that stay and voters that change. Half a minute on two cores."""
REGRESSIONS = (
    ("fixed", 492, "a read error while a start repaired the log was no storage error"),
    ("fixed", 533, "a control batch that read wrong at a start was no storage error"),
    ("fixed", 3045, "cleaning deleted a snapshot that was completed after it was asked for"),
    ("fixed", 6210, "a truncation believed a header with a wrong bit, and cut too much"),
    ("fixed", 9693, "a batch whose offset had a wrong bit was served: no CRC covers it"),
    ("fixed", 10036, "a first voter set was replaced although clients had written behind it"),
    ("fixed", 15221, "a copy was thought older than it was: its last record was not synced yet"),
    ("fixed", 1960, "a replaced first set got another cluster id, and shut out who knew the first"),
    (
        "changing",
        347,
        "a leader died in mid-append; what it had just committed was not known to the checkers",
    ),
    ("changing", 2263, "who learnt late that it was a voter still was an observer, and stopped"),
    ("changing", 115, "a new disk that copied the log took itself for the voter whose id it has"),
    ("changing", 116, "a new leader called a voter one that was just being removed"),
    ("changing", 122, "a leader whose snapshot was damaged tried to repair it once a minute only"),
    (
        "changing",
        252,
        "a leader that knew nothing to be committed replaced a set that was no first one",
    ),
    ("damaged disks", 19, "a truncation believed a header with a wrong bit, and cut everything"),
)
"""Seeds that have found something, with the simulator as it was then, and what that was. Each bug has a
test of its own beside the code that was mended."""


FIXED, CHANGING = (Task(options=Options(membership=membership)) for membership in (False, True))
DISK_FAULTS = "bit flip,stale sector,misplaced sector,deposed leader,snapshot asked for,lost disk"
DAMAGED = Task(options=Options(membership=False, faults=frozenset(DISK_FAULTS.split(","))))
KINDS = {"fixed": FIXED, "changing": CHANGING, "damaged disks": DAMAGED}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", [FIXED, CHANGING], ids=["fixed voters", "changing voters"])
def test_no_run_finds_anything(task: Task) -> None:
    tally = Tally()
    run_many(SEEDS, task, len(os.sched_getaffinity(0)), tally)
    assert tally.runs == len(SEEDS)
    failures = sorted(tally.failures, key=lambda failure: failure.seed)
    assert [f"{command(f.seed, task)}: {f.violated}: {f.what}" for f in failures] == []


@pytest.mark.parametrize(("kind", "seed", "why"), REGRESSIONS)
def test_a_seed_that_found_something_finds_nothing_any_more(kind: str, seed: int, why: str) -> None:
    failure = run_one(seed, KINDS[kind]).failure
    assert failure is None, why
