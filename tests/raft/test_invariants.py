"""The invariants themselves: which states are impossible, and which ones just are not."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd.raft.invariants import (
    CapturedState,
    InvariantViolation,
    check_state,
    check_step,
    require,
)
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import key

FOLLOWS = CapturedState(
    role=Role.FOLLOWER,
    epoch=3,
    leader=key(2),
    voted=None,
    local=key(1),
    is_voter=True,
    log_start_offset=2,
    log_end_offset=9,
    synced_end_offset=7,
    last_epoch=3,
    committed_offset=5,
)
LEADS = FOLLOWS._replace(role=Role.LEADER, leader=key(1), voted=key(1))


def test_a_broken_requirement_raises_with_its_text() -> None:
    require(True, "never said")
    with pytest.raises(InvariantViolation, match="as it is"):
        require(False, "as it is")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"last_epoch": 2},
        {"synced_end_offset": 2},
        {"synced_end_offset": 9},
        {"log_start_offset": 7},
        {"role": Role.RESIGNED, "leader": key(1)},
        {"role": Role.LEADER, "leader": key(1), "is_voter": False},
        {"role": Role.CANDIDATE, "leader": None, "voted": key(1)},
        {"role": Role.UNATTACHED, "leader": None},
        {"role": Role.OBSERVER, "is_voter": False},
        {"leader": key(1, disk=1)},
    ],
)
def test_states_that_are_possible(values: dict[str, Any]) -> None:
    check_state(FOLLOWS._replace(**values))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"last_epoch": 4}, "epoch 3 is below the log's 4"),
        ({"synced_end_offset": 1}, "cursors out of order"),
        ({"synced_end_offset": 10}, "cursors out of order"),
        ({"role": Role.LEADER}, "role leader does not fit leader"),
        ({"role": Role.RESIGNED}, "role resigned does not fit leader"),
        ({"leader": key(1)}, "role follower does not fit leader"),
        ({"role": Role.LEADER, "leader": None}, "role leader does not fit leader None"),
        ({"role": Role.CANDIDATE, "leader": None, "voted": key(2)}, "a candidate has voted for"),
        ({"is_voter": False}, "follower outside the voter set"),
        ({"role": Role.PROSPECTIVE, "is_voter": False}, "prospective outside the voter set"),
        ({"role": Role.UNATTACHED, "leader": None, "is_voter": False}, "unattached outside"),
        (
            {"role": Role.CANDIDATE, "leader": None, "voted": key(1), "is_voter": False},
            "candidate outside the voter set",
        ),
    ],
)
def test_states_that_are_impossible(values: dict[str, Any], why: str) -> None:
    with pytest.raises(InvariantViolation, match=why):
        check_state(FOLLOWS._replace(**values))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({}, {"epoch": 4, "leader": key(3), "voted": key(3)}),
        ({"leader": None}, {}),
        ({}, {"leader": None}),
        ({"leader": ReplicaKey(2)}, {}),
        ({"voted": key(2)}, {"voted": key(2)}),
        ({}, {"voted": key(2)}),
        ({"voted": key(2)}, {"epoch": 4, "voted": None}),
        ({"voted": key(2)}, {"leader": key(1), "voted": key(1)}),
        ({}, {"log_end_offset": 5}),
        ({"committed_offset": 12}, {"committed_offset": 12, "log_end_offset": 9}),
        ({}, {"committed_offset": 6}),
    ],
)
def test_steps_that_are_possible(before: dict[str, Any], after: dict[str, Any]) -> None:
    if after.get("leader") == key(1):
        before = {**before, "leader": None}
    check_step(FOLLOWS._replace(**before), FOLLOWS._replace(**after))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, {"epoch": 2}, "epoch went back: 3 to 2"),
        ({}, {"committed_offset": 4}, "committed offset went back: 5 to 4"),
        ({}, {"log_end_offset": 4}, "truncated to 4, below the committed 5"),
        (
            {"committed_offset": 12},
            {"committed_offset": 12, "log_end_offset": 8},
            "truncated to 8",
        ),
        ({}, {"leader": key(3)}, "two leaders in epoch 3"),
        ({"voted": key(2)}, {"voted": key(3)}, "vote changed in epoch 3"),
        ({"voted": key(2)}, {"voted": None}, "vote changed in epoch 3"),
        (
            {"voted": key(2), "leader": None},
            {"voted": key(3), "leader": None},
            "vote changed in epoch 3",
        ),
    ],
)
def test_steps_that_are_impossible(before: dict[str, Any], after: dict[str, Any], why: str) -> None:
    with pytest.raises(InvariantViolation, match=why):
        check_step(FOLLOWS._replace(**before), FOLLOWS._replace(**after))


def test_a_leader_neither_truncates_nor_leads_a_second_epoch() -> None:
    check_step(LEADS, LEADS._replace(log_end_offset=10))
    check_step(LEADS, FOLLOWS._replace(epoch=4, log_end_offset=8))
    check_step(LEADS, LEADS)
    with pytest.raises(InvariantViolation, match="a leader truncated its log"):
        check_step(LEADS, LEADS._replace(log_end_offset=8))
    with pytest.raises(InvariantViolation, match="a leader moved to another epoch"):
        check_step(LEADS, LEADS._replace(epoch=4))
    check_step(FOLLOWS._replace(leader=None, voted=key(1)), LEADS._replace(log_end_offset=8))
