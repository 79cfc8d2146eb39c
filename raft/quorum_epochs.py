"""BeginQuorumEpoch and EndQuorumEpoch: a leader announces itself, and says that it resigns.

Both ends of both requests. Source: KIP-595.
"""

from __future__ import annotations

from quorumd.raft.campaign_delays import campaign_soon
from quorumd.raft.core import Core
from quorumd.raft.core_parts import UnconfirmedEnd
from quorumd.raft.effects import BeginQuorumEpoch, EndQuorumEpoch, Reply
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    BeginQuorumEpochRequestReceived,
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochRequestReceived,
    EndQuorumEpochResponseReceived,
)
from quorumd.raft.leader_discovery import absorb, ask, contradiction, is_foreign
from quorumd.raft.resignation import note_unconfirmed_end
from quorumd.raft.roles import FetchProgress, Leader, Resigned, Unattached
from quorumd.raft.types import Endpoint, ReplicaKey


def announce_epoch(core: Core, leader: Leader) -> None:
    """BeginQuorumEpoch to every voter that has not fetched lately, the first at once (KIP-595)."""
    now = core.now_ms
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
    """KIP-595, BeginQuorumEpoch request handling: the leader that it names is asked, and then followed.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    INVALID_VOTER_KEY. NOT_VOTER is never sent: a replica that is not a voter yet follows all the same. A
    response without error in an older epoch says that the leader has not been asked yet.
    """
    refusal = _check_sender(core, event.cluster_id, event.epoch, event.leader_id, event.endpoints)
    if refusal is not None:
        return core.reply(event.reply_to, refusal)
    leader = core.leader
    if leader is not None and leader.id == event.leader_id and not core.is_led:
        moved = event.endpoints not in ((), core.known_leader.endpoints)
        if moved:
            ask(core, leader, event.endpoints)
    if event.voter is not None and not core.is_local(event.voter):
        return core.reply(event.reply_to, _reply(core, KafkaError.INVALID_VOTER_KEY))
    return core.reply(event.reply_to, _reply(core))


def on_begin_quorum_epoch_response(core: Core, event: BeginQuorumEpochResponseReceived) -> None:
    """An endorsement needs no note: the voter's fetches are the better one."""
    request = core.take(event.request_id)
    if request is not None and (event.error is not None or event.hint.epoch >= core.epoch):
        absorb(core, request, event.error, event.hint)


def announce_end(core: Core, state: Resigned) -> None:
    """EndQuorumEpoch to every voter that has not acknowledged it."""
    end = EndQuorumEpoch(epoch=core.epoch, leader_id=core.local.id, successors=state.successors)
    for key in sorted(state.unacknowledged, key=lambda key: key.sort_key()):
        if core.can_send(key, EndQuorumEpoch):
            core.send(key, end, after=core.writes.state)


def on_end_quorum_epoch_requested(core: Core, event: EndQuorumEpochRequestReceived) -> None:
    """KIP-595, EndQuorumEpoch request handling: the best successor campaigns at once.

    But not before the leader itself has said that it leads no more: see `resignation`. Errors as for
    BeginQuorumEpoch. INCONSISTENT_VOTER_SET is never sent: a voter that the leader did not list waits
    longest instead.
    """
    refusal = _check_sender(core, event.cluster_id, event.epoch, event.leader_id, event.endpoints)
    if refusal is not None:
        return core.reply(event.reply_to, refusal)
    if event.leader_id is None:
        if isinstance(core.state, Unattached) and event.epoch == core.epoch:
            campaign_soon(core, core.state)
    elif event.epoch == core.epoch:
        note_unconfirmed_end(core, UnconfirmedEnd(event.epoch, event.leader_id, event.successors))
    return core.reply(event.reply_to, _reply(core))


def on_end_quorum_epoch_response(core: Core, event: EndQuorumEpochResponseReceived) -> None:
    """A voter knows that this leader has resigned: no EndQuorumEpoch is sent to it again."""
    request = core.take(event.request_id)
    if request is None or not absorb(core, request, event.error, event.hint):
        return
    if isinstance(core.state, Resigned):
        assert isinstance(request.to, ReplicaKey), "only fetches go to bootstrap servers"
        core.state.unacknowledged.discard(request.to)


def _check_sender(
    core: Core,
    cluster_id: str | None,
    epoch: int,
    leader_id: int | None,
    endpoints: tuple[Endpoint, ...],
) -> Reply | None:
    """The shared checks of BeginQuorumEpoch and EndQuorumEpoch; asks a leader not known before if it leads.

    Returns the refusal, if there is a reason for one.
    """
    if is_foreign(core, cluster_id):
        core.report(f"request of leader {leader_id} refused: cluster {cluster_id}")
        return _reply(core, top_level=KafkaError.INCONSISTENT_CLUSTER_ID)
    if epoch < 0 or (leader_id is not None and leader_id < 0):
        return _reply(core, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    if epoch < core.epoch:
        return _reply(core, KafkaError.FENCED_LEADER_EPOCH)
    reason = contradiction(core, epoch, leader_id, endpoints)
    is_news = epoch > core.epoch or core.leader is None
    leader = core.key_of(leader_id) if leader_id is not None and is_news else None
    if reason is None and leader is not None and not (endpoints or core.endpoints_of(leader)):
        reason = f"no endpoint is known of replica {leader_id}, leader of epoch {epoch}"
    if reason is not None:
        core.report(f"request of leader {leader_id} refused: {reason}")
        return _reply(core, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    if leader is not None:
        ask(core, leader, endpoints)
    return None


def _reply(
    core: Core, error: KafkaError | None = None, top_level: KafkaError | None = None
) -> Reply:
    return Reply(**core.reply_fields(error, top_level))
