"""Copies of what the replicas of a live quorum serve, for the audit to go through as through files.

Every node is asked for its own log (quorumd.client.replica_log), up to what the most advanced of them knew
to be committed when the audit began. Nothing of that is ever replaced, so whatever differs is damage, and a
copy needs no second request.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from quorumd.client.client import QuorumClient
from quorumd.client.connector import Connector
from quorumd.client.description import QuorumDescription, ReplicaState
from quorumd.client.errors import QuorumError
from quorumd.client.leader import CONNECT_TIMEOUT_S, cluster_id_of
from quorumd.client.security import Security
from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.replica_copy import CLIENT_ID, ReplicaCopy, ReplicaReader
from quorumd.pipeline.audit.run import AuditReport, BadReplicas, TaskRunner, audit, in_this_process
from quorumd.raft.types import Address, ReplicaKey

OnAuditProgress = Callable[[int, int], object]


@contextmanager
def collected(
    servers: Sequence[Address],
    *,
    timeout_ms: int,
    security: Security | None = None,
    on_offsets: OnAuditProgress = lambda done, total: None,
) -> Iterator[list[ReplicaCopy]]:
    """Copies of all replicas of the quorum, there as long as the context lasts.

    These are the voters, and observers that fetch. `timeout_ms` is how long the leader is searched for, and
    how long a replica may be silent. `on_offsets` is called with the offsets copied and the offsets in total.
    Raises QuorumError if no leader names the replicas, CertificateProblem, BadReplicas for nodes of
    different clusters, StorageError if there is no room.
    """

    async def collect(folder: Path) -> list[ReplicaCopy]:
        async with QuorumClient(
            servers, client_id=CLIENT_ID, timeout_ms=timeout_ms, security=security
        ) as client:
            return await _collect(client, folder, servers, on_offsets)

    with tempfile.TemporaryDirectory(prefix="quorumd-audit-") as folder:
        yield asyncio.run(collect(Path(folder)))


def audit_copies(
    copies: Sequence[ReplicaCopy],
    *,
    run_tasks: TaskRunner = in_this_process,
    on_bytes: OnAuditProgress = lambda done, total: None,
) -> AuditReport:
    """Audits the copies against each other. A copy that is not complete is a finding, too."""
    begun = [each for each in copies if each.address is not None]
    audited = AuditReport()
    if begun:
        labels = [each.label for each in begun]
        folders = [each.folder for each in begun]
        audited = audit(folders, labels=labels, run_tasks=run_tasks, on_bytes=on_bytes)
    broken = {each.label for each in copies if each.problem}
    found = [
        # The copy is about to be deleted: its paths would mean nothing.
        replace(each, file=None, position=None)
        for each in audited.findings
        if each.kind is not FindingKind.LAG or not broken.issuperset(each.replicas)
    ]
    found += [_unread(each) for each in copies if each.problem]
    for start in sorted({each.start for each in begun} - {0}):
        found.append(_not_served([each.label for each in begun if each.start == start], start))
    audited.findings = sorted(found, key=lambda each: each.order)
    return audited


def _unread(copy: ReplicaCopy) -> AuditFinding:
    return AuditFinding(
        kind=FindingKind.UNREAD,
        offset=copy.end,
        end_offset=copy.wanted_end,
        replicas=(copy.label,),
        what=copy.problem,
    )


def _not_served(labels: Sequence[str], start: int) -> AuditFinding:
    return AuditFinding(
        kind=FindingKind.NOT_SERVED,
        offset=0,
        end_offset=start,
        replicas=tuple(labels),
        what=f"the log begins at offset {start}; the snapshot that stands for what was before is not"
        " served, and was not looked at",
    )


# --- finding the replicas


async def _collect(
    client: QuorumClient, folder: Path, servers: Sequence[Address], on_offsets: OnAuditProgress
) -> list[ReplicaCopy]:
    timeout_ms, connector = client.timeout_ms, client.connector
    quorum = await client.describe_quorum()
    replicas = _replicas(quorum)
    known = {address for each in replicas for address in _addresses(each, servers)}
    readers = [
        ReplicaReader(
            connector, each.key, _addresses(each, servers), folder / str(number), timeout_ms
        )
        for number, each in enumerate(replicas)
    ]
    try:
        claimed: dict[Address, ReplicaKey] = {}
        opened = await asyncio.gather(*(reader.open(claimed) for reader in readers))
        strangers = [each for each in servers if each not in known]
        asked = await asyncio.gather(
            *(_cluster_id_at(connector, each, timeout_ms) for each in strangers)
        )
        clusters = [each for reader in readers for each in reader.cluster_ids]
        _check_clusters(quorum.cluster_id, [*clusters, *zip(strangers, asked, strict=True)])
        bounds = [each for each in opened if each is not None]
        end = max((each.end for each in bounds), default=0)
        epoch = max((each.epoch for each in bounds), default=0)

        def on_read() -> None:
            begun = [reader.copy for reader in readers if reader.copy.address is not None]
            total = sum(end - copy.start for copy in begun)
            on_offsets(total - sum(max(0, end - copy.end) for copy in begun), total)

        await asyncio.gather(*(reader.read(end, epoch, on_read) for reader in readers))
    finally:
        for reader in readers:
            reader.close()
    return sorted((reader.copy for reader in readers), key=lambda copy: copy.key.sort_key())


def _replicas(quorum: QuorumDescription) -> list[ReplicaState]:
    """Voters and live observers, live replicas first: a dead one's address may be another's by now."""
    observers = [each for each in quorum.observers if quorum.is_alive(each)]
    return sorted((*quorum.voters, *observers), key=lambda each: not quorum.is_alive(each))


def _addresses(replica: ReplicaState, servers: Sequence[Address]) -> list[Address]:
    """The replica's listeners; those in `servers` first, because they are for this network."""
    found = [Address(each.host, each.port) for each in replica.endpoints]
    return sorted(found, key=lambda each: each not in servers)


async def _cluster_id_at(connector: Connector, address: Address, timeout_ms: int) -> str:
    """Of a node that is none of the replicas; "" if it does not respond."""
    timeout_s = min(CONNECT_TIMEOUT_S, timeout_ms / 1000)
    try:
        connection = await connector.connect(address, timeout_s)
    except QuorumError:
        return ""
    try:
        return await cluster_id_of(connection, timeout_s)
    except QuorumError:
        return ""
    finally:
        connection.close()


def _check_clusters(cluster_id: str, clusters: Sequence[tuple[Address, str]]) -> None:
    """Raises BadReplicas."""
    for address, other in clusters:
        if other and cluster_id and other != cluster_id:
            raise BadReplicas(
                f"these are replicas of different clusters: the quorum's cluster id is {cluster_id},"
                f" {address} is of {other}"
            )
