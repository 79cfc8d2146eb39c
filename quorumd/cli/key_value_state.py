"""Reads the key-value state up to an offset, with a progress bar on a terminal if it takes long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING

import click

from quorumd.cli.text import unreadable_text

if TYPE_CHECKING:
    from quorumd.client.client import QuorumClient
    from quorumd.client.events import BatchCommitted
    from quorumd.client.view import KeyValueMap

_SHOWN_AFTER_S = 1.0


async def read_key_value_state(
    client: QuorumClient, view: KeyValueMap, committed_offset: int, end_offset: int
) -> None:
    """Reads the snapshot and the log into `view` until everything below `end_offset` is in.

    `committed_offset` (exclusive, too) is what is known to be committed. Beyond it nothing may come:
    raises OffsetNotReached after the client's timeout. Raises what the client raises, too.
    """
    from quorumd.client.errors import OffsetNotReached
    from quorumd.client.events import BatchCommitted, QuorumLost

    loop = asyncio.get_running_loop()
    try:
        with ReadMeter() as meter:
            async with (
                asyncio.timeout(None) as limit,
                aclosing(client.follow(on_progress=meter.download)) as events,
            ):
                async for event in events:
                    if isinstance(event, QuorumLost):
                        raise event.error
                    await view.apply(event)
                    if view.offset >= end_offset:
                        return
                    if view.offset >= committed_offset:
                        limit.reschedule(loop.time() + client.timeout_ms / 1000)
                    if isinstance(event, BatchCommitted):
                        warn_if_unreadable(event)
                        meter.read(view.offset, end_offset)
    except TimeoutError:
        raise OffsetNotReached(end_offset - 1, view.offset, client.timeout_ms) from None


def warn_if_unreadable(batch: BatchCommitted) -> None:
    """Prints the offsets of an unreadable batch on stderr."""
    if batch.problem is not None:
        last_offset = batch.next_offset - 1
        click.echo(unreadable_text(batch.base_offset, last_offset, batch.problem), err=True)


class ReadMeter:
    """A progress bar on stderr, shown after one second, and only on a terminal."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._advance: Callable[[int], None] | None = None
        self._label = ""
        self._due_at = asyncio.get_running_loop().time() + _SHOWN_AFTER_S
        self._is_wanted = sys.stderr.isatty()

    def __enter__(self) -> ReadMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes the bar away for good."""
        self._stack.close()
        self._is_wanted = False

    def download(self, done_bytes: int, total_bytes: int) -> None:
        """So much of a snapshot is here."""
        self._show("loading the snapshot", done_bytes, total_bytes)

    def read(self, offset: int, end_offset: int) -> None:
        """The log has been read up to `offset`."""
        self._show("reading the log", offset, end_offset)

    def _show(self, label: str, done: int, total: int) -> None:
        if not self._is_wanted or asyncio.get_running_loop().time() < self._due_at:
            return
        if label != self._label:
            from quorumd.cli.progress import byte_progress, count_progress

            self._stack.close()
            bar = byte_progress if label == "loading the snapshot" else count_progress
            self._advance = self._stack.enter_context(bar(label, total))
            self._label = label
        if self._advance is not None:
            self._advance(done)
