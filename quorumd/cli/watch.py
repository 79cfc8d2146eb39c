"""`quorumctl watch`: the present values of keys, then every change as it is committed."""

from __future__ import annotations

import os
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from quorumd.cli.get import change_as_dict, wants_of
from quorumd.cli.key_value_state import ReadMeter, warn_if_unreadable
from quorumd.cli.options import (
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import OUTAGE_OVER, outage_text, printable, to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorumd.client.events import LogEvent
    from quorumd.client.view import KeyChange, KeyValueMap

_HELP = """Print the present values of keys, then every change as it is committed, until Ctrl-C.

Without a KEY and without --prefix all keys are watched. Changes come in the order of the log, each
once, also when the leader changes or no node can be reached for a while; stderr says so. After an outage
that was so long that the quorum has only a snapshot of what happened, the differences are printed.

\b
--output text    offset, key and value, separated by tabs, <null> for a deleted key; control
                 characters and bytes that are no UTF-8 as escapes (\\n, \\x00)
--output json    one object per line, value null for a deleted key; bytes that are no UTF-8 as
                 {"base64": "..."}

\b
Examples:
  quorumctl watch color
  quorumctl watch -b localhost:9093 --prefix jobs/ --output json
"""


@click.command(help=_HELP, short_help="Print the values of keys, and every change.")
@quorum_options
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--prefix", metavar="TEXT", help="The keys that begin with this.")
@output_option("text", "json")
@timeout_option
def watch(
    target: Target,
    keys: tuple[str, ...],
    prefix: str | None,
    output: str,
    timeout_s: float,
) -> None:
    """Follows the log for ever."""
    if keys and prefix is not None:
        raise click.UsageError("give either KEYs or --prefix, not both.")
    named = list(dict.fromkeys(os.fsencode(key) for key in keys))
    show = _show_json if output == "json" else _show_text
    run_async(_watch(target, named, prefix or "", show, to_ms(timeout_s)))


async def _watch(
    target: Target,
    keys: list[bytes],
    prefix: str,
    show: Callable[[KeyChange], None],
    timeout_ms: int,
) -> None:
    from quorumd.client.client import LATEST
    from quorumd.client.events import BatchCommitted, QuorumLost
    from quorumd.client.view import KeyValueMap

    view = KeyValueMap(key_filter=wants_of(keys, prefix))
    async with target.client(timeout_ms) as client:
        end_offset = (await client.list_offsets(LATEST)).offset
        with ReadMeter() as meter:
            async with aclosing(client.follow(on_progress=meter.download)) as events:
                async for event in events:
                    await view.apply(event)
                    if isinstance(event, BatchCommitted):
                        warn_if_unreadable(event)
                    if view.on_change is not None:
                        _tell(event)
                    elif isinstance(event, QuorumLost):
                        raise event.error
                    elif view.offset < end_offset:
                        meter.read(view.offset, end_offset)
                    else:
                        meter.close()
                        _show_present(view, keys, show)
                        view.on_change = show
                    sys.stdout.flush()


def _show_present(view: KeyValueMap, keys: list[bytes], show: Callable[[KeyChange], None]) -> None:
    from quorumd.client.view import KeyChange

    for key in keys or sorted(view.entries):
        entry = view.entries.get(key)
        if entry is None:
            _say(f"{printable(key)} has no value")
        else:
            show(KeyChange(key, *entry))


def _tell(event: LogEvent) -> None:
    """Tells an event that is no change of a key, on stderr."""
    from quorumd.client.events import LeaderChanged, QuorumLost, QuorumRestored

    if isinstance(event, LeaderChanged):
        _say(f"node {event.leader_id} leads since epoch {event.epoch}")
    elif isinstance(event, QuorumLost):
        click.echo(outage_text(event.error), err=True)
    elif isinstance(event, QuorumRestored):
        click.echo(OUTAGE_OVER, err=True)


def _say(text: str) -> None:
    click.echo(click.style(text, dim=True), err=True)


def _show_text(change: KeyChange) -> None:
    cells = (str(change.offset), printable(change.key), printable(change.value))
    sys.stdout.write("\t".join(cells) + "\n")


def _show_json(change: KeyChange) -> None:
    sys.stdout.write(to_json(change_as_dict(change)) + "\n")
