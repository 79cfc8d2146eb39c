"""Sources of the page about a node: callables without side effects, called for each request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quorumd.config.model import Config
from quorumd.config.tls import ClientAuth
from quorumd.config.tls_port import HTTP, TlsPort
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView, SnapshotWork
from quorumd.server.model.peer_calls import AskLeader
from quorumd.server.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """`status` is fit for JSON; `unreachable` are ids; `snapshot_path` is that of the newest, if any."""

    view: PartitionView
    leader_id: Callable[[], int | None]
    """The leader, if it has responded to this node lately; else None."""
    metrics: Metrics
    status: Callable[[], Mapping[str, object]]
    problems: Callable[[], list[str]]
    warnings: Callable[[], list[str]]
    snapshot_problem: Callable[[], str]
    unreachable: Callable[[], Collection[int]]
    snapshot_work: Callable[[], SnapshotWork]
    snapshot_path: Callable[[], Path | None]
    log_bytes: Callable[[], int]
    ask_leader: AskLeader
    storage_dir: Path
    claims_withheld: str
    """The reason why whoever sees the page may not see who holds names; empty if nothing is against it."""
    segment_bytes: int
    fetch_timeout_ms: int


def source_of(
    partition: Partition,
    config: Config,
    status: Callable[[], Mapping[str, object]],
    warnings: Callable[[], list[str]],
) -> PageSource:
    """Everything from a partition, and `/status` and warnings of its node."""
    node, snapshots = partition.node, partition.snapshots

    def leader_id() -> int | None:
        known = partition.view.leader_id
        return known if partition.view.is_leader or node.has_leader_contact else None

    def snapshot_path() -> Path | None:
        newest = node.newest_snapshot
        return None if newest is None else partition.store.path(newest)

    return PageSource(
        view=partition.view,
        leader_id=leader_id,
        metrics=partition.metrics,
        status=status,
        problems=partition.health.problems,
        warnings=warnings,
        snapshot_problem=lambda: snapshots.problem,
        unreachable=lambda: node.status().unreachable,
        snapshot_work=snapshots.work,
        snapshot_path=snapshot_path,
        log_bytes=lambda: partition.log.size_bytes,
        ask_leader=partition.outbound.ask_leader,
        storage_dir=config.storage_dir,
        claims_withheld=claims_withheld(config.tls_ports),
        segment_bytes=config.log_segment_bytes,
        fetch_timeout_ms=config.quorum_fetch_timeout_ms,
    )


def claims_withheld(tls_ports: Iterable[TlsPort]) -> str:
    """The reason why a page does not show claims: clients without a certificate would see them."""
    needs = {port.name for port in tls_ports if port.tls.ssl_client_auth is ClientAuth.REQUIRED}
    if not needs or HTTP in needs:
        return ""
    return (
        "The log is for clients with a certificate alone, and this page is for everybody: "
        "http.ssl.client.auth: required shows them here. `quorumctl locks` prints them."
    )
