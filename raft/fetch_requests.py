"""Fetch: a replica asks this leader for records, and so acknowledges what it has.

The leader handles the request in these steps:

1. It must name this cluster, if any, and not hold impossible values.
2. It must be of this epoch, which this replica leads. Who claims a later one is asked about it.
3. A log that ends below the start of this one, or is empty, is offered the newest snapshot.
4. A log that diverges is told where its last epoch, or the one before it, ends here.
5. What comes before the position is on the replica's disk: the high watermark may advance.
6. Answer with all that follows. If nothing does, wait for it: see `parked_fetches`.

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
from quorumd.raft.parked_fetches import park_fetch, reply_to_fetch
from quorumd.raft.replica_progress import note_log_regression, note_progress
from quorumd.raft.roles import Leader, ParkedFetch


def on_fetch_requested(core: Core, event: FetchRequestReceived) -> None:
    """KIP-595, Fetch request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER. Epoch and leader go with every one of them.
    """
    if is_foreign(core, event.cluster_id):
        core.report(f"fetch of {event.replica} refused: cluster {event.cluster_id}")
        return core.refuse_fetch(event.reply_to, None, KafkaError.INCONSISTENT_CLUSTER_ID)
    position = event.position
    if (
        (event.replica is not None and core.is_local(event.replica))
        or position.offset < 0
        or not 0 <= position.epoch <= max(event.epoch, 0)
        or event.max_wait_ms < 0
    ):
        core.report(f"fetch of {event.replica} refused: impossible values ({event})")
        return core.refuse_fetch(event.reply_to, None, KafkaError.UNKNOWN_SERVER_ERROR)
    note_alive(core, event.replica)
    if event.epoch < core.epoch:
        return core.refuse_fetch(event.reply_to, KafkaError.FENCED_LEADER_EPOCH)
    if event.epoch > core.epoch:
        if isinstance(core.state, Leader) and event.replica is not None:
            ask(core, event.replica)
        return core.refuse_fetch(event.reply_to, KafkaError.UNKNOWN_LEADER_EPOCH)
    leader = core.state
    if not isinstance(leader, Leader):
        return core.refuse_fetch(event.reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER)
    fetch = ParkedFetch(
        event.replica, position, core.now_ms + event.max_wait_ms, event.high_watermark
    )
    snapshot = core.log.snapshot_for(position)
    if snapshot is not None:
        if event.replica is not None:
            note_log_regression(core, leader, event.replica, position.offset)
            note_heard(core, leader, event.replica)
        return reply_to_fetch(core, event.reply_to, fetch, snapshot=snapshot)
    if not core.log.contains(position):
        return reply_to_fetch(core, event.reply_to, fetch, core.log.diverging_from(position))
    if event.replica is not None:
        note_progress(core, leader, event.replica, position.offset)
        if core.is_bootstrapping:
            note_storage_id(core, leader, event.replica, event.cluster_id)
        advance_high_watermark(core, leader)
    if position.offset < core.log.end_offset or event.max_wait_ms == 0:
        reply_to_fetch(core, event.reply_to, fetch)
    else:
        park_fetch(core, leader, event.reply_to, fetch)
    return None
