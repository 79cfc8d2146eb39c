"""`quorumd-pipeline state`: keys and values as they were at an offset or a time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from quorumd.cli.options import OFFSET, output_option
from quorumd.cli.text import jsonable, printable, timestamp_text, to_json
from quorumd.pipeline.run_command import master_option
from quorumd.pipeline.session import build_session
from quorumd.pipeline.tables import state_as_of
from quorumd.pipeline.tables.manifests import check_folder

_HELP = """Show every key and its value as they were at an offset or a time, or are now, by key.

DIR is what quorumd-pipeline run or batch has made. Each line of text has the offset, the time, the key and
the value; JSON is one object a line.

\b
Examples:
  quorumd-pipeline state tables
  quorumd-pipeline state tables --as-of-offset 1200
  quorumd-pipeline state tables --as-of-time 2026-11-21T12:00:00Z --output json | jq .key
"""


def _to_time(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time: expected one as 2026-11-21T12:00:00Z"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@click.command(help=_HELP, short_help="Show the state as of an offset or a time.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--as-of-offset",
    type=OFFSET,
    metavar="N",
    help="When the record at this offset was the last one.",
)
@click.option(
    "--as-of-time",
    callback=_to_time,
    metavar="TIME",
    help="Before the first record that is newer; ISO 8601, UTC if it names no zone.",
)
@output_option("text", "json")
@master_option
def state(
    folder: Path,
    as_of_offset: int | None,
    as_of_time: datetime | None,
    output: str,
    master: str | None,
) -> None:
    """The subcommand."""
    if as_of_offset is not None and as_of_time is not None:
        raise click.UsageError("Give --as-of-offset or --as-of-time, not both.")
    check_folder(folder)
    spark = build_session("quorumd-pipeline state", master=master)
    from pyspark.sql.functions import unix_millis

    try:
        found = state_as_of(spark, folder, offset=as_of_offset, time=as_of_time)
        # Python's datetime ends with the year 9999.
        found = found.withColumn("timestamp", unix_millis("timestamp"))
        for row in found.orderBy("key").toLocalIterator():
            key, value = bytes(row.key), bytes(row.value)
            time = None if row.timestamp is None else timestamp_text(row.timestamp)
            if output == "json":
                row_json = {"key": jsonable(key), "value": jsonable(value), "offset": row.offset}
                click.echo(to_json({**row_json, "timestamp": time, "epoch": row.epoch}))
            else:
                click.echo(f"{row.offset:>10}  {time or '-'}  {printable(key)}  {printable(value)}")
    finally:
        spark.stop()
