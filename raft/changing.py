"""The leader goes on with changes of the voters: one at a time, the next when the last is committed.

The next voter set is appended only when the last one is committed, and a record of the leader's own epoch
too, without which two majorities could miss each other. A set counts as soon as it is in the log, and the
majority of the new set commits it.

Sources: KIP-856 (AddVoter, RemoveVoter), KIP-642 (reassignment: promotion of observers, order of
additions and removals; resignation of a leader that goes).
"""

from __future__ import annotations

from dataclasses import replace

from quorumd.raft.control import VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError
from quorumd.raft.leadership import append_control, resign, synced_end_offset
from quorumd.raft.obstacles import (
    doubtful,
    fetched_ms,
    is_fetching,
    lagging,
    listed,
    rival_silent_ms,
    stalls,
    unsettled,
    why_not,
)
from quorumd.raft.roles import ChangeKind, Leader, Transfer, VoterChange
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import Voter, VoterSet


def advance(core: Core, leader: Leader) -> None:
    """Whatever is possible now: make the next change, answer the committed ones, hand over."""
    if not leader.changes and leader.transfer is None and core.electorate.is_settled:
        return
    _answer_committed(core, leader)
    entry = core.electorate.entry
    is_committed = core.high_watermark is not None and entry.offset < core.high_watermark
    if not core.electorate.has_local and is_committed:
        core.report("this leader was removed from the voters, which is committed: it resigns")
        resign(core, leader, Trigger.REMOVED)
        return
    _make_changes(core, leader)
    _expire(core, leader)
    if unsettled(core, leader) is None:
        _reassign(core, leader)
    if core.config.is_witness and core.high_watermark is not None:
        _hand_over(core, leader, None)
    elif leader.transfer is not None:
        _transfer(core, leader, leader.transfer)


def _answer_committed(core: Core, leader: Leader) -> None:
    for change in list(leader.changes):
        offset = change.offset
        if offset is None:
            continue
        if not change.ack_when_committed or offset < (core.high_watermark or 0):
            leader.changes.remove(change)
            core.answer_change(change.reply_to)


def _make_changes(core: Core, leader: Leader) -> None:
    for change in list(leader.changes):
        obstacle = unsettled(core, leader)
        if change.offset is None and obstacle is None:
            refusal = why_not(core, leader, change)
            if refusal is not None:
                leader.changes.remove(change)
                core.answer_change(change.reply_to, *refusal)
                continue
            obstacle = _make(core, leader, change) or unsettled(core, leader)
        change.waits_for = obstacle or ""
    _answer_committed(core, leader)


def _make(core: Core, leader: Leader, change: VoterChange) -> str | None:
    """Make a change, if it would not slow the quorum down or stop it. Returns why it has to wait."""
    voters, target = core.voters, core.electorate.entry.record.target
    if change.kind is ChangeKind.REASSIGN:
        target = change.target
        what = f"the target of the reassignment is {listed(target or ()) or 'given up'}"
    else:
        assert change.voter is not None, "an addition or a removal is one of a voter"
        key = change.voter.key
        if change.kind is ChangeKind.ADD:
            voters, what = with_voter(voters, change.voter), f"voter {key} is added"
            obstacle = doubtful(core, leader, key) or lagging(core, leader, key)
        else:
            voters, what = without_voter(voters, change.voter), f"voter {key} is removed"
            obstacle = None if change.force else stalls(core, leader, voters)
        if obstacle is not None:
            return obstacle
    core.report(what)
    append_voters(core, leader, voters, target)
    change.offset = core.log.voters_offset
    return None


def _expire(core: Core, leader: Leader) -> None:
    """Say what was waited for in vain. What is in the log already may still be committed."""
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
        core.answer_change(change.reply_to, error, f"{text}. It is safe to ask again")


# -- voter sets


def append_voters(
    core: Core, leader: Leader, voters: VoterSet, target: tuple[int, ...] | None
) -> None:
    """Write the next voter set; it counts from now on. Who leaves it is known to be where it was."""
    former = core.electorate.entry.record
    append_control(core, leader, (VotersRecord(voters, former.cluster_id, target),))
    leader.told |= {voter.key: voter for voter in former.voters}
    for key in voters.keys:
        leader.told.pop(key, None)


def with_voter(voters: VoterSet, voter: Voter) -> VoterSet:
    return VoterSet.of([*without_voter(voters, voter), voter])


def without_voter(voters: VoterSet, voter: Voter) -> VoterSet:
    return VoterSet.of(other for other in voters if other.key != voter.key)


# -- reassignment


