"""Tries mutants: first by the tests of their module, then by simulated runs.

It is a plugin of pytest, which collects the tests once. Instead of running them in its loop it forks a child
for every mutant, and there only what executes the mutated lines is run, the quickest first.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from types import CodeType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from simulation.edges.forked import ChildStopped, in_child
from simulation.edges.install import Functions
from simulation.edges.lines import Lines, recorded
from simulation.edges.modules import ROOT, ModuleSource, digest_of, product_digest
from simulation.edges.mutants import Mutant, compiled
from simulation.runner import Run, Task, run_one

CACHE = ROOT / ".cache" / "edges"
MARKS = "not live and not java and not spark and not browser and not compiled"
TESTS_S = 40.0
"""Tests of a mutant that would take longer than this together are left out, the slowest first."""
RUNS_S = 6.0
"""The same for simulated runs."""
LINES_S = 900.0
HANGS = "it does not end"


@dataclass(slots=True)
class Passing:
    """A test, or a seed, that passes: the lines that it executes, by module, and the processor time that it
    takes while they are recorded.
    """

    seconds: float
    lines: dict[str, list[int]]
    digest: str = ""
    _sets: dict[str, frozenset[int]] = field(default_factory=dict, repr=False)

    def comes_past(self, mutant: Mutant) -> bool:
        """True if a line of the mutant's statement was executed."""
        lines = self._sets.get(mutant.module)
        if lines is None:
            lines = self._sets[mutant.module] = frozenset(self.lines.get(mutant.module, ()))
        return not lines.isdisjoint(range(mutant.lines[0], mutant.lines[1] + 1))


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of a mutant. `seed` and `violated` are of the first run that it broke."""

    test: str | None = None
    runs: int | None = None
    """Number of runs that were made; None if a test had caught it before."""
    differed: int = 0
    """Runs that went otherwise."""
    seed: int | None = None
    violated: str = ""
    seconds: float = 0.0

    @property
    def is_caught(self) -> bool:
        """True if a test or a run failed with the mutant."""
        return self.test is not None or self.seed is not None


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant to be tried."""

    mutant: Mutant
    module: ModuleSource
    simulated: Outcome | None = None
    """Result that runs of this very code are known to have had."""


OnOutcome = Callable[[Trial, Outcome], None]
OnPhase = Callable[[str], None]
"""Called with the name of each phase that begins."""


