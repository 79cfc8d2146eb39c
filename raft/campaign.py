"""A voter that misses its leader campaigns: as prospective for pre-votes, then as candidate for votes.

Sources: KIP-595 (Vote response handling, gridlocked elections), KIP-996 (prospective).
"""

from __future__ import annotations

from typing import Final

from quorumd.raft import quorum
from quorumd.raft.campaign_delays import after_vote_synced, campaign_backoff_ms
from quorumd.raft.core import Core
from quorumd.raft.effects import Peer, Vote
from quorumd.raft.events import VoteResponseReceived
from quorumd.raft.leader_discovery import LAST_EPOCH, absorb
from quorumd.raft.leadership import become_leader
from quorumd.raft.pre_vote import lose_pre_votes
from quorumd.raft.role_changes import move_to
from quorumd.raft.roles import Candidate, Prospective
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import ReplicaKey
from quorumd.raft.witness import require_no_rival

REFUSAL_GRACE_MS: Final = 100
"""After a first refusal, how long a candidate waits for the other voters before a new round. A round of
pre-votes waits twice as long as the one before it that was lost: responses may take longer than this."""


def become_prospective(core: Core, trigger: Trigger) -> None:
    """Ask every other voter whether it would vote (KIP-996)."""
    assert core.is_voter, "only voters campaign"
    require_no_rival(core)
    own = core.voters.find(core.local)
    deadline = core.now_ms + core.random_election_timeout_ms()
    move_to(core, trigger, Prospective(deadline, {} if own is None else {own.key: True}))
    _count_votes(core)


def _become_candidate(core: Core, trigger: Trigger) -> None:
    """A new epoch, the own vote in it, on disk before others are asked (KIP-595, Vote)."""
    if core.epoch >= LAST_EPOCH:
        core.report(f"no election: epoch {core.epoch} is the last one")
        return lose_pre_votes(core)
    core.epoch += 1
    core.voted, core.leader, core.known_leader.endpoints = core.local, None, ()
    core.persist()
    deadline = core.now_ms + core.random_election_timeout_ms()
    move_to(core, trigger, Candidate(deadline, vote_write=core.writes.state))
    return None


def ask_for_votes(core: Core, state: Prospective | Candidate) -> None:
    """Send Vote to every voter that has not responded and can be asked now."""
    if core.is_shutting_down:
        return
    if isinstance(state, Candidate) and state.is_lost:
        return
    request = Vote(epoch=core.epoch, last=core.log.end, pre_vote=isinstance(state, Prospective))
    for key in core.other_voters():
        if key not in state.votes and core.can_send(key, Vote):
            core.send(key, request, after=core.writes.state)


def on_vote_response(core: Core, event: VoteResponseReceived) -> None:
    """KIP-595, Vote response handling; top-level refusals arrive as failed requests."""
    request = core.take(event.request_id)
    if request is None:
        return
    if not absorb(core, request, event.error, event.hint):
        if event.error is not None:
            on_vote_failed(core)
        return
    vote, state = request.request, core.state
    assert isinstance(vote, Vote), "a Vote response belongs to a Vote request"
    asked_as = Prospective if vote.pre_vote else Candidate
    if not isinstance(state, (Prospective, Candidate)):
        # The voter was asked for confirmation (see `ask`), and knows nothing new: the request may come again.
        core.back_off(request)
    elif isinstance(state, asked_as):
        assert isinstance(request.to, ReplicaKey), "only fetches go to bootstrap servers"
        state.votes[request.to] = event.granted
        _count_votes(core)


def on_vote_failed(core: Core) -> None:
    """A voter could not be asked: with another one's refusal, that can end the round (KIP-595,
    gridlocked elections)."""
    _count_votes(core)


def on_pre_vote_unsupported(core: Core, to: Peer) -> None:
    """A voter too old for pre-vote: campaign at once, as it would (KIP-996, compatibility)."""
    if isinstance(core.state, Prospective):
        core.report(f"voter {to} does not know pre-vote")
        _become_candidate(core, Trigger.PRE_VOTES_UNSUPPORTED)


def on_own_vote_synced(core: Core, state: Candidate) -> None:
    """Count the own vote: it is on disk now. The others are asked, and have time, from now on."""
    own = core.voters.find(core.local)
    if own is not None and own.key not in state.votes:
        state.votes[own.key] = True
        state.deadline_ms = max(state.deadline_ms, after_vote_synced(core))
        _count_votes(core)


def _count_votes(core: Core) -> None:
    state = core.state
    if not isinstance(state, (Prospective, Candidate)) or core.is_shutting_down:
        return None
    keys = core.electorate.keys
    votes = [state.votes[key] for key in keys if key in state.votes]
    granted = sum(votes)
    refused = len(votes) - granted
    if quorum.is_won(granted, len(core.voters)):
        if isinstance(state, Prospective):
            return _become_candidate(core, Trigger.PRE_VOTES_WON)
        return become_leader(core, tuple(key for key, yes in state.votes.items() if yes))
    if not refused:
        return None
    silent = sum(key not in state.votes and _is_absent(core, key) for key in keys)
    is_lost = quorum.is_lost(refused + silent, len(keys))
    if isinstance(state, Prospective):
        if is_lost:
            return lose_pre_votes(core)
        grace_ms = REFUSAL_GRACE_MS << min(core.election_attempts, 20)
        state.deadline_ms = min(state.deadline_ms, core.now_ms + grace_ms)
    elif not state.is_lost and (is_lost or not state.is_contested):
        grace_ms = REFUSAL_GRACE_MS + core.writes.vote_took_ms
        wait_ms = campaign_backoff_ms(core) + (0 if is_lost else grace_ms)
        state.is_lost, state.is_contested = is_lost, True
        state.deadline_ms = min(state.deadline_ms, core.now_ms + wait_ms)
    return None


def _is_absent(core: Core, voter: ReplicaKey) -> bool:
    """True if this voter cannot be asked at present: one refusal more may decide against this round."""
    return voter.id in core.connections.unreachable or (voter, Vote) in core.requests.backoffs
