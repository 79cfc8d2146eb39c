"""Why a change of the voters, or of the leader, must not or cannot be made now, in words.

Nothing here changes anything. Sources: KIP-856, KIP-853, KIP-642. Error names are Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumd.raft import quorum
from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.leadership import bootstrap_obstacle, synced_end_offset
from quorumd.raft.roles import ChangeKind, Leader, VoterChange
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet

RIVAL_SILENT_TIMEOUTS = 3
"""A voter may be doubled under its id when it has been silent for this many fetch timeouts."""


# -- what is not allowed


def voter_problem(core: Core, voter: Voter) -> Refusal | None:
    """What makes a description of a voter unusable."""
    if voter.key.id < 0 or voter.key.uuid is None:
        return Refusal(KafkaError.INVALID_REQUEST, "a voter has an id, 0 or more, and a storage id")
    if not 0 <= voter.min_kraft_version <= 1 <= voter.max_kraft_version:
        return Refusal(
            KafkaError.INVALID_REQUEST, f"replica {voter.key} does not support kraft.version 1"
        )
    wanted = {at.name for at in core.config.endpoints[:1]}
    if not wanted <= {at.name for at in voter.endpoints}:
        return Refusal(
            KafkaError.INVALID_REQUEST, f"an endpoint for the listener {listed(wanted)} is missing"
        )
    for at in voter.endpoints:
        if not at.name or not at.host or not 0 < at.port < 2**16:
            return Refusal(
                KafkaError.INVALID_REQUEST, f"{at.name}://{at.host}:{at.port} is no endpoint"
            )
    return None


def why_not(core: Core, leader: Leader, change: VoterChange) -> Refusal | None:
    """Why this change must not be made, at present or ever."""
    if change.kind is ChangeKind.REASSIGN:
        return target_problem(core, change.target)
    assert change.voter is not None, "an addition or a removal is one of a voter"
    key = change.voter.key
    if change.kind is ChangeKind.REMOVE:
        return _why_not_remove(core, key)
    latest = core.electorate.entry
    if key in latest.record.voters.keys and core.committed_voters is latest:
        return Refusal(KafkaError.DUPLICATE_VOTER, f"replica {key} is a voter already")
    return _why_not_add(core, leader, key)


def _why_not_add(core: Core, leader: Leader, key: ReplicaKey) -> Refusal | None:
    permitted = core.config.configured_voters.ids
    if permitted and key.id not in permitted:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            (
                f"quorum.voters permits the ids {listed(permitted)} only, not {key.id}. Remove that key "
                "from the configuration of all nodes, or add the id there, restart them one by one, and "
                "repeat"
            ),
        )
    target = core.electorate.entry.record.target
    if target is not None and key.id not in target and key.id not in core.voters.ids:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            (
                f"a reassignment to {listed(target)} is under way, which does not include {key.id}: "
                "change its target, or cancel it first"
            ),
        )
    for rival in core.voters.keys:
        if rival.id == key.id and rival != key and is_alive(core, leader, rival):
            return Refusal(
                KafkaError.INVALID_REQUEST,
                (
                    f"the voter {rival} is alive: stop it, and wait {rival_silent_ms(core)} ms, or remove "
                    f"it first, before {key} takes its place"
                ),
            )
    return None


def _why_not_remove(core: Core, key: ReplicaKey) -> Refusal | None:
    voters = core.voters
    if key.id < 0 or key.uuid is None:
        return Refusal(KafkaError.INVALID_REQUEST, "a voter has an id, 0 or more, and a storage id")
    if key not in voters.keys:
        text = f"replica {key} is not a voter: the voters are {listed(voters.keys)}"
        return Refusal(KafkaError.VOTER_NOT_FOUND, text)
    if len(voters) == 1:
        return Refusal(
            KafkaError.INVALID_REQUEST, f"{key} is the only voter: add another one first"
        )
    is_last = [other.id for other in voters.keys].count(key.id) == 1
    if is_last and key.id in core.config.configured_voters.ids:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            (
                f"quorum.voters names the id {key.id}, so one replica of that id has to vote. To replace "
                "its disk add the new one first; to do without it remove that key from the configuration "
                "of all nodes, restart them one by one, and repeat"
            ),
        )
    target = core.electorate.entry.record.target
    if is_last and target is not None and key.id in target:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            (
                f"a reassignment to {listed(target)} is under way, which includes {key.id}: change its "
                "target, or cancel it first"
            ),
        )
    return None


def target_problem(core: Core, target: tuple[int, ...] | None) -> Refusal | None:
    if target is None:
        return None
    permitted = core.config.configured_voters.ids
    error = KafkaError.INVALID_REPLICA_ASSIGNMENT
    if not target or target[0] < 0 or len(set(target)) != len(target):
        return Refusal(error, f"{list(target)} is no set of ids")
    if permitted and tuple(target) != permitted:
        return Refusal(
            error,
            (
                f"quorum.voters names the ids {listed(permitted)}, so just these have to vote. Remove "
                "that key from the configuration of all nodes, restart them one by one, and repeat"
            ),
        )
    return None


def rival_silent_ms(core: Core) -> int:
    return RIVAL_SILENT_TIMEOUTS * core.config.fetch_timeout_ms


def is_alive(core: Core, leader: Leader, voter: ReplicaKey) -> bool:
    """True if this voter leads, or was heard of not long ago."""
    if core.is_local(voter):
        return True
    known = leader.progress.get(voter)
    if known is None or known.last_heard_ms is None:
        return False
    return core.now_ms < known.last_heard_ms + rival_silent_ms(core)


# -- what has to be waited for


def unsettled(core: Core, leader: Leader) -> str | None:
    """Why the voter set must not be changed now."""
    entry = core.electorate.entry
    if core.is_bootstrapping:
        return bootstrap_obstacle(core)
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


def doubtful(core: Core, leader: Leader, key: ReplicaKey) -> str | None:
    """Why it is not clear yet that the other voters under this id are gone: the leader is new."""
    for rival in core.voters.keys:
        known = leader.progress.get(rival)
        is_unheard = known is None or known.last_heard_ms is None
        left_ms = leader.elected_at_ms + rival_silent_ms(core) - core.now_ms
        if rival.id == key.id and rival != key and is_unheard and left_ms > 0:
            return f"the voter {rival} may be alive: it is waited for another {left_ms} ms"
    return None


def lagging(core: Core, leader: Leader, key: ReplicaKey) -> str | None:
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


def stalls(core: Core, leader: Leader, voters: VoterSet) -> str | None:
    """Why this set could not commit anything now: too few of its voters are there."""
    missing = [
        key for key in voters.keys if not core.is_local(key) and not is_fetching(core, leader, key)
    ]
    if quorum.is_won(len(voters) - len(missing), len(voters)):
        return None
    return (
        f"of the voters {listed(voters.keys)} that would be then, {listed(missing)} do not fetch: the "
        "quorum would stand still"
    )


def fetched_ms(leader: Leader, key: ReplicaKey) -> int:
    """When a replica fetched last; before all times if it never did."""
    known = leader.progress.get(key)
    return -1 if known is None or known.last_fetch_ms is None else known.last_fetch_ms


def is_fetching(core: Core, leader: Leader, key: ReplicaKey) -> bool:
    return fetched_ms(leader, key) >= max(0, core.now_ms - core.config.fetch_timeout_ms)


def listed(values: Iterable[object]) -> str:
    return ", ".join(
        f"{at.name}://{at.host}:{at.port}" if isinstance(at, Endpoint) else str(at) for at in values
    )
