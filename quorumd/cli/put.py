"""`quorumctl put` and `quorumctl delete`: set keys and delete them."""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.append import AppendJob, LineFormat, RecordFormat, opened
from quorumd.cli.options import (
    bootstrap_option,
    output_option,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import printable, to_json

if TYPE_CHECKING:
    from quorumd.raft.types import Address
    from quorumd.wire.records import Record

_PUT_HELP = """Set a key, or many, and wait until a majority has it on disk.

Prints the offset of the last record. A record reported as put is never lost, and each is appended once
even if the leader changes meanwhile.

--file reads one key from each line, and - is standard input. The file is not
put atomically: lines before a wrong one are put.

\b
--format tab    KEY, a tab, VALUE, as they are; the value may hold further tabs
--format json   {"key": ..., "value": ...}, as `get --output json` prints them; other members are
                ignored. {"base64": "..."} stands for bytes that are no text, null deletes

A value that begins with - needs -- before the key.

\b
Examples:
  quorumctl put color blue
  quorumctl put -b localhost:9093 -- temperature -5
  quorumctl put --file settings.tsv
  quorumctl get --all -o json | quorumctl put -b other:9093 --file - --format json
  quorumctl get color --min-offset $(quorumctl put color red)
"""

_DELETE_HELP = """Delete keys, and wait until a majority has that on disk.

Appends a record with a null value for each KEY, and prints the offset of the last one. A key that does
not exist may be deleted, too.

\b
Examples:
  quorumctl delete color
  quorumctl delete -b localhost:9093 jobs/17 jobs/18
"""


@click.command(help=_PUT_HELP, short_help="Set keys.")
@bootstrap_option
@click.argument("arguments", nargs=-1, metavar="[KEY VALUE]")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    help="Read keys and values from this file.",
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(("tab", "json")),
    default="tab",
    show_default=True,
    help="Format of a line of the file.",
)
@output_option("text", "json")
@timeout_option
def put(
    servers: tuple[Address, ...],
    arguments: tuple[str, ...],
    path: str | None,
    line_format: str,
    output: str,
    timeout_s: float,
) -> None:
    """Appends records with keys."""
    if path is None and len(arguments) != 2:
        raise click.UsageError("give a KEY and a VALUE, or --file.")
    if path is not None and arguments:
        raise click.UsageError("give either KEY and VALUE or --file, not both.")
    if path is not None:
        record_format: RecordFormat = JsonFormat() if line_format == "json" else TabFormat()
        _run(AppendJob(servers, record_format, timeout_ms=to_ms(timeout_s)), path, [], output)
        return
    key, value = map(os.fsencode, arguments)
    if not key:
        raise click.UsageError("the KEY is empty; is a variable of a script not set?")
    record_format = LineFormat(key=key, key_separator=None, null_value=None, headers=())
    _run(AppendJob(servers, record_format, timeout_ms=to_ms(timeout_s)), None, [value], output)


@click.command(help=_DELETE_HELP, short_help="Delete keys.")
@bootstrap_option
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@output_option("text", "json")
@timeout_option
def delete(
    servers: tuple[Address, ...], keys: tuple[str, ...], output: str, timeout_s: float
) -> None:
    """Appends a record without a value for each key."""
    job = AppendJob(servers, DeletionFormat(), timeout_ms=to_ms(timeout_s))
    _run(job, None, [os.fsencode(key) for key in keys], output)


def _run(job: AppendJob, path: str | None, lines: list[bytes], output: str) -> None:
    """Appends the lines of a file, or those given, and prints the last offset."""
    try:
        if path is None:
            run_async(job.append_lines(lines))
        else:
            with opened(path) as descriptor:
                run_async(job.append_stream(descriptor))
    except KeyboardInterrupt:
        click.echo(f"interrupted: {job.acknowledged_text()}", err=True)
        raise
    if output == "json":
        click.echo(to_json(job.as_dict()))
    elif not job.count:
        click.echo("nothing to put: the input was empty", err=True)
    else:
        click.echo(job.last_offset)


@dataclass(slots=True)
class DeletionFormat:
    """Each line is a key."""

    def record(self, line: bytes) -> Record:
        from quorumd.wire.records import Record

        return Record(key=line, value=None)


@dataclass(slots=True)
class TabFormat:
    """A key, a tab, a value."""

    _line_number: int = 0

    def record(self, line: bytes) -> Record:
        """Raises ClickException if there is no tab or no key."""
        from quorumd.wire.records import Record

        self._line_number += 1
        key, tab, value = line.partition(b"\t")
        if not tab:
            raise _wrong(
                self._line_number, f"{printable(line[:60])!r} has no tab between key and value"
            )
        if not key:
            raise _wrong(self._line_number, "the key is empty")
        return Record(key=key, value=value)


@dataclass(slots=True)
class JsonFormat:
    """An object with key and value."""

    _line_number: int = 0

    def record(self, line: bytes) -> Record:
        """Raises ClickException if it is no JSON, or a member is missing or of another kind."""
        from quorumd.wire.records import Record

        self._line_number += 1
        try:
            members = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(
                self._line_number, f"{printable(line[:60])!r} is no JSON ({error})"
            ) from None
        if not isinstance(members, dict) or not {"key", "value"} <= members.keys():
            raise _wrong(self._line_number, 'expected an object with "key" and "value"')
        key, value = self._bytes("key", members["key"]), self._bytes("value", members["value"])
        if not key:
            raise _wrong(self._line_number, "the key is empty")
        return Record(key=key, value=value)

    def _bytes(self, name: str, member: Any) -> bytes | None:
        """The inverse of `text.jsonable`."""
        if member is None:
            return None
        if isinstance(member, str):
            try:
                return member.encode()
            except UnicodeEncodeError:
                raise _wrong(self._line_number, f"the {name} holds half a character") from None
        if isinstance(member, dict) and isinstance(member.get("base64"), str):
            try:
                return base64.b64decode(member["base64"], validate=True)
            except (binascii.Error, ValueError) as error:
                raise _wrong(self._line_number, f"the {name} is no base64 ({error})") from None
        raise _wrong(
            self._line_number,
            f'the {name} is {to_json(member)[:60]}: write it as a string, or as {{"base64": "..."}}',
        )


def _wrong(line_number: int, what: str) -> click.ClickException:
    return click.ClickException(f"line {line_number}: {what}")
