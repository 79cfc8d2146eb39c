"""AddVoter: an observer becomes a voter (KIP-853, KIP-856).

The leader handles the request in these steps:

 1. It must lead, of the cluster that the request names, if it names one.
 2. The new voter must have an id, a storage id, kraft.version 1 and an endpoint for the peers' listener.
 3. It must not be a voter already, by a set that is committed; quorum.voters and a reassignment that is
    under way must permit its id; no other voter under its id may be alive.
 4. If the latest set names it, and is not committed, go on with step 9.
 5. Wait until the latest voter set, and a record of this leader's epoch, are committed.
 6. Check step 3 again: time has passed.
 7. Wait until other voters under its id have been silent for long enough, and until the new one has
    caught up, so that the quorum need not wait for it.
 8. Append the voter set with the new voter. It counts at once. Its endpoints are those that it has registered
    itself with this leader (UpdateVoter), else those of the request, until it registers others.
 9. Wait until that is committed by a majority of the new set, unless the request says not to wait.
10. Reply. A request that has waited for its timeout gets its reply at any step.

Steps 5, 6, 9 and 10 are those of every change: see `pending_changes`.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import AddVoterRequested
from quorumd.raft.roles import ChangeKind, Leader, VoterChange
from quorumd.raft.types import Voter
from quorumd.raft.voter_changes.checks import (
    catch_up_problem,
    is_alive,
    rival_problem,
    rival_silent_ms,
    voter_problem,
)
from quorumd.raft.voter_changes.requests import leader_of_request, queue
from quorumd.raft.voter_changes.voter_sets import append_voters, listed, with_voter


def on_add_voter_requested(core: Core, event: AddVoterRequested) -> None:
    """Steps 1 to 4.

    Errors: INCONSISTENT_CLUSTER_ID, NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST, DUPLICATE_VOTER,
    REQUEST_TIMED_OUT.
    """
    leader = leader_of_request(core, event.reply_to, event.cluster_id)
    if leader is None:
        return
    change = VoterChange(
        event.reply_to,
        ChangeKind.ADD,
        core.now_ms,
        core.now_ms + event.timeout_ms,
        voter=event.voter,
        ack_when_committed=event.ack_when_committed,
    )
    refusal = voter_problem(core, event.voter) or refusal_of(core, leader, change)
    if event.voter.key in core.voters.keys:
        change.offset = core.log.voters_offset
    queue(core, leader, change, refusal)


def refusal_of(core: Core, leader: Leader, change: VoterChange) -> Refusal | None:
    """Step 3: why this voter must not be added, at present or ever."""
    key = _voter(change).key
    latest = core.electorate.entry
    if key in latest.record.voters.keys and core.committed_voters is latest:
        return Refusal(KafkaError.DUPLICATE_VOTER, f"replica {key} is a voter already")
    permitted = core.config.configured_voters.ids
    if permitted and key.id not in permitted:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            f"quorum.voters permits the ids {listed(permitted)} only, not {key.id}. Remove that key "
            "from the configuration of all nodes, or add the id there, restart them one by one, and "
            "repeat",
        )
    target = latest.record.target
    if target is not None and key.id not in target and key.id not in core.voters.ids:
        return Refusal(
            KafkaError.INVALID_REQUEST,
            f"a reassignment to {listed(target)} is under way, which does not include {key.id}: "
            "change its target, or cancel it first",
        )
    for rival in core.voters.keys:
        if rival.id == key.id and rival != key and is_alive(core, leader, rival):
            return Refusal(
                KafkaError.INVALID_REQUEST,
                f"the voter {rival} is alive: stop it, and wait {rival_silent_ms(core)} ms, or remove "
                f"it first, before {key} takes its place",
            )
    return None


def append(core: Core, leader: Leader, change: VoterChange) -> str | None:
    """Steps 7 and 8. Returns what has to be waited for first; None if the set is appended."""
    voter = _voter(change)
    problem = rival_problem(core, leader, voter.key) or catch_up_problem(core, leader, voter.key)
    if problem is not None:
        return problem
    known = leader.registered_observers.get(voter.key, voter)
    if known.endpoints != voter.endpoints:
        core.report(
            f"replica {voter.key} is reached at {listed(known.endpoints)}, as it says itself, and not at "
            f"{listed(voter.endpoints)}"
        )
    core.report(f"voter {voter.key} is added")
    target = core.electorate.entry.record.target
    append_voters(core, leader, with_voter(core.voters, known), target)
    return None


def _voter(change: VoterChange) -> Voter:
    assert change.voter is not None, "an addition is one of a voter"
    return change.voter
