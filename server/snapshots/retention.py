"""History that may be deleted, since a snapshot stands for it: by size and by age. A pure function.

Nothing is ever deleted without a newer snapshot. Source: KIP-595 (log compaction and snapshots), KIP-630
(when to delete snapshots and the log).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SNAPSHOTS_KEPT = 2
"""A replica that copies the one before the newest can finish. Older ones are of no use."""
SEGMENTS_AT_ONCE = 16
BYTES_AT_ONCE = 128 << 20
"""Appends and votes wait for what is deleted at once, at all replicas at the same time: some 0.1 s."""


class Deletable(NamedTuple):
    """A closed segment, or a snapshot: everything in it ends at `end_offset` (exclusive).

    `newest_ms` is the greatest timestamp in it, negative if no record has one.
    """

    end_offset: int
    size_bytes: int
    newest_ms: int


class Deletion(NamedTuple):
    """The planned start of the log, and how many of the oldest snapshots go."""

    start_offset: int
    snapshots_dropped: int


def plan_deletion(
    snapshots: Sequence[Deletable],
    segments: Sequence[Deletable],
    total_bytes: int,
    *,
    start_offset: int,
    now_ms: int,
    retention_bytes: int | None,
    retention_ms: int | None,
    copied_offset: int | None = None,
) -> Deletion:
    """The oldest history goes first, until the rest is small and young enough; None is no limit.

    Snapshots and closed segments ascend. `total_bytes` is the size of log and snapshots together.
    `copied_offset` is the end of the oldest snapshot that is being copied at present: it stays, with
    all that follows it, or a slow replica would never be done.
    """
    if not snapshots:
        return Deletion(start_offset, 0)
    needed_offset = snapshots[-1].end_offset if copied_offset is None else copied_offset
    droppable = sum(snapshot.end_offset < needed_offset for snapshot in snapshots)
    dropped = min(droppable, max(0, len(snapshots) - SNAPSHOTS_KEPT))
    total_bytes -= sum(snapshot.size_bytes for snapshot in snapshots[:dropped])
    for segment, newest_ms in zip(segments, _newest_ms_of(segments, now_ms), strict=True):
        if segment.end_offset > needed_offset:
            break
        is_too_much = retention_bytes is not None and total_bytes > retention_bytes
        is_too_old = retention_ms is not None and newest_ms < now_ms - retention_ms
        if not (is_too_much or is_too_old):
            break
        start_offset = segment.end_offset
        total_bytes -= segment.size_bytes
    while dropped < droppable and snapshots[dropped].end_offset < start_offset:
        dropped += 1
    return Deletion(start_offset, dropped)


def next_start(segments: Sequence[Deletable], start_offset: int, goal: int) -> int:
    """Next start offset of the log on the way from `start_offset` to `goal`, a few segments further.

    It stays where it is while the disk is busy with the last few: `segments` has them still.
    """
    if not segments or segments[0].end_offset <= start_offset:
        return start_offset
    size_bytes = 0
    for number, segment in enumerate(segments[:SEGMENTS_AT_ONCE]):
        size_bytes += segment.size_bytes
        if segment.end_offset > goal or (number and size_bytes > BYTES_AT_ONCE):
            break
        start_offset = segment.end_offset
    return start_offset


def _newest_ms_of(segments: Sequence[Deletable], now_ms: int) -> list[int]:
    """The greatest timestamp of each. One without any is as old as the next that has one: what follows was
    written later."""
    found, newest_ms = [], now_ms
    for segment in reversed(segments):
        if segment.newest_ms >= 0:
            newest_ms = segment.newest_ms
        found.append(newest_ms)
    return found[::-1]
