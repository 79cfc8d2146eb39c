"""Choice of the replica that an operator means, and the majority that a quorum keeps after a change.

Rules on one description of the quorum; knows no socket. Source: KIP-856 (two storage ids under one id,
disk failure recovery), KIP-642 (order of the steps of a reassignment).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from quorumd.client.description import QuorumDescription, ReplicaState
from quorumd.client.errors import ChangeRefused, ReplicaNotFound
from quorumd.raft.types import ReplicaKey, uuid_to_text

_LOOK = (
    "Is it started? Its log and /readyz say what it lacks. quorum.bootstrap.servers or quorum.voters in its "
    "configuration have to name nodes of this quorum, and its meta.properties has to have the same "
    "cluster.id, or none. `quorumctl describe --replication` shows who fetches"
)


def listed(values: Iterable[object]) -> str:
    """The values with commas between them; "none" if there are none."""
    return ", ".join(map(str, values)) or "none"


def state_of(
    replicas: Iterable[ReplicaState], replica_id: int, uuid: UUID | None
) -> ReplicaState | None:
    """The only replica under this id, and with this storage id if it is given; else None."""
    wanted = ReplicaKey(replica_id, uuid)
    found = [replica for replica in replicas if wanted.matches(replica.key)]
    return found[0] if len(found) == 1 else None


def joining_observer(
    quorum: QuorumDescription, goal: str, replica_id: int, uuid: UUID | None
) -> ReplicaState:
    """The replica to add as a voter; it may be one already.

    Without `uuid` it is the only one under its id that fetches. Raises ReplicaNotFound, ChangeRefused.
    """
    _check_uuid_is_unused(quorum, goal, replica_id, uuid)
    voters = [voter for voter in quorum.voters if voter.key.id == replica_id]
    candidates = [each for each in quorum.could_be_voters if each.key.id == replica_id]
    if uuid is not None:
        found = state_of((*voters, *candidates), replica_id, uuid)
        if found is None:
            others = _with_age(quorum, [*voters, *candidates])
            known = f"; under that id there is {others}" if others else ""
            text = f"no replica {ReplicaKey(replica_id, uuid)} fetches from the leader{known}"
            raise ReplicaNotFound(goal, text, _LOOK)
        return found
    fetching = [each for each in candidates if quorum.is_alive(each)] or candidates
    if len(fetching) > 1:
        raise ChangeRefused(goal, _several(quorum, fetching))
    if fetching:
        return fetching[0]
    if len(voters) == 1 and quorum.is_alive(voters[0]):
        return voters[0]
    if voters:
        raise ReplicaNotFound(
            goal,
            f"under the id {replica_id} there is only {_with_age(quorum, voters)}, a voter already, "
            "and no observer",
            _LOOK,
        )
    raise ReplicaNotFound(goal, f"no replica {replica_id} fetches from the leader", _LOOK)


def leaving_voter(
    quorum: QuorumDescription, goal: str, replica_id: int, uuid: UUID | None
) -> ReplicaState:
    """The voter to remove. Raises ChangeRefused if there is none, or two storage ids under the id."""
    wanted = ReplicaKey(replica_id, uuid)
    found = [voter for voter in quorum.voters if wanted.matches(voter.key)]
    if len(found) > 1:
        raise ChangeRefused(goal, _several(quorum, found))
    if not found:
        voters = listed(voter.key for voter in quorum.voters)
        raise ChangeRefused(goal, f"{wanted} is not a voter. The voters are {voters}")
    return found[0]


def only_voter(quorum: QuorumDescription, goal: str, replica_id: int) -> ReplicaState:
    """The voter under this id. Raises ChangeRefused if there is none, or two."""
    found = [voter for voter in quorum.voters if voter.key.id == replica_id]
    if len(found) > 1:
        raise ChangeRefused(
            goal,
            f"two storage ids vote under that id, {_with_age(quorum, found)}. Finish the replacement of "
            f"the disk first: `quorumctl replace-voter {replica_id}`",
        )
    return leaving_voter(quorum, goal, replica_id, None)


def check_survives(
    quorum: QuorumDescription, goal: str, voters: Sequence[ReplicaState], remedy: str
) -> None:
    """Raises ChangeRefused if no majority of these voters fetches."""
    fetching = [voter for voter in voters if quorum.is_alive(voter)]
    if len(fetching) > len(voters) // 2:
        return
    raise ChangeRefused(
        goal,
        f"the voters would be {listed(voter.key for voter in voters)} then, of which "
        f"{listed(voter.key for voter in fetching)} fetch{'es' if len(fetching) == 1 else ''}: nothing "
        f"could be committed any more. {remedy}",
    )


class DiskReplacement(NamedTuple):
    """The progress of a disk replacement: `old` is None once it is removed.

    `is_added` is True if `new` votes already.
    """

    new: ReplicaState
    old: ReplicaState | None
    is_added: bool


def disk_replacement(quorum: QuorumDescription, goal: str, replica_id: int) -> DiskReplacement:
    """The replicas (replica_id, new) and (replica_id, old).

    Raises ReplicaNotFound if that may change by itself, ChangeRefused.
    """
    voters = [voter for voter in quorum.voters if voter.key.id == replica_id]
    fetching = [voter for voter in voters if quorum.is_alive(voter)]
    observers = [each for each in quorum.could_be_voters if each.key.id == replica_id]
    live_observers = [each for each in observers if quorum.is_alive(each)]
    if not voters:
        raise ChangeRefused(
            goal,
            f"{replica_id} is not a voter. The voters are {listed(quorum.voter_ids)}; "
            "`quorumctl add-voter` makes a new one",
        )
    if len(voters) == 2 and len(fetching) == 1:
        (old,) = (voter for voter in voters if voter is not fetching[0])
        return DiskReplacement(fetching[0], old, is_added=True)
    if len(voters) == 1 and not fetching and len(live_observers) == 1:
        return DiskReplacement(live_observers[0], voters[0], is_added=False)
    if len(voters) == 1 and fetching and not live_observers:
        return DiskReplacement(fetching[0], None, is_added=True)
    if fetching:
        raise ReplicaNotFound(
            goal,
            f"{_with_age(quorum, [*fetching, *live_observers])} all fetch",
            "Stop the one with the old disk, then repeat this",
        )
    if len(live_observers) > 1:
        raise ChangeRefused(goal, _several(quorum, live_observers))
    raise ReplicaNotFound(
        goal,
        f"the voter {_with_age(quorum, voters)} is silent, and no other replica {replica_id} fetches",
        "Format the new disk with `quorumd format --config FILE`, without --bootstrap, and start the "
        f"node. {_LOOK}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A reassignment in progress, as the leader sees it.

    `voters` is the present voter set, `target` the voter ids in the end, ascending. `adding` are the ids
    that are to be added, each with the state of the observer under that id, None if there is none;
    `removing` are removed, the leader last. `waits_for` is the condition for the next step, for which the
    leader has waited `waiting_ms` (-1: unknown).
    """

    leader_id: int
    voters: tuple[ReplicaKey, ...]
    target: tuple[int, ...]
    adding: tuple[tuple[int, ReplicaState | None], ...]
    removing: tuple[ReplicaKey, ...]
    next_step: str
    waits_for: str = ""
    waiting_ms: int = -1


