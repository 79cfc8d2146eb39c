"""The queue of requested voter changes: the leader makes one at a time.

Every request waits for its turn in `Leader.changes`. After each event the leader makes those that can be
made, replies to those that are committed or whose time is over, and takes the next step of a reassignment.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.leadership import resign
from quorumd.raft.leadership_transfer import advance_transfer, hand_over
from quorumd.raft.roles import ChangeKind, Leader, VoterChange
from quorumd.raft.transitions import Trigger
from quorumd.raft.voter_changes import add_voter, reassignment, remove_voter
from quorumd.raft.voter_changes.checks import pending_change_problem
from quorumd.raft.voter_changes.update_voter import update_own_endpoints


def advance(core: Core, leader: Leader) -> None:
    """Take every step that is possible now: make the next change, reply to committed ones, hand over."""
    if core.config.is_kafka_log:
        hand_over(core, leader, None)
        return
    _reply_to_committed(core, leader)
    entry = core.electorate.entry
    is_committed = core.high_watermark is not None and entry.offset < core.high_watermark
    if not core.electorate.has_local and is_committed:
        core.report("this leader was removed from the voters, which is committed: it resigns")
        resign(core, leader, Trigger.REMOVED)
        return
    _append_next(core, leader)
    _expire(core, leader)
    if pending_change_problem(core, leader) is None:
        target = core.electorate.entry.record.target
        if target is None:
            update_own_endpoints(core, leader)
        else:
            reassignment.take_next_step(core, leader, target)
    if core.config.is_witness and core.high_watermark is not None:
        hand_over(core, leader, None)
    elif leader.transfer is not None:
        advance_transfer(core, leader, leader.transfer)


def _reply_to_committed(core: Core, leader: Leader) -> None:
    for change in list(leader.changes):
        offset = change.offset
        if offset is None:
            continue
        if not change.ack_when_committed or offset < (core.high_watermark or 0):
            leader.changes.remove(change)
            core.reply_to_change(change.reply_to)


def _append_next(core: Core, leader: Leader) -> None:
    """Make the first change that can be made now; note of the others what they wait for."""
    for change in list(leader.changes):
        problem = pending_change_problem(core, leader)
        if change.offset is None and problem is None:
            refusal = _refusal_of(core, leader, change)
            if refusal is not None:
                leader.changes.remove(change)
                core.reply_to_change(change.reply_to, *refusal)
                continue
            problem = _append(core, leader, change)
            if problem is None:
                change.offset = core.log.voters_offset
                problem = pending_change_problem(core, leader)
        change.waits_for = problem or ""
    _reply_to_committed(core, leader)


def _refusal_of(core: Core, leader: Leader, change: VoterChange) -> Refusal | None:
    """The reason why a change must not be made, at present or ever."""
    match change.kind:
        case ChangeKind.ADD:
            return add_voter.refusal_of(core, leader, change)
        case ChangeKind.REMOVE:
            return remove_voter.refusal_of(core, leader, change)
        case ChangeKind.REASSIGN:
            return reassignment.refusal_of(core, leader, change)


def _append(core: Core, leader: Leader, change: VoterChange) -> str | None:
    """Append the voter set that a change is about. Returns what it has to wait for first, if anything."""
    match change.kind:
        case ChangeKind.ADD:
            return add_voter.append(core, leader, change)
        case ChangeKind.REMOVE:
            return remove_voter.append(core, leader, change)
        case ChangeKind.REASSIGN:
            return reassignment.append(core, leader, change)


def _expire(core: Core, leader: Leader) -> None:
    """Refuse the changes whose timeout is over. One that is in the log may still be committed."""
    for change in list(leader.changes):
        if core.now_ms < change.deadline_ms:
            continue
        leader.changes.remove(change)
        error, text = KafkaError.REQUEST_TIMED_OUT, change.waits_for
        voter = change.voter
        if change.offset is not None:
            text = f"the change is in the log and may still be committed, but {text}"
        elif change.kind is ChangeKind.ADD and voter and voter.key not in leader.progress:
            error = KafkaError.INVALID_REQUEST
        core.reply_to_change(change.reply_to, error, f"{text}. It is safe to ask again")
