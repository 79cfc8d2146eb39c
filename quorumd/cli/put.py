"""`quorumctl put` and `quorumctl delete`: set keys and delete them."""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.append import AppendJob, LineFormat, RecordFormat, opened
from quorumd.cli.options import (
    OFFSET,
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import printable, to_json
from quorumd.cli.whole_batch import append_whole, read_whole

if TYPE_CHECKING:
    from quorumd.wire.records import Record

_PUT_HELP = """Set a key, or many, and wait until a majority has it on disk.

Prints the offset of the last record. A record reported as put is never lost, and each is appended once
even if the leader changes meanwhile.

--file reads one key from each line, and - is standard input. Without a condition the file is not put
at once: lines before a wrong one are put.

\b
--format tab    KEY, a tab, VALUE, as they are; the value may hold further tabs
--format json   {"key": ..., "value": ...}, as `get --output json` prints them; other members are
                ignored. {"base64": "..."} stands for bytes that are no text, null deletes

A value that begins with - needs -- before the key.

\b
--if-unchanged-since   puts all keys at once, or none, if nothing with one of them is at this
                       offset or behind it; `get --with-offset` prints it
--if-absent            puts all keys at once, or none, if none of them has a value

\b
Exit code: 0 done, 4 if a key has changed, or is there: stderr says which, and its offset.

\b
Examples:
  quorumctl put color blue
  quorumctl put color red --if-unchanged-since 12
  quorumctl put --if-absent owner $HOSTNAME
  quorumctl put -b localhost:9093 -- temperature -5
  quorumctl put --file settings.tsv
  quorumctl get --all -o json | quorumctl put -b other:9093 --file - --format json
  quorumctl get color --min-offset $(quorumctl put color red)
"""

_DELETE_HELP = """Delete keys, and wait until a majority has that on disk.

Appends a record with a null value for each KEY, and prints the offset of the last one. A key that does
not exist may be deleted, too. With --if-unchanged-since all are deleted, or none: exit code 4 if something
with one of the keys is at that offset or behind it.

\b
Examples:
  quorumctl delete color
  quorumctl delete color --if-unchanged-since 12
  quorumctl delete -b localhost:9093 jobs/17 jobs/18
"""


_since_option = click.option(
    "--if-unchanged-since",
    "since",
    type=OFFSET,
    metavar="OFFSET",
    help="Only if nothing was written to the keys at this offset or later.",
)


@click.command(help=_PUT_HELP, short_help="Set keys.")
@quorum_options
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
@_since_option
@click.option("--if-absent", is_flag=True, help="Only if the keys have no value.")
@output_option("text", "json")
@timeout_option
def put(
    target: Target,
    arguments: tuple[str, ...],
    path: str | None,
    line_format: str,
    since: int | None,
    if_absent: bool,
    output: str,
    timeout_s: float,
) -> int:
    """Appends records with keys; returns the exit code."""
    if path is None and len(arguments) != 2:
        raise click.UsageError("give a KEY and a VALUE, or --file.")
    if path is not None and arguments:
        raise click.UsageError("give either KEY and VALUE or --file, not both.")
    if since is not None and if_absent:
        raise click.UsageError("give either --if-unchanged-since or --if-absent, not both.")
    lines: list[bytes] = []
    record_format: RecordFormat = JsonFormat() if line_format == "json" else TabFormat()
    if path is None:
        key, value = map(os.fsencode, arguments)
        if not key:
            raise click.UsageError("the KEY is empty; is a variable of a script not set?")
        record_format = LineFormat(key=key, key_separator=None, null_value=None, headers=())
        lines = [value]
    if since is None and not if_absent:
        _run(AppendJob(target, record_format, timeout_ms=to_ms(timeout_s)), path, lines, output)
        return 0
    if path is not None:
        lines = [line.removesuffix(b"\n") for line in BytesIO(read_whole(path))]
    records = [record_format.record(line) for line in lines]
    if not records:
        raise click.ClickException("nothing to put: the input was empty")
    timeout_ms = to_ms(timeout_s)
    return append_whole(
        target, records, since, output=output, timeout_ms=timeout_ms, if_absent=if_absent
    )


@click.command(help=_DELETE_HELP, short_help="Delete keys.")
@quorum_options
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_since_option
@output_option("text", "json")
@timeout_option
def delete(
    target: Target,
    keys: tuple[str, ...],
    since: int | None,
    output: str,
    timeout_s: float,
) -> int:
    """Appends a record without a value for each key; returns the exit code."""
    if since is not None:
        records = [DeletionFormat().record(os.fsencode(key)) for key in keys]
        return append_whole(target, records, since, output=output, timeout_ms=to_ms(timeout_s))
    job = AppendJob(target, DeletionFormat(), timeout_ms=to_ms(timeout_s))
    _run(job, None, [os.fsencode(key) for key in keys], output)
    return 0


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


def json_of(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError also for a name that occurs twice: one would be ignored."""
    return json.loads(text, object_pairs_hook=_object_of)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, member in pairs:
        if name in members:
            raise ValueError(f"the name {name!r} occurs twice in an object")
        members[name] = member
    return members


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
    """An object with key and value. `_what` is what errors call one of them."""

    _what: str = "line"
    _line_number: int = 0

    def record(self, line: bytes) -> Record:
        """Raises ClickException if it is no JSON, or a member is missing or of another kind."""
        self._line_number += 1
        try:
            members = json_of(line)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"{printable(line[:60])!r} is no JSON ({error})") from None
        return self._record_of(members)

    def record_of(self, members: Any) -> Record:
        """The record of the next object. Raises ClickException if it is none."""
        self._line_number += 1
        return self._record_of(members)

    def key_of(self, member: Any) -> bytes:
        """The next key, alone. Raises ClickException if it is none."""
        self._line_number += 1
        key = self._bytes("key", member)
        if not key:
            raise self._wrong("the key is empty")
        return key

    def _record_of(self, members: Any) -> Record:
        from quorumd.wire.records import Record

        if not isinstance(members, dict) or not {"key", "value"} <= members.keys():
            raise self._wrong('expected an object with "key" and "value"')
        key, value = self._bytes("key", members["key"]), self._bytes("value", members["value"])
        if not key:
            raise self._wrong("the key is empty")
        return Record(key=key, value=value)

    def _wrong(self, what: str) -> click.ClickException:
        return _wrong(self._line_number, what, self._what)

    def _bytes(self, name: str, member: Any) -> bytes | None:
        """The inverse of `text.jsonable`."""
        if member is None:
            return None
        if isinstance(member, str):
            try:
                return member.encode()
            except UnicodeEncodeError:
                raise self._wrong(f"the {name} holds half a character") from None
        if isinstance(member, dict) and isinstance(member.get("base64"), str):
            try:
                return base64.b64decode(member["base64"], validate=True)
            except (binascii.Error, ValueError) as error:
                raise self._wrong(f"the {name} is no base64 ({error})") from None
        raise self._wrong(
            f'the {name} is {to_json(member)[:60]}: write it as a string, or as {{"base64": "..."}}',
        )


def _wrong(number: int, what: str, of: str = "line") -> click.ClickException:
    return click.ClickException(f"{of} {number}: {what}")
