"""Taking office as the leader of an epoch, and leaving it.

Source: KIP-595 (LeaderChangeRecord, EndQuorumEpoch).
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.bootstrap import write_first_voters
from quorumd.raft.check_quorum import check_quorum_ms
from quorumd.raft.commitment import record_high_watermark
from quorumd.raft.control import LeaderChangeRecord
from quorumd.raft.control_appends import append_control
from quorumd.raft.core import Core
from quorumd.raft.effects import EndQuorumEpoch
from quorumd.raft.events import ResignationRequested
from quorumd.raft.replica_progress import synced_end_offset
from quorumd.raft.role_changes import move_to
from quorumd.raft.roles import Candidate, Leader, Prospective, Resigned
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import ReplicaKey


def become_leader(core: Core, granting: tuple[ReplicaKey, ...]) -> None:
    """Take office: leadership on disk, then LeaderChangeRecord as the first record of the epoch.

    The high watermark is unknown until a record of this epoch is on a majority (KIP-595). A witness of a
    Kafka quorum writes none, and so commits nothing: it hands over.
    """
    core.leader, core.known_leader.endpoints = core.local, core.config.endpoints
    core.high_watermark = None
    core.election_attempts = 0
    core.drop_download()
    core.persist()
    leader = Leader(
        epoch_start_offset=core.log.end_offset,
        check_quorum_deadline_ms=core.now_ms + check_quorum_ms(core),
        elected_at_ms=core.now_ms,
    )
    move_to(core, Trigger.VOTES_WON, leader)
    if core.config.is_kafka_log:
        return
    change = LeaderChangeRecord(core.local, core.voters.keys, granting)
    append_control(core, leader, (change,))
    if core.is_bootstrapping:
        write_first_voters(core, leader)


def resign(
    core: Core,
    leader: Leader,
    trigger: Trigger,
    first: ReplicaKey | None = None,
    *,
    is_first_alone: bool = False,
) -> None:
    """Stop leading, and announce successors: `first`, then the voters with the most records.

    With `is_first_alone` no others are announced, and wait longest: the first may be far away.

    A leader that lost its quorum asks for votes again only after the voters that still fetched from it have
    missed it for the fetch timeout. Until then those few refuse all other candidates, and a leader that can
    send but not be fetched from would win again and again. If one other voter is enough for a majority, no
    voter fetches any more.
    """
    others = core.other_voters()
    successors = quorum.preferred_successors(
        (key, synced_end_offset(core, leader, key)) for key in others
    )
    if first is not None:
        others_next = () if is_first_alone else (key for key in successors if key != first)
        successors = (first, *others_next)
    wait_ms = core.random_election_timeout_ms()
    if trigger is Trigger.QUORUM_LOST and core.electorate.others_needed > 1:
        wait_ms += core.config.fetch_timeout_ms
    move_to(core, trigger, Resigned(core.now_ms + wait_ms, set(others), successors))


def on_resignation_requested(core: Core, event: ResignationRequested) -> None:
    """A leader hands over; a candidate that shuts down ends its epoch, so that no voter waits for it."""
    core.is_shutting_down = core.is_shutting_down or event.shutting_down
    state = core.state
    if core.config.is_kafka_log:
        record_high_watermark(core)
    if isinstance(state, Leader) and core.other_voters():
        core.report(f"leadership is given away: {event.reason}")
        resign(core, state, Trigger.RESIGNATION)
    elif (
        isinstance(state, (Candidate, Prospective))
        and event.shutting_down
        and not core.config.is_kafka_log  # a Kafka node has no EndQuorumEpoch without a leader
    ):
        end = EndQuorumEpoch(epoch=core.epoch, leader_id=None, successors=())
        for key in core.other_voters():
            core.send(key, end, after=core.writes.state)


def next_deadline_ms(leader: Leader) -> int:
    """When the leader has something to do by itself."""
    deadline = leader.check_quorum_deadline_ms
    if leader.next_begin_ms < deadline:
        deadline = leader.next_begin_ms
    if leader.fetch_due_ms is not None and leader.fetch_due_ms < deadline:
        deadline = leader.fetch_due_ms
    for change in leader.changes:
        deadline = min(deadline, change.deadline_ms)
    if leader.transfer is not None:
        deadline = min(deadline, leader.transfer.deadline_ms)
    return deadline
