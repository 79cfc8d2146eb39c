"""Check quorum: a leader that a majority of the voters does not fetch from any more steps down.

Source: KIP-595, leader progress timeout.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey


def check_quorum_ms(core: Core) -> int:
    """1.5 x the fetch timeout: a follower that missed one fetch has time to make it good."""
    return core.config.fetch_timeout_ms * 3 // 2


def is_quorum_lost(core: Core, leader: Leader) -> bool:
    """Asked once the timer is over: true if a majority was silent for so long; the leader has to step down.

    Where no other voter can be missed, the timer begins anew.
    """
    if not core.other_voters():
        leader.check_quorum_deadline_ms = core.now_ms + check_quorum_ms(core)
        return False
    return True


def note_heard(core: Core, leader: Leader, replica: ReplicaKey) -> ReplicaKey | None:
    """A replica is alive: a majority of such voters keeps the leader in office (KIP-595).

    Returns the voter that it is, if any.
    """
    electorate = core.electorate
    voter = replica if replica in electorate.keys else _voter_by_id(core, replica)
    if voter is None:
        return None
    known = leader.progress.get(voter)
    if known is not None:
        known.last_heard_ms = core.now_ms
    heard_from = leader.heard_from
    heard_from.add(voter)
    if len(heard_from) >= electorate.others_needed:
        heard_from.clear()
        leader.check_quorum_deadline_ms = core.now_ms + check_quorum_ms(core)
    return voter


def note_alive(core: Core, replica: ReplicaKey | None) -> None:
    """A replica sent a request: even if that is refused, its disk is not lost."""
    leader = core.state
    if isinstance(leader, Leader) and replica is not None:
        known = leader.progress.get(replica)
        if known is not None:
            known.last_heard_ms = core.now_ms


def _voter_by_id(core: Core, replica: ReplicaKey) -> ReplicaKey | None:
    """The voter under this id whose storage id is not known yet.

    A replica that does not say its storage id counts for no voter that has one.
    """
    by_id = ReplicaKey(replica.id)
    return by_id if by_id in core.electorate.keys else None
