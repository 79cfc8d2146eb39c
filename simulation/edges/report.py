"""Results of the mutants: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from simulation.edges.modules import ROOT
from simulation.edges.trials import Outcome, Trial

DOCUMENT = ROOT / "docs" / "simulation.md"
"""Lists survivors, each a line with its key, and the reason."""

Tried = list[tuple[Trial, Outcome]]


def is_explained(trial: Trial, document: str) -> bool:
    """True if the document has a reason why nothing catches it."""
    return f"\n{trial.mutant.key}\n" in document


def all_explained(tried: Tried) -> bool:
    """True if the document has a reason for every survivor."""
    document = DOCUMENT.read_text()
    return all(outcome.is_caught or is_explained(trial, document) for trial, outcome in tried)


def edges_text(tried: Tried, untried: int) -> str:
    """A table of modules, then the survivors."""
    document = DOCUMENT.read_text()
    lines = [
        f"{'':<40} {'mutants':>8} {'reached':>8} {'by test':>8} {'by run':>8} {'survive':>8} {'caught':>8}"
    ]
    for module, of_module in _by_module(tried):
        lines.append(_row(module, of_module))
    lines.append(_row("all", tried))
    if untried:
        lines.append(f"{untried} were not tried")
    lines += ["", "Survivors; * has its reason in docs/simulation.md:"]
    for trial, outcome in tried:
        if not outcome.is_caught:
            mark = "*" if is_explained(trial, document) else " "
            runs = f"{outcome.differed} of {outcome.runs or 0} runs differ"
            lines.append(f"{mark} {trial.mutant.line:>4}  {trial.mutant.key}  ({runs})")
    return "\n".join(lines)


def edges_json(tried: Tried, untried: int) -> dict[str, Any]:
    """The same for programs, with every mutant."""
    document = DOCUMENT.read_text()
    return {
        "untried": untried,
        "mutants": [
            {
                **asdict(trial.mutant),
                "key": trial.mutant.key,
                **asdict(outcome),
                "explained": is_explained(trial, document),
            }
            for trial, outcome in tried
        ],
    }


def _by_module(tried: Tried) -> Iterator[tuple[str, Tried]]:
    for name in dict.fromkeys(trial.module.name for trial, _ in tried):
        yield name, [each for each in tried if each[0].module.name == name]


def _row(name: str, tried: Tried) -> str:
    outcomes = [outcome for _, outcome in tried]
    caught = _count(outcome.is_caught for outcome in outcomes)
    counts = (
        len(outcomes),
        _count(outcome.differed > 0 for outcome in outcomes),
        _count(outcome.test is not None for outcome in outcomes),
        _count(outcome.seed is not None for outcome in outcomes),
        len(outcomes) - caught,
    )
    share = f"{caught / len(outcomes):>8.1%}" if outcomes else ""
    return f"{name:<40} " + " ".join(f"{count:>8,}" for count in counts) + " " + share


def _count(flags: Iterable[bool]) -> int:
    return sum(flags)
