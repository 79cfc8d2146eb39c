"""Majority arithmetic, checked against its definition on generated input."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from quorumd.raft import quorum
from quorumd.raft.log_view import LogView
from quorumd.raft.types import OffsetAndEpoch
from tests.raft.harness import key

OFFSETS = st.lists(st.integers(-1, 20), min_size=1, max_size=7)


@given(OFFSETS)
def test_the_committed_end_is_the_greatest_that_a_majority_has(offsets: list[int]) -> None:
    found = quorum.majority_end_offset(offsets)
    assert sum(o >= found for o in offsets) >= quorum.majority(len(offsets))
    assert sum(o > found for o in offsets) < quorum.majority(len(offsets))


@given(st.integers(1, 9))
def test_any_two_majorities_share_a_voter(size: int) -> None:
    least = quorum.majority(size)
    assert 2 * least > size
    assert 2 * (least - 1) <= size


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_an_election_is_never_both_won_and_lost(size: int, granted: int, refused: int) -> None:
    if granted + refused <= size:
        assert not (quorum.is_won(granted, size) and quorum.is_lost(refused, size))
    if granted + refused == size:
        assert quorum.is_won(granted, size) or quorum.is_lost(refused, size)


def test_majorities_of_sets_one_voter_apart_overlap() -> None:
    for size in range(1, 6):
        small, large = set(range(size)), set(range(size + 1))
        for one in combinations(small, quorum.majority(size)):
            for other in combinations(large, quorum.majority(size + 1)):
                assert set(one) & set(other)


@given(st.integers(0, 10**6))
def test_a_successor_far_down_the_list_waits_the_longest_time(position: int) -> None:
    delay = quorum.successor_delay_ms(position, 20, 1000)
    assert 0 <= delay <= 1000
    assert delay <= quorum.successor_delay_ms(position + 1, 20, 1000)
    assert delay <= quorum.successor_delay_ms(None, 20, 1000)


def test_the_first_successor_does_not_wait_and_the_next_ones_double() -> None:
    delays = [quorum.successor_delay_ms(n, 20, 1000) for n in range(8)]
    assert delays == [0, 20, 40, 80, 160, 320, 640, 1000]


@given(st.integers(1, 10**6))
def test_backoff_doubles_up_to_its_bound(attempts: int) -> None:
    assert quorum.backoff_ms(attempts, 20, 1000) == min(1000, 20 * 2 ** min(attempts - 1, 10))


def test_delays_double_twenty_times_at_most() -> None:
    assert quorum.backoff_ms(100, 1, 2**40) == 2**20
    assert quorum.successor_delay_ms(100, 1, 2**40) == 2**20


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 9)), unique_by=lambda x: x[0]))
def test_preferred_successors_are_ordered_by_offset(rows: list[tuple[int, int]]) -> None:
    ordered = quorum.preferred_successors((key(i), offset) for i, offset in rows)
    offsets = {key(i): offset for i, offset in rows}
    found = [offsets[k] for k in ordered]
    assert found == sorted(found, reverse=True)
    assert set(ordered) == set(offsets)


# -- reconciliation of two logs

EPOCHS = st.lists(st.integers(1, 6), max_size=12).map(sorted)


def view(epochs: list[int]) -> LogView:
    log = LogView()
    for offset, epoch in enumerate(epochs):
        log.append(offset + 1, ((epoch, offset),))
    return log


@given(EPOCHS, EPOCHS)
def test_truncation_ends_at_the_common_prefix_in_few_rounds(
    ours: list[int], theirs: list[int]
) -> None:
    """Epochs stand for whole histories: equal (offset, epoch) pairs mean equal records.

    That holds of logs made by leaders, so the shorter run of each epoch is cut to make it so.
    """
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    if any(ours[i] == theirs[i] for i in range(common, min(len(ours), len(theirs)))):
        return  # not two histories of one protocol
    if set(ours[common:]) & set(theirs[common:]):
        return
    follower, leader = view(ours), view(theirs)
    for _ in range(10):
        position = follower.end
        if leader.contains(position):
            break
        cut = follower.truncation_point(leader.diverging_from(position))
        assert common <= cut < follower.end_offset
        follower.voter_entries.clear()
        follower.end_offset = cut
        while follower.epoch_starts and follower.epoch_starts[-1][1] >= cut:
            follower.epoch_starts.pop()
    assert leader.contains(follower.end)
    assert follower.end_offset >= common or follower.end_offset == len(ours)


@given(EPOCHS, st.integers(0, 12), st.integers(0, 7))
def test_a_position_is_contained_iff_the_record_before_it_has_its_epoch(
    epochs: list[int], offset: int, epoch: int
) -> None:
    log = view(epochs)
    inside = offset == 0 or (offset <= len(epochs) and epochs[offset - 1] == epoch)
    assert log.contains(OffsetAndEpoch(offset, epoch)) == inside