class Trials:
    """See the module's docstring. The outcomes go to `on_outcome` one by one."""

    def __init__(
        self,
        trials: list[Trial],
        modules: list[ModuleSource],
        seeds: range,
        on_outcome: OnOutcome,
        on_phase: OnPhase,
        *,
        reached: bool = False,
        cache: Path = CACHE,
    ) -> None:
        """`modules`: those whose lines are recorded. `reached`: runs look for a difference even if a test
        catches the mutant.
        """
        self._trials = trials
        self._names = {module.filename: module.name for module in modules}
        self._cache = cache / "lines"
        self._seeds = seeds
        self._reached = reached
        self._on_outcome = on_outcome
        self._on_phase = on_phase
        self._items: dict[str, pytest.Item] = {}
        self._tests: dict[str, Passing] = {}
        self._runs: dict[int, Passing] = {}
        self._failed: str | None = None
        self._passed: set[str] = set()
        self._killers: list[str] = []
        self._product = product_digest()

    def run(self) -> None:
        """Tries all of them. Raises ChildFailed, KeyboardInterrupt."""
        _quick_hypothesis()
        folders = sorted({trial.module.tests for trial in self._trials})
        base = tempfile.mkdtemp(prefix="edges-")
        options = [
            "-qq",
            "--no-header",
            "--no-summary",
            "--tb=no",
            "--assert=plain",
            "-s",
            "-m",
            MARKS,
        ]
        without = ["no:randomly", "no:xdist", "no:cacheprovider"]
        before = Path.cwd()
        os.chdir(ROOT)
        try:
            pytest.main(
                [*options, *(f"-p{name}" for name in without), f"--basetemp={base}", *folders],
                plugins=[self],
            )
        finally:
            os.chdir(before)
            rmtree(base, ignore_errors=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        gc.collect()
        functions = Functions(set(self._names))
        # Frozen, so that no child copies what it does not change.
        gc.freeze()
        self._find_lines_of_tests()
        self._find_lines_of_runs()
        for trial in self._trials:
            self._on_phase(trial.module.name)
            self._on_outcome(trial, self._try(trial, functions))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    # -- what executes which lines

    def _find_lines_of_tests(self) -> None:
        by_file: dict[Path, list[str]] = {}
        for nodeid, item in self._items.items():
            by_file.setdefault(item.path, []).append(nodeid)
        shared = digest_of([path.read_text() for path in _helpers_of_tests(by_file)])
        for number, (path, nodeids) in enumerate(sorted(by_file.items()), 1):
            self._on_phase(f"lines of tests, file {number} of {len(by_file)}")
            key = self._key(shared, path.read_text(), *nodeids)
            found = self._kept(key, partial(self._lines_of_tests, nodeids))
            self._tests |= {nodeid: Passing(*values) for nodeid, values in found.items()}

    def _lines_of_tests(self, nodeids: list[str]) -> dict[str, Any]:
        found = {}
        for nodeid, following in zip(nodeids, [*nodeids[1:], None], strict=True):
            begin_s = time.process_time()
            with recorded(set(self._names)) as lines:
                self._run_item(nodeid, following)
            if self._failed is None and nodeid in self._passed:
                found[nodeid] = (time.process_time() - begin_s, self._by_module(lines))
            self._failed = None
        return found

    def _find_lines_of_runs(self) -> None:
        for seed in self._seeds:
            self._on_phase(f"lines of seed {seed}")
            found = self._kept(self._key(str(seed)), partial(self._lines_of_run, seed))
            self._runs |= {int(name): Passing(*values) for name, values in found.items()}

    def _lines_of_run(self, seed: int) -> dict[str, Any]:
        begin_s = time.process_time()
        with recorded(set(self._names)) as lines:
            run = run_one(seed, Task())
        if run.failure is not None:
            return {}
        return {str(seed): (time.process_time() - begin_s, self._by_module(lines), _digest(run))}

    def _key(self, *texts: str) -> str:
        return digest_of([self._product, *sorted(self._names.values()), *texts])

    def _kept(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """From the cache, or made by a child and put there."""
        path = self._cache / f"{key}.json"
        if not path.exists():
            made = in_child(make, LINES_S, LINES_S)
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(made))
            unfinished.replace(path)
        return dict(json.loads(path.read_text()))

    def _by_module(self, lines: Lines) -> dict[str, list[int]]:
        return {self._names[filename]: sorted(numbers) for filename, numbers in lines.items()}

    # -- one mutant

    def _try(self, trial: Trial, functions: Functions) -> Outcome:
        begin_s = time.perf_counter()
        outcome = replace(trial.simulated) if trial.simulated else Outcome()
        module, mutant = trial.module, trial.mutant
        code = compiled(module.source, module.filename, mutant.number)
        outcome.test = self._try_tests(mutant, functions, code)
        if outcome.runs is None and (outcome.test is None or self._reached):
            self._try_runs(mutant, functions, code, outcome)
        outcome.seconds = round(time.perf_counter() - begin_s, 3)
        return outcome

    def _try_tests(self, mutant: Mutant, functions: Functions, code: CodeType) -> str | None:
        """The test that fails."""
        tests = self._tests_of(mutant)
        seconds = sum(self._tests[nodeid].seconds for nodeid in tests)

        def first_failure() -> str | None:
            functions.replace(code)
            for nodeid, following in zip(tests, [*tests[1:], None], strict=True):
                self._run_item(nodeid, following)
                if self._failed is not None:
                    return self._failed
            return None

        if not tests:
            return None
        try:
            failed: str | None = in_child(first_failure, 5 + 3 * seconds, 60 + 20 * seconds)
        except ChildStopped:
            return HANGS
        if failed is not None:
            self._killers = [failed, *(each for each in self._killers if each != failed)][:20]
        return failed

    def _try_runs(
        self, mutant: Mutant, functions: Functions, code: CodeType, outcome: Outcome
    ) -> None:
        passing = [
            (run.seconds, seed) for seed, run in self._runs.items() if run.comes_past(mutant)
        ]
        seeds = list(_within(passing, RUNS_S))

        def simulate() -> tuple[int, int, int | None, str]:
            functions.replace(code)
            return self._simulate(seeds, until_different=outcome.test is not None)

        counted = (
            in_child(simulate, 60 + 15 * RUNS_S, 300 + 50 * RUNS_S) if seeds else (0, 0, None, "")
        )
        outcome.runs, outcome.differed, outcome.seed, outcome.violated = counted

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that come past it: those that caught the last mutants first, then the quickest."""
        passing = [
            (test.seconds, name) for name, test in self._tests.items() if test.comes_past(mutant)
        ]
        names = list(_within(passing, TESTS_S))
        first = [name for name in self._killers if name in names]
        return [*first, *(name for name in names if name not in first)]

    def _run_item(self, nodeid: str, following: str | None) -> None:
        item = self._items[nodeid]
        next_item = None if following is None else self._items[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)

    def _simulate(
        self, seeds: list[int], *, until_different: bool
    ) -> tuple[int, int, int | None, str]:
        """Number of runs, of those that went otherwise, and the first that violates something."""
        differed = 0
        for count, seed in enumerate(seeds, 1):
            known = self._runs[seed]
            run = run_one(seed, Task(timeout_s=5 + 10 * known.seconds))
            if run.failure is not None:
                return count, differed + 1, seed, run.failure.violated
            differed += _digest(run) != known.digest
            if differed and until_different:
                return count, differed, None, ""
        return len(seeds), differed, None, ""


def _within(candidates: Iterable[tuple[float, Any]], limit_s: float) -> Iterator[Any]:
    """The quickest that take no longer than this together."""
    spent_s = 0.0
    for seconds, name in sorted(candidates):
        spent_s += seconds
        if spent_s > limit_s:
            return
        yield name


def _digest(run: Run) -> str:
    return " ".join((run.digest, *run.disk_digests))


def _helpers_of_tests(tests: Iterable[Path]) -> list[Path]:
    """Modules that tests import from: the others of their folders, and the support of all."""
    folders = [*sorted({path.parent for path in tests}), ROOT / "tests" / "support"]
    found = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    return [path for path in found if not path.name.startswith("test_")]


def _quick_hypothesis() -> None:
    """A test that fails need not find its smallest example; what is slow here is no failure."""
    settings.register_profile(
        "edges",
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    os.environ["HYPOTHESIS_PROFILE"] = "edges"
