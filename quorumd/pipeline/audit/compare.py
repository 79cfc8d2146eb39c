"""A range of offsets on all replicas: every batch scrubbed, then held against the others'.

Followers append what they fetched, so replicas have the same batches, byte for byte. Where boundaries
differ nevertheless, the records are compared, and only there. Which replica is right is decided by
all ranges together (audit.verdict).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.fingerprints import BatchFingerprint, LoadedBatches, load_range
from quorumd.pipeline.audit.scan import RangeTask
from quorumd.pipeline.parse import DamagedBatch, parse
from quorumd.storage.errors import StorageError


class Difference(NamedTuple):
    """Offsets `start` .. `end` (exclusive) are not the same everywhere.

    Replicas (by number) in one of `groups` agree with each other; `epochs` has the first epoch of each
    group there. `only_epoch`: nothing but the epoch differs.
    """

    start: int
    end: int
    groups: tuple[tuple[int, ...], ...]
    epochs: tuple[int, ...]
    only_epoch: bool


class EpochChange(NamedTuple):
    """A batch of another epoch than the one before it, or the first that was read; in file order."""

    segment_base: int
    position: int
    offset: int
    epoch: int


@dataclass(slots=True)
class RangeResult:
    """The result of a range; `epochs` are by the number of the replica.

    `open` are offsets (end exclusive) that differ and reach beyond the range: compare them as a whole.
    """

    findings: list[AuditFinding] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    epochs: dict[int, list[EpochChange]] = field(default_factory=dict)
    open: list[tuple[int, int]] = field(default_factory=list)
    bytes_read: int = 0
    batches: int = 0


def examine_range(task: RangeTask) -> RangeResult:
    """Raises nothing: an unreadable file is a finding."""
    done = RangeResult()
    parts: dict[int, list[LoadedBatches]] = defaultdict(list)
    for wanted in task.ranges:
        label = task.labels[wanted.replica]
        try:
            seen = load_range(wanted, label)
        except StorageError as error:
            done.findings.append(_unread(task, label, error))
            continue
        done.bytes_read += seen.bytes_read
        done.findings += [each for each in seen.findings if task.start <= each.offset < task.end]
        parts[wanted.replica] += seen.parts
    for number, loaded in sorted(parts.items()):
        done.batches += sum(len(part.batches) for part in loaded)
        done.epochs[number] = _epoch_starts(loaded)
    if len(parts) > 1 and not _are_same(parts):
        _compare(task, parts, done)
    return done


def _unread(task: RangeTask, label: str, error: StorageError) -> AuditFinding:
    return AuditFinding(
        kind=FindingKind.UNREAD,
        offset=task.start,
        end_offset=task.end,
        replicas=(label,),
        what=error.what,
        file=str(error.path),
    )


def _epoch_starts(parts: Sequence[LoadedBatches]) -> list[EpochChange]:
    found = []
    for part in parts:
        epochs, begin = part.numbers[:, 2], part.range.origin.position
        changes = np.flatnonzero(np.concatenate(([True], epochs[1:] != epochs[:-1])))
        for row in changes.tolist():
            position = begin + int(part.batches.positions[row])
            offset, epoch = int(part.numbers[row, 0]), int(epochs[row])
            found.append(EpochChange(part.segment_base, position, offset, epoch))
    return found


def _are_same(parts: dict[int, list[LoadedBatches]]) -> bool:
    """The usual case: all replicas have the same sound batches."""
    if not all(part.crc_ok.all() for loaded in parts.values() for part in loaded):
        return False
    tables = [
        np.concatenate([part.numbers for part in loaded]) for loaded in parts.values() if loaded
    ]
    return all(np.array_equal(tables[0], table) for table in tables[1:])


def _compare(task: RangeTask, parts: dict[int, list[LoadedBatches]], done: RangeResult) -> None:
    sound = {number: _sound_batches(loaded) for number, loaded in parts.items()}
    for start, end in _regions(task, sound):
        if not task.start <= start < task.end:
            continue
        held = {number: _within(batches, start, end) for number, batches in sound.items()}
        if any(
            not _fills(batches, start, end)
            and _reaches_out(parts[number], task, number, start, end)
            for number, batches in held.items()
        ):
            done.open.append((start, end))
            continue
        records = _Records(parts, start, end)
        for low, high in _uniform_ranges(start, end, held.values(), task.log_bounds):
            whole = {
                number: _within(batches, low, high)
                for number, batches in held.items()
                if _covers(batches, low, high)
            }
            difference = _difference(low, high, whole, records)
            if difference is not None:
                done.differences.append(difference)


def _sound_batches(parts: Sequence[LoadedBatches]) -> list[BatchFingerprint]:
    """In order, each offset once: repeated offsets have findings of their own."""
    batches: list[BatchFingerprint] = []
    for part in parts:
        for row, is_ok in zip(part.numbers.tolist(), part.crc_ok.tolist(), strict=True):
            if is_ok and (not batches or row[0] >= batches[-1][1]):
                batches.append((row[0], row[1], row[2], row[3], row[4]))
    return batches


def _regions(task: RangeTask, sound: dict[int, list[BatchFingerprint]]) -> list[tuple[int, int]]:
    """Ranges in which not all replicas whose log has these offsets have the same batch."""
    holders: dict[BatchFingerprint, int] = defaultdict(int)
    for batches in sound.values():
        for batch in batches:
            holders[batch] += 1
    spans = []
    log_bounds = [task.log_bounds[number] for number in sorted(sound)]
    for batch in sorted(batch for batch, count in holders.items() if count < len(sound)):
        start, end = batch[0], batch[1]
        if holders[batch] < sum(low < end and start < high for low, high in log_bounds):
            spans.append((start, end))
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _uniform_ranges(
    start: int,
    end: int,
    held: Iterable[Sequence[BatchFingerprint]],
    log_bounds: Iterable[tuple[int, int]],
) -> Iterator[tuple[int, int]]:
    """In each of these ranges a replica has all of the offsets, in one batch, or its log has none of them."""
    spans = [batch[:2] for batches in held for batch in batches]
    cuts = {offset for span in (*spans, *log_bounds) for offset in span if start < offset < end}
    return pairwise([start, *sorted(cuts), end])


def _within(
    batches: Sequence[BatchFingerprint], start: int, end: int
) -> Sequence[BatchFingerprint]:
    """Batches with any of these offsets; `batches` ascend."""
    first = bisect_right(batches, start, key=itemgetter(1))
    return batches[first : bisect_left(batches, end, first, key=itemgetter(0))]


def _fills(batches: Sequence[BatchFingerprint], start: int, end: int) -> bool:
    """From the first offset to the last, without a hole."""
    return _covers(batches, start, end) and batches[0][0] == start and batches[-1][1] == end


def _covers(batches: Sequence[BatchFingerprint], start: int, end: int) -> bool:
    """Without a hole, and perhaps beyond."""
    inside = _within(batches, start, end)
    if not inside or inside[0][0] > start or inside[-1][1] < end:
        return False
    return all(one[1] == other[0] for one, other in pairwise(inside))


def _reaches_out(
    parts: Sequence[LoadedBatches], task: RangeTask, number: int, start: int, end: int
) -> bool:
    """This replica has more of these offsets, in a range that was not read."""
    read = [(part.range.start_offset, part.range.end_offset) for part in parts]
    low, high = task.log_bounds[number]
    begins, ends = min(read)[0], max(each[1] for each in read)
    return max(start, low) < begins or min(end, high) > ends


def _difference(
    start: int, end: int, whole: dict[int, Sequence[BatchFingerprint]], records: _Records
) -> Difference | None:
    """None if those replicas that have all of it agree."""
    bounds = {tuple(batch[:2] for batch in batches) for batches in whole.values()}
    by_content: dict[Any, list[int]] = defaultdict(list)
    for number, batches in sorted(whole.items()):
        signature: Any = tuple(batches)
        if len(bounds) > 1:
            signature = records.within(number, start, end)
            if signature is None:
                continue
        by_content[signature].append(number)
    if len(by_content) < 2:
        return None
    groups = sorted(map(tuple, by_content.values()), key=lambda each: (-len(each), each))
    epoch_at = 2 if len(bounds) == 1 else 1
    without_epoch = {
        tuple((*row[:epoch_at], *row[epoch_at + 1 :]) for row in content) for content in by_content
    }
    return Difference(
        start=start,
        end=end,
        groups=tuple(groups),
        epochs=tuple(whole[group[0]][0][2] for group in groups),
        only_epoch=len(without_epoch) == 1,
    )


_COLUMNS = ("offset", "epoch", "timestamp", "key", "value", "headers", "control_type")


class _Records:
    """The records of a region, by replica, read when they are wanted."""

    def __init__(self, parts: dict[int, list[LoadedBatches]], start: int, end: int) -> None:
        self._parts = parts
        self._start = start
        self._end = end
        self._rows: dict[int, list[Any] | None] = {}

    def within(self, number: int, start: int, end: int) -> tuple[Any, ...] | None:
        """Every record, with its epoch; None if they can't be read, which is a finding already."""
        if number not in self._rows:
            self._rows[number] = self._read(number)
        rows = self._rows[number]
        if rows is None:
            return None
        first = bisect_left(rows, start, key=itemgetter(0))
        return tuple(rows[first : bisect_left(rows, end, first, key=itemgetter(0))])

    def _read(self, number: int) -> list[Any] | None:
        rows: list[Any] = []
        try:
            for part in self._parts[number]:
                data = _bytes_with(part, self._start, self._end)
                for found in parse("records", data, self._start, self._end, part.range.origin):
                    columns = [found[name].to_pylist() for name in _COLUMNS]
                    rows += zip(*columns, strict=True)
        except DamagedBatch:
            return None
        return [(*row[:5], repr(row[5]), row[6]) for row in rows]


def _bytes_with(part: LoadedBatches, start: int, end: int) -> memoryview:
    """The batches with any of these offsets: to walk through all of a part would take long."""
    rows = np.flatnonzero((part.numbers[:, 0] < end) & (part.numbers[:, 1] > start))
    if not len(rows):
        return memoryview(b"")
    first, last = int(rows[0]), int(rows[-1])
    begin, last_begin = part.batches.positions[first], part.batches.positions[last]
    return memoryview(part.data)[int(begin) : int(last_begin + part.numbers[last, 4])]
