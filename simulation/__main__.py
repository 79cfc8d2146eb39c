"""`python -m simulation`: run a seed, or many of them, and say what came of it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from simulation.faults import ACTS
from simulation.options import Options
from simulation.planted import PLANTED, PlantedBug
from simulation.progress import shrink_progress, tally_progress
from simulation.report import coverage_lines, run_json, run_text, tally_json, tally_text, to_word
from simulation.runner import TIMEOUT_S_DEFAULT, Tally, Task, WorkerLost, run_many, run_one
from simulation.shrink import Shrinker

F = TypeVar("F", bound=Callable[..., Any])

_PROGRAM = "python -m simulation"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_TIMEOUT_S_MAX = 1_000_000

_HELP = f"""Run the daemon's code on a simulated clock, network and disk, and look for what must not be.

A seed stands for everything in a run: how many nodes, which limits, what clients do, which faults
begin when. The same seed gives the same events, on every machine.

\b
Look for failures, on all cores:
  python -m simulation --seeds 1..20000
\b
On several hosts, and then all in one report:
  python -m simulation --seeds 1..1000000 --shard 3/16 --output json > shard-3.json
  python -m simulation.merge shard-*.json
\b
One seed; a failure is printed with its last events:
  python -m simulation --seed 17
  python -m simulation --seed 17 --trace
\b
Make a failing seed small; then run a part of its schedule:
  python -m simulation --seed 17 --shrink
  python -m simulation --seed 17 --only 3,7 --steps 1234
\b
Choose what goes wrong; names with "-" or "_" for spaces:
  python -m simulation --seeds 1..1000 --faults power-loss,one-way
  python -m simulation --seeds 1..1000 --faults none
\b
Which comparisons and orders of the rules no test and no run minds; it has options of its own:
  python -m simulation --edges --help

Faults, and what operators do: {", ".join(ACTS)}.

