"""RemoveVoter: a voter becomes an observer (KIP-853, KIP-856).

The leader handles the request in these steps:

1. It must lead, of the cluster that the request names, if it names one.
2. The replica must be a voter, and not the only one; quorum.voters and a reassignment that is under way must
   not need its id.
3. If the latest set leaves it out already, and is not committed, go on with step 8.
4. Wait until the latest voter set, and a record of this leader's epoch, are committed.
5. Check step 2 again: time has passed.
6. Wait until a majority of the voters that remain fetches, unless the request says not to.
7. Append the voter set without the voter. It counts at once; a leader that is removed goes on leading,
   without counting itself.
8. Wait until that is committed by a majority of the new set.
9. Reply; then a leader that was removed resigns. A request that has waited for its timeout gets its reply
   at any step.

Steps 4, 5, 8 and 9 are those of every change: see `pending_changes`.
"""

from __future__ import annotations

from quorumd.raft.bootstrap import bootstrap_problem
from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import RemoveVoterRequested
from quorumd.raft.roles import ChangeKind, Leader, VoterChange
from quorumd.raft.types import Voter
from quorumd.raft.voter_changes.checks import majority_problem
from quorumd.raft.voter_changes.requests import leader_of_request, queue
from quorumd.raft.voter_changes.voter_sets import append_voters, listed, without_voter


def on_remove_voter_requested(core: Core, event: RemoveVoterRequested) -> None:
    """Steps 1 to 3.

    Errors: INCONSISTENT_CLUSTER_ID, NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST, VOTER_NOT_FOUND,
    REQUEST_TIMED_OUT.
    """
    leader = leader_of_request(core, event.reply_to, event.cluster_id)
    if leader is None:
        return
    change = VoterChange(
        event.reply_to,
        ChangeKind.REMOVE,
        core.now_ms,
        core.now_ms + event.timeout_ms,
        voter=Voter(event.key),
        force=event.force,
    )
    refusal = refusal_of(core, leader, change)
    if event.key not in core.voters.keys and event.key in core.committed_voters.record.voters.keys:
        refusal, change.offset = None, core.log.voters_offset
    queue(core, leader, change, refusal)


def refusal_of(core: Core, leader: Leader, change: VoterChange) -> Refusal | None:
    """Step 2: why this voter must not be removed, at present or ever."""
    key, voters = _voter(change).key, core.voters
    if key.id < 0 or key.uuid is None:
        text = "a voter has an id, 0 or more, and a storage id"
        if core.is_bootstrapping:
            text = f"{text}; {bootstrap_problem(core)}"
        return Refusal(KafkaError.INVALID_REQUEST, text)
    if key not in voters.keys:
        text = f"replica {key} is not a voter: the voters are {listed(voters.keys)}"
        return Refusal(KafkaError.VOTER_NOT_FOUND, text)
    if len(voters) == 1:
        return Refusal(
            KafkaError.VOTER_NOT_FOUND, f"{key} is the only voter: add another one first"
        )
    is_last = [other.id for other in voters.keys].count(key.id) == 1
    if is_last and key.id in core.config.configured_voters.ids:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            f"quorum.voters names the id {key.id}, so one replica of that id has to vote. To replace "
            "its disk add the new one first; to do without it remove that key from the configuration "
            "of all nodes, restart them one by one, and repeat",
        )
    target = core.electorate.entry.record.target
    if is_last and target is not None and key.id in target:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            f"a reassignment to {listed(target)} is under way, which includes {key.id}: change its "
            "target, or cancel it first",
        )
    return None


def append(core: Core, leader: Leader, change: VoterChange) -> str | None:
    """Steps 6 and 7. Returns what has to be waited for first; None if the set is appended."""
    voter = _voter(change)
    voters = without_voter(core.voters, voter)
    problem = None if change.force else majority_problem(core, leader, voters)
    if problem is not None:
        return problem
    core.report(f"voter {voter.key} is removed")
    append_voters(core, leader, voters, core.electorate.entry.record.target)
    return None


def _voter(change: VoterChange) -> Voter:
    assert change.voter is not None, "a removal is one of a voter"
    return change.voter
