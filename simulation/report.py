"""Report of a run, or of many: as text for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simulation.cases import missing_cases, missing_pairs, possible_cases, possible_pairs
from simulation.coverage import Coverage
from simulation.faults import ACTS
from simulation.plan import Planned
from simulation.runner import TIMEOUT_S_DEFAULT, Failure, Run, Tally, Task
from simulation.scheduler import SECOND
from simulation.settings import Settings

LONG_FAILURES_MAX = 10
ROLES_SHOWN = (
    *("unattached", "follower", "prospective", "candidate", "leader", "resigned", "observer"),
    *("down", "client"),
)


def command(seed: int, task: Task) -> str:
    """The command line that runs a seed in just this way."""
    options, words = task.options, ["-m", "simulation", "--seed", str(seed)]
    if options.faults is not None:
        is_all = set(options.faults) == set(ACTS)
        words += ["--faults", "all" if is_all else _comma(map(to_word, options.faults))]
    if not options.membership:
        words += ["--fixed-voters"]
    if options.numbers is not None:
        words += ["--only", _comma(map(str, sorted(options.numbers)))]
    if options.steps is not None:
        words += ["--steps", str(options.steps)]
    if task.plant is not None:
        words += ["--plant", to_word(task.plant)]
    if task.timeout_s != TIMEOUT_S_DEFAULT:
        words += ["--timeout", f"{task.timeout_s:g}"]
    return shlex.join([_python(), *words])


def to_word(name: str) -> str:
    """The name of a fault or of a planted bug as one word, for the command line."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def _comma(words: Iterator[str]) -> str:
    return ",".join(words) or "none"


def _python() -> str:
    here, python = Path.cwd(), Path(sys.executable)
    return str(python.relative_to(here)) if python.is_relative_to(here) else os.fspath(python)


# -- one run


def run_text(run: Run, task: Task, *, with_trace: bool) -> str:
    """A run that went well, or all that helps to understand one that did not."""
    lines = [f"seed {run.seed}: nothing found"] if run.failure is None else []
    if run.failure is not None:
        lines += [*_failure_head(run.failure, task), ""]
    if run.settings is not None:
        lines += [f"settings   {_settings_line(run.settings)}"]
        lines += [f"faults     {_faults_line(run.settings)}"]
    lines += [
        f"digest     {run.digest}",
        f"events     {run.steps:,} in {run.wall_s:.2f} s ({_rate(run.steps, run.wall_s)} events/s)",
        f"simulated  {run.simulated_us / SECOND:.3f} s",
        f"committed  {run.committed_records:,} records",
        f"acked      {run.acknowledged:,} appends",
    ]
    if run.failure is not None:
        lines += ["", "schedule of faults, as far as it had begun: number, seconds, name"]
        lines += [_planned_line(planned) for planned in run.begun] or ["  none"]
    if run.failure is not None or with_trace:
        lines += ["", *_last_events(run)]
    return "\n".join(lines)


def _failure_head(failure: Failure, task: Task) -> list[str]:
    return [
        f"seed {failure.seed} violates: {failure.violated}",
        *(f"    {line}" for line in failure.what.splitlines()),
        f"run it again with\n    {command(failure.seed, task)}",
    ]


def _settings_line(settings: Settings) -> str:
    values = dataclasses.asdict(settings)
    return " ".join(f"{name}={value}" for name, value in values.items() if name != "faults")


def _faults_line(settings: Settings) -> str:
    often = [f"{name} (every {us / SECOND:g} s)" for name, us in settings.faults.items()]
    return ", ".join(often) or "none"


def _planned_line(planned: Planned) -> str:
    return f"  {planned.number:>4} {planned.at_us / SECOND:>11.6f}  {planned.name}"


def _last_events(run: Run) -> Iterator[str]:
    for host, events in run.last_events:
        yield f"last events of {host}, with the seconds since the beginning"
        yield from (f"  {event}" for event in events)


def run_json(run: Run, task: Task, *, with_trace: bool) -> dict[str, Any]:
    """A run as JSON."""
    fields: dict[str, Any] = {
        "seed": run.seed,
        "command": command(run.seed, task),
        "failure": None if run.failure is None else _failure_json(run.failure, task),
        "digest": run.digest,
        "events": run.steps,
        "simulated_s": run.simulated_us / SECOND,
        "committed_records": run.committed_records,
        "acknowledged_appends": run.acknowledged,
        "wall_s": round(run.wall_s, 3),
        "settings": None if run.settings is None else dataclasses.asdict(run.settings),
        "schedule": [
            {"number": p.number, "at_s": p.at_us / SECOND, "fault": p.name} for p in run.begun
        ],
        "coverage": _cases_json(run.coverage),
    }
    if run.failure is not None or with_trace:
        fields["last_events"] = dict(run.last_events)
    return fields


def _failure_json(failure: Failure, task: Task) -> dict[str, Any]:
    return {
        "seed": failure.seed,
        "violated": failure.violated,
        "what": failure.what,
        "command": command(failure.seed, task),
    }


