"""`quorumd-pipeline metadata`: the records of a Kafka controller's log, decoded, a line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.text import to_json

if TYPE_CHECKING:
    import pyarrow as pa

_HELP = """Show the metadata records in the log of a Kafka controller, a line of JSON each.

DIR is its metadata.log.dir, or the __cluster_metadata-0 directory in it. What a snapshot holds comes first
if the log begins with one. The fields are those of Kafka's own kafka-dump-log. Salt and keys of SCRAM
credentials are redacted, and so is the value of every config that is not known to be harmless. A record
that is no metadata of Kafka has type null.

\b
Examples:
  quorumd-pipeline metadata /var/lib/kafka/metadata
  quorumd-pipeline metadata /var/lib/kafka/metadata | jq 'select(.type == "TopicRecord")'
"""


@click.command(help=_HELP, short_help="Show the metadata records in a Kafka controller's log.")
@click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--show-secrets", is_flag=True, help="Show credentials and every config.")
def metadata(directory: Path, show_secrets: bool) -> int:
    """The subcommand."""
    for rows in _rows(directory, show_secrets):
        for row in rows.to_pylist():
            click.echo(to_json(_line(row)))
    return 0


def _rows(directory: Path, show_secrets: bool) -> Iterator[pa.RecordBatch]:
    """METADATA, what a snapshot holds first, then the log. Raises BadOption, DamagedBatch, StorageError."""
    from quorumd.pipeline.errors import BadOption
    from quorumd.pipeline.metadata import metadata_rows
    from quorumd.pipeline.source.offset_range import batch_range
    from quorumd.pipeline.source.options import parse_options
    from quorumd.pipeline.source.views import viewing

    options = parse_options({"paths": json.dumps([str(directory)])})
    with viewing(options) as view:
        bounds, *others = view.bounds()
        if others:
            raise BadOption(f"{directory} has {len(others) + 1} replicas: name one of them")
        offsets = batch_range(options, bounds, view.offset_lookup(bounds))
        for split in view.splits([(bounds, offsets)]):
            for records in split.read(options):
                yield metadata_rows(records, show_secrets=show_secrets)


def _line(row: dict[str, Any]) -> dict[str, Any]:
    text, time = row["json"], row["timestamp"]
    return {
        "offset": row["offset"],
        "timestamp": None if time is None else time.isoformat(timespec="milliseconds"),
        "epoch": row["epoch"],
        "type": row["type_name"],
        "version": row["version"],
        "data": None if text is None else json.loads(text),
    }
