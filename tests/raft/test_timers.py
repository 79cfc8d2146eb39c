"""Deadlines: none stays in the past, and time alone always leads on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.raft.effects import BeginQuorumEpoch, Fetch, SendRequest, Vote
from quorumd.raft.events import (
    ConnectionMade,
    ConnectionRefused,
    LeaderHint,
    ResignationRequested,
    TimerFired,
    VoteResponseReceived,
)
from quorumd.raft.roles import Role
from tests.raft.harness import (
    BUILDERS,
    Bench,
    endpoints,
    fresh,
    key,
    leader,
    resigned,
    unattached,
)

FIRES_MAX = 400
"""More timers than this within ten seconds would be a busy loop."""


def fires_within(bench: Bench, ms: int) -> int:
    end, fires = bench.now_ms + ms, 0
    while fires <= FIRES_MAX:
        deadline = bench.node.next_deadline_ms()
        if deadline is None or deadline > end:
            break
        bench.fire()
        fires += 1
    return fires


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_left_alone_no_role_is_a_busy_loop(role: Role, size: int) -> None:
    if size == 1 and role is not Role.OBSERVER:
        bench = unattached(1)
        bench.sync()
    else:
        bench = BUILDERS[role](size=size)
    assert fires_within(bench, 10_000) <= FIRES_MAX


@pytest.mark.parametrize("role", Role)
def test_with_peers_that_fail_at_once_no_role_is_a_busy_loop(role: Role) -> None:
    bench = BUILDERS[role](bootstrap_servers=2)
    end, steps = bench.now_ms + 5_000, 0
    while bench.now_ms < end and steps < 3000:
        steps += 1
        sent = [e for e in bench.last if isinstance(e, SendRequest)]
        for effect in sent:
            if effect.request_id in bench.node.core.requests.in_flight:
                bench.fail(type(effect.request), effect.to)  # type: ignore[arg-type]  # never by index
                break
        else:
            if bench.node.next_deadline_ms() is None:
                return
            bench.fire()
    assert bench.now_ms >= end, "a busy loop"


@pytest.mark.parametrize("draw", [lambda bound: 0, lambda bound: bound - 1], ids=["least", "most"])
@pytest.mark.parametrize("role", Role)
def test_no_draw_makes_a_busy_loop(role: Role, draw: Callable[[int], int]) -> None:
    assert fires_within(BUILDERS[role](draw=draw), 10_000) <= FIRES_MAX


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(Role)),
    st.lists(
        st.sampled_from(["fire", "sync", "dead", "alive", "wait", "fetch", "shut"]), max_size=12
    ),
    st.randoms(use_true_random=False),
)
def test_after_a_deadline_the_next_one_lies_ahead(
    role: Role, story: list[str], random: object
) -> None:
    bench = BUILDERS[role]()
    for what in story:
        match what:
            case "fire":
                if bench.node.next_deadline_ms() is not None:
                    bench.fire()
            case "sync":
                bench.sync()
            case "dead":
                bench.step(ConnectionRefused(id=2))
            case "alive":
                bench.step(ConnectionMade(id=2))
            case "wait":
                bench.step(TimerFired(), after_ms=700)
            case "fetch":
                bench.fetch(key(2), bench.node.core.log.end_offset, bench.node.core.log.last_epoch)
            case "shut":
                bench.step(ResignationRequested("stopped", shutting_down=True))
    for _ in range(6):  # a few roles may follow each other without delay
        deadline = bench.node.next_deadline_ms()
        if deadline is None or deadline > bench.now_ms:
            break
        bench.fire()
    deadline = bench.node.next_deadline_ms()
    assert deadline is None or deadline > bench.now_ms


def test_a_follower_that_hangs_does_not_keep_the_leader_busy() -> None:
    """It has neither fetched nor answered BeginQuorumEpoch."""
    bench = leader()
    for _ in range(20):
        bench.wait(900)
        bench.fetch(key(3), 4, 4, max_wait_ms=0)
        deadline = bench.node.next_deadline_ms()
        assert deadline is not None
        assert deadline > bench.now_ms
    assert bench.outstanding(BeginQuorumEpoch, key(2))


def test_the_last_epoch_does_not_keep_a_resigned_leader_busy() -> None:
    from quorumd.raft.leader_discovery import LAST_EPOCH

    bench = resigned()
    bench.node.core.epoch = LAST_EPOCH
    assert fires_within(bench, 10_000) < 20


def test_an_observer_has_no_timer_of_its_own() -> None:
    bench = fresh(9, is_bootstrap=False)
    assert bench.node.next_deadline_ms() is None
    bench.fail(Fetch)
    assert bench.node.next_deadline_ms() == bench.now_ms + 20


def test_who_has_resigned_is_elected_by_those_who_still_take_it_for_the_leader() -> None:
    """With the third voter gone nobody else could win if its log is the longer one."""
    bench = resigned()
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    voter = bench.node.core.other_voters()[0]
    request = bench.outstanding(Vote, voter)
    bench.step(
        VoteResponseReceived(
            request_id=request.request_id,
            error=None,
            hint=LeaderHint(epoch=bench.node.epoch, leader_id=1, endpoints=endpoints(1)),
            granted=True,
        )
    )
    assert bench.role is Role.CANDIDATE
