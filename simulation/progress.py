"""Progress on stderr: a bar on a terminal, a line now and then in a log; and what is found meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click

from simulation.runner import Tally
from simulation.shrink import Shrinker

Show = Callable[[], None]
FAILURES_SHOWN_MAX = 10
LINE_EVERY_S = 60.0


@contextmanager
def tally_progress(tally: Tally, runs: int) -> Iterator[Show]:
    """A bar from 0 to `runs`; what is yielded shows how far `tally` has come.

    The first failures are said at once: a run of many hours is not waited for.
    """
    begin_s = time.perf_counter()
    said = 0

    def text() -> str:
        rate = tally.runs / (time.perf_counter() - begin_s)
        return f"{rate:.1f} seeds/s, {len(tally.failures):,} failed"

    with progress_bar("seeds", runs, lambda: tally.runs, text) as (move, say):

        def show() -> None:
            nonlocal said
            for failure in tally.failures[said:FAILURES_SHOWN_MAX]:
                say(f"seed {failure.seed} violates: {failure.violated}")
            said = len(tally.failures)
            move()

        yield show


@contextmanager
def shrink_progress(shrinker: Shrinker) -> Iterator[Show]:
    """Shows the smallest run so far, and how many were tried; how many will be is not known."""

    def text() -> str:
        run = shrinker.run
        return f"{shrinker.tries} tried; {len(run.begun)} faults, {run.steps:,} events fail alike"

    with progress_bar("shrinking", None, lambda: shrinker.tries, text) as (move, _):
        yield move


@contextmanager
def progress_bar(
    label: str, total: int | None, done: Callable[[], int], text: Callable[[], str]
) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Calls that move the bar, and say something beside it."""
    if not sys.stderr.isatty():
        yield from _lines(label, total, done, text)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *([] if total is None else [MofNCompleteColumn()]),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, total=total, text=text())
        yield (
            lambda: progress.update(bar, completed=done(), text=text()),
            partial(progress.console.print, markup=False, highlight=False),
        )


def _lines(
    label: str, total: int | None, done: Callable[[], int], text: Callable[[], str]
) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """As `progress_bar`, for what is no terminal."""
    say = partial(click.echo, err=True)
    said_s = time.monotonic()
    of = "" if total is None else f" of {total:,}"

    def move() -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= LINE_EVERY_S:
            said_s = time.monotonic()
            say(f"{label} {done():,}{of}: {text()}")

    yield move, say
