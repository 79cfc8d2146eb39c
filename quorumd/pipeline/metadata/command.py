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

_END = (1 << 63) - 1

_HELP = """Show the metadata records in the log of a Kafka controller, a line of JSON each.

DIR is its metadata.log.dir, or the __cluster_metadata-0 directory in it. The fields are those of Kafka's
own kafka-dump-log. Salt and keys of SCRAM credentials are redacted, and so is the value of every config
that is not known to be harmless. A record that is no metadata of Kafka has type null.

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
    """METADATA, in the order of the log. Raises BadOption, DamagedBatch, StorageError."""
    from quorumd.pipeline.errors import BadOption
    from quorumd.pipeline.files import find_replicas, plan_segment, read_rows
    from quorumd.pipeline.metadata import metadata_rows

    replicas = find_replicas([directory])
    if len(replicas) > 1:
        raise BadOption(f"{directory} has {len(replicas)} replicas: name one of them")
    for segment in replicas[0].segments:
        plan = plan_segment(segment)
        for each in plan.ranges:
            for records in read_rows("records", each, 0, _END):
                yield metadata_rows(records, show_secrets=show_secrets)
        if plan.damages:
            raise plan.damages[0]


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
