"""`quorumctl describe`: the state of a quorum, and how far each replica has come.

Source of rows and columns: KIP-595 "Tooling Support"; KIP-856, "--describe".
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.options import (
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import aligned, duration_text, key_as_dict, printable, to_json
from quorumd.raft.types import Endpoint

if TYPE_CHECKING:
    from quorumd.client.description import PendingQuorumChange, QuorumDescription, ReplicaState
    from quorumd.raft.types import ReplicaKey

_LABEL_WIDTH = 24
_COLUMNS = ("ReplicaId", "ReplicaUuid", "LogEndOffset", "Lag", "LagTimeMs", "Status", "Snapshot")
_STATUS_AT = _COLUMNS.index("Status")
_TABLE_WIDTH_MIN = 100
_COLOURS = {"Leader": "green", "Follower": "", "Observer": "dim"}

_HELP = """Show the state of a quorum, as its leader sees it.

--status (the default) shows leader, epoch, high watermark, the lag of the slowest voter, and the voters.
CouldBeVoters are the observers that can be added to the voters. During a voter change --status also
shows the committed voters (CommittedVoters), the target of a reassignment (TargetVoters), and each
pending change with what it waits for, and since when (PendingChanges).

--replication shows one line for each replica. Lag is the number of offsets from its log end to the
leader's; LagTimeMs is the time since it was caught up (-1: not known). A column Snapshot appears
while a replica downloads a snapshot from the leader, or the leader builds one.

Works for a real Kafka cluster, too: name one of its controllers or brokers.

\b
Examples:
  quorumctl describe -b localhost:9093
  quorumctl describe -b localhost:9093 --replication
  quorumctl describe --output json | jq .high_watermark
"""


@click.command(help=_HELP, short_help="Show the state of a quorum.")
@quorum_options
@click.option("--status", "wants_status", is_flag=True, help="A short summary (the default).")
@click.option("--replication", "wants_replication", is_flag=True, help="One line per replica.")
@output_option("text", "json")
@timeout_option
def describe(
    target: Target,
    wants_status: bool,
    wants_replication: bool,
    output: str,
    timeout_s: float,
) -> None:
    """Asks the leader and prints what it says."""
    description = run_async(_ask(target, to_ms(timeout_s)))
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


async def _ask(target: Target, timeout_ms: int) -> QuorumDescription:
    async with target.client(timeout_ms) as client:
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
        *_replica_rows("CurrentVoters:", description, description.voters),
        *_changing_rows(description),
        *_replica_rows("CouldBeVoters:", description, description.could_be_voters),
    ]
    return [f"{label:{_LABEL_WIDTH}}{value}".rstrip() for label, value in rows]


def _changing_rows(description: QuorumDescription) -> list[tuple[str, str]]:
    """Nothing while no change is under way."""
    committed = description.committed_voters
    rows = [] if committed is None else _rows("CommittedVoters:", aligned(_key_cells(committed)))
    if description.target_voters is not None:
        rows += [("TargetVoters:", ", ".join(map(str, description.target_voters)))]
    return rows + _rows("PendingChanges:", [_pending(each) for each in description.pending_changes])


def _rows(label: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(label if not row else "", line) for row, line in enumerate(lines)]


def _key_cells(keys: tuple[ReplicaKey, ...]) -> list[tuple[str, str]]:
    return [(str(key.id), _uuid_text(key)) for key in keys]


def _pending(change: PendingQuorumChange) -> str:
    who = f" {change.key}" if change.key.id >= 0 else ""
    since = f", for {duration_text(change.waiting_ms / 1000)}" if change.waiting_ms >= 0 else ""
    waits_for = printable(change.waits_for) or "changes that were asked for before"
    return f"{change.kind}{who}{since}: {waits_for}"


def _replica_rows(
    label: str, description: QuorumDescription, replicas: tuple[ReplicaState, ...]
) -> list[tuple[str, str]]:
    if not replicas:
        return [(label, "(none)")]
    cells = [
        (str(each.key.id), uuid_cell(each), _endpoints(each), _silence(description, each))
        for each in replicas
    ]
    return _rows(label, aligned(cells))


def _silence(description: QuorumDescription, replica: ReplicaState) -> str:
    """When a replica that is silent fetched last; nothing where servers don't tell such times."""
    from quorumd.client.replicas import age_text

    leader = description.leader
    if leader is None or leader.last_fetch_timestamp_ms < 0 or description.is_alive(replica):
        return ""
    return age_text(description.silent_ms(replica))


