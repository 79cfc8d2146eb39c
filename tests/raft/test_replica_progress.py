"""What a leader keeps account of: who is caught up, whom it may forget, who a voter known by id is."""

from __future__ import annotations

import pytest

from quorumd.raft.config import OBSERVER_FORGOTTEN_MS
from quorumd.raft.core import Core
from quorumd.raft.effects import Report
from quorumd.raft.replica_progress import (
    MAX_OBSERVERS,
    note_log_regression,
    note_progress,
    progress_of,
    synced_end_offset,
)
from quorumd.raft.roles import FetchProgress, Leader
from quorumd.raft.types import ReplicaKey
from tests.raft.changes import add, leading
from tests.raft.harness import key
from tests.raft.test_bootstrap import first_leader

SOON = 1_000_000
"""A time (ms) behind all that has happened."""


def led() -> tuple[Core, Leader]:
    core = leading().node.core
    assert isinstance(core.state, Leader)
    core.now_ms = SOON
    return core, core.state


def test_a_replica_is_caught_up_at_the_fetch_whose_log_end_it_has_reached() -> None:
    core, state = led()
    times = []
    for number, (log_end, fetched) in enumerate(
        [(4, 4), (6, 4), (8, 6), (10, 7), (12, 11), (13, 9)]
    ):
        core.now_ms, core.log.end_offset = SOON + number, log_end
        note_progress(core, state, key(9), fetched)
        times.append((state.progress[key(9)].last_caught_up_ms or 0) - SOON)
    assert times == [0, 0, 1, 1, 3, 3]


def test_a_voter_that_fetches_is_told_of_the_epoch_half_a_fetch_timeout_later() -> None:
    core, state = led()
    note_progress(core, state, key(2), 4)
    due_ms = state.progress[key(2)].begin_due_ms
    assert due_ms == SOON + core.config.fetch_timeout_ms // 2


def test_a_voter_known_by_id_has_been_told_if_one_fetches_under_its_id() -> None:
    bench = first_leader()
    state = bench.node.core.state
    assert isinstance(state, Leader)
    bench.now_ms += 100
    bench.fetch(key(2), 0, 0)
    half_ms = bench.node.core.config.fetch_timeout_ms // 2
    assert state.progress[ReplicaKey(2)].begin_due_ms == bench.now_ms + half_ms


def crowded(core: Core, state: Leader) -> None:
    """As many observers fetch, under keys that are made up, as are kept account of."""
    for disk in range(MAX_OBSERVERS):
        note_progress(core, state, key(9, disk), 0)
    assert len(state.progress) == MAX_OBSERVERS


def test_of_too_many_observers_the_longest_silent_makes_room_and_never_a_voter() -> None:
    core, state = led()
    for each in (key(2), key(8), key(7)):
        note_progress(core, state, each, 0)
    crowded(core, state)
    assert key(2) in state.progress
    assert key(8) not in state.progress
    core.now_ms += 1
    note_progress(core, state, key(9), 0)
    note_progress(core, state, key(8), 0)
    assert {key(2), key(8), key(9)} <= set(state.progress)
    assert key(9, 9) in state.progress
    assert len(state.progress) == MAX_OBSERVERS
    del state.progress[key(2)]
    note_progress(core, state, key(7), 0)
    note_progress(core, state, key(2), 0)
    assert key(2) in state.progress


def test_a_voter_that_turns_up_late_takes_no_observers_place_and_the_next_observer_takes_one() -> (
    None
):
    core, state = led()
    del state.progress[key(2)]
    crowded_with = MAX_OBSERVERS - len(state.progress)
    for disk in range(crowded_with):
        note_progress(core, state, key(9, disk), 0)
    note_progress(core, state, key(2), 0)
    assert len(state.progress) == MAX_OBSERVERS + 1
    core.now_ms += 1
    note_progress(core, state, key(8), 0)
    assert len(state.progress) == MAX_OBSERVERS + 1
    assert {key(2), key(8)} <= set(state.progress)


