"""Outcomes of mutants, kept from one call to the next."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from simulation.edges.modules import ROOT, ModuleSource, digest_of, product_digest
from simulation.edges.trials import Outcome, Trial


class Results:
    """Results of mutants, a JSON line each: a later line about the same mutant counts.

    One that was caught stays so while its module's source is the same; others are tried again when
    anything has changed, by runs only if what they execute has.
    """

    def __init__(self, path: Path, modules: Iterable[ModuleSource], seeds: range) -> None:
        self._path = path
        self._runs = digest_of([product_digest(), str(seeds)])
        self._tree = _tree_digest(self._runs, modules)
        self._known: dict[tuple[str, str], dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                values = json.loads(line)
                self._known[values["key"], values["source"]] = values

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Keep it, on disk too."""
        key, source = trial.mutant.key, trial.module.digest
        values = {
            "key": key,
            "source": source,
            "runs": self._runs,
            "tree": self._tree,
            "outcome": asdict(outcome),
        }
        self._known[key, source] = values
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def of(self, trial: Trial, *, reached: bool = False) -> Outcome | None:
        """None if it has to be tried, or simulated to know whether it is reached."""
        known = self._known.get((trial.mutant.key, trial.module.digest))
        if known is None:
            return None
        outcome = Outcome(**known["outcome"])
        if reached and outcome.runs is None:
            return None
        return outcome if outcome.is_caught or known["tree"] == self._tree else None

    def with_runs(self, trial: Trial) -> Trial:
        """The trial, with what runs of the same code have shown."""
        known = self._known.get((trial.mutant.key, trial.module.digest))
        if known is None or known["runs"] != self._runs or known["outcome"]["runs"] is None:
            return trial
        return replace(trial, simulated=Outcome(**known["outcome"]))


def _tree_digest(runs: str, modules: Iterable[ModuleSource]) -> str:
    """Of all that decides whether a mutant is caught."""
    folders = sorted({module.tests for module in modules})
    tests = [
        path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    return digest_of([runs, *tests])
