"""A replica takes another role: by the transition table, with what follows from leaving the old one.

Source: KIP-595 (state machine), KIP-856 (a replica outside the voter set observes).
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError
from quorumd.raft.invariants import require
from quorumd.raft.roles import (
    ROLE_OF,
    Follower,
    Leader,
    Observer,
    Resigned,
    Role,
    State,
    Unattached,
)
from quorumd.raft.transitions import TRANSITIONS, Trigger
from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.raft.witness import forget_candidates


def move_to(core: Core, trigger: Trigger, state: State) -> None:
    """Change the role. The table decides whether that is possible."""
    expected = TRANSITIONS.get((core.role, trigger))
    is_outside = core.role is not Role.OBSERVER and not core.is_voter
    if is_outside and expected in (Role.UNATTACHED, Role.FOLLOWER):
        expected = Role.OBSERVER
    require(
        expected is ROLE_OF[type(state)],
        f"no transition from {core.role} to {ROLE_OF[type(state)]}: {trigger}",
    )
    former = core.state
    if isinstance(former, Leader):
        core.high_watermark = core.committed_offset
    core.state = state
    if core.context != (core.epoch, core.leader):
        if core.config.is_witness:
            forget_candidates(core)
        core.context = (core.epoch, core.leader)
        core.known_leader.forget_contact()
        core.problem = None
        core.registration.next_ms = 0
        core.witness.must_lead = False
        core.witness.defers_until_ms = None
        core.forget_requests()
    if isinstance(former, Leader):
        _refuse_waiting(core, former)
    core.announce(trigger)


def become_unattached(
    core: Core, trigger: Trigger, epoch: int, timeout_ms: int | None = None
) -> None:
    """No leader of a later epoch is known: fetch from all peers, as a voter until the election timeout."""
    require(epoch > core.epoch, f"epoch {core.epoch} loses its leader to epoch {epoch}")
    core.epoch, core.voted = epoch, None
    core.leader, core.known_leader.endpoints = None, ()
    core.persist()
    if core.is_voter:
        timeout = core.random_election_timeout_ms() if timeout_ms is None else timeout_ms
        move_to(core, trigger, Unattached(core.now_ms + timeout))
    else:
        move_to(core, trigger, Observer())


def become_follower(
    core: Core, trigger: Trigger, epoch: int, leader: ReplicaKey, endpoints: tuple[Endpoint, ...]
) -> None:
    """Fetch from `leader` from now on."""
    require(
        epoch > core.epoch or core.leader is None or core.leader.matches(leader),
        f"two leaders in epoch {epoch}: {core.leader} and {leader}",
    )
    require(leader != core.local, f"replica {core.local} follows itself")
    changed = (epoch, leader) != (core.epoch, core.leader)
    if epoch != core.epoch:
        core.epoch, core.voted = epoch, None
    core.leader, core.known_leader.endpoints = leader, endpoints
    core.election_attempts = 0
    if changed:
        core.persist()
    if core.is_voter:
        move_to(core, trigger, Follower(core.now_ms + core.config.fetch_timeout_ms))
    else:
        move_to(core, trigger, Observer())


def follow_voter_set(core: Core) -> None:
    """Take the role that the latest voter set gives this replica (KIP-856, internal listener)."""
    core.announce_voters()
    if core.leader is not None and core.leader.uuid is None:
        core.leader = core.key_of(core.leader.id)
        core.context = (core.epoch, core.leader)
    take_role(core)


def take_role(core: Core) -> None:
    """Take the role of a voter, or of an observer, by the latest voter set and what of it is committed."""
    if core.is_voter and isinstance(core.state, Observer):
        if core.leader is not None:
            fetch_deadline = core.now_ms + core.config.fetch_timeout_ms
            move_to(core, Trigger.JOINED_VOTERS_WITH_LEADER, Follower(fetch_deadline))
        else:
            deadline = core.now_ms + core.random_election_timeout_ms()
            move_to(core, Trigger.JOINED_VOTERS, Unattached(deadline))
    elif not core.is_voter and not isinstance(core.state, (Observer, Leader, Resigned)):
        move_to(core, Trigger.LEFT_VOTERS, Observer())


def _refuse_waiting(core: Core, former: Leader) -> None:
    """Refuse the requests that still wait at this leader: it leads no more."""
    for reply_to in former.parked:
        core.refuse_fetch(reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER)
    waiting = [change.reply_to for change in former.changes]
    transfer = former.transfer
    if transfer is not None and transfer.reply_to is not None:
        waiting.append(transfer.reply_to)
    for reply_to in waiting:
        core.reply_to_change(
            reply_to,
            KafkaError.NOT_LEADER_OR_FOLLOWER,
            f"replica {core.local.id} stopped leading before this was committed: whether it will "
            "be is up to the next leader. Ask that one again, it is safe to repeat",
        )
