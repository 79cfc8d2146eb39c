"""`python -m simulation.merge FILE...`: the reports of shards, from several hosts, as one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from simulation.options import Options
from simulation.report import tally_of_json, tally_text
from simulation.runner import Tally, Task

EXIT_FAILED = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--coverage", is_flag=True, help="List what has never occurred.")
def cli(files: Sequence[Path], coverage: bool) -> None:
    """Merge the reports of shards, each from `python -m simulation --seeds A..B --shard I/N -o json`.

    \b
    Exit codes: 0 nothing found, 1 something failed or is missing, 2 wrong usage.
    """
    reports = [_read(path) for path in files]
    first, *others = reports
    if any(report["task"] != first["task"] for report in others):
        raise click.UsageError(
            "The shards were run with different options: merge those of one run."
        )
    seeds = [range(r["first_seed"], r["last_seed"] + 1, r["step"]) for r in reports]
    covered = set[int]()
    for path, of_shard in zip(files, seeds, strict=True):
        if not covered.isdisjoint(of_shard):
            raise click.UsageError(f"{path} has seeds that another file has, too.")
        covered.update(of_shard)
    tally = Tally()
    for report in reports:
        tally.add(tally_of_json(report))
    options = Options(**first["task"]["options"])
    task = Task(options=options, plant=first["task"]["plant"], timeout_s=first["task"]["timeout_s"])
    whole = range(min(covered), max(covered) + 1)
    slowest_s = max(report["wall_s"] for report in reports)
    click.echo(tally_text(tally, task, whole, slowest_s, with_missing=coverage))
    missing = len(whole) - tally.runs
    if missing:
        click.echo(f"\n{missing:,} seeds are missing: a shard's file, or the end of one", err=True)
    raise SystemExit(EXIT_FAILED if tally.failures or missing else 0)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise click.UsageError(f"{path} is no report of a shard: {error}") from None
    if not isinstance(found, dict) or "coverage_of_pairs" not in found:
        raise click.UsageError(f"{path} is no report of a shard: make it with --seeds and -o json.")
    return found


if __name__ == "__main__":
    cli(prog_name="python -m simulation.merge")
