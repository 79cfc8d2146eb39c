"""Positions of the records of many batches: record k of every batch in one step.

The only sequential part of reading records: a length leads to the next length.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quorumd.pipeline.parse.arrays import Bytes, Int64s
from quorumd.pipeline.parse.varints import pair_table, pairs_of
from quorumd.wire.varints import read_varint

RECORD_BYTES_MIN = 7
"""Of a record: a byte each for length, attributes, two deltas, two lengths, and count of headers."""
_BODY_BYTES_MIN = RECORD_BYTES_MIN - 1
_TOGETHER_MIN = 24
"""Fewer batches than these are faster one by one."""


@dataclass(frozen=True, slots=True)
class WalkedRecords:
    """Records in order: where each begins and ends, its length included, and which batch it is in.

    `bad` says what is wrong with batches that are not exactly the records that they count; the rows
    of these mean nothing.
    """

    starts: Int64s
    ends: Int64s
    batch: Int64s
    bad: dict[int, str]


def walk_records(data: Bytes, starts: Int64s, ends: Int64s, counts: Int64s) -> WalkedRecords:
    """The records of batches whose payloads are `data[starts:ends]`; `counts` are not negative.

    Every record of a batch that is not bad lies within its payload, one right behind the other.
    """
    too_many = counts > (ends - starts) // RECORD_BYTES_MIN
    bad = {
        at: f"{counts[at]} records in {ends[at] - starts[at]} bytes"
        for at in np.flatnonzero(too_many).tolist()
    }
    counts = np.where(too_many, 0, counts)
    first_rows = np.cumsum(counts) - counts
    found = np.zeros(int(counts.sum()), np.int64)
    left = _walk_together(data, starts, ends, counts, first_rows, found)
    for at in left:
        if at not in bad:
            begin, row = int(starts[at]), int(first_rows[at])
            places, what = _walk_one(data[begin : int(ends[at])].tobytes(), int(counts[at]))
            found[row : row + len(places)] = places
            found[row : row + len(places)] += begin
            if what:
                bad[at] = what
    has_rows = counts > 0
    row_ends = np.roll(found, -1)
    row_ends[(first_rows + counts - 1)[has_rows]] = ends[has_rows]
    batch = np.repeat(np.arange(len(counts)), counts)
    return WalkedRecords(found, row_ends, batch, bad)


def _walk_together(
    data: Bytes, starts: Int64s, ends: Int64s, counts: Int64s, first_rows: Int64s, found: Int64s
) -> list[int]:
    """Fills `found` for batches that do not have many more records than others.

    Returns the batches for which it did not: the longest, those with records of 8 KiB and more, and
    all that are wrong.
    """
    if len(counts) < _TOGETHER_MIN:
        return list(range(len(counts)))
    order = np.argsort(-counts, kind="stable")
    steps = int(counts[order[_TOGETHER_MIN - 1]])
    is_short = counts[order] <= steps
    order = order[is_short]
    count_of = counts[order]
    row_of = first_rows[order]
    place_of = starts[order]
    end_of = ends[order]
    last = np.full(len(order), -1, np.int64)
    advances = _advances()
    pairs = pairs_of(data)
    last_pair = len(pairs) - 1
    # Number of the batches, which descend by count, that have a record k.
    widths = np.searchsorted(-count_of, -np.arange(steps), side="left").tolist()
    for step, width in enumerate(widths):
        places = place_of[:width]
        found[row_of[:width] + step] = places
        last[:width] = places
        places += advances[pairs[np.minimum(places, last_pair)]]
    # A place that can't go on stays, so one that arrives at the end has come by whole records only.
    is_whole = (place_of == end_of) & (last < end_of)
    left = np.ones(len(counts), np.bool_)
    left[order[is_whole]] = False
    return [int(at) for at in np.flatnonzero(left)]


@functools.cache
def _advances() -> npt.NDArray[np.int16]:
    """By the two bytes at the start of a record, low byte first: how far the next one is.

    0 where no record can begin so, or its length takes more than two bytes.
    """
    table = pair_table()
    is_valid = (table.sizes > 0) & (table.values >= _BODY_BYTES_MIN)
    return np.where(is_valid, table.sizes + table.values, 0).astype(np.int16)


def _walk_one(payload: bytes, count: int) -> tuple[list[int], str]:
    """Positions of the records of one payload, and its fault, if there is one."""
    places = []
    at = 0
    end = len(payload)
    try:
        for _ in range(count):
            places.append(at)
            size = payload[at]
            if size < 128:
                size, at = (size >> 1) ^ -(size & 1), at + 1
            else:
                size, at = read_varint(payload, at)
            at += size
            if size < _BODY_BYTES_MIN or at > end:
                return places, f"a record of {size} bytes where {end - at + size} are left"
    except IndexError:
        return places, "a record runs past its end"
    except ValueError as error:
        return places, f"a record's length is {error}"
    if at != end:
        return places, f"{end - at} bytes more than the {count} records"
    return places, ""
