"""Which role may follow which: every pair of the grid is either in the table or raises."""

from __future__ import annotations

import pytest

from quorumd.raft.invariants import InvariantViolation
from quorumd.raft.role_changes import move_to
from quorumd.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Observer,
    Prospective,
    Resigned,
    Role,
    State,
    Unattached,
)
from quorumd.raft.transitions import TRANSITIONS, Trigger
from tests.raft.harness import BUILDERS

STATES: dict[Role, State] = {
    Role.UNATTACHED: Unattached(0),
    Role.FOLLOWER: Follower(0),
    Role.PROSPECTIVE: Prospective(0, {}),
    Role.CANDIDATE: Candidate(0, 0),
    Role.LEADER: Leader(0, 0),
    Role.RESIGNED: Resigned(0, set(), ()),
    Role.OBSERVER: Observer(),
}
# Read off the protocol by hand: KIP-595, KIP-996, KIP-856.
ALLOWED = {
    Role.UNATTACHED: {Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.OBSERVER},
    Role.FOLLOWER: {Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.OBSERVER},
    Role.PROSPECTIVE: {Role.UNATTACHED, Role.FOLLOWER, Role.CANDIDATE, Role.OBSERVER},
    Role.CANDIDATE: {
        Role.UNATTACHED,
        Role.FOLLOWER,
        Role.PROSPECTIVE,
        Role.LEADER,
        Role.OBSERVER,
    },
    Role.LEADER: {Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED},
    Role.RESIGNED: {Role.UNATTACHED, Role.FOLLOWER},
    Role.OBSERVER: {Role.OBSERVER, Role.UNATTACHED, Role.FOLLOWER},
}


@pytest.mark.parametrize("start", Role)
@pytest.mark.parametrize("end", Role)
def test_a_pair_of_roles_is_in_the_table_or_raises(start: Role, end: Role) -> None:
    for trigger in Trigger:
        core = BUILDERS[start]().node.core
        assert core.role is start
        if TRANSITIONS.get((start, trigger)) is end:
            move_to(core, trigger, STATES[end])
            assert core.role is end
        else:
            with pytest.raises(InvariantViolation, match="no transition"):
                move_to(core, trigger, STATES[end])
            assert core.role is start


@pytest.mark.parametrize("start", Role)
def test_the_table_holds_exactly_the_pairs_of_the_protocol(start: Role) -> None:
    assert {to for (role, _), to in TRANSITIONS.items() if role is start} == ALLOWED[start]


def test_every_trigger_is_used() -> None:
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)