def _cases_json(coverage: Coverage) -> list[dict[str, Any]]:
    return [
        {"fault": fault, "role": role, "message": message, "count": count}
        for (fault, role, message), count in sorted(coverage.cases.items())
    ]


# -- many runs


def tally_text(tally: Tally, task: Task, seeds: range, wall_s: float, *, with_missing: bool) -> str:
    """The summary of many runs; a failure that comes often is shown in length only ten times."""
    failures = sorted(tally.failures, key=lambda failure: failure.seed)
    parts = ["\n".join(_failure_head(f, task)) for f in failures[:LONG_FAILURES_MAX]]
    parts.append("\n".join(coverage_lines(tally.coverage, with_missing=with_missing)))
    parts.append(_totals(tally, seeds, wall_s))
    if failures:
        parts.append("\n".join(_failing_seeds(failures)))
    return "\n\n".join(parts)


def _totals(tally: Tally, seeds: range, wall_s: float) -> str:
    done = "" if tally.runs == len(seeds) else f" of {len(seeds):,}"
    return (
        f"{tally.runs:,}{done} seeds ({seeds[0]}..{seeds[-1]}), {len(tally.failures):,} failures;"
        f" {tally.steps:,} events, {_rate(tally.steps, wall_s)} events/s;"
        f" {tally.simulated_us / SECOND / 3600:.2f} simulated hours in {wall_s:,.1f} s"
    )


def _failing_seeds(failures: Sequence[Failure]) -> Iterator[str]:
    for violated, count in Counter(failure.violated for failure in failures).most_common():
        seeds = [str(f.seed) for f in failures if f.violated == violated]
        yield f"{count:,} violate: {violated}\n    seeds {' '.join(seeds)}"


def coverage_lines(coverage: Coverage, *, with_missing: bool) -> Iterator[str]:
    """Numbers of each fault and operation by the role that it met, and those that have never occurred."""
    yield "how often each fault has occurred, by the role of the process that it met; and the responses that"
    yield "operators have got, by the role of the process that they had asked"
    rows = [["fault", "all", *ROLES_SHOWN]]
    others = {fault for fault, _, _ in coverage.cases} - set(ACTS)
    for fault in (*ACTS, *sorted(others)):
        by_role = Counter[str]()
        for (name, role, _), count in coverage.cases.items():
            if name == fault:
                by_role[role] += count
        cells = [f"{by_role[role]:,}" if by_role[role] else "-" for role in ROLES_SHOWN]
        rows.append([fault, f"{by_role.total():,}", *cells])
    yield from _table(rows)
    never = [act for act in ACTS if not coverage.of_fault(act)]
    yield f"never: {', '.join(never) or 'none; every fault and every operation has occurred'}"
    possible, missing = len(possible_cases()), missing_cases(coverage)
    yield (
        f"cases of fault, role and message: {possible - len(missing):,} of {possible:,} have occurred"
        + ("" if with_missing or not missing else "; --coverage lists the others")
    )
    pairs, missing_now = len(possible_pairs()), missing_pairs(coverage)
    yield (
        f"faults that began while an operation was under way: {pairs - len(missing_now):,} of {pairs:,}"
        " pairs have occurred"
    )
    if with_missing:
        yield from (f"  never: {', '.join(case)}" for case in missing)
        yield from (f"  never: {fault} during {operation}" for operation, fault in missing_now)


def _table(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells])


def tally_json(tally: Tally, task: Task, seeds: range, wall_s: float) -> dict[str, Any]:
    """The sums of several runs as JSON."""
    failures = sorted(tally.failures, key=lambda failure: failure.seed)
    return {
        "first_seed": seeds.start,
        "last_seed": seeds[-1],
        "step": seeds.step,
        "task": dataclasses.asdict(task),
        "runs": tally.runs,
        "is_complete": tally.runs == len(seeds),
        "failures": [_failure_json(failure, task) for failure in failures],
        "events": tally.steps,
        "simulated_hours": tally.simulated_us / SECOND / 3600,
        "wall_s": round(wall_s, 3),
        "simulated_us": tally.simulated_us,
        "coverage": _cases_json(tally.coverage),
        "coverage_of_pairs": [[*pair, n] for pair, n in sorted(tally.coverage.pairs.items())],
        "never": [list(case) for case in missing_cases(tally.coverage)],
        "never_together": [list(pair) for pair in missing_pairs(tally.coverage)],
    }


def tally_of_json(fields: dict[str, Any]) -> Tally:
    """Reads the output of `tally_json`."""
    coverage = Coverage()
    for case in fields["coverage"]:
        coverage.cases[case["fault"], case["role"], case["message"]] = case["count"]
    for operation, fault, count in fields["coverage_of_pairs"]:
        coverage.pairs[operation, fault] = count
    failures = [
        Failure(seed=found["seed"], violated=found["violated"], what=found["what"])
        for found in fields["failures"]
    ]
    return Tally(fields["runs"], fields["events"], fields["simulated_us"], coverage, failures)


def _rate(count: int, wall_s: float) -> str:
    return f"{count / wall_s:,.0f}" if wall_s > 0 else "-"
