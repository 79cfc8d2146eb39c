"""`quorumctl tail`: print committed records, the last ones, a range, or everything as it comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from quorumd.cli.options import (
    OFFSET,
    Count,
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import (
    OUTAGE_OVER,
    jsonable,
    outage_text,
    printable,
    timestamp_text,
    to_json,
    unreadable_text,
)

if TYPE_CHECKING:
    from quorumd.client.client import QuorumClient
    from quorumd.client.reading import Fetched, FetchedBatch
    from quorumd.wire.records import Record

LINES_DEFAULT = 10
_FOLLOW_WAIT_MS = 5000
_OUTAGE_PAUSE_S = 1.0

_HELP = """Print committed records.

Without an option for the beginning these are the last 10. Only what a majority has on disk is
shown, in the order of the log. Control records of the quorum itself are left out, so offsets may
jump.

--follow goes on with new records, also when the leader changes or no node can be reached for a while;
Ctrl-C ends it.

\b
--output text   offset, key and value, separated by tabs; control characters and bytes that
                are no UTF-8 as escapes (\\n, \\x00), a missing key or value as <null>
--output json   one object per line; bytes that are no UTF-8 as {"base64": "..."}
--output raw    the values alone, exactly as they are, a line feed behind each

\b
Examples:
  quorumctl tail -b localhost:9093
  quorumctl tail --from-beginning --output json > everything.jsonl
  quorumctl tail --from-offset 1000 --max-records 50
  quorumctl tail --follow --timestamps
