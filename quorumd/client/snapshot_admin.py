"""Snapshots on demand, taken by every voter. Knows no terminal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quorumd.client.client import QuorumClient
from quorumd.client.connector import Connector
from quorumd.client.description import ReplicaState
from quorumd.client.errors import QuorumError
from quorumd.raft.types import Address
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse

CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSnapshot:
    """The newest snapshot of a node, -1 if it has none; `problem` is the reason if it took no new one."""

    replica_id: int
    address: str
    end_offset: int = -1
    epoch: int = -1
    size_bytes: int = -1
    problem: str = ""


async def take_snapshots(client: QuorumClient, timeout_ms: int) -> list[TakenSnapshot]:
    """Makes every voter take a snapshot of its committed log, all at the same time.

    Raises QuorumUnavailable if no leader names the voters.
    """
    quorum = await client.describe_quorum()
    taken = (_take(client.connector, voter, timeout_ms) for voter in quorum.voters)
    return list(await asyncio.gather(*taken))


async def _take(connector: Connector, voter: ReplicaState, timeout_ms: int) -> TakenSnapshot:
    replica_id = voter.key.id
    if not voter.endpoints:
        return TakenSnapshot(
            replica_id=replica_id, address="-", problem="the leader does not know its address"
        )
    reasons: list[str] = []
    # Not every listener of a node may be one for this client.
    for endpoint in voter.endpoints:
        address = Address(endpoint.host, endpoint.port)
        try:
            response = await _taken_at(connector, address, timeout_ms)
        except QuorumError as error:
            reasons.append(f"{address}: {error}" if reasons else str(error))
            continue
        return TakenSnapshot(
            replica_id=replica_id,
            address=str(address),
            end_offset=response.end_offset,
            epoch=response.epoch,
            size_bytes=response.size_bytes,
            problem=(response.error_message or "refused") if response.error_code else "",
        )
    first = Address(voter.endpoints[0].host, voter.endpoints[0].port)
    return TakenSnapshot(replica_id=replica_id, address=str(first), problem="; ".join(reasons))


async def _taken_at(
    connector: Connector, address: Address, timeout_ms: int
) -> TakeSnapshotResponse:
    """Raises ConnectionFailed, NotSupported, RequestRefused."""
    connection = await connector.connect(address, min(CONNECT_TIMEOUT_S, timeout_ms / 1000))
    try:
        return await connection.request(
            TakeSnapshotRequest(timeout_ms=timeout_ms),
            TakeSnapshotResponse,
            # The node responds in time by itself, and says how far it is.
            timeout_s=timeout_ms / 1000 + CONNECT_TIMEOUT_S,
        )
    finally:
        connection.close()