@pytest.mark.parametrize(("offset", "is_told"), [(1, True), (2, False), (3, False)])
def test_a_replica_that_needs_a_snapshot_and_has_less_than_it_had_is_reported(
    offset: int, is_told: bool
) -> None:
    core, state = led()
    note_progress(core, state, key(9), 2)
    core.effects.clear()
    note_log_regression(core, state, key(9), offset)
    assert [type(effect) for effect in core.effects] == [Report] * is_told
    note_log_regression(core, state, key(8), 0)
    assert len(core.effects) == is_told


@pytest.mark.long
def test_an_observer_that_fetches_is_kept_account_of_whoever_else_does() -> None:
    core, state = led()
    note_progress(core, state, key(8), 0)
    for disk in range(MAX_OBSERVERS * 3):
        if disk % 500 == 0:
            core.now_ms += 500
            note_progress(core, state, key(8), 0)
        note_progress(core, state, key(9, disk), 0)
        assert key(8) in state.progress


def test_silent_observers_are_forgotten_before_one_that_fetches_has_to_go() -> None:
    core, state = led()
    crowded(core, state)
    core.now_ms += OBSERVER_FORGOTTEN_MS + 1
    note_progress(core, state, key(8), 0)
    assert key(8) in state.progress
    assert not [each for each in state.progress if each.id == 9]


def test_whose_addition_is_asked_for_stays_in_the_account() -> None:
    bench = leading()
    core, state = bench.node.core, bench.node.core.state
    assert isinstance(state, Leader)
    add(bench, key(8))
    core.now_ms = SOON
    note_progress(core, state, key(8), 0)
    core.now_ms += OBSERVER_FORGOTTEN_MS + 1
    crowded(core, state)
    assert key(8) in state.progress


@pytest.mark.parametrize(("later_ms", "is_known"), [(0, True), (1, False)])
def test_an_observer_is_forgotten_behind_its_time_and_a_voter_never(
    later_ms: int, is_known: bool
) -> None:
    core, state = led()
    for each in (key(2), key(9)):
        note_progress(core, state, each, 0)
    core.now_ms += OBSERVER_FORGOTTEN_MS + later_ms
    note_progress(core, state, key(8), 0)
    assert (key(9) in state.progress) is is_known
    assert key(2) in state.progress


# -- who a voter is


@pytest.mark.parametrize(
    ("voter", "fetched", "best"),
    [
        (key(2), {key(2): 5, key(2, disk=1): 9}, 5),
        (key(2), {key(2, disk=1): 9}, None),
        (ReplicaKey(2), {key(2): 5, key(2, disk=1): 9, key(3): 99}, 9),
        (ReplicaKey(2), {key(3): 99, key(2): 9, key(2, disk=1): 5}, 9),
        (ReplicaKey(2), {ReplicaKey(2): 7, key(2): 9}, 9),
        (ReplicaKey(2), {key(2): 5, ReplicaKey(2): 7}, 7),
        (ReplicaKey(2), {key(2): None, key(2, disk=1): 5}, 5),
        (ReplicaKey(2), {key(2): 5, key(2, disk=1): None}, 5),
        (ReplicaKey(2), {key(3): 99}, None),
    ],
)
def test_a_voter_known_by_id_is_who_fetched_last_under_it(
    voter: ReplicaKey, fetched: dict[ReplicaKey, int | None], best: int | None
) -> None:
    _, state = led()
    state.progress.clear()
    for each, at_ms in fetched.items():
        state.progress[each] = FetchProgress(last_heard_ms=0, last_fetch_ms=at_ms)
    found = progress_of(state, voter)
    assert (None if found is None else found.last_fetch_ms) == best


@pytest.mark.parametrize("at_ms", [5, None])
def test_of_two_that_fetched_at_once_the_first_is_the_voter(at_ms: int | None) -> None:
    _, state = led()
    state.progress.clear()
    for each in (key(2), key(2, disk=1)):
        state.progress[each] = FetchProgress(last_heard_ms=0, last_fetch_ms=at_ms)
    assert progress_of(state, ReplicaKey(2)) is state.progress[key(2)]


def test_a_replica_that_never_fetched_has_nothing_on_disk() -> None:
    core, state = led()
    assert synced_end_offset(core, state, key(7)) == -1
    assert synced_end_offset(core, state, key(2)) == 4
