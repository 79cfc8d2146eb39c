"""`quorumctl describe`: the state of a quorum, and how far each replica has come.

Source of rows and columns: KIP-595 "Tooling Support"; KIP-856, "--describe".
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.options import (
    bootstrap_option,
    output_option,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import aligned, to_json

if TYPE_CHECKING:
    from quorumd.client.addresses import Address
    from quorumd.client.description import QuorumDescription, ReplicaState

_LABEL_WIDTH = 24
_COLUMNS = ("ReplicaId", "ReplicaUuid", "LogEndOffset", "Lag", "LagTimeMs", "Status")
_TABLE_WIDTH_MIN = 100
_COLOURS = {"Leader": "green", "Follower": "", "Observer": "dim"}

_HELP = """Show the state of a quorum, as its leader sees it.

--status (the default) shows who leads, in which epoch, up to which offset the log is committed, how
far the slowest voter is behind, and who votes. CouldBeVoters are the observers that can be added to
the voters.

--replication shows one line for each replica. Lag is the number of offsets that it is behind the
leader's log end; LagTimeMs is for how long it has not been caught up (-1: not known).

Works for a real Kafka cluster, too: name one of its controllers or brokers.

\b
Examples:
  quorumctl describe -b localhost:9093
  quorumctl describe -b localhost:9093 --replication
  quorumctl describe --output json | jq .high_watermark
"""


@click.command(help=_HELP, short_help="Show the state of a quorum.")
@bootstrap_option
@click.option("--status", "wants_status", is_flag=True, help="A short summary (the default).")
@click.option("--replication", "wants_replication", is_flag=True, help="One line per replica.")
@output_option("text", "json")
@timeout_option
def describe(
    servers: tuple[Address, ...],
    wants_status: bool,
    wants_replication: bool,
    output: str,
    timeout_s: float,
) -> None:
    """Asks the leader and prints what it says."""
    description = run_async(_ask(servers, to_ms(timeout_s)))
    if output == "json":
        click.echo(to_json(description_as_dict(description)))
        return
    if wants_status or not wants_replication:
        for line in status_lines(description):
            click.echo(line)
    if wants_status and wants_replication:
        click.echo()
    if wants_replication:
        _show_replication(description)


async def _ask(servers: tuple[Address, ...], timeout_ms: int) -> QuorumDescription:
    from quorumd.client.client import QuorumClient

    async with QuorumClient(servers, timeout_ms=timeout_ms) as client:
        return await client.describe_quorum()


def status_lines(description: QuorumDescription) -> list[str]:
    """The rows of --status; replicas have one line each."""
    rows = [
        ("ClusterId:", description.cluster_id or "(none yet)"),
        ("LeaderId:", str(description.leader_id)),
        ("LeaderEpoch:", str(description.leader_epoch)),
        ("HighWatermark:", str(description.high_watermark)),
        ("MaxFollowerLag:", str(description.max_follower_lag)),
        ("MaxFollowerLagTimeMs:", str(description.max_follower_lag_time_ms)),
        *_replica_rows("CurrentVoters:", description.voters),
        *_replica_rows("CouldBeVoters:", description.could_be_voters),
    ]
    return [f"{label:{_LABEL_WIDTH}}{value}".rstrip() for label, value in rows]


def _replica_rows(label: str, replicas: tuple[ReplicaState, ...]) -> list[tuple[str, str]]:
    if not replicas:
        return [(label, "(none)")]
    cells = [(str(replica.key.id), uuid_cell(replica), _endpoints(replica)) for replica in replicas]
    return [(label if not row else "", line) for row, line in enumerate(aligned(cells))]


def _endpoints(replica: ReplicaState) -> str:
    return " ".join(f"{each.name}://{each.host}:{each.port}" for each in replica.endpoints)


def uuid_cell(replica: ReplicaState) -> str:
    """The storage uuid in Kafka's text form; `-` if the leader does not know it."""
    from raft.types import uuid_to_text

    return "-" if replica.key.uuid is None else uuid_to_text(replica.key.uuid)


def replication_rows(description: QuorumDescription) -> list[tuple[str, ...]]:
    """The rows of --replication: the leader, the other voters by id, the observers by id."""
    voters = sorted(
        description.voters, key=lambda each: (each is not description.leader, each.key.sort_key())
    )
    observers = sorted(description.observers, key=lambda each: each.key.sort_key())
    return [
        (
            str(replica.key.id),
            uuid_cell(replica),
            str(replica.log_end_offset),
            str(description.lag(replica)),
            str(description.lag_time_ms(replica)),
            description.status_of(replica),
        )
        for replica in (*voters, *observers)
    ]


def _show_replication(description: QuorumDescription) -> None:
    rows = replication_rows(description)
    if not sys.stdout.isatty():
        for line in aligned([_COLUMNS, *rows]):
            click.echo(line)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in _COLUMNS:
        is_number = column in ("LogEndOffset", "Lag", "LagTimeMs")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row, style=_COLOURS[row[-1]])
    # A narrower terminal wraps the lines: a shortened uuid would be of no use.
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH_MIN)
    console.print(table)


def description_as_dict(description: QuorumDescription) -> dict[str, Any]:
    """Everything that is known, for programs."""
    return {
        "cluster_id": description.cluster_id,
        "leader_id": description.leader_id,
        "leader_epoch": description.leader_epoch,
        "high_watermark": description.high_watermark,
        "max_follower_lag": description.max_follower_lag,
        "max_follower_lag_time_ms": description.max_follower_lag_time_ms,
        "voters": [_replica_as_dict(description, each) for each in description.voters],
        "observers": [_replica_as_dict(description, each) for each in description.observers],
        "could_be_voters": [
            {"replica_id": each.key.id, "replica_uuid": uuid_cell(each)}
            for each in description.could_be_voters
        ],
        "asked_at_ms": int(time.time() * 1000),
    }


def _replica_as_dict(description: QuorumDescription, replica: ReplicaState) -> dict[str, Any]:
    return {
        "replica_id": replica.key.id,
        "replica_uuid": None if replica.key.uuid is None else uuid_cell(replica),
        "log_end_offset": replica.log_end_offset,
        "lag": description.lag(replica),
        "lag_time_ms": description.lag_time_ms(replica),
        "last_fetch_timestamp_ms": replica.last_fetch_timestamp_ms,
        "last_caught_up_timestamp_ms": replica.last_caught_up_timestamp_ms,
        "status": description.status_of(replica),
        "endpoints": [
            {"name": each.name, "host": each.host, "port": each.port} for each in replica.endpoints
        ],
    }