\b
Exit codes: 0 nothing found, 1 something failed, 2 wrong usage, 130 interrupted.
"""


def _to_seeds(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> range | None:
    if value is None:
        return None
    first, _, last = value.partition("..")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(f"{value!r}: give A..B, both included, such as 1..1000") from None
    if not seeds:
        raise click.BadParameter(f"{value!r} holds no seed: the first is above the last")
    return seeds


def _to_shard(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    number, _, count = value.partition("/")
    try:
        shard = int(number), int(count)
    except ValueError:
        raise click.BadParameter(f"{value!r}: give I/N, such as 3/16") from None
    if not 1 <= shard[0] <= shard[1]:
        raise click.BadParameter(f"{value!r}: shards are numbered from 1 to their count")
    return shard


def _to_faults(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    asked = {to_word(word) for word in value.split(",")}
    if asked == {"none"}:
        return ()
    if asked == {"all"}:
        return tuple(ACTS)
    if unknown := sorted(asked - set(map(to_word, ACTS))):
        raise click.BadParameter(
            f"no fault is called {', '.join(map(repr, unknown))}. The faults are"
            f" {', '.join(map(to_word, ACTS))}; or say all or none."
        )
    return tuple(name for name in ACTS if to_word(name) in asked)


def _to_numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    if value.strip().lower() == "none":
        return ()
    try:
        return tuple(sorted({int(number) for number in value.split(",")}))
    except ValueError:
        raise click.BadParameter(
            f"{value!r}: give numbers of the schedule, such as 3,7,9, or none"
        ) from None


def _to_timeout(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 < value <= _TIMEOUT_S_MAX:
        raise click.BadParameter(f"{value:g}: give seconds above 0, at most {_TIMEOUT_S_MAX}")
    return value


def _to_plant(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> PlantedBug | None:
    if value is None:
        return None
    if value == "list":
        width = max(map(len, PLANTED))
        for name, bug in PLANTED.items():
            click.echo(f"{to_word(name):<{width}}  {bug.what}")
        context.exit()
    for name, bug in PLANTED.items():
        if to_word(name) == to_word(value):
            return bug
    raise click.BadParameter(
        f"no bug is called {value!r}. The bugs are {', '.join(map(to_word, PLANTED))};"
        " `--plant list` says what they are."
    )


_SEED_OPTIONS = (
    click.option("--seed", type=int, metavar="N", help="Run this one."),
    click.option(
        "--seeds", callback=_to_seeds, metavar="A..B", help="Run all of these, both ends included."
    ),
    click.option(
        "--shard",
        callback=_to_shard,
        metavar="I/N",
        help="With --seeds: run every Nth of them, from the Ith on; another host runs the others.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(1),
        default=lambda: len(os.sched_getaffinity(0)),
        show_default="all cores",
        help="With --seeds: how many processes.",
    ),
)
_CHAOS_OPTIONS = (
    click.option(
        "--faults",
        callback=_to_faults,
        metavar="A,B",
        help="Just these kinds of faults and operations; all or none. Without it the seed chooses.",
    ),
    click.option(
        "--fixed-voters",
        is_flag=True,
        help="The voters never change: all nodes run with quorum.voters.",
    ),
    click.option(
        "--only",
        "numbers",
        callback=_to_numbers,
        metavar="3,7,9",
        help="With --seed: of its schedule just these faults, by number, or none.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(0),
        metavar="N",
        help="End the faults after so many events; what heals afterwards is watched as always.",
    ),
)
_REPORT_OPTIONS = (
    click.option(
        "--trace", is_flag=True, help="With --seed: show the last events also on success."
    ),
    click.option(
        "--shrink", is_flag=True, help="With --seed: find a smaller run that fails alike."
    ),
    click.option("--coverage", is_flag=True, help="List what has never occurred."),
    click.option(
        "--plant",
        callback=_to_plant,
        is_eager=True,
        metavar="NAME",
        help="Break a rule in the code first, and use the faults that show it; `--plant list` shows all.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=float,
        callback=_to_timeout,
        metavar="SECONDS",
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        help="A run that needs more processor time than this has failed.",
    ),
    click.option(
        "--output",
        "-o",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="For people, or for programs.",
    ),
)


def _options(command: F) -> F:
    """All of them; --help shows them in this order."""
    for option in reversed(_SEED_OPTIONS + _CHAOS_OPTIONS + _REPORT_OPTIONS):
        command = option(command)
    return command


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@_options
def cli(
    seed: int | None,
    seeds: range | None,
    shard: tuple[int, int] | None,
    jobs: int,
    faults: tuple[str, ...] | None,
    fixed_voters: bool,
    numbers: tuple[int, ...] | None,
    steps: int | None,
    trace: bool,
    shrink: bool,
    coverage: bool,
    plant: PlantedBug | None,
    timeout_s: float,
    output: str,
) -> None:
    """Does what the options say; ends with one of the exit codes."""
    if plant is not None and faults is None and plant.options.faults is not None:
        faults = tuple(name for name in ACTS if name in plant.options.faults)
    fixed_voters = fixed_voters or (plant is not None and not plant.options.membership)
    options = Options(faults=faults, numbers=numbers, steps=steps, membership=not fixed_voters)
    task = Task(options=options, plant=None if plant is None else plant.name, timeout_s=timeout_s)
    if (seed is None) == (seeds is None):
        raise click.UsageError("Give either --seed or --seeds.")
    if shard is not None:
        if seeds is None:
            raise click.UsageError("--shard is for --seeds.")
        seeds = seeds[shard[0] - 1 :: shard[1]]
        if not seeds:
            raise click.UsageError("There are fewer seeds than shards: this one has none.")
    if seeds is not None:
        if numbers is not None or trace or shrink:
            raise click.UsageError("--only, --trace and --shrink are for a single --seed.")
        raise SystemExit(_run_seeds(seeds, task, jobs, output, coverage=coverage))
    assert seed is not None
    try:
        code = _run_seed(seed, task, output, shrink=shrink, with_trace=trace, coverage=coverage)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise SystemExit(code)


def _run_seed(
    seed: int, task: Task, output: str, *, shrink: bool, with_trace: bool, coverage: bool
) -> int:
    run = run_one(seed, task)
    exit_code = 0 if run.failure is None else EXIT_FAILED
    if shrink and run.failure is not None:
        shrinker = Shrinker(run, task)
        try:
            with shrink_progress(shrinker) as show:
                shrinker.shrink(show)
        except KeyboardInterrupt:
            exit_code = EXIT_INTERRUPTED
        click.echo(
            f"{shrinker.tries} runs tried; {len(shrinker.run.begun)} faults instead of"
            f" {len(run.begun)} and {shrinker.run.steps:,} events instead of {run.steps:,} fail alike",
            err=True,
        )
        run, task = shrinker.run, shrinker.task
    if output == "json":
        _print_json(run_json(run, task, with_trace=with_trace))
        return exit_code
    click.echo(run_text(run, task, with_trace=with_trace))
    if coverage:
        click.echo("\n" + "\n".join(coverage_lines(run.coverage, with_missing=True)))
    return exit_code


def _run_seeds(seeds: range, task: Task, jobs: int, output: str, *, coverage: bool) -> int:
    tally = Tally()
    begin_s = time.perf_counter()
    exit_code = 0
    try:
        with tally_progress(tally, len(seeds)) as show:
            run_many(seeds, task, jobs, tally, show)
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    except WorkerLost as error:
        click.echo(f"simulation: a process that ran seeds has died: {error}", err=True)
        exit_code = EXIT_FAILED
    wall_s = time.perf_counter() - begin_s
    if output == "json":
        _print_json(tally_json(tally, task, seeds, wall_s))
    else:
        click.echo(tally_text(tally, task, seeds, wall_s, with_missing=coverage))
    return exit_code or (EXIT_FAILED if tally.failures else 0)


def _print_json(fields: dict[str, Any]) -> None:
    click.echo(json.dumps(fields, ensure_ascii=False))


def main() -> None:
    """Entry point."""
    if sys.flags.optimize:
        click.echo("simulation: python -O removes the assertions that are checked here", err=True)
        raise SystemExit(EXIT_USAGE)
    if "--edges" in sys.argv[1:]:
        from simulation.edges.command import edges

        edges([word for word in sys.argv[1:] if word != "--edges"], prog_name=f"{_PROGRAM} --edges")
    cli(prog_name=_PROGRAM)


if __name__ == "__main__":
    main()
