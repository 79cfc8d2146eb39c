"""A witness votes and copies the log, but leads only where no other voter can, and hands over at once.

It refuses votes to those whose log lacks what it holds; only if no other voter turns up does it campaign.

Beside Kafka's controllers it must hold records that no other voter within reach has: each that is not
gone has asked for votes, and lacks them. It then leads without a record of its own, because what Kafka
cannot read ends every node that fetches it, until one voter has everything: that one writes, and commits.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.events import VoteRequestReceived
from quorumd.raft.invariants import require
from quorumd.raft.roles import Candidate
from quorumd.raft.vote_rules import is_up_to_date, may_vote


def consider_witness_leadership(core: Core, event: VoteRequestReceived) -> None:
    """A witness leads where no other voter can: it refuses a candidate whose log lacks what it holds.

    If another one has asked that lacks nothing, that one shall win. It is given the time until all have
    missed the leader and it has asked them again, but no more: something may keep it from winning.
    """
    if core.has_leader_contact or not may_vote(core):
        return None
    if core.config.is_kafka_log:
        return _compare_with_kafka_voter(core, event)
    until_ms = core.witness.defers_until_ms
    if not is_up_to_date(core, event.last):
        core.witness.must_lead = until_ms is None or core.now_ms >= until_ms
    elif until_ms is None:
        core.witness.defers_until_ms = core.now_ms + _patience_ms(core)
        core.witness.must_lead = False
    return None


def _patience_ms(core: Core) -> int:
    """The time until all voters have missed the leader, and have asked for votes twice."""
    config = core.config
    return config.fetch_timeout_ms + 2 * config.election_timeout_ms + config.election_backoff_max_ms


def _compare_with_kafka_voter(core: Core, event: VoteRequestReceived) -> None:
    """Note whether this voter lacks what the witness holds, and whether all within reach do by now.

    Two are not waited for: the leader that was lost, whose silence made the candidates ask, and a voter that
    has not asked for so long that others have asked twice.
    """
    state, contact_ms = core.kafka_log, core.known_leader.last_contact_ms
    voter = core.voters.find(event.candidate)
    if voter is None:
        return
    if state.contact_ms != contact_ms:
        state.behind.clear()
        state.contact_ms = contact_ms
    if is_up_to_date(core, event.last):
        state.behind.discard(voter.key)
    else:
        state.behind_since_ms = state.behind_since_ms if state.behind else core.now_ms
        state.behind.add(voter.key)
    lost = state.former_leader if core.leader in (None, core.local) else core.leader
    awaited = [
        key
        for key in core.other_voters()
        if key not in state.behind
        and key.id not in core.connections.unreachable
        and (lost is None or not key.matches(lost))
    ]
    is_late = core.now_ms >= state.behind_since_ms + _patience_ms(core)
    core.witness.must_lead = bool(state.behind) and (not awaited or is_late)


def forget_candidates(core: Core) -> None:
    """Another epoch or leader: a candidate that was behind may have caught up."""
    if core.kafka_log.behind:
        core.kafka_log.campaigned_for = frozenset(core.kafka_log.behind)
    core.kafka_log.behind.clear()
    former = core.context[1]
    if former is not None and former != core.local:
        core.kafka_log.former_leader = former


def may_campaign(core: Core) -> bool:
    """False for a witness, unless no other voter can win, or perhaps none knows that it is one.

    In a Kafka quorum only the former counts.
    """
    if not core.config.is_witness:
        return True
    if core.config.is_kafka_log:
        contact_ms = core.known_leader.last_contact_ms
        return core.witness.must_lead and core.kafka_log.contact_ms == contact_ms
    if core.witness.must_lead:
        return True
    committed = core.committed_voters.record.voters
    return any(all(map(core.is_local, voters.keys)) for voters in (core.voters, committed))


def require_no_rival(core: Core) -> None:
    """No campaign for a Kafka log where a Kafka voter could win; one that was begun goes on."""
    if core.config.is_kafka_log:
        is_repeated = isinstance(core.state, Candidate)
        require(is_repeated or may_campaign(core), "a needless campaign in a Kafka quorum")
