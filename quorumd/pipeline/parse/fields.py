"""The fields of records, all of a kind at once; and the headers of those that have some.

Places only ever move forward, so a record whose last field ends where the record does has read nothing
outside. Source: KIP-98, record format; Apache Kafka 4.3, DefaultRecord.readFrom.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from quorumd.pipeline.parse.arrays import Bools, Bytes, Int64s
from quorumd.pipeline.parse.varints import read_varints
from quorumd.wire.varints import read_varint

_HEADERS_TOGETHER = 16
"""Records with more headers than these are read one by one."""


@dataclass(frozen=True, slots=True)
class ByteSpans:
    """Byte strings, each from a start to an end (exclusive); a null one is empty."""

    starts: Int64s
    ends: Int64s
    is_null: Bools

    def select(self, which: Bools | Int64s) -> ByteSpans:
        """Some of them."""
        return ByteSpans(self.starts[which], self.ends[which], self.is_null[which])


@dataclass(frozen=True, slots=True)
class RecordHeaders:
    """The headers of some records, one behind the other: record i has `counts[i]` of them."""

    counts: Int64s
    keys: ByteSpans
    values: ByteSpans

    @property
    def rows(self) -> Int64s:
        """Index of the record of each header."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def select(self, which: Bools) -> RecordHeaders:
        """The headers of some of the records."""
        kept = which[self.rows]
        return RecordHeaders(self.counts[which], self.keys.select(kept), self.values.select(kept))


@dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields of records, as columns; `bad` are the malformed ones, whose fields are undefined."""

    timestamp_deltas: Int64s
    offset_deltas: Int64s
    keys: ByteSpans
    values: ByteSpans
    headers: RecordHeaders
    bad: Bools

    def select(self, which: Bools) -> RecordFields:
        """The fields of some of the records."""
        return RecordFields(
            self.timestamp_deltas[which],
            self.offset_deltas[which],
            self.keys.select(which),
            self.values.select(which),
            self.headers.select(which),
            self.bad[which],
        )


def read_fields(data: Bytes, starts: Int64s, ends: Int64s) -> RecordFields:
    """The fields of records that lie in `data[starts:ends]`, their lengths included."""
    bad = np.zeros(len(starts), np.bool_)
    _, at = read_varints(data, starts, 32, bad)
    timestamp_deltas, at = read_varints(data, at + 1, 64, bad)
    offset_deltas, at = read_varints(data, at, 32, bad)
    keys, at = _read_spans(data, at, bad)
    values, at = _read_spans(data, at, bad)
    count, at = read_varints(data, at, 32, bad)
    # Each header takes two bytes or more.
    bad |= (count < 0) | (count > np.maximum(ends - at, 0) // 2)
    count[bad] = 0
    headers = _read_headers(data, at, ends, count, bad)
    bad |= at != ends
    return RecordFields(timestamp_deltas, offset_deltas, keys, values, headers, bad)


def _read_spans(data: Bytes, at: Int64s, bad: Bools) -> tuple[ByteSpans, Int64s]:
    """A length and as many bytes at each place; a negative length is null."""
    size, at = read_varints(data, at, 32, bad)
    is_null = size < 0
    end = at + np.where(is_null, 0, size)
    return ByteSpans(at, end, is_null), end


def _read_headers(
    data: Bytes, at: Int64s, ends: Int64s, counts: Int64s, bad: Bools
) -> RecordHeaders:
    """The headers of records that have `counts` of them from `at` on; moves `at` behind them."""
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    keys, values = _empty(total), _empty(total)
    rows = np.flatnonzero((counts > 0) & (counts <= _HEADERS_TOGETHER))
    number = 0
    while len(rows):
        wrong = np.zeros(len(rows), np.bool_)
        key, place = _read_spans(data, at[rows], wrong)
        value, at[rows] = _read_spans(data, place, wrong)
        bad[rows] |= wrong | key.is_null
        _put(keys, first[rows] + number, key)
        _put(values, first[rows] + number, value)
        number += 1
        rows = rows[counts[rows] > number]
    for row in np.flatnonzero(counts > _HEADERS_TOGETHER).tolist():
        begin, count = int(at[row]), int(counts[row])
        try:
            found, size = _headers_of_one(data[begin : int(ends[row])].tobytes(), count)
        except (IndexError, ValueError):
            bad[row] = True
            continue
        where = slice(int(first[row]), int(first[row]) + count)
        is_null = np.zeros(count, np.bool_)
        _put(keys, where, ByteSpans(begin + found[:, 0], begin + found[:, 1], is_null))
        _put(values, where, ByteSpans(begin + found[:, 2], begin + found[:, 3], found[:, 4] != 0))
        at[row] += size
    return RecordHeaders(counts, keys, values)


def _empty(count: int) -> ByteSpans:
    return ByteSpans(
        np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_)
    )


def _put(spans: ByteSpans, where: Int64s | slice, found: ByteSpans) -> None:
    spans.starts[where] = found.starts
    spans.ends[where] = found.ends
    spans.is_null[where] = found.is_null


def _headers_of_one(payload: bytes, count: int) -> tuple[Int64s, int]:
    """Start and end of key and value of each header, and 1 if the value is null; where they end.

    Raises IndexError, ValueError.
    """
    found = array("q")
    at = 0
    for _ in range(count):
        size, key_at = read_varint(payload, at)
        if size < 0:
            raise ValueError("a null header key")
        key_end = key_at + size
        size, value_at = read_varint(payload, key_end)
        at = value_at + max(size, 0)
        found.extend((key_at, key_end, value_at, at, int(size < 0)))
    return np.array(found).reshape(-1, 5), at
