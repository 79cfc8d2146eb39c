"""Shared parts of commands that go through files: every path is tried, and the worst exit code counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

EXIT_DAMAGED = 3
_PROGRESS_FROM_BYTES = 16 << 20
_PROGRESS_STEP_BYTES = 1 << 20


def worst_exit_code(paths: Iterable[Path], examine: Callable[[Path], int]) -> int:
    """Examines every path, whatever is wrong with one of them; returns the greatest exit code.

    An error with an `exit_code` is printed; any other is raised.
    """
    worst = 0
    for path in paths:
        try:
            code = examine(path)
        except Exception as error:
            failed = getattr(error, "exit_code", None)
            if failed is None:
                raise
            print_error(str(error))
            code = failed
        worst = max(worst, code)
    return worst


def print_error(text: str) -> None:
    """On stderr, behind what was printed on stdout before."""
    sys.stdout.flush()
    click.echo(f"Error: {text}", err=True)


@contextmanager
def read_progress(label: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Counts bytes; a bar on stderr if that is a terminal and there is much to read."""
    if size_bytes < _PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield lambda step_bytes: None
        return
    from quorumd.cli.progress import byte_progress

    with byte_progress(label, size_bytes) as show:
        done_bytes = shown_bytes = 0

        def advance(step_bytes: int) -> None:
            nonlocal done_bytes, shown_bytes
            done_bytes += step_bytes
            if done_bytes - shown_bytes >= _PROGRESS_STEP_BYTES:
                shown_bytes = done_bytes
                show(min(done_bytes, size_bytes))

        yield advance
