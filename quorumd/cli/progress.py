"""Bars and lines that change, on stderr, for terminals only; imported where shown, because rich is large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text


@contextmanager
def byte_progress(label: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar from 0 to `size_bytes`; what is yielded sets how many bytes are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=size_bytes)
        yield lambda done_bytes: progress.update(task, completed=done_bytes)


@contextmanager
def count_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar from 0 to `total`; what is yielded sets how many are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def time_progress(label: str, seconds: float) -> Iterator[Callable[[float, str], None]]:
    """A bar of seconds with a changing text behind it."""
    columns = (
        TextColumn(label),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=seconds, text="")
        yield lambda elapsed_s, text: progress.update(task, completed=elapsed_s, text=text)


@contextmanager
def status_line(label: str) -> Iterator[Callable[[str], None]]:
    """A line with something that turns; what is yielded changes its text."""
    with Console(stderr=True).status(Text(label)) as status:
        yield lambda text: status.update(Text(text))


@contextmanager
def changing_view() -> Iterator[Callable[[RenderableType], None]]:
    """A part of the screen; what is yielded shows something else there. It is gone at the end."""
    console = Console(stderr=True)
    with Live(console=console, transient=True, refresh_per_second=8) as live:
        yield live.update
