"""BeginQuorumEpoch and EndQuorumEpoch: a leader announces itself, and says that it resigns.

Both ends of both requests. Source: KIP-595.
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.campaign_delays import CAMPAIGN_DELAY_MS, campaign_soon
from quorumd.raft.core import Core
from quorumd.raft.effects import BeginQuorumEpoch, EndQuorumEpoch, Reply
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    BeginQuorumEpochRequestReceived,
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochRequestReceived,
    EndQuorumEpochResponseReceived,
)
from quorumd.raft.leader_discovery import absorb, adopt, is_foreign
from quorumd.raft.roles import FetchProgress, Follower, Leader, Resigned, Unattached
from quorumd.raft.types import Endpoint, ReplicaKey


def announce_epoch(core: Core, leader: Leader) -> None:
    """BeginQuorumEpoch to every voter that has not fetched lately, the first at once (KIP-595)."""
    now = core.now_ms
    if now < leader.next_begin_ms:
        return
    interval_ms = core.config.fetch_timeout_ms // 2
    leader.next_begin_ms = now + interval_ms
    for key in core.other_voters():
        progress = leader.progress.setdefault(key, FetchProgress(begin_due_ms=now))
        if now >= progress.begin_due_ms:
            progress.begin_due_ms = now + interval_ms
            if core.can_send(key, BeginQuorumEpoch):
                core.send(key, BeginQuorumEpoch(epoch=core.epoch), after=core.writes.state)
        leader.next_begin_ms = min(leader.next_begin_ms, progress.begin_due_ms)


def on_begin_quorum_epoch_requested(core: Core, event: BeginQuorumEpochRequestReceived) -> None:
    """KIP-595, BeginQuorumEpoch request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    INVALID_VOTER_KEY. NOT_VOTER is never sent: a replica that is not a voter yet follows all the same.
    """
    refusal = _follow_sender(core, event.cluster_id, event.epoch, event.leader_id, event.endpoints)
    if refusal is not None:
        return core.reply(event.reply_to, refusal)
    if event.endpoints and event.leader_id == core.leader_id and core.leader != core.local:
        # The leader itself knows best where it is; what others said may be where it was.
        core.leader_endpoints = event.endpoints
    if event.voter is not None and not core.is_local(event.voter):
        return core.reply(event.reply_to, _reply(core, KafkaError.INVALID_VOTER_KEY))
    return core.reply(event.reply_to, _reply(core))


def on_begin_quorum_epoch_response(core: Core, event: BeginQuorumEpochResponseReceived) -> None:
    """An endorsement needs no note: the voter's fetches are the better one."""
    request = core.take(event.request_id)
    if request is not None:
        absorb(core, request, event.error, event.hint)


def announce_end(core: Core, state: Resigned) -> None:
    """EndQuorumEpoch to every voter that has not acknowledged it."""
    end = EndQuorumEpoch(epoch=core.epoch, leader_id=core.local.id, successors=state.successors)
    for key in sorted(state.unacknowledged, key=lambda key: key.sort_key()):
        if core.can_send(key, EndQuorumEpoch):
            core.send(key, end, after=core.writes.state)


def on_end_quorum_epoch_requested(core: Core, event: EndQuorumEpochRequestReceived) -> None:
    """KIP-595, EndQuorumEpoch request handling: the best successor campaigns at once.

    Errors as for BeginQuorumEpoch. INCONSISTENT_VOTER_SET is never sent: a voter that the leader did
    not list waits longest instead.
    """
    refusal = _follow_sender(core, event.cluster_id, event.epoch, event.leader_id, event.endpoints)
    if refusal is not None:
        return core.reply(event.reply_to, refusal)
    if event.leader_id is None:
        if isinstance(core.state, Unattached):
            campaign_soon(core, core.state)
    elif core.leader_id == event.leader_id and not core.leader_has_ended:
        core.leader_has_ended = True
        if isinstance(core.state, Follower):
            core.state.fetch_deadline_ms = core.now_ms
            core.state.campaign_at_ms = core.now_ms + _successor_delay_ms(core, event.successors)
    return core.reply(event.reply_to, _reply(core))


def _successor_delay_ms(core: Core, successors: tuple[ReplicaKey, ...]) -> int:
    position = next((i for i, key in enumerate(successors) if core.is_local(key)), None)
    if not successors:  # a leader that restarted: any voter may try
        return core.draw(CAMPAIGN_DELAY_MS)
    config = core.config
    return quorum.successor_delay_ms(position, config.retry_backoff_ms, config.retry_backoff_max_ms)


def on_end_quorum_epoch_response(core: Core, event: EndQuorumEpochResponseReceived) -> None:
    """A voter knows that this leader has resigned: it need not be told again."""
    request = core.take(event.request_id)
    if request is None or not absorb(core, request, event.error, event.hint):
        return
    if isinstance(core.state, Resigned) and isinstance(request.to, ReplicaKey):
        core.state.unacknowledged.discard(request.to)


def _follow_sender(
    core: Core,
    cluster_id: str | None,
    epoch: int,
    leader_id: int | None,
    endpoints: tuple[Endpoint, ...],
) -> Reply | None:
    """The checks that BeginQuorumEpoch and EndQuorumEpoch share. Returns the refusal, if any."""
    if is_foreign(core, cluster_id):
        core.report(f"request of leader {leader_id} refused: cluster {cluster_id}")
        return _reply(core, top_level=KafkaError.INCONSISTENT_CLUSTER_ID)
    if epoch < 0 or (leader_id is not None and leader_id < 0):
        return _reply(core, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    if epoch < core.epoch:
        return _reply(core, KafkaError.FENCED_LEADER_EPOCH)
    contradiction = adopt(core, epoch, leader_id, endpoints)
    if contradiction is not None:
        core.report(f"request of leader {leader_id} refused: {contradiction}")
        return _reply(core, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    return None


def _reply(
    core: Core, error: KafkaError | None = None, top_level: KafkaError | None = None
) -> Reply:
    return Reply(
        epoch=core.epoch,
        leader_id=core.leader_id,
        leader_endpoints=core.leader_endpoints_for_replies(),
        error=error,
        top_level_error=top_level,
    )
