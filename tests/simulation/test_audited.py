"""The disks of simulated runs, audited by the pipeline: what it finds is what the simulator did to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

from quorumd.pipeline.audit import AuditReport, FindingKind, audit
from quorumd.pipeline.audit import run as audit_run
from quorumd.pipeline.files import plan as files_plan
from simulation.options import Options
from simulation.planted import PLANTED
from simulation.scheduler import MS, SECOND
from simulation.violation import Violation
from simulation.world import World
from tests.simulation import audited_disks
from tests.simulation.audited_disks import Auditor

# Whichever test comes first does all runs of its kind.
pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]

SPLITS = frozenset({"deposed leader", "power loss at a write", "snapshot asked for"})
DAMAGE = frozenset({"bit flip", "stale sector", "misplaced sector", "deposed leader"})
RUNS = {
    "fixed voters": (range(28, 31), Options(membership=False)),
    "changing voters": (range(1, 3), Options()),
    "splits": (range(1, 8), Options(faults=SPLITS)),
    "damage": (range(1, 6), Options(membership=False, faults=DAMAGE)),
    "damage among changing voters": (
        range(1, 6),
        Options(faults=DAMAGE | {"snapshot asked for", "lost disk"}),
    ),
}
"""Seeds, and what of them is run."""
BUGS = {
    "a minority elects": FindingKind.DIFFERENT_RECORDS,
    "leader compares offsets alone": FindingKind.DIFFERENT_RECORDS,
    "copied snapshot is not verified": FindingKind.SNAPSHOT_DAMAGED,
}
"""Planted bugs after which logs or snapshots are wrong, and what the audit calls it."""
AFTERMATH_US = (100 * MS, 2 * SECOND)
"""How long a quorum with such a bug goes on before it is looked at."""


@pytest.fixture(autouse=True)
def no_pauses() -> Iterator[None]:
    """Nothing changes while the audit looks."""
    with patch.object(audit_run, "_PAUSE_S", 0.0), patch.object(files_plan, "_PAUSE_S", 0.0):
        yield


def audited_run(seed: int, options: Options) -> Auditor:
    """A run whose disks are audited thrice in its chaos, and at its end; each time but the first two after
    a power loss of all machines."""
    world = World(seed, options)
    with TemporaryDirectory() as folder:
        auditor = Auditor(world, Path(folder))
        chaos_us = world.settings.chaos_us
        for part in (1, 2):
            world.env.scheduler.call_at(
                chaos_us * part // 3, partial(auditor.audit_disks, f"chaos, part {part}")
            )
        world.env.scheduler.call_at(chaos_us, partial(go_dark, auditor, "end of chaos"))
        world.run()
        go_dark(auditor, "end")
    return auditor


def go_dark(auditor: Auditor, when: str) -> None:
    for machine in auditor.world.cluster.machines:
        machine.end_process("power loss of all", power=True)
    auditor.audit_disks(when)


@cache
def audited_runs(kind: str) -> tuple[Counter[str], list[str]]:
    """What was counted in all runs of a kind, and where simulator and audit disagree."""
    seeds, options = RUNS[kind]
    counted: Counter[str] = Counter()
    problems: list[str] = []
    for seed in seeds:
        auditor = audited_run(seed, options)
        counted += auditor.counted
        problems += [f"seed {seed}, {problem}" for problem in auditor.problems]
    return counted, problems


@pytest.mark.parametrize("kind", RUNS)
def test_the_audit_finds_what_was_done_to_the_disks_and_nothing_else(kind: str) -> None:
    _, problems = audited_runs(kind)
    assert problems == []


def test_there_was_something_to_be_told_apart() -> None:
    """Tails that were never committed, unfinished writes, and damage that has to be found."""
    splits, _ = audited_runs("splits")
    assert splits[FindingKind.UNCOMMITTED_TAIL.value] > 1
    damage, _ = audited_runs("damage")
    assert damage["damaged"] > damage["provably damaged"] > 5
    changing, _ = audited_runs("damage among changing voters")
    assert changing["provably damaged"] > 1
    everything = sum((audited_runs(kind)[0] for kind in RUNS), Counter[str]())
    assert {FindingKind.TORN_TAIL.value, FindingKind.LAG.value, "snapshots"} <= set(everything)


def test_an_audit_that_finds_nothing_is_noticed() -> None:
    seeds, options = RUNS["damage"]

    def blind(paths: Sequence[Path]) -> AuditReport:
        found = audit(paths)
        found.findings.clear()
        return found

    with patch.object(audited_disks, "audit", blind):
        problems = [
            problem for seed in seeds[:2] for problem in audited_run(seed, options).problems
        ]
    assert problems
    assert all("missed" in problem for problem in problems)


@pytest.mark.pure
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_the_simulator_catches_is_found_on_the_disks_as_well(name: str) -> None:
    bug, kind = PLANTED[name], BUGS[name]
    with bug.applied():
        assert any(_is_found(seed, bug.options, kind) for seed in range(1, 2 * bug.seeds + 1))


def _is_found(seed: int, options: Options, kind: FindingKind) -> bool:
    """True if a run fails, and its disks show why, then or a little later."""
    world = World(seed, options)
    try:
        world.run()
    except Violation:
        world.env.observer.is_watching = False
    else:
        return False
    scheduler = world.env.scheduler
    with TemporaryDirectory() as folder:
        auditor = Auditor(world, Path(folder))
        for later_us in AFTERMATH_US:
            with suppress(Violation):
                scheduler.run_until(scheduler.now_us + later_us)
            auditor.audit_disks("afterwards")
    return auditor.counted[kind.value] > 0 and any("invented" in each for each in auditor.problems)
