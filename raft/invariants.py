"""Invariants of a replica, at any time and between any two moments of its life.

`InvariantViolation` stops the process: going on could corrupt the log. The simulator and the tests run
both checks after every event; the daemon relies on the assertions inside the rules.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey


class InvariantViolation(AssertionError):
    """A state that the rules exclude."""


class CapturedState(NamedTuple):
    """The part of a replica's state that the invariants speak of. Offsets are exclusive ends."""

    role: Role
    epoch: int
    leader: ReplicaKey | None
    voted: ReplicaKey | None
    local: ReplicaKey
    is_voter: bool
    log_start_offset: int
    log_end_offset: int
    synced_end_offset: int
    last_epoch: int
    committed_offset: int


def require(condition: bool, text: str) -> None:
    """Raise InvariantViolation with this text unless the condition holds.

    The text is made in any case: a check that runs after every event, and whose text takes work, raises
    directly.
    """
    if not condition:
        raise InvariantViolation(text)


def check_state(now: CapturedState) -> None:
    """Raise InvariantViolation if this state is impossible by itself."""
    if now.epoch < now.last_epoch:
        raise InvariantViolation(f"epoch {now.epoch} is below the log's {now.last_epoch}")
    if not now.log_start_offset <= now.synced_end_offset <= now.log_end_offset:
        raise InvariantViolation(f"cursors out of order: {now}")
    leads = now.leader is not None and now.leader == now.local
    if leads != (now.role in (Role.LEADER, Role.RESIGNED)):
        raise InvariantViolation(
            f"role {now.role} does not fit leader {now.leader} of replica {now.local}"
        )
    if now.role is Role.CANDIDATE and now.voted != now.local:
        raise InvariantViolation(f"a candidate has voted for {now.voted}")
    campaigns = now.role in (Role.PROSPECTIVE, Role.CANDIDATE, Role.UNATTACHED, Role.FOLLOWER)
    if campaigns and not now.is_voter:
        raise InvariantViolation(f"{now.role} outside the voter set")


def check_step(before: CapturedState, after: CapturedState) -> None:
    """Raise InvariantViolation if one state cannot follow the other."""
    if after.epoch < before.epoch:
        raise InvariantViolation(f"epoch went back: {before.epoch} to {after.epoch}")
    if after.committed_offset < before.committed_offset:
        raise InvariantViolation(
            f"committed offset went back: {before.committed_offset} to {after.committed_offset}"
        )
    if after.log_end_offset < min(before.log_end_offset, before.committed_offset):
        raise InvariantViolation(
            f"truncated to {after.log_end_offset}, below the committed {before.committed_offset}"
        )
    if after.epoch == before.epoch:
        _check_step_in_epoch(before, after)
    if before.role is Role.LEADER and after.role is Role.LEADER:
        require(after.epoch == before.epoch, "a leader moved to another epoch")
        require(after.log_end_offset >= before.log_end_offset, "a leader truncated its log")


def _check_step_in_epoch(before: CapturedState, after: CapturedState) -> None:
    former, leader = before.leader, after.leader
    if former is not None and leader is not None and not former.matches(leader):
        raise InvariantViolation(f"two leaders in epoch {after.epoch}: {former} and {leader}")
    if before.voted is not None and after.voted != before.voted and leader != after.local:
        raise InvariantViolation(
            f"vote changed in epoch {after.epoch}: {before.voted} to {after.voted}"
        )
