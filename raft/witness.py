"""A witness votes and copies the log, but leads only where no other voter can, and hands over at once.

It refuses votes to those whose log lacks what it holds; only if no other voter turns up does it campaign.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.events import VoteRequestReceived
from quorumd.raft.vote_rules import is_up_to_date, may_vote


def consider_witness_leadership(core: Core, event: VoteRequestReceived) -> None:
    """A witness leads where no other voter can: it refuses a candidate whose log lacks what it holds.

    If another one has asked that lacks nothing, that one shall win. It is given the time until all have
    missed the leader and it has asked them again, but no more: something may keep it from winning.
    """
    if core.has_leader_contact or not may_vote(core):
        return
    if not is_up_to_date(core, event.last):
        core.witness.must_lead = core.witness.must_lead or core.now_ms >= (
            core.witness.defers_until_ms or 0
        )
    elif core.witness.defers_until_ms is None:
        config = core.config
        patience_ms = 2 * config.election_timeout_ms + config.election_backoff_max_ms
        core.witness.defers_until_ms = core.now_ms + config.fetch_timeout_ms + patience_ms
        core.witness.must_lead = False


def may_campaign(core: Core) -> bool:
    """False for a witness, unless no other voter can win, or perhaps none knows that it is one."""
    if not core.config.is_witness or core.witness.must_lead:
        return True
    committed = core.committed_voters.record.voters
    return any(all(map(core.is_local, voters.keys)) for voters in (core.voters, committed))
