"""UpdateVoter: a replica registers its endpoints (KIP-853, UpdateRaftVoter).

The leader handles the request in these steps, and replies at once:

1. The request must be of the present epoch, and of this cluster if it names one; this replica must lead.
2. The replica must have an id, a storage id, kraft.version 1 and an endpoint for the peers' listener; it
   must not be the leader itself.
3. An observer's endpoints are kept in memory, for when it becomes a voter.
4. What a voter says counts as a sign of life. If the latest voter set says the same, reply.
5. The latest voter set, and a record of this leader's epoch, must be committed; else the voter asks again.
6. Append the voter set with the new endpoints.
"""

from __future__ import annotations

from dataclasses import replace

from quorumd.raft.check_quorum import note_heard
from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import UpdateVoterRequested
from quorumd.raft.leader_discovery import is_foreign
from quorumd.raft.replica_progress import MAX_OBSERVERS, longest_silent
from quorumd.raft.roles import MOVE_REMEMBERED_MS, Leader, Move
from quorumd.raft.types import Voter
from quorumd.raft.voter_changes.checks import pending_change_problem, voter_problem
from quorumd.raft.voter_changes.requests import leader_of_request
from quorumd.raft.voter_changes.voter_sets import append_voters, listed, with_voter


def on_update_voter_requested(core: Core, event: UpdateVoterRequested) -> None:
    """Steps 1 to 4.

    Errors: INCONSISTENT_CLUSTER_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT; UNKNOWN_SERVER_ERROR for impossible values, since INVALID_REQUEST would end a
    Kafka peer.
    """
    if event.epoch != core.epoch and not is_foreign(core, event.cluster_id):
        is_old = event.epoch < core.epoch
        error = KafkaError.FENCED_LEADER_EPOCH if is_old else KafkaError.UNKNOWN_LEADER_EPOCH
        core.reply_to_change(event.reply_to, error, f"the epoch is {core.epoch}")
        return
    leader = leader_of_request(core, event.reply_to, event.cluster_id)
    if leader is None:
        return
    voter = event.voter
    problem = voter_problem(core, voter)
    if problem is not None or core.is_local(voter.key):
        why = "that is this replica" if problem is None else problem.reason
        core.report(f"what {voter.key} says of its endpoints is refused: {why}")
        core.reply_to_change(event.reply_to, KafkaError.UNKNOWN_SERVER_ERROR, "impossible values")
    elif voter.key not in core.voters.keys:
        _register(leader, voter)
        core.reply_to_change(event.reply_to)
    else:
        note_heard(core, leader, voter.key)
        _append(core, leader, event.reply_to, voter)


def _register(leader: Leader, voter: Voter) -> None:
    """Step 3. Anybody can send the request: the observer that has been silent for longest makes room."""
    registered = leader.registered_observers
    if voter.key not in registered and len(registered) >= MAX_OBSERVERS:
        del registered[longest_silent(leader, registered)]
    registered[voter.key] = voter


def _append(core: Core, leader: Leader, reply_to: int, voter: Voter) -> None:
    """Steps 4 to 6."""
    if voter in core.voters.voters:
        core.reply_to_change(reply_to)
        return
    problem = pending_change_problem(core, leader)
    if problem is not None:
        core.reply_to_change(reply_to, KafkaError.REQUEST_TIMED_OUT, problem)
        return
    _note_move(core, leader, voter)
    core.report(f"voter {voter.key} is reached at {listed(voter.endpoints)} from now on")
    append_voters(core, leader, with_voter(core.voters, voter), core.electorate.entry.record.target)
    core.reply_to_change(reply_to)


def _note_move(core: Core, leader: Leader, voter: Voter) -> None:
    """One that comes back again and again is two processes, with one directory and its copy."""
    former, last = core.voters.find(voter.key), leader.moves.get(voter.key)
    assert former is not None, "only voters move"
    returns = 0
    if last is not None and last.former == voter and core.now_ms < last.at_ms + MOVE_REMEMBERED_MS:
        returns = last.returns + 1
    leader.moves[voter.key] = Move(former, core.now_ms, returns)


def update_own_endpoints(core: Core, leader: Leader) -> None:
    """A leader that is reached elsewhere than the voter set says corrects that itself."""
    own = core.voters.find(core.local)
    if own is not None and core.electorate.has_moved:
        moved = replace(own, endpoints=core.config.endpoints)
        append_voters(core, leader, with_voter(core.voters, moved), None)