"""


class TailRange:
    """The range to read, as the options say: its beginning, and when to stop."""

    def __init__(
        self, *, from_offset: int | None, lines: int, max_records: int | None, follow: bool
    ) -> None:
        self.from_offset = from_offset
        self.lines = lines
        self.max_records = max_records
        self.follow = follow


@click.command(help=_HELP, short_help="Print committed records.")
@quorum_options
@click.option("--from-offset", type=OFFSET, metavar="OFFSET", help="Begin at this offset.")
@click.option("--from-beginning", is_flag=True, help="Begin at the start of the log.")
@click.option(
    "--lines",
    "-n",
    type=Count(min=0),
    default=LINES_DEFAULT,
    show_default=True,
    help="Else begin with so many records before the end.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on with new records until Ctrl-C.")
@click.option("--max-records", type=Count(min=1), help="Stop after so many records.")
@click.option("--timestamps", is_flag=True, help="Show each record's time, too (text).")
@click.option("--headers", is_flag=True, help="Show each record's headers, too (text).")
@output_option("text", "json", "raw")
@timeout_option
@click.pass_context
def tail(
    context: click.Context,
    target: Target,
    from_offset: int | None,
    from_beginning: bool,
    lines: int,
    follow: bool,
    max_records: int | None,
    timestamps: bool,
    headers: bool,
    output: str,
    timeout_s: float,
) -> None:
    """Reads until the end, or for ever."""
    if from_beginning and from_offset is not None:
        raise click.UsageError("--from-offset and --from-beginning exclude each other.")
    if from_beginning:
        from_offset = -1
    is_given = context.get_parameter_source("lines") is ParameterSource.COMMANDLINE
    if is_given and from_offset is not None:
        raise click.UsageError(
            "--lines counts from the end of the log, and --from-offset and --from-beginning do not: to stop "
            "after so many records give --max-records."
        )
    wanted = TailRange(from_offset=from_offset, lines=lines, max_records=max_records, follow=follow)
    show = {
        "json": _show_json,
        "raw": _show_raw,
        "text": _text_printer(timestamps=timestamps, headers=headers),
    }[output]
    run_async(_tail(target, wanted, show, to_ms(timeout_s)))


RecordPrinter = Callable[["Record", "FetchedBatch"], None]


async def _tail(target: Target, wanted: TailRange, show: RecordPrinter, timeout_ms: int) -> None:
    from quorumd.client.client import LATEST

    async with target.client(timeout_ms) as client:
        end_offset = (await client.list_offsets(LATEST)).offset
        offset = await _first_offset(client, wanted, end_offset)
        left = wanted.max_records
        is_lost = False
        while wanted.follow or offset < end_offset:
            fetched = await _fetch(client, offset, follow=wanted.follow, is_quiet=is_lost)
            if fetched is None:
                is_lost = True
                continue
            if is_lost:
                click.echo(OUTAGE_OVER, err=True)
                is_lost = False
            offset = fetched.next_offset
            limit = None if wanted.follow else end_offset
            left = _show_all(fetched, limit, left, show)
            sys.stdout.flush()
            if left == 0:
                return


async def _first_offset(client: QuorumClient, wanted: TailRange, end_offset: int) -> int:
    from quorumd.client.client import EARLIEST

    if wanted.from_offset is not None and wanted.from_offset >= 0:
        return wanted.from_offset
    start_offset = (await client.list_offsets(EARLIEST)).offset
    if wanted.from_offset is not None:
        return start_offset
    # Control records have offsets, too: reaches back further until there are enough others.
    reach = wanted.lines
    while True:
        first = max(start_offset, end_offset - reach)
        offsets = [
            record.offset
            async for fetched in client.read(first, end_offset)
            for record in fetched.records
            if record.offset < end_offset
        ]
        if len(offsets) >= wanted.lines or first == start_offset:
            kept = offsets[-wanted.lines :]
            return kept[0] if kept else end_offset
        reach *= 2


async def _fetch(
    client: QuorumClient, offset: int, *, follow: bool, is_quiet: bool
) -> Fetched | None:
    """The next records; None if a follower has to wait for the quorum to come back.

    That is said once, not each time: `is_quiet`.
    """
    from quorumd.client.client import FETCH_WAIT_MS_DEFAULT
    from quorumd.client.errors import QuorumUnavailable
    from quorumd.security.errors import CertificateProblem

    try:
        wait_ms = _FOLLOW_WAIT_MS if follow else FETCH_WAIT_MS_DEFAULT
        return await client.fetch(offset, max_wait_ms=wait_ms)
    except (QuorumUnavailable, CertificateProblem) as error:
        if not follow:
            raise
        if not is_quiet:
            click.echo(outage_text(error), err=True)
        if isinstance(error, CertificateProblem):
            # The error comes at once: without a pause it would fill the terminal.
            await asyncio.sleep(_OUTAGE_PAUSE_S)
        return None


def _show_all(
    fetched: Fetched, limit: int | None, left: int | None, show: RecordPrinter
) -> int | None:
    """Shows records below `limit`, at most `left`; returns how many more are wanted."""
    for batch in fetched.batches:
        if batch.problem is not None:
            first, last = batch.header.base_offset, batch.header.last_offset
            click.echo(unreadable_text(first, last, batch.problem), err=True)
        for record in batch.records:
            if left == 0 or (limit is not None and record.offset >= limit):
                return left
            show(record, batch)
            if left is not None:
                left -= 1
    return left


def _text_printer(*, timestamps: bool, headers: bool) -> RecordPrinter:
    def show(record: Record, batch: FetchedBatch) -> None:
        cells = [str(record.offset)]
        if timestamps:
            cells.append(timestamp_text(record.timestamp))
        cells += (printable(record.key), printable(record.value))
        if headers:
            cells += (f"{printable(name)}={printable(value)}" for name, value in record.headers)
        sys.stdout.write("\t".join(cells) + "\n")

    return show


def _show_json(record: Record, batch: FetchedBatch) -> None:
    sys.stdout.write(to_json(record_as_dict(record, epoch=batch.header.epoch)) + "\n")


def _show_raw(record: Record, batch: FetchedBatch) -> None:
    if record.value is not None:
        sys.stdout.buffer.write(record.value + b"\n")


def record_as_dict(record: Record, *, epoch: int) -> dict[str, Any]:
    """A record for programs; times are ms since 1970."""
    return {
        "offset": record.offset,
        "epoch": epoch,
        "timestamp": record.timestamp,
        "key": jsonable(record.key),
        "value": jsonable(record.value),
        "headers": [[jsonable(name), jsonable(value)] for name, value in record.headers],
    }
