"""FetchSnapshot: a replica, or a client that wants the state, asks this leader for a chunk of a snapshot.

Source: KIP-630, FetchSnapshot request handling.
"""

from __future__ import annotations

from quorumd.raft.check_quorum import note_alive, note_heard
from quorumd.raft.core import Core
from quorumd.raft.effects import SnapshotReply
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import FetchSnapshotRequestReceived
from quorumd.raft.leader_discovery import is_foreign
from quorumd.raft.roles import Leader


def on_fetch_snapshot_requested(core: Core, event: FetchSnapshotRequestReceived) -> None:
    """FetchSnapshot request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, SNAPSHOT_NOT_FOUND. Whether the position is inside
    the file is not checked here. Source: KIP-630, FetchSnapshot request handling.
    """
    if is_foreign(core, event.cluster_id):
        core.report(f"snapshot for {event.replica} refused: cluster {event.cluster_id}")
        return _reply(core, event, top_level=KafkaError.INCONSISTENT_CLUSTER_ID)
    if event.replica is not None and core.is_local(event.replica):
        core.report(f"snapshot for {event.replica} refused: that is this replica")
        return _reply(core, event, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    note_alive(core, event.replica)
    if event.epoch < core.epoch:
        return _reply(core, event, KafkaError.FENCED_LEADER_EPOCH)
    if event.epoch > core.epoch:
        return _reply(core, event, KafkaError.UNKNOWN_LEADER_EPOCH)
    if not isinstance(core.state, Leader):
        return _reply(core, event, KafkaError.NOT_LEADER_OR_FOLLOWER)
    if event.snapshot not in core.log.snapshots:
        return _reply(core, event, KafkaError.SNAPSHOT_NOT_FOUND)
    if event.replica is not None:
        note_heard(core, core.state, event.replica)
    return _reply(core, event)


def _reply(
    core: Core,
    event: FetchSnapshotRequestReceived,
    error: KafkaError | None = None,
    top_level: KafkaError | None = None,
) -> None:
    snapshot = event.snapshot if error is None and top_level is None else None
    fields = core.reply_fields(error, top_level)
    core.reply(event.reply_to, SnapshotReply(**fields, snapshot=snapshot))
