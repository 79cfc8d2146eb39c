"""Offsets that are looked up by timestamp or by epoch are those of the committed log.

The response has to be right for some end of the log between what the node knew to be committed when the
request arrived and what it knew when the response left, and for some start likewise. Source: KIP-79 (first
record with this timestamp or a later one), KIP-320 (where the last epoch that is not later ends).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulation.history.replica import Batch
from simulation.history.served import Served
from simulation.violation import Violation

NAME = "looked up offsets are those of the committed log"


class Lookup(NamedTuple):
    """A lookup of an offset by a timestamp or by an epoch: one of the two is None."""

    timestamp: int | None = None
    epoch: int | None = None

    def __str__(self) -> str:
        if self.epoch is None:
            return f"timestamp {self.timestamp}"
        return f"the end of epoch {self.epoch}"


def check_lookup(
    committed: Sequence[Batch], session: str, served: Served, lookup: Lookup, found: int
) -> None:
    """Raise Violation unless `found` is right; -1: nothing was found."""
    right = set(_right_offsets(committed, served, lookup))
    if found not in right:
        raise Violation(
            NAME,
            f"{session} asks {served.left.key} for {lookup} and gets {found}; right would be"
            f" {', '.join(map(str, sorted(right)))}: committed there was"
            f" {served.arrived.start_offset}..{served.arrived.committed_offset}, then"
            f" {served.left.start_offset}..{served.left.committed_offset}",
        )


def _right_offsets(committed: Sequence[Batch], served: Served, lookup: Lookup) -> Iterator[int]:
    before, after = served.arrived, served.left
    if lookup.timestamp is not None:
        starts = {before.start_offset, after.start_offset}
        for start_offset in starts:
            yield from _of_timestamp(
                committed,
                lookup.timestamp,
                start_offset,
                (before.committed_offset, after.committed_offset),
            )
    elif lookup.epoch is not None:
        for start_offset in {before.start_offset, after.start_offset}:
            for end_offset in {before.committed_offset, after.committed_offset}:
                yield _end_of_epoch(committed, lookup.epoch, start_offset, end_offset)


def _of_timestamp(
    committed: Sequence[Batch], timestamp: int, start_offset: int, ends: tuple[int, int]
) -> Iterator[int]:
    """All records of a batch have its timestamp."""
    at = bisect_left(committed, start_offset, key=lambda batch: batch.base_offset)
    for batch in committed[at:]:
        if batch.end_offset > ends[0]:
            yield -1
        if batch.end_offset > ends[1]:
            return
        if batch.identity.base_timestamp >= timestamp:
            yield batch.base_offset
            return
    yield -1


def _end_of_epoch(
    committed: Sequence[Batch], epoch: int, start_offset: int, end_offset: int
) -> int:
    """Nothing of an epoch before the log's first one is known but that it ended there."""
    at = bisect_left(committed, epoch + 1, key=lambda batch: batch.epoch)
    found = committed[at - 1].end_offset if at else 0
    return max(start_offset, min(found, end_offset))