def _reassign(core: Core, leader: Leader) -> None:
    """The next step of the reassignment that is under way, if it can be taken (KIP-642)."""
    target = core.electorate.entry.record.target
    if target is None:
        own = core.voters.find(core.local)
        if own is not None and core.electorate.has_moved:
            moved = replace(own, endpoints=core.config.endpoints)
            append_voters(core, leader, with_voter(core.voters, moved), None)
        return
    voters = next_voters(core, leader, target)
    if isinstance(voters, VoterSet):
        core.report(f"reassignment to {listed(target)}: the voters are {listed(voters.keys)}")
        append_voters(core, leader, voters, None if voters == core.voters else target)
    elif voters is None and core.handed_over_at == core.log.voters_offset:
        # It leads once more: whoever remains does not campaign, as witnesses do not.
        rest = VoterSet.of(voter for voter in core.voters if not core.is_local(voter.key))
        if stalls(core, leader, rest) is None:
            core.report(f"reassignment to {listed(target)}: this leader removes itself")
            append_voters(core, leader, rest, target)
    elif voters is None and leader.transfer is None:
        core.report(f"reassignment to {listed(target)}: this leader, which is removed, resigns")
        core.handed_over_at = core.log.voters_offset
        due_ms = core.now_ms + core.config.election_timeout_ms
        leader.transfer = Transfer(None, None, core.now_ms, due_ms)


def next_voters(core: Core, leader: Leader, target: tuple[int, ...]) -> VoterSet | str | None:
    """The next voter set on the way to `target`; or what it waits for; or None: this leader is in the way.

    While as many come as go, or more, the next one comes, else one goes; the leader goes last. The same
    set once more says that the target is reached (KIP-642, reassignment algorithm).
    """
    voters = core.voters
    coming = [replica_id for replica_id in target if replica_id not in voters.ids]
    going = [voter for voter in voters if voter.key.id not in target]
    if not coming and not going:
        return voters
    if len(coming) >= len(going):
        obstacles = []
        for replica_id in coming:
            found = _newcomer(core, leader, replica_id)
            if isinstance(found, Voter):
                return with_voter(voters, found)
            obstacles.append(found)
        return "; ".join(obstacles)
    others = [voter for voter in going if not core.is_local(voter.key)]
    if not others:
        return None
    rest = without_voter(voters, min(others, key=lambda voter: fetched_ms(leader, voter.key)))
    return stalls(core, leader, rest) or rest


def _newcomer(core: Core, leader: Leader, replica_id: int) -> Voter | str:
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
    obstacle = lagging(core, leader, keys[0])
    if obstacle is not None:
        return obstacle
    told = leader.told.get(keys[0])
    return told or f"replica {keys[0]} has not said yet where it is reached"


# -- handing over


def _transfer(core: Core, leader: Leader, transfer: Transfer) -> None:
    if _hand_over(core, leader, transfer):
        return
    if core.now_ms < transfer.deadline_ms:
        return
    leader.transfer = None
    if transfer.reply_to is None:
        resign(core, leader, Trigger.RESIGNATION)
    else:
        waited = core.now_ms - transfer.asked_at_ms
        text = f"{transfer.to or 'no voter'} had not everything after {waited} ms. Repeat it"
        core.answer_change(transfer.reply_to, KafkaError.REQUEST_TIMED_OUT, text)


def _hand_over(core: Core, leader: Leader, transfer: Transfer | None) -> bool:
    """Resign once a successor has everything and all of it is committed. True if that was done."""
    if core.high_watermark != core.log.end_offset and transfer is not None:
        return False
    wanted = None if transfer is None else transfer.to
    for key in core.other_voters():
        has_all = synced_end_offset(core, leader, key) == core.log.end_offset
        if has_all and wanted in (None, key) and is_fetching(core, leader, key):
            if transfer is not None:
                leader.transfer = None
                if transfer.reply_to is not None:
                    core.answer_change(transfer.reply_to)
            core.report(f"leadership is handed to {key}")
            resign(core, leader, Trigger.RESIGNATION, first=key)
            return True
    return False


# -- looking


def reassignment_waits_for(core: Core, leader: Leader) -> str | None:
    """What the reassignment that is under way waits for; None if there is none."""
    target = core.electorate.entry.record.target
    if target is None:
        return None
    obstacle = unsettled(core, leader)
    if obstacle is not None:
        return obstacle
    voters = next_voters(core, leader, target)
    return voters if isinstance(voters, str) else "its next step"


def due_ms(leader: Leader) -> int | None:
    """When somebody has waited long enough."""
    dues = [change.deadline_ms for change in leader.changes]
    if leader.transfer is not None:
        dues.append(leader.transfer.deadline_ms)
    return min(dues, default=None)
