"""`quorumctl snapshot`: have the voters take a snapshot now."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from quorumd.cli.options import (
    TIMEOUT,
    Target,
    output_option,
    quorum_options,
    run_async,
    to_ms,
)
from quorumd.cli.program import EXIT_FAILED
from quorumd.cli.text import aligned, to_json

if TYPE_CHECKING:
    from quorumd.client.snapshot_admin import TakenSnapshot


_HELP = """Have every voter take a snapshot of all that is committed, now.

Nodes take snapshots by themselves, by the amount of new records and by time
(snapshot.max.new.record.bytes, snapshot.interval.ms). Use the command before an upgrade or a backup, or
to let retention delete history at once. The newest records may be left to the next snapshot.

\b
Examples:
  quorumctl snapshot -b localhost:9093
  quorumctl snapshot --output json

Exit codes: 0 all have one, 1 a voter could not take it.
"""


@click.command(help=_HELP, short_help="Have the voters take a snapshot now.")
@quorum_options
@click.option(
    "--timeout",
    "timeout_s",
    type=TIMEOUT,
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to wait for it; the nodes go on if it takes longer.",
)
@output_option("text", "json")
def snapshot(target: Target, timeout_s: float, output: str) -> int:
    """Returns the exit code."""
    taken = run_async(_take(target, to_ms(timeout_s)))
    if output == "json":
        click.echo(to_json([asdict(each) for each in taken]))
    else:
        rows = [
            ("ReplicaId", "Address", "EndOffset", "Epoch", "Bytes", "Problem"),
            *map(_row, taken),
        ]
        for line in aligned(rows):
            click.echo(line)
    return EXIT_FAILED if any(each.problem for each in taken) else 0


def _row(taken: TakenSnapshot) -> tuple[str, ...]:
    figures = (taken.end_offset, taken.epoch, taken.size_bytes)
    shown = ("-" if figure < 0 else f"{figure}" for figure in figures)
    return (str(taken.replica_id), taken.address, *shown, taken.problem or "-")


async def _take(target: Target, timeout_ms: int) -> list[TakenSnapshot]:
    from quorumd.client.snapshot_admin import take_snapshots

    async with target.client(timeout_ms) as client:
        return await take_snapshots(client, timeout_ms)