def _endpoints(replica: ReplicaState) -> str:
    return " ".join(str(Endpoint(at.name, at.host, at.port)) for at in replica.endpoints)


def uuid_cell(replica: ReplicaState) -> str:
    """The storage uuid in Kafka's text form; `-` if the leader does not know it."""
    return _uuid_text(replica.key)


def _uuid_text(key: ReplicaKey) -> str:
    from quorumd.raft.types import uuid_to_text

    return "-" if key.uuid is None else uuid_to_text(key.uuid)


def replication_rows(description: QuorumDescription) -> list[tuple[str, ...]]:
    """The rows of --replication: the leader, the other voters by id, the observers by id."""
    voters = sorted(
        description.voters, key=lambda each: (each is not description.leader, each.key.sort_key())
    )
    others = (*description.observers, *description.joining_observers)
    observers = sorted(others, key=lambda each: each.key.sort_key())
    return [
        (
            str(replica.key.id),
            uuid_cell(replica),
            str(replica.log_end_offset),
            str(description.lag(replica)),
            str(description.lag_time_ms(replica)),
            description.status_of(replica),
            _snapshot_cell(description, replica),
        )
        for replica in (*voters, *observers)
    ]


def _snapshot_cell(description: QuorumDescription, replica: ReplicaState) -> str:
    """Work of the replica on a snapshot, as far as the leader knows; empty if there is none."""
    copy, build = description.copy_of(replica), description.snapshot_build
    if copy is not None:
        return f"copying {int(copy.ratio * 100)} %"
    if build is not None and replica is description.leader:
        return f"building {int(build.ratio * 100)} %"
    return ""


def _show_replication(description: QuorumDescription) -> None:
    rows = replication_rows(description)
    columns: tuple[str, ...] = _COLUMNS
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    if not sys.stdout.isatty():
        for line in aligned([columns, *rows]):
            click.echo(line)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        is_number = column in ("LogEndOffset", "Lag", "LagTimeMs")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row, style=_COLOURS[row[_STATUS_AT]])
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
        "observers": [
            _replica_as_dict(description, each)
            for each in (*description.observers, *description.joining_observers)
        ],
        "could_be_voters": [key_as_dict(each.key) for each in description.could_be_voters],
        "committed_voters": None
        if description.committed_voters is None
        else [key_as_dict(key) for key in description.committed_voters],
        "target_voters": description.target_voters,
        "pending_changes": [_pending_as_dict(each) for each in description.pending_changes],
        "asked_at_ms": int(time.time() * 1000),
    }


def _pending_as_dict(change: PendingQuorumChange) -> dict[str, Any]:
    about = key_as_dict(change.key)
    if change.key.id < 0:
        about["replica_id"] = None
    return {
        "kind": change.kind,
        **about,
        "waiting_ms": None if change.waiting_ms < 0 else change.waiting_ms,
        "waits_for": change.waits_for,
    }


def _snapshot_as_dict(
    description: QuorumDescription, replica: ReplicaState
) -> dict[str, Any] | None:
    copy, build = description.copy_of(replica), description.snapshot_build
    if copy is not None:
        return {
            "doing": "copying",
            "end_offset": copy.end_offset,
            "epoch": copy.epoch,
            "position": copy.position,
            "size_bytes": copy.size_bytes,
        }
    if build is not None and replica is description.leader:
        return {"doing": "building", "end_offset": build.end_offset, "done": build.ratio}
    return None


def _replica_as_dict(description: QuorumDescription, replica: ReplicaState) -> dict[str, Any]:
    return {
        **key_as_dict(replica.key),
        "log_end_offset": replica.log_end_offset,
        "lag": description.lag(replica),
        "lag_time_ms": description.lag_time_ms(replica),
        "last_fetch_timestamp_ms": replica.last_fetch_timestamp_ms,
        "last_caught_up_timestamp_ms": replica.last_caught_up_timestamp_ms,
        "status": description.status_of(replica),
        "snapshot": _snapshot_as_dict(description, replica),
        "endpoints": [
            {"name": each.name, "host": each.host, "port": each.port} for each in replica.endpoints
        ],
    }
