"""What may be deleted behind a snapshot, by size and by age."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quorumd.server.snapshots.retention import (
    BYTES_AT_ONCE,
    SEGMENTS_AT_ONCE,
    SNAPSHOTS_KEPT,
    Deletable,
    Deletion,
    next_start,
    plan_deletion,
)

NOW_MS = 1_000_000


def plan(
    snapshots: list[tuple[int, int]], segments: list[tuple[int, int, int]], **limits: Any
) -> Deletion:
    """Snapshots are (end offset, bytes), segments (end offset, bytes, newest ms)."""
    total = sum(size for _, size in snapshots) + sum(size for _, size, _ in segments)
    values = {"retention_bytes": None, "retention_ms": None} | limits
    return plan_deletion(
        [Deletable(end, size, NOW_MS) for end, size in snapshots],
        [Deletable(*segment) for segment in segments],
        total,
        start_offset=0,
        now_ms=NOW_MS,
        **values,
    )


def test_without_limits_no_record_is_deleted() -> None:
    assert plan([(20, 5)], [(10, 100, 0), (20, 100, 0)]) == Deletion(0, 0)


def test_without_a_snapshot_nothing_is_deleted() -> None:
    assert plan([], [(10, 100, 0)], retention_bytes=0, retention_ms=0) == Deletion(0, 0)


def test_the_oldest_segments_go_until_the_rest_is_small_enough() -> None:
    segments = [(10, 100, 0), (20, 100, 0), (30, 100, 0)]
    assert plan([(30, 50)], segments, retention_bytes=250) == Deletion(10, 0)
    assert plan([(30, 50)], segments, retention_bytes=249) == Deletion(20, 0)
    assert plan([(30, 50)], segments, retention_bytes=0) == Deletion(30, 0)


def test_what_no_snapshot_stands_for_stays() -> None:
    segments = [(10, 100, 0), (20, 100, 0)]
    assert plan([(15, 50)], segments, retention_bytes=0) == Deletion(10, 0)


def test_segments_go_by_age_and_a_younger_one_keeps_those_behind_it() -> None:
    segments = [(10, 100, 0), (20, 100, NOW_MS), (30, 100, 0)]
    assert plan([(30, 50)], segments, retention_ms=1000) == Deletion(10, 0)
    for age_ms, start_offset in ((1000, 0), (1001, 10)):
        segments[0] = (10, 100, NOW_MS - age_ms)
        assert plan([(30, 50)], segments, retention_ms=1000) == Deletion(start_offset, 0)


def test_segments_without_a_timestamp_go_with_the_next_one_that_has_one() -> None:
    undated = [(10, 100, -1), (20, 100, -1)]
    assert plan([(40, 50)], undated, retention_ms=1000) == Deletion(0, 0)
    young, old = (30, 100, NOW_MS), (30, 100, 0)
    assert plan([(40, 50)], [*undated, young], retention_ms=1000) == Deletion(0, 0)
    assert plan([(40, 50)], [*undated, old, (40, 100, -1)], retention_ms=1000) == Deletion(30, 0)
    assert plan([(25, 50)], [*undated, old], retention_ms=1000) == Deletion(20, 0)


def test_older_snapshots_serve_nobody_but_the_one_before_the_newest_may_be_under_way() -> None:
    assert plan([(10, 5), (20, 5), (30, 5)], []) == Deletion(0, 3 - SNAPSHOTS_KEPT)


def test_a_snapshot_that_goes_makes_room_for_records() -> None:
    snapshots, segments = [(10, 100), (20, 5), (30, 5)], [(10, 100, 0), (20, 100, 0)]
    assert plan(snapshots, segments, retention_bytes=210) == Deletion(0, 1)
    assert plan(snapshots, segments, retention_bytes=209) == Deletion(10, 1)


def test_a_snapshot_below_the_start_goes_too() -> None:
    snapshots = [(10, 5), (30, 5)]
    assert plan(snapshots, [(20, 100, 0)], retention_bytes=0) == Deletion(20, 1)
    at_the_start = [(20, 5), (30, 5)]
    assert plan(at_the_start, [(20, 100, 0)], retention_bytes=0) == Deletion(20, 0)


def test_what_somebody_copies_stays_with_all_that_follows_it() -> None:
    snapshots = [(10, 5), (20, 5), (30, 5), (40, 5)]
    segments = [(10, 100, 0), (20, 100, 0), (30, 100, 0), (40, 100, 0)]
    limits = {"retention_bytes": 0, "copied_offset": 20}
    assert plan(snapshots, segments, **limits) == Deletion(20, 1)


ends = st.lists(st.integers(1, 50), unique=True, max_size=6).map(sorted)


def test_a_share_is_some_segments_or_so_many_bytes_and_one_segment_at_the_least() -> None:
    small = [Deletable(end, 1, 0) for end in range(1, 100)]
    assert next_start(small, 0, 99) == SEGMENTS_AT_ONCE
    assert next_start(small, 0, 3) == 3
    half = [Deletable(end, BYTES_AT_ONCE // 2, 0) for end in range(1, 100)]
    assert next_start(half, 0, 99) == 2
    large = [Deletable(end, BYTES_AT_ONCE + 1, 0) for end in range(1, 100)]
    assert next_start(large, 0, 99) == 1


def test_the_next_share_waits_until_the_disk_is_done_with_the_last_one() -> None:
    segments = [Deletable(end, 1, 0) for end in range(1, 100)]
    assert next_start(segments, SEGMENTS_AT_ONCE, 99) == SEGMENTS_AT_ONCE
    assert next_start(segments[1:], SEGMENTS_AT_ONCE, 99) == SEGMENTS_AT_ONCE
    assert next_start(segments[SEGMENTS_AT_ONCE - 1 :], SEGMENTS_AT_ONCE, 99) == SEGMENTS_AT_ONCE
    left = segments[SEGMENTS_AT_ONCE:]
    assert next_start(left, SEGMENTS_AT_ONCE, 99) == 2 * SEGMENTS_AT_ONCE
    assert next_start([], SEGMENTS_AT_ONCE, SEGMENTS_AT_ONCE) == SEGMENTS_AT_ONCE


@given(ends, ends, st.integers(0, 500), st.integers(0, NOW_MS), st.data())
def test_the_newest_snapshot_always_covers_the_start(
    snapshots: list[int], segments: list[int], limit: int, age_ms: int, data: st.DataObject
) -> None:
    times = data.draw(st.lists(st.integers(0, NOW_MS), min_size=len(segments), max_size=9))
    found = plan(
        [(end, 10) for end in snapshots],
        [(end, 100, at) for end, at in zip(segments, times, strict=False)],
        retention_bytes=limit,
        retention_ms=age_ms,
    )
    left = snapshots[found.snapshots_dropped :]
    assert bool(left) == bool(snapshots)
    assert found.start_offset == 0 or found.start_offset in segments
    assert found.start_offset <= (snapshots[-1] if snapshots else 0)
    assert len(left) <= SNAPSHOTS_KEPT
