"""What must hold of a replica at any time, and between any two moments of its life.

`InvariantViolation` stops the process: going on could corrupt the log. The simulator and the tests run
both checks after every event; the daemon relies on the assertions inside the rules.
"""

from __future__ import annotations

from typing import NamedTuple

from raft.roles import Role
from raft.types import ReplicaKey


class InvariantViolation(AssertionError):
    """A state that the rules exclude."""


class Snapshot(NamedTuple):
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
    """Raise InvariantViolation with this text unless the condition holds."""
    if not condition:
        raise InvariantViolation(text)


def check_state(now: Snapshot) -> None:
    """Raise InvariantViolation if this state is impossible by itself."""
    require(now.epoch >= now.last_epoch, f"epoch {now.epoch} is below the log's {now.last_epoch}")
    require(
        now.log_start_offset <= now.synced_end_offset <= now.log_end_offset,
        f"cursors out of order: {now}",
    )
    leads = now.leader is not None and now.leader == now.local
    require(
        leads == (now.role in (Role.LEADER, Role.RESIGNED)),
        f"role {now.role} does not fit leader {now.leader} of replica {now.local}",
    )
    require(
        now.role is not Role.CANDIDATE or now.voted == now.local,
        f"a candidate has voted for {now.voted}",
    )
    campaigns = now.role in (Role.PROSPECTIVE, Role.CANDIDATE, Role.UNATTACHED, Role.FOLLOWER)
    require(now.is_voter or not campaigns, f"{now.role} outside the voter set")


def check_step(before: Snapshot, after: Snapshot) -> None:
    """Raise InvariantViolation if one state cannot follow the other."""
    require(after.epoch >= before.epoch, f"epoch went back: {before.epoch} to {after.epoch}")
    require(
        after.committed_offset >= before.committed_offset,
        f"committed offset went back: {before.committed_offset} to {after.committed_offset}",
    )
    require(
        after.log_end_offset >= min(before.log_end_offset, before.committed_offset),
        f"truncated to {after.log_end_offset}, below the committed {before.committed_offset}",
    )
    if after.epoch == before.epoch:
        require(
            before.leader is None
            or after.leader in (before.leader, None)
            or after.leader.id == before.leader.id,
            f"two leaders in epoch {after.epoch}: {before.leader} and {after.leader}",
        )
        require(
            before.voted is None or after.voted == before.voted or after.leader == after.local,
            f"vote changed in epoch {after.epoch}: {before.voted} to {after.voted}",
        )
    if before.role is Role.LEADER and after.role is Role.LEADER:
        require(after.epoch == before.epoch, "a leader moved to another epoch")
        require(after.log_end_offset >= before.log_end_offset, "a leader truncated its log")
