"""A snapshot that a replica under test is offered, and copies."""

from __future__ import annotations

from typing import Any

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    Effect,
    Fetch,
    FetchSnapshot,
    Peer,
    SendRequest,
    VerifySnapshot,
)
from quorumd.raft.events import (
    FetchResponseReceived,
    FetchSnapshotResponseReceived,
    LeaderHint,
    SnapshotChunk,
    SnapshotVerified,
)
from quorumd.raft.log_view import LogView
from quorumd.raft.types import SnapshotId
from tests.raft.harness import (
    CLUSTER,
    Bench,
    leader,
    log_of,
    voter_set,
)

SNAPSHOT = SnapshotId(10, 3)
SIZE = 2_500_000
MIB = 1 << 20


def offered(
    bench: Bench, snapshot: SnapshotId = SNAPSHOT, asked_as: Peer | None = None
) -> list[Effect]:
    """The leader answers the fetch in flight with a snapshot; `asked_as` the one sent to that address."""
    node = bench.node
    return bench.step(
        FetchResponseReceived(
            request_id=bench.outstanding(Fetch, asked_as or node.leader).request_id,
            error=None,
            hint=LeaderHint(epoch=node.epoch, leader_id=node.leader_id),
            snapshot=snapshot,
        )
    )


def piece(bench: Bench, size: int = SIZE, length: int = MIB, **more: Any) -> list[Effect]:
    """The leader answers the request for a piece that is in flight."""
    node = bench.node
    request = bench.outstanding(FetchSnapshot)
    wanted = asked(request)
    values: dict[str, Any] = {
        "snapshot": wanted.snapshot,
        "position": wanted.position,
        "size_bytes": size,
        "chunk_bytes": min(length, size - wanted.position),
        "token": request.request_id,
    } | more
    error = values.pop("error", None)
    hint = values.pop("hint", LeaderHint(epoch=node.epoch, leader_id=node.leader_id))
    found = None if error else SnapshotChunk(**values)
    return bench.step(
        FetchSnapshotResponseReceived(
            request_id=request.request_id, error=error, hint=hint, chunk=found
        )
    )


def copied(bench: Bench) -> None:
    """All pieces are there."""
    offered(bench)
    while not bench.find(VerifySnapshot):
        bench.sync()
        piece(bench)


def asked(request: SendRequest) -> FetchSnapshot:
    """What piece this request asks for."""
    assert isinstance(request.request, FetchSnapshot)
    return request.request


def verified(bench: Bench, snapshot: SnapshotId = SNAPSHOT, **more: Any) -> list[Effect]:
    values = {"voters": VotersRecord(voter_set(1, 2, 3), CLUSTER)} | more
    return bench.step(SnapshotVerified(snapshot=snapshot, **values))


def log_behind(start: int, end: int, *snapshots: tuple[int, int], epoch: int = 3) -> LogView:
    """A synced log of one epoch that starts behind a snapshot."""
    log = log_of(voters=voter_set(1, 2, 3))
    log.start_offset, log.end_offset, log.synced_end_offset = start, end, end
    log.epoch_starts = [(epoch, start)] if end > start else []
    log.snapshots = [SnapshotId(*snapshot) for snapshot in snapshots]
    return log


def leading(log: LogView) -> Bench:
    bench = leader(log=log, stored=StoredState(epoch=3, applied_offset=2))
    bench.sync()
    return bench
