"""The leader has resigned: by EndQuorumEpoch, which any process can send, and by the leader's own response.

A leader that resigns responds to every parked fetch, and to every later one, with NOT_LEADER_OR_FOLLOWER.
EndQuorumEpoch adds the order in which voters campaign. Source: KIP-595, EndQuorumEpoch.
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.campaign_delays import CAMPAIGN_DELAY_MS
from quorumd.raft.core import Core
from quorumd.raft.core_parts import UnconfirmedEnd
from quorumd.raft.roles import Follower
from quorumd.raft.types import ReplicaKey


def note_unconfirmed_end(core: Core, end: UnconfirmedEnd) -> None:
    """EndQuorumEpoch of this epoch has come in, from any sender."""
    core.known_leader.unconfirmed_end = end
    _end_if_confirmed(core)


def note_refusal(core: Core) -> None:
    """The leader of this epoch has refused a fetch of this epoch: it does not lead any more."""
    core.known_leader.has_refused = True
    core.known_leader.expected_until_ms = 0
    _end_if_confirmed(core)


def _end_if_confirmed(core: Core) -> None:
    """Campaign when it is this replica's turn. A process that is gone confirms the end as well."""
    known, leader = core.known_leader, core.leader
    end = known.unconfirmed_end
    if end is None or leader is None or (end.epoch, end.leader_id) != (core.epoch, leader.id):
        return
    if not known.has_refused and leader.id not in core.connections.unreachable:
        return
    known.unconfirmed_end = None
    state = core.state
    if isinstance(state, Follower):
        at_ms = core.now_ms + _successor_delay_ms(core, end.successors)
        if known.has_ended:
            at_ms = min(at_ms, state.election_deadline_ms)
        state.campaign_at_ms = at_ms
    known.has_ended = True


def _successor_delay_ms(core: Core, successors: tuple[ReplicaKey, ...]) -> int:
    position = next((i for i, key in enumerate(successors) if core.is_local(key)), None)
    if not successors:  # a leader that restarted: any voter may try
        return core.draw(CAMPAIGN_DELAY_MS)
    config = core.config
    return quorum.successor_delay_ms(position, config.retry_backoff_ms, config.retry_backoff_max_ms)
