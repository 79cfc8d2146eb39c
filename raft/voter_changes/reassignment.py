"""AlterPartitionReassignments: the voters become those with the ids that are asked for (KIP-642).

The leader handles the request in these steps:

 1. It must lead.
 2. The target must be a set of ids, and those of quorum.voters where that is set. None ends the reassignment
    that is under way; there must be one.
 3. If the latest record names this target, or the voters are the target, go on with step 6.
 4. Wait until the latest voter set, and a record of this leader's epoch, are committed. Check step 2 again.
 5. Append the present voters with the target.
 6. Wait until that is committed, and reply.

The record keeps the target, so that the next leader goes on. Whenever the latest set is committed, one step:

 7. While as many ids come as go, or more: add one that comes and has caught up.
 8. Else remove one that goes, the one that fetched longest ago first, if a majority of the rest fetches.
    The leader goes last: it resigns, and its successor removes it. If it is elected again, because those
    that remain do not campaign, it removes itself.
 9. When no id comes or goes, append the same set without the target: the reassignment is complete.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import ReassignmentRequested
from quorumd.raft.roles import ChangeKind, Leader, Transfer, VoterChange
from quorumd.raft.types import Voter, VoterSet
from quorumd.raft.voter_changes.checks import (
    catch_up_problem,
    fetched_ms,
    majority_problem,
    pending_change_problem,
    rival_silent_ms,
)
from quorumd.raft.voter_changes.requests import leader_of_request, queue
from quorumd.raft.voter_changes.voter_sets import append_voters, listed, with_voter, without_voter


def on_reassignment_requested(core: Core, event: ReassignmentRequested) -> None:
    """Steps 1 to 3.

    Errors: NOT_LEADER_OR_FOLLOWER, INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS,
    REQUEST_TIMED_OUT.
    """
    leader = leader_of_request(core, event.reply_to, None)
    if leader is None:
        return
    change = VoterChange(
        event.reply_to,
        ChangeKind.REASSIGN,
        core.now_ms,
        core.now_ms + event.timeout_ms,
        target=event.target,
    )
    present = core.electorate.entry
    is_committed = core.committed_voters is present
    is_there = event.target == present.record.target
    refusal = refusal_of(core, leader, change)
    if is_there and event.target is None and is_committed:
        text = "no reassignment is under way"
        refusal = Refusal(KafkaError.NO_REASSIGNMENT_IN_PROGRESS, text)
    is_reached = present.record.target is None and event.target == core.voters.ids
    if is_there or is_reached:
        change.offset = present.offset
    queue(core, leader, change, refusal)


def refusal_of(core: Core, leader: Leader, change: VoterChange) -> Refusal | None:
    """Step 2: why the voters must not become these."""
    target = change.target
    if target is None:
        return None
    permitted = core.config.configured_voters.ids
    error = KafkaError.INVALID_REPLICA_ASSIGNMENT
    if not target or target[0] < 0 or len(set(target)) != len(target):
        return Refusal(error, f"{list(target)} is no set of ids")
    if permitted and tuple(target) != permitted:
        return Refusal(
            error,
            f"quorum.voters names the ids {listed(permitted)}, so just these have to vote. Remove "
            "that key from the configuration of all nodes, restart them one by one, and repeat",
        )
    return None


def append(core: Core, leader: Leader, change: VoterChange) -> str | None:
    """Step 5. Nothing has to be waited for."""
    target = change.target
    core.report(f"the target of the reassignment is {listed(target or ()) or 'given up'}")
    append_voters(core, leader, core.voters, target)
    return None


# -- on the way to the target


def take_next_step(core: Core, leader: Leader, target: tuple[int, ...]) -> None:
    """Steps 7 to 9, as far as one can be taken now."""
    voters = next_voters(core, leader, target)
    if isinstance(voters, VoterSet):
        core.report(f"reassignment to {listed(target)}: the voters are {listed(voters.keys)}")
        append_voters(core, leader, voters, None if voters == core.voters else target)
    elif voters is None and leader.transfer is None:
        _leave(core, leader, target)


def _leave(core: Core, leader: Leader, target: tuple[int, ...]) -> None:
    """The leader goes last: it hands over first, and removes itself only if it leads once more."""
    if core.reassignment.handed_over_at != core.log.voters_offset:
        core.report(f"reassignment to {listed(target)}: this leader, which is removed, resigns")
        core.reassignment.handed_over_at = core.log.voters_offset
        due_ms = core.now_ms + core.config.election_timeout_ms
        leader.transfer = Transfer(None, None, core.now_ms, due_ms)
        return
    # The voters that remain do not campaign: witnesses.
    rest = VoterSet.of(voter for voter in core.voters if not core.is_local(voter.key))
    if majority_problem(core, leader, rest) is None:
        core.report(f"reassignment to {listed(target)}: this leader removes itself")
        append_voters(core, leader, rest, target)


def next_voters(core: Core, leader: Leader, target: tuple[int, ...]) -> VoterSet | str | None:
    """The next voter set on the way to `target`; or what it waits for; or None: this leader is in the way.

    The same set once more says that the target is reached (KIP-642, reassignment algorithm).
    """
    voters = core.voters
    coming = [replica_id for replica_id in target if replica_id not in voters.ids]
    going = [voter for voter in voters if voter.key.id not in target]
    if not coming and not going:
        return voters
    if len(coming) >= len(going):
        problems = []
        for replica_id in coming:
            found = _promotable_observer(core, leader, replica_id)
            if isinstance(found, Voter):
                return with_voter(voters, found)
            problems.append(found)
        return "; ".join(problems)
    others = [voter for voter in going if not core.is_local(voter.key)]
    if not others:
        return None
    rest = without_voter(voters, min(others, key=lambda voter: fetched_ms(leader, voter.key)))
    return majority_problem(core, leader, rest) or rest


def _promotable_observer(core: Core, leader: Leader, replica_id: int) -> Voter | str:
    """The observer under this id that can become a voter now, or what that waits for."""
    since_ms = core.now_ms - rival_silent_ms(core)
    keys = [
        key
        for key in leader.progress
        if key.id == replica_id and key.uuid and fetched_ms(leader, key) > since_ms
    ]
    if not keys:
        return f"replica {replica_id} does not fetch from this leader: is it running?"
    if len(keys) > 1:
        return f"{listed(keys)} all fetch: stop all but one of them"
    problem = catch_up_problem(core, leader, keys[0])
    if problem is not None:
        return problem
    registered = leader.registered_observers.get(keys[0])
    return registered or f"replica {keys[0]} has not said yet where it is reached"


def reassignment_waits_for(core: Core, leader: Leader) -> str | None:
    """The condition that the reassignment under way waits for, in words; None if there is none."""
    target = core.electorate.entry.record.target
    if target is None:
        return None
    problem = pending_change_problem(core, leader)
    if problem is not None:
        return problem
    voters = next_voters(core, leader, target)
    return voters if isinstance(voters, str) else "its next step"
