"""`python -m simulation --edges`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from simulation.progress import progress_bar

if TYPE_CHECKING:
    from simulation.edges.results import Results
    from simulation.edges.trials import Outcome, Trial

EXIT_INTERRUPTED = 130
SEEDS_DEFAULT = "1..12"

_HELP = """Which comparison and which order in the rules could be another without a test or run noticing?

A mutant is the code with one edge moved. It is caught if a test of its module fails, or if a simulated run
violates a property; it is reached if a run has other events. No file is changed.

What is known stays in .cache/edges: a call that was interrupted goes on, and a mutant that was caught is
tried again only after a change of its module.

\b
  python -m simulation --edges
  python -m simulation --edges --only raft/quorum.py,recovery
  python -m simulation --edges --shard 1/4

Exit codes: 0 every survivor has its reason in docs/simulation.md, 1 some have none, 130 interrupted.
"""


def _to_seeds(context: click.Context, parameter: click.Parameter, value: str) -> range:
    first, _, last = value.partition("..")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(f"{value!r}: give A..B, both included, such as 1..24") from None


def _to_shard(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    number, _, count = value.partition("/")
    try:
        shard = int(number), int(count)
    except ValueError:
        shard = 0, 0
    if not 1 <= shard[0] <= shard[1]:
        raise click.BadParameter(f"{value!r}: give a number and a count, such as 1/4")
    return shard


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", metavar="A,B", default="", help="Just these modules, by path, folder or last name."
)
@click.option(
    "--seeds",
    callback=_to_seeds,
    default=SEEDS_DEFAULT,
    show_default=True,
    metavar="A..B",
    help="The runs that try it.",
)
@click.option(
    "--shard", callback=_to_shard, default="1/1", metavar="I/N", help="Every N-th mutant."
)
@click.option(
    "--reached",
    is_flag=True,
    help="Have runs look for a difference even where a test has caught the mutant.",
)
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text")
def edges(only: str, seeds: range, shard: tuple[int, int], reached: bool, output: str) -> None:
    """Tries what is not known yet, and reports all."""
    if find_spec("pytest") is None:
        raise click.UsageError("the tests need what `make check` installs: call it first")
    # Not before: these import pytest.
    from simulation.edges.modules import modules_in_scope
    from simulation.edges.mutants import mutants_of
    from simulation.edges.report import all_explained, edges_json, edges_text
    from simulation.edges.results import Results
    from simulation.edges.trials import CACHE, Trial

    modules = modules_in_scope(tuple(filter(None, only.split(","))))
    if not modules:
        raise click.UsageError(f"no module with rules is called {only!r}")
    mine = [
        Trial(mutant, module)
        for module in modules
        for mutant in mutants_of(module.name, module.source)
    ]
    mine = mine[shard[0] - 1 :: shard[1]]
    results = Results(CACHE / "results.jsonl", modules, seeds)
    left = [
        results.with_runs(trial) for trial in mine if results.of(trial, reached=reached) is None
    ]
    exit_code = _try_all(left, results, seeds, reached=reached) if left else 0
    tried = [(trial, outcome) for trial in mine if (outcome := results.of(trial)) is not None]
    untried = len(mine) - len(tried)
    if output == "json":
        click.echo(json.dumps(edges_json(tried, untried)))
    else:
        click.echo(edges_text(tried, untried))
    raise SystemExit(exit_code or (0 if all_explained(tried) else 1))


def _try_all(left: list[Trial], results: Results, seeds: range, *, reached: bool) -> int:
    """Returns the exit code."""
    from simulation.edges.modules import modules_in_scope
    from simulation.edges.trials import Trials

    done = survived = 0
    phase = ""

    def on_outcome(trial: Trial, outcome: Outcome) -> None:
        nonlocal done, survived
        results.add(trial, outcome)
        done += 1
        survived += not outcome.is_caught
        move()

    def on_phase(what: str) -> None:
        nonlocal phase
        phase = what
        move()

    with progress_bar(
        "mutants", len(left), lambda: done, lambda: f"{survived} survive; {phase}"
    ) as (move, _):
        try:
            Trials(left, modules_in_scope(), seeds, on_outcome, on_phase, reached=reached).run()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
    return 0
