"""Delay of a voter before it campaigns: at random, so that campaigns rarely collide.

Source: KIP-595, gridlocked elections.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.core import Core
from quorumd.raft.roles import Unattached

CAMPAIGN_DELAY_MS: Final = 50
"""Bound (exclusive) of the random delay before a campaign that nothing else delays."""


def campaign_soon(core: Core, state: Unattached) -> None:
    """Campaign soon, unless an earlier campaign failed and its backoff runs."""
    if core.election_attempts == 0:
        soon = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
        state.election_deadline_ms = min(state.election_deadline_ms, soon)


def campaign_backoff_ms(core: Core) -> int:
    """Random delay of the next campaign: bounded by 50 ms, doubling with each one that failed."""
    core.election_attempts += 1
    bound = CAMPAIGN_DELAY_MS << min(core.election_attempts - 1, 20)
    return core.draw(min(bound, core.config.election_backoff_max_ms))
