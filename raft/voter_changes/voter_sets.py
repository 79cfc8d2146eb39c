"""Voter sets with one voter more or less, and how the next one gets into the log."""

from __future__ import annotations

from collections.abc import Iterable

from quorumd.raft.control import VotersRecord
from quorumd.raft.control_appends import append_control
from quorumd.raft.core import Core
from quorumd.raft.roles import Leader
from quorumd.raft.types import Voter, VoterSet


def append_voters(
    core: Core, leader: Leader, voters: VoterSet, target: tuple[int, ...] | None
) -> None:
    """Write the next voter set; it counts from now on. Where those are that leave it stays known."""
    former = core.electorate.entry.record
    append_control(core, leader, (VotersRecord(voters, former.cluster_id, target),))
    leader.registered_observers |= {voter.key: voter for voter in former.voters}
    for key in voters.keys:
        leader.registered_observers.pop(key, None)


def with_voter(voters: VoterSet, voter: Voter) -> VoterSet:
    """The set with this voter, in place of one of the same key if there is one."""
    return VoterSet.of([*without_voter(voters, voter), voter])


def without_voter(voters: VoterSet, voter: Voter) -> VoterSet:
    """The set without the voter of this key."""
    return VoterSet.of(other for other in voters if other.key != voter.key)


def listed(values: Iterable[object]) -> str:
    """Ids, keys or endpoints as text: "1, 2, 3"."""
    return ", ".join(map(str, values))
