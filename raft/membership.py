"""Requests that change who votes, and who leads: the leader's end.

Sources: KIP-856 (AddVoter, RemoveVoter, two storage ids under one id), KIP-853 (UpdateRaftVoter), KIP-642
(AlterPartitionReassignments). Error names are Kafka's.
"""

from __future__ import annotations

from quorumd.raft.changing import append_voters, with_voter
from quorumd.raft.core import Core
from quorumd.raft.election import is_foreign
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import (
    AddVoterRequested,
    ReassignmentRequested,
    RemoveVoterRequested,
    TransferRequested,
    UpdateVoterRequested,
)
from quorumd.raft.leadership import MAX_OBSERVERS, note_heard
from quorumd.raft.obstacles import (
    is_fetching,
    listed,
    target_problem,
    unsettled,
    voter_problem,
    why_not,
)
from quorumd.raft.roles import ChangeKind, Leader, Transfer, VoterChange
from quorumd.raft.types import Voter

MAX_CHANGES = 100
"""More requests than these do not wait for their turn."""


def on_add_voter_requested(core: Core, event: AddVoterRequested) -> None:
    """KIP-856, AddVoter: the answer comes when the new set is committed.

    Errors: INCONSISTENT_CLUSTER_ID, NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST, DUPLICATE_VOTER,
    REQUEST_TIMED_OUT.
    """
    leader = _leader(core, event.reply_to, event.cluster_id)
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
    refusal = voter_problem(core, event.voter) or why_not(core, leader, change)
    if refusal is None and event.voter.key in core.voters.keys:
        change.offset = core.log.voters_offset
    _take(core, leader, change, refusal)


def on_remove_voter_requested(core: Core, event: RemoveVoterRequested) -> None:
    """KIP-856, RemoveVoter: the answer comes when the new set is committed.

    Errors: INCONSISTENT_CLUSTER_ID, NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST, VOTER_NOT_FOUND,
    REQUEST_TIMED_OUT.
    """
    leader = _leader(core, event.reply_to, event.cluster_id)
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
    refusal = why_not(core, leader, change)
    if event.key not in core.voters.keys and event.key in core.committed_voters.record.voters.keys:
        refusal, change.offset = None, core.log.voters_offset
    _take(core, leader, change, refusal)


def on_reassignment_requested(core: Core, event: ReassignmentRequested) -> None:
    """KIP-642, AlterPartitionReassignments: the answer comes when the target is committed.

    Errors: NOT_LEADER_OR_FOLLOWER, INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS,
    REQUEST_TIMED_OUT.
    """
    leader = _leader(core, event.reply_to, None)
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
    refusal = target_problem(core, event.target)
    if is_there and event.target is None and is_committed:
        refusal = Refusal(KafkaError.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is under way")
    is_reached = present.record.target is None and event.target == core.voters.ids
    if refusal is None and (is_there or is_reached):
        change.offset = present.offset
    _take(core, leader, change, refusal)


def on_update_voter_requested(core: Core, event: UpdateVoterRequested) -> None:
    """KIP-853, UpdateRaftVoter: where a replica is reached now. It is answered at once.

    What an observer says is kept in memory, for whoever wants to make it a voter. Errors:
    INCONSISTENT_CLUSTER_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT; UNKNOWN_SERVER_ERROR for impossible values, since INVALID_REQUEST would end a
    Kafka peer.
    """
    if event.epoch != core.epoch and not is_foreign(core, event.cluster_id):
        error = (
            KafkaError.FENCED_LEADER_EPOCH
            if event.epoch < core.epoch
            else KafkaError.UNKNOWN_LEADER_EPOCH
        )
        core.answer_change(event.reply_to, error, f"the epoch is {core.epoch}")
        return
    leader = _leader(core, event.reply_to, event.cluster_id)
    if leader is None:
        return
    voter = event.voter
    problem = voter_problem(core, voter)
    if problem is not None or core.is_local(voter.key):
        core.report(f"what {voter.key} says of its endpoints is refused: {problem}")
        core.answer_change(event.reply_to, KafkaError.UNKNOWN_SERVER_ERROR, "impossible values")
    elif voter.key not in core.voters.keys:
        if len(leader.told) < MAX_OBSERVERS or voter.key in leader.told:
            leader.told[voter.key] = voter
        core.answer_change(event.reply_to)
    else:
        note_heard(core, leader, voter.key)
        _update(core, leader, event.reply_to, voter)


def _update(core: Core, leader: Leader, reply_to: int, voter: Voter) -> None:
    if voter in core.voters.voters:
        core.answer_change(reply_to)
        return
    obstacle = unsettled(core, leader)
    if obstacle is not None:
        core.answer_change(reply_to, KafkaError.REQUEST_TIMED_OUT, obstacle)
        return
    core.report(f"voter {voter.key} is reached at {listed(voter.endpoints)} from now on")
    append_voters(core, leader, with_voter(core.voters, voter), core.electorate.entry.record.target)
    core.answer_change(reply_to)


def on_transfer_requested(core: Core, event: TransferRequested) -> None:
    """Hand leadership over: no append is taken until the successor has everything, then resign.

    Errors: INCONSISTENT_CLUSTER_ID, NOT_LEADER_OR_FOLLOWER, VOTER_NOT_FOUND,
    ELIGIBLE_LEADERS_NOT_AVAILABLE, REQUEST_TIMED_OUT.
    """
    leader = _leader(core, event.reply_to, event.cluster_id)
    if leader is None:
        return
    to = event.to
    if to is not None and core.is_local(to):
        core.answer_change(event.reply_to)
        return
    others = [key for key in core.other_voters() if to is None or to.matches(key)]
    if to is not None and len(others) != 1:
        text = f"{to} is not one voter: the voters are {listed(core.voters.keys)}"
        core.answer_change(event.reply_to, KafkaError.VOTER_NOT_FOUND, text)
    elif not any(is_fetching(core, leader, key) for key in others):
        text = f"none of {listed(others) or 'no other voter'} has fetched lately: is it running?"
        core.answer_change(event.reply_to, KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE, text)
    elif leader.transfer is not None:
        core.answer_change(
            event.reply_to, KafkaError.REQUEST_TIMED_OUT, "another transfer is under way"
        )
    else:
        wait_ms = min(event.timeout_ms, core.config.election_timeout_ms)
        key = None if to is None else others[0]
        leader.transfer = Transfer(event.reply_to, key, core.now_ms, core.now_ms + wait_ms)


def _leader(core: Core, reply_to: int, cluster_id: str | None) -> Leader | None:
    """This replica's leadership; None if it has none, and the asker has been told."""
    leader = core.state
    if is_foreign(core, cluster_id):
        text = f"this is cluster {core.cluster_id}, not {cluster_id}"
        core.answer_change(reply_to, KafkaError.INCONSISTENT_CLUSTER_ID, text)
    elif not isinstance(leader, Leader) or core.is_shutting_down:
        known = "no leader is known" if core.leader is None else f"replica {core.leader.id} leads"
        text = f"replica {core.local.id} does not lead: {known}"
        core.answer_change(reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER, text)
    else:
        return leader
    return None


def _take(core: Core, leader: Leader, change: VoterChange, refusal: Refusal | None) -> None:
    if refusal is None and len(leader.changes) >= MAX_CHANGES:
        refusal = Refusal(
            KafkaError.REQUEST_TIMED_OUT, f"{MAX_CHANGES} changes of the voters wait already"
        )
    if refusal is not None:
        core.answer_change(change.reply_to, *refusal)
    else:
        leader.changes.append(change)
