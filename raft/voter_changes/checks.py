"""Reasons to refuse a voter change, or to let it wait, in words. Nothing here changes state.

A function that ends in `_problem` returns None if there is none. Sources: KIP-856, KIP-853, KIP-642.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft import quorum
from quorumd.raft.bootstrap import bootstrap_problem
from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.replica_progress import progress_of, synced_end_offset
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey, Voter, VoterSet
from quorumd.raft.voter_changes.voter_sets import listed

RIVAL_SILENT_TIMEOUTS: Final = 3
"""A voter may be doubled under its id when it has been silent for this many fetch timeouts.

One is enough if its addresses have refused connections since it was heard: its process was gone then, and
one that was started again would have fetched.
"""

# -- what makes a request wrong


def voter_problem(core: Core, voter: Voter) -> Refusal | None:
    """The reason why a description of a voter is unusable."""
    if voter.key.id < 0 or voter.key.uuid is None:
        return Refusal(KafkaError.INVALID_REQUEST, "a voter has an id, 0 or more, and a storage id")
    if not 0 <= voter.min_kraft_version <= 1 <= voter.max_kraft_version:
        text = f"replica {voter.key} does not support kraft.version 1"
        return Refusal(KafkaError.INVALID_REQUEST, text)
    wanted = {at.name for at in core.config.endpoints[:1]}
    if not wanted <= {at.name for at in voter.endpoints}:
        text = f"an endpoint for the listener {listed(wanted)} is missing"
        return Refusal(KafkaError.INVALID_REQUEST, text)
    names = [at.name for at in voter.endpoints]
    if len(set(names)) < len(names):
        text = f"a listener has two endpoints: {listed(voter.endpoints)}"
        return Refusal(KafkaError.INVALID_REQUEST, text)
    for at in voter.endpoints:
        if not at.name or not at.host or not 0 < at.port < 2**16:
            text = f"{at} is no endpoint"
            return Refusal(KafkaError.INVALID_REQUEST, text)
    return None


# -- what has to be waited for


def pending_change_problem(core: Core, leader: Leader) -> str | None:
    """The reason why the voter set must not be changed now: the last one is not committed.

    Nor must it before this leader has committed a record of its epoch (Ongaro, bug in single-server
    membership changes), or while the quorum is new.
    """
    entry = core.electorate.entry
    if core.is_bootstrapping:
        return bootstrap_problem(core)
    if core.high_watermark is None:
        return "this leader has not committed a record of its epoch yet"
    if entry.offset >= core.high_watermark:
        late = [
            key for key in core.voters.keys if synced_end_offset(core, leader, key) <= entry.offset
        ]
        return (
            f"the voter set at offset {entry.offset} is not committed yet: {listed(late)} "
            f"{'has' if len(late) == 1 else 'have'} not stored it"
        )
    return None


def catch_up_problem(core: Core, leader: Leader, key: ReplicaKey) -> str | None:
    """KIP-642, observer promotion: a round of replication must be shorter than the election timeout.

    That is to say: it has everything that was in this log at most an election timeout ago.
    """
    known = leader.progress.get(key)
    if known is None or known.last_fetch_ms is None:
        return (
            f"replica {key} does not fetch from this leader: is it running, and finds this quorum?"
        )
    caught_up = known.last_caught_up_ms
    if caught_up is None or core.now_ms - caught_up >= core.config.election_timeout_ms:
        lag = core.log.end_offset - max(0, known.end_offset)
        ago_ms = core.now_ms - known.last_fetch_ms
        return f"replica {key} is {lag} records behind, and fetched {ago_ms} ms ago"
    return None


def rival_problem(core: Core, leader: Leader, key: ReplicaKey) -> str | None:
    """The reason why it is not clear yet that the other voters under this id are gone: the leader is new."""
    for rival in core.voters.keys:
        left_ms = _counts_as_gone_ms(core, rival, leader.elected_at_ms) - core.now_ms
        if rival.id == key.id and left_ms > 0:
            return f"the voter {rival} may be alive: it is waited for another {left_ms} ms"
    return None


def majority_problem(core: Core, leader: Leader, voters: VoterSet) -> str | None:
    """The reason why this set could not commit anything now: too few of its voters fetch."""
    missing = [
        key for key in voters.keys if not core.is_local(key) and not is_fetching(core, leader, key)
    ]
    if quorum.is_won(len(voters) - len(missing), len(voters)):
        return None
    return (
        f"of the voters {listed(voters.keys)} that would be then, {listed(missing)} do not fetch: the "
        "quorum would stand still"
    )


# -- which replicas are alive


def rival_silent_ms(core: Core) -> int:
    """Time in ms that a voter has to be silent before another one may take its place under its id."""
    return RIVAL_SILENT_TIMEOUTS * core.config.fetch_timeout_ms


def _counts_as_gone_ms(core: Core, voter: ReplicaKey, heard_ms: int) -> int:
    """When another one may take the place of a voter that was heard last at `heard_ms`."""
    is_gone = core.connections.refused_ms.get(voter.id, heard_ms) > heard_ms
    return heard_ms + (core.config.fetch_timeout_ms if is_gone else rival_silent_ms(core))


def is_alive(core: Core, leader: Leader, voter: ReplicaKey) -> bool:
    """True if this voter leads, or was heard of not long ago."""
    if core.is_local(voter):
        return True
    known = leader.progress.get(voter)
    if known is None or known.last_heard_ms is None:
        return False
    return core.now_ms < _counts_as_gone_ms(core, voter, known.last_heard_ms)


def fetched_ms(leader: Leader, key: ReplicaKey) -> int:
    """When a replica fetched last; before all times if it never did."""
    known = progress_of(leader, key)
    return -1 if known is None or known.last_fetch_ms is None else known.last_fetch_ms


def is_fetching(core: Core, leader: Leader, key: ReplicaKey) -> bool:
    """True if a replica fetched within the fetch timeout."""
    return fetched_ms(leader, key) >= max(0, core.now_ms - core.config.fetch_timeout_ms)
