"""Signs of life and of death of other replicas, from the connections to their processes."""

from __future__ import annotations

from quorumd.raft.campaign_delays import CAMPAIGN_DELAY_MS, campaign_soon
from quorumd.raft.core import Core
from quorumd.raft.events import ConnectionLost, ConnectionMade, ConnectionRefused
from quorumd.raft.roles import Follower, Unattached
from quorumd.raft.types import ReplicaKey


def on_connection_refused(core: Core, event: ConnectionRefused) -> None:
    """The leader's process is gone: ask for pre-votes after a short random delay.

    The leader is not forgotten on this event alone; only a silent leader has to be waited for. The same
    holds for a candidate that has this replica's vote.
    """
    connections = core.connections
    connections.unreachable.add(event.id)
    connections.refused_ms[event.id] = core.now_ms
    state = core.state
    if isinstance(state, Follower):
        if event.id == core.leader_id and state.campaign_at_ms is None:
            state.campaign_at_ms = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
    elif isinstance(state, Unattached) and core.voted is not None and core.voted.id == event.id:
        campaign_soon(core, state)


def on_connection_lost(core: Core, event: ConnectionLost) -> None:
    """A witness need not be sure: it only helps others to find out, and a late grant would triple the
    time that they take."""
    if core.config.is_witness:
        core.connections.unreachable.add(event.id)


def on_connection_made(core: Core, event: ConnectionMade) -> None:
    """A process is there after all: ask it at once what is due, wait for a leader's silence as usual."""
    if event.id not in core.connections.unreachable:
        return
    core.connections.unreachable.discard(event.id)
    for peer, kind in list(core.requests.backoffs):
        if isinstance(peer, ReplicaKey) and peer.id == event.id:
            del core.requests.backoffs[peer, kind]
    state = core.state
    if isinstance(state, Follower) and event.id == core.leader_id and core.has_leader_contact:
        state.campaign_at_ms = None
