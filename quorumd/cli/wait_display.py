"""Display of a command on stderr while it waits: a line that changes on a terminal, else a few lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from quorumd.cli.text import duration_text, printable

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from quorumd.client.voter_changes import ChangeProgress

_FIRST_LINE_AFTER_S = 1.0
_LINE_INTERVAL_S = 10.0

T = TypeVar("T")


@contextmanager
def shown_while_waiting(what: str) -> Iterator[Callable[[ChangeProgress], None]]:
    """Yields a function to call again and again: it shows the reason of the wait, and its time so far."""
    started = time.monotonic()

    def text_of(progress: ChangeProgress) -> str:
        waiting_s = time.monotonic() - started
        if progress.waiting_ms >= 0:
            waiting_s = progress.waiting_ms / 1000
        waits_for = f": {printable(progress.waits_for)}" if progress.waits_for else ""
        return f"{what}, for {duration_text(waiting_s)}{waits_for}"

    if sys.stderr.isatty():
        from quorumd.cli.progress import status_line

        with status_line(what) as show:
            yield lambda progress: show(text_of(progress))
        return
    due_at, shown = started + _FIRST_LINE_AFTER_S, ""

    def say(progress: ChangeProgress) -> None:
        nonlocal due_at, shown
        if time.monotonic() >= due_at and progress.waits_for not in ("", shown):
            click.echo(text_of(progress), err=True)
            due_at, shown = time.monotonic() + _LINE_INTERVAL_S, progress.waits_for

    yield say


def run_change(main: Coroutine[Any, Any, T], if_interrupted: str) -> T:
    """Runs the coroutine; Ctrl-C says what goes on all the same."""
    from quorumd.cli.options import run_async

    try:
        return run_async(main)
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted: {if_interrupted}", err=True)
        raise
