"""`quorumctl txn`: several changes as one batch, all or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumd.cli.options import OFFSET, Target, output_option, quorum_options, timeout_option, to_ms
from quorumd.cli.put import JsonFormat, json_of
from quorumd.cli.whole_batch import append_whole, read_whole

if TYPE_CHECKING:
    from quorumd.wire.records import Record

_HELP = """Change several keys at once, all or none, and wait until a majority has that on disk.

The file, or standard input for -, is one JSON object:

\b
{"if_unchanged_since": 12,
 "unchanged": ["config/version"],
 "changes": [{"key": "jobs/17", "value": "done"}, {"key": "jobs/17/owner", "value": null}]}

Nothing is changed unless all these keys, and those of "unchanged", are as they were at that offset: no record
with such a key is at the offset or behind it. `get --output json` prints the offset with each key. Without
an offset there is no condition. null deletes, and {"base64": "..."} stands for bytes that are no text. All
changes together are one batch, at most log.max.batch.bytes.

\b
Exit code: 0 done, 4 if a key has changed: stderr says which, and the offset of its newer value.

\b
Examples:
  quorumctl txn --file changes.json
  quorumctl txn --file changes.json --if-unchanged-since 12
"""


@click.command(help=_HELP, short_help="Change several keys at once.")
@quorum_options
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    required=True,
    help="Read the changes from this file.",
)
@click.option(
    "--if-unchanged-since",
    "since",
    type=OFFSET,
    metavar="OFFSET",
    help="The offset of the condition, instead of the one in the file.",
)
@output_option("text", "json")
@timeout_option
def txn(target: Target, path: str, since: int | None, output: str, timeout_s: float) -> int:
    """Appends the changes as one batch; returns the exit code."""
    records, named, in_file = _changes(read_whole(path))
    since = in_file if since is None else since
    if since is None and named:
        raise click.ClickException('"unchanged" needs an offset, in "if_unchanged_since"')
    return append_whole(target, records, since, named, output=output, timeout_ms=to_ms(timeout_s))


def _changes(text: bytes) -> tuple[list[Record], list[bytes], int | None]:
    """Records, further keys, and the offset. Raises ClickException."""
    try:
        members = json_of(text)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"the file is no JSON ({error})") from None
    known = ("if_unchanged_since", "unchanged", "changes")
    if not isinstance(members, dict) or not members.keys() <= {*known}:
        raise click.ClickException(f"expected an object with these members: {', '.join(known)}")
    since, named = members.get("if_unchanged_since"), members.get("unchanged", [])
    changes = members.get("changes")
    if not isinstance(changes, list) or not changes:
        raise click.ClickException('"changes" must be a list with a change or more')
    if not isinstance(named, list):
        raise click.ClickException('"unchanged" must be a list of keys')
    if since is not None and (type(since) is not int or since < 0):
        raise click.ClickException('"if_unchanged_since" must be an offset from 0 on')
    changes_format, keys_format = JsonFormat("change"), JsonFormat("unchanged key")
    records = [changes_format.record_of(change) for change in changes]
    return records, [keys_format.key_of(key) for key in named], since
