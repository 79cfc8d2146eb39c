"""The timers of those that do not lead: when a voter begins to campaign, and when a campaign is over."""

from __future__ import annotations

from quorumd.raft.campaign import become_prospective
from quorumd.raft.campaign_delays import CAMPAIGN_DELAY_MS
from quorumd.raft.core import Core
from quorumd.raft.leader_discovery import LAST_EPOCH
from quorumd.raft.pre_vote import lose_pre_votes
from quorumd.raft.role_changes import become_unattached
from quorumd.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Observer,
    Prospective,
    Resigned,
    Unattached,
)
from quorumd.raft.transitions import Trigger
from quorumd.raft.witness import may_campaign


def expire(core: Core) -> None:
    """Act on the timer of the present role, which has run out."""
    state = core.state
    if isinstance(state, Unattached):
        if may_campaign(core):
            become_prospective(core, Trigger.ELECTION_TIMEOUT)
        else:
            state.election_deadline_ms = core.now_ms + core.random_election_timeout_ms()
    elif isinstance(state, Follower):
        _campaign_after_silence(core, state)
    elif isinstance(state, Prospective):
        lose_pre_votes(core)
    elif isinstance(state, Candidate):
        become_prospective(core, Trigger.CANDIDACY_OVER)
    else:
        assert isinstance(state, Resigned), "the others have no timer"
        _end_resignation(core, state)


def _campaign_after_silence(core: Core, state: Follower) -> None:
    """The fetch timeout is the same for all: a random delay keeps followers from colliding."""
    if state.campaign_at_ms is None:
        state.campaign_at_ms = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
    if not may_campaign(core):
        state.campaign_at_ms = core.now_ms + core.random_election_timeout_ms()
    elif core.now_ms >= state.campaign_at_ms:
        become_prospective(core, Trigger.LEADER_SILENT)


def _end_resignation(core: Core, state: Resigned) -> None:
    """No voter took over: take part in elections again, in an epoch that this replica did not lead."""
    if core.epoch < LAST_EPOCH:
        become_unattached(core, Trigger.RESIGNATION_OVER, core.epoch + 1, 0)
    else:
        state.election_deadline_ms = core.now_ms + core.random_election_timeout_ms()


def election_deadline_ms(core: Core) -> int | None:
    """When `expire` has something to do; no timer runs in a node that stops."""
    state = core.state
    if core.is_shutting_down:
        return None
    if isinstance(state, Follower):
        return state.election_deadline_ms
    if isinstance(state, (Observer, Leader)):
        return None
    if isinstance(state, (Prospective, Candidate)):
        return state.deadline_ms
    return state.election_deadline_ms
