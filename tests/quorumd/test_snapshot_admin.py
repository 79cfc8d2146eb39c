"""Snapshots on demand, where a voter is none that can be asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from quorumd.client.client import QuorumClient
from quorumd.client.errors import RequestRefused
from quorumd.client.snapshot_admin import take_snapshots
from quorumd.raft.types import Address, Endpoint, ReplicaKey
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse

ODD_PORT = 2


class Connection:
    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.is_closed = False

    async def request(
        self, request: TakeSnapshotRequest, response_type: object, *, timeout_s: float
    ) -> TakeSnapshotResponse:
        self.waits_s += (request.timeout_ms / 1000, timeout_s)
        return TakeSnapshotResponse(end_offset=7, epoch=1, size_bytes=100)

    def close(self) -> None:
        self.is_closed = True


class Connector:
    """The node at one address agrees on no versions."""

    def __init__(self) -> None:
        self.made: list[Connection] = []

    async def connect(self, address: Address, timeout_s: float) -> Connection:
        if address.port == ODD_PORT:
            raise RequestRefused("agree on versions", ErrorCode.INVALID_REQUEST)
        self.made.append(Connection())
        return self.made[-1]


def test_a_voter_that_agrees_on_no_versions_is_one_problem_among_the_others() -> None:
    voters = [
        SimpleNamespace(key=ReplicaKey(port), endpoints=(Endpoint("CONTROLLER", "db", port),))
        for port in (1, ODD_PORT, 3)
    ]

    async def describe_quorum() -> Any:
        return SimpleNamespace(voters=voters)

    connector = Connector()
    client = SimpleNamespace(connector=connector, describe_quorum=describe_quorum)
    taken = asyncio.run(take_snapshots(cast(QuorumClient, client), 1_000))
    assert [each.end_offset for each in taken] == [7, -1, 7]
    assert "INVALID_REQUEST" in taken[1].problem
    for made in connector.made:
        # The node is left the time to say by itself how far it is.
        node_s, own_s = made.waits_s
        assert node_s == 1.0 < own_s
        assert made.is_closed
