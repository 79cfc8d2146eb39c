"""Fetch: a replica asks this leader for records, and so acknowledges what it has.

The leader handles the request in these steps:

1. It must name this cluster, if any, and not hold impossible values.
2. It must be of this epoch, which this replica leads. A replica that names a later one is asked for it.
3. A log that ends below the start of this one, or is empty, is offered the newest snapshot.
4. For a log that diverges, respond with where its last epoch, or the one before it, ends here.
5. What comes before the position is on the replica's disk: the high watermark may advance.
6. Respond with all that follows. If nothing does, wait for it: see `parked_fetches`. One of many observers
   waits in any case, for a moment.

Sources: KIP-595 (Fetch request handling), KIP-630 (a snapshot first), KIP-856 (id and storage id).
"""

from __future__ import annotations

from quorumd.raft.bootstrap import note_storage_id
from quorumd.raft.check_quorum import note_alive, note_heard
from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import FetchRequestReceived
from quorumd.raft.high_watermark import advance_high_watermark
from quorumd.raft.leader_discovery import ask, is_foreign
from quorumd.raft.parked_fetches import observer_pause_ms, park_fetch, reply_to_fetch
from quorumd.raft.replica_progress import note_log_regression, note_progress
from quorumd.raft.roles import Leader, ParkedFetch
from quorumd.raft.types import ReplicaKey


def on_fetch_requested(core: Core, event: FetchRequestReceived) -> None:
    """KIP-595, Fetch request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER. Epoch and leader go with every one of them.
    """
    reply_to, replica, position, epoch = event.reply_to, event.replica, event.position, event.epoch
    if event.cluster_id != core.cluster_id and is_foreign(core, event.cluster_id):
        core.report(f"fetch of {replica} refused: cluster {event.cluster_id}")
        return core.refuse_fetch(reply_to, None, KafkaError.INCONSISTENT_CLUSTER_ID)
    if (
        (replica is not None and core.is_local(replica))
        or position.offset < 0
        or position.epoch < 0
        or (position.epoch > epoch and position.epoch > 0)
        or event.max_wait_ms < 0
    ):
        core.report(f"fetch of {replica} refused: impossible values ({event})")
        return core.refuse_fetch(reply_to, None, KafkaError.UNKNOWN_SERVER_ERROR)
    leader = core.state
    if epoch != core.epoch or not isinstance(leader, Leader):
        return _refuse(core, reply_to, replica, epoch)
    fetch = ParkedFetch(replica, position, core.now_ms + event.max_wait_ms, event.high_watermark)
    log = core.log
    snapshot = log.snapshot_for(position) if log.snapshots else None
    if snapshot is not None:
        if replica is not None:
            note_alive(core, replica)
            note_log_regression(core, leader, replica, position.offset)
            note_heard(core, leader, replica)
        return reply_to_fetch(core, reply_to, fetch, snapshot=snapshot)
    if not log.contains(position):
        note_alive(core, replica)
        return reply_to_fetch(core, reply_to, fetch, log.diverging_from(position))
    if replica is not None:
        note_progress(core, leader, replica, position.offset)
        if core.is_bootstrapping:
            note_storage_id(core, leader, replica, event.cluster_id)
        advance_high_watermark(core, leader)
    has_more = position.offset < log.end_offset
    if pause_ms := observer_pause_ms(core, leader, replica):
        fetch.not_before_ms = core.now_ms + pause_ms
        if has_more:
            fetch.due_ms = min(fetch.due_ms, fetch.not_before_ms)
    elif has_more:
        return reply_to_fetch(core, reply_to, fetch)
    if event.max_wait_ms == 0:
        return reply_to_fetch(core, reply_to, fetch)
    return park_fetch(core, leader, reply_to, fetch)


def _refuse(core: Core, reply_to: int, replica: ReplicaKey | None, epoch: int) -> None:
    """A fetch of another epoch, or at a replica that does not lead (step 2)."""
    note_alive(core, replica)
    if epoch < core.epoch:
        return core.refuse_fetch(reply_to, KafkaError.FENCED_LEADER_EPOCH)
    if epoch > core.epoch:
        if isinstance(core.state, Leader) and replica is not None:
            ask(core, replica)
        return core.refuse_fetch(reply_to, KafkaError.UNKNOWN_LEADER_EPOCH)
    return core.refuse_fetch(reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER)
