"""`quorumctl get`: the present values of keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.key_value_state import read_key_value_state
from quorumd.cli.options import (
    OFFSET,
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import jsonable, printable, to_json

if TYPE_CHECKING:
    from quorumd.client.view import KeyChange, KeyValueMap

EXIT_NOT_FOUND = 1
NO_OP = b"quorumctl get --linearizable"

_HELP = f"""Print the present values of keys.

The value is that of the newest committed record with the key; a null value means that the key is deleted.
The command reads the leader's newest snapshot and the log behind it.

It prints the state at the leader's high watermark at the time of the request. That may be a moment old if
another leader has just been elected:

\b
--min-offset     waits for the record at this offset, as printed by `put`
--linearizable   shows everything that any client put before this command began. Appends a record
                 without a key, value "{NO_OP.decode()}", and waits for its offset

\b
--output text    the value; for several keys, --all and --prefix key, tab, value. Control
                 characters and bytes that are no UTF-8 as escapes (\\n, \\x00)
--output json    one object per line; bytes that are no UTF-8 as {{"base64": "..."}}; with
                 "if_unchanged_since", the offset that a condition on what was read needs
--output raw     the values alone, exactly as they are, a line feed behind each
--with-offset    text begins with that offset and a tab

\b
Exit code: 0 found, 1 if a key is not there (stderr says which) or the quorum can't be read.

\b
Examples:
  quorumctl get color
  quorumctl get -b localhost:9093 --prefix jobs/
  quorumctl get --all --output json > everything.jsonl
  quorumctl get color --linearizable
  quorumctl get color --with-offset
"""


@click.command(help=_HELP, short_help="Print the values of keys.")
@quorum_options
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "wants_all", is_flag=True, help="All keys.")
@click.option("--prefix", metavar="TEXT", help="The keys that begin with this.")
@click.option(
    "--min-offset",
    type=OFFSET,
    metavar="OFFSET",
    help="Wait for the record at this offset.",
)
@click.option("--linearizable", is_flag=True, help="Show everything that was put before.")
@click.option("--with-offset", is_flag=True, help="Print the offset for --if-unchanged-since, too.")
@output_option("text", "json", "raw")
@timeout_option
def get(
    target: Target,
    keys: tuple[str, ...],
    wants_all: bool,
    prefix: str | None,
    min_offset: int | None,
    linearizable: bool,
    with_offset: bool,
    output: str,
    timeout_s: float,
) -> int:
    """Reads everything and prints what is wanted; returns the exit code."""
    if with_offset and output == "raw":
        raise click.UsageError("--with-offset goes with --output text and json.")
    if bool(keys) + wants_all + (prefix is not None) != 1:
        raise click.UsageError("give one of these: KEYs, --all, --prefix.")
    from quorumd.client.view import KeyChange

    named = list(dict.fromkeys(os.fsencode(key) for key in keys))
    view = run_async(
        _read(
            target,
            wants_of(named, "" if prefix is None else prefix),
            min_offset=-1 if min_offset is None else min_offset,
            linearizable=linearizable,
            timeout_ms=to_ms(timeout_s),
        )
    )
    shower = {"text": _show_value if len(named) == 1 else _show_text, "json": _show_json}
    show = shower.get(output, _show_raw)
    found = [key for key in named or sorted(view.entries) if key in view.entries]
    for key in found:
        if with_offset and output == "text":
            sys.stdout.write(f"{view.offset}\t")
        show(KeyChange(key, *view.entries[key]), view.offset)
    sys.stdout.flush()
    missing = [printable(key) for key in named if key not in view.entries]
    if not named and not found:
        missing = ["any key" if prefix is None else f"any key that begins with {printable(prefix)}"]
    for what in missing:
        click.echo(f"not found: {what} (in all records below offset {view.offset})", err=True)
    return EXIT_NOT_FOUND if missing else 0


def wants_of(keys: list[bytes], prefix: str) -> Callable[[bytes], bool]:
    """The test of a key: is it one of these; without any, does it begin with the prefix."""
    if keys:
        return frozenset(keys).__contains__
    beginning = os.fsencode(prefix)
    return lambda key: key.startswith(beginning)


async def _read(
    target: Target,
    key_filter: Callable[[bytes], bool],
    *,
    min_offset: int,
    linearizable: bool,
    timeout_ms: int,
) -> KeyValueMap:
    from quorumd.client.client import LATEST
    from quorumd.client.conditional import NO_TIMESTAMP
    from quorumd.client.view import KeyValueMap
    from quorumd.wire.records import Record

    view = KeyValueMap(key_filter=key_filter)
    async with target.client(timeout_ms) as client:
        if linearizable:
            # Without a time it is taken, however far the clocks are apart.
            (offset,) = await client.append([Record(timestamp=NO_TIMESTAMP, value=NO_OP)])
            committed_offset = offset + 1
        else:
            committed_offset = (await client.list_offsets(LATEST)).offset
        end_offset = max(committed_offset, min_offset + 1)
        await read_key_value_state(client, view, committed_offset, end_offset)
    return view


def _show_value(found: KeyChange, end_offset: int) -> None:
    sys.stdout.write(printable(found.value) + "\n")


def _show_text(found: KeyChange, end_offset: int) -> None:
    sys.stdout.write(f"{printable(found.key)}\t{printable(found.value)}\n")


def _show_json(found: KeyChange, end_offset: int) -> None:
    sys.stdout.write(to_json(change_as_dict(found) | {"if_unchanged_since": end_offset}) + "\n")


def _show_raw(found: KeyChange, end_offset: int) -> None:
    if found.value is not None:
        sys.stdout.buffer.write(found.value + b"\n")


def change_as_dict(change: KeyChange) -> dict[str, Any]:
    """A key for programs; the time is ms since 1970."""
    return {
        "key": jsonable(change.key),
        "value": jsonable(change.value),
        "offset": change.offset,
        "timestamp": change.timestamp,
    }
