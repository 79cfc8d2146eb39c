"""Delay of a voter before it campaigns: at random, so that campaigns rarely collide.

A vote is on disk before anybody hears of it. Where that takes long, campaigns can collide for as long, and
what others write because of it takes as long: the backoff of a failed campaign, and the waits for what comes
of a vote, grow by it.

Source: KIP-595, gridlocked elections.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.core import Core
from quorumd.raft.roles import Unattached

CAMPAIGN_DELAY_MS: Final = 50
"""Bound (exclusive) of the random delay before a campaign that nothing else delays."""

BACKOFF_VOTES: Final = 4
"""So many times what the last vote took are added to that bound: of two campaigns mostly one is first."""


def campaign_soon(core: Core, state: Unattached) -> None:
    """Campaign soon, unless an earlier campaign failed and its backoff runs."""
    if core.election_attempts == 0:
        soon = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
        state.election_deadline_ms = min(state.election_deadline_ms, soon)


def campaign_backoff_ms(core: Core) -> int:
    """Random delay of the next campaign: bounded by 50 ms, doubling with each one that failed, and by the
    time that a vote took to be on disk."""
    core.election_attempts += 1
    bound = CAMPAIGN_DELAY_MS << min(core.election_attempts - 1, 20)
    synced_ms = BACKOFF_VOTES * core.writes.vote_took_ms
    return core.draw(min(bound, core.config.election_backoff_max_ms) + synced_ms)


def after_vote_synced(core: Core) -> int:
    """A vote, the own one or one given, is on disk now, and others hear of it. Until when to wait for what
    comes of it, in ms: what they write may take as long. A disk that stood still says nothing of theirs."""
    writes, timeout_ms = core.writes, core.config.election_timeout_ms
    writes.vote_took_ms = min(core.now_ms - writes.state_since_ms, timeout_ms)
    return core.now_ms + timeout_ms + writes.vote_took_ms