def reassignment(quorum: QuorumDescription) -> Reassignment | None:
    """The reassignment in progress, None if there is none."""
    target = quorum.target_voters
    if target is None:
        return None
    adding = tuple(
        (replica_id, _best_observer(quorum, replica_id))
        for replica_id in target
        if replica_id not in quorum.voter_ids
    )
    removing = [voter for voter in quorum.voters if voter.key.id not in target]
    change = next((each for each in quorum.pending_changes if each.kind == "reassign"), None)
    return Reassignment(
        leader_id=quorum.leader_id,
        voters=tuple(voter.key for voter in quorum.voters),
        target=target,
        adding=adding,
        removing=tuple(voter.key for voter in removing),
        next_step=_next_step(quorum, [replica_id for replica_id, _ in adding], removing),
        waits_for="" if change is None else change.waits_for,
        waiting_ms=-1 if change is None else change.waiting_ms,
    )


def _next_step(
    quorum: QuorumDescription, adding: Sequence[int], removing: Sequence[ReplicaState]
) -> str:
    # While as many come as go, or more, one comes; else one goes: KIP-642.
    if not adding and not removing:
        return "the end is committed"
    if len(adding) >= len(removing):
        return f"{' or '.join(map(str, adding))} is added"
    others = [voter for voter in removing if voter is not quorum.leader]
    if not others:
        return f"the leader {quorum.leader_id} hands over, and is removed"
    return f"{min(others, key=lambda voter: voter.last_fetch_timestamp_ms).key} is removed"


def _best_observer(quorum: QuorumDescription, replica_id: int) -> ReplicaState | None:
    found = [each for each in quorum.could_be_voters if each.key.id == replica_id]
    return max(found, key=lambda each: each.last_fetch_timestamp_ms, default=None)


def _check_uuid_is_unused(
    quorum: QuorumDescription, goal: str, replica_id: int, uuid: UUID | None
) -> None:
    for other in (*quorum.voters, *quorum.observers):
        if uuid is not None and other.key.uuid == uuid and other.key.id != replica_id:
            raise ChangeRefused(
                goal,
                f"the storage id {uuid_to_text(uuid)} is that of replica {other.key.id}. Check the id; if "
                f"replica {replica_id} was begun with a copy of that directory, format a new one for it",
            )


def _several(quorum: QuorumDescription, replicas: Sequence[ReplicaState]) -> str:
    return (
        f"there are several under that id: {_with_age(quorum, replicas)}. Say which one with "
        "--replica-uuid, or stop all but one"
    )


def _with_age(quorum: QuorumDescription, replicas: Iterable[ReplicaState]) -> str:
    return ", ".join(f"{each.key} ({age_text(quorum.silent_ms(each))})" for each in replicas)


def age_text(silent_ms: int) -> str:
    """The age of a replica's last fetch as text; -1 is never."""
    if silent_ms < 0:
        return "has not fetched from this leader"
    if silent_ms < 10_000:
        return f"fetched {silent_ms} ms ago"
    return f"fetched {silent_ms // 1000} s ago"
