"""Pre-vote: a voter asks whether it could win before it begins a new epoch (KIP-996).

A pre-vote touches neither epoch nor disk. Here is when one is granted, and what follows when it is refused;
the request itself is the first half of a campaign, see `campaign`.
"""

from __future__ import annotations

from quorumd.raft.campaign_delays import CAMPAIGN_DELAY_MS, campaign_backoff_ms, campaign_soon
from quorumd.raft.core import Core
from quorumd.raft.events import VoteRequestReceived
from quorumd.raft.role_changes import move_to
from quorumd.raft.roles import Follower, Leader, Observer, Prospective, Unattached
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import ReplicaKey
from quorumd.raft.vote_rules import is_up_to_date, may_vote


def grants_pre_vote(core: Core, event: VoteRequestReceived) -> bool:
    """A pre-vote changes nothing, so to grant one costs no safety (KIP-996)."""
    if isinstance(core.state, Leader) or not may_vote(core):
        return False
    if isinstance(core.state, (Follower, Observer)) and core.has_leader_contact:
        return False
    return is_up_to_date(core, event.last)


def campaign_against(core: Core, asker: ReplicaKey) -> None:
    """A replica without leader asked, and was refused for its shorter log: better ask ourselves.

    The asker may have refused us while it still heard of its leader. A replica that is led does not campaign
    for it: any process can ask.
    """
    state = core.state
    if isinstance(state, Prospective):
        for key in [key for key in state.votes if key.matches(asker) and not state.votes[key]]:
            del state.votes[key]
    elif isinstance(state, Follower) and not core.is_led:
        soon = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
        state.campaign_at_ms = min(state.election_deadline_ms, soon)
    elif isinstance(state, Unattached):
        campaign_soon(core, state)


def lose_pre_votes(core: Core) -> None:
    """Go back, and try again after a random delay that doubles each time."""
    backoff = campaign_backoff_ms(core)
    if core.leader is None:
        move_to(core, Trigger.PRE_VOTES_LOST, Unattached(core.now_ms + backoff))
        return
    contact = core.known_leader.last_contact_ms
    expires = core.now_ms if contact is None else contact + core.config.fetch_timeout_ms
    move_to(
        core,
        Trigger.PRE_VOTES_LOST_TO_LEADER,
        Follower(expires, campaign_at_ms=core.now_ms + backoff),
    )
