"""The records of a group of batches: their fields, and the offset and time that each has.

An uncompressed batch was checked before it came into the log, so whatever is wrong with its
records is damage. A compressed one was not: it is empty if it does not unpack to its records. If it has as
many as offsets, as each that a leader took, their places are their offsets, whatever they claim: so each
offset is there once. Else a record that claims an offset outside is moved to the nearest inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quorumd.pipeline.parse.arrays import Bools, Int64s
from quorumd.pipeline.parse.fields import RecordFields, read_fields
from quorumd.pipeline.parse.headers import BatchHeaders, damaged
from quorumd.pipeline.parse.origin import ChunkOrigin
from quorumd.pipeline.parse.payloads import PayloadGroup, warn_empty
from quorumd.pipeline.parse.walk import WalkedRecords, walk_records

ROWS_MAX = 1 << 18
"""The most records that are read together."""


@dataclass(frozen=True, slots=True)
class ParsedRecords:
    """Records of some batches. `batch` is the place in `batches`; fields lie in `buffer`."""

    buffer: memoryview
    batches: BatchHeaders
    batch: Int64s
    fields: RecordFields
    offsets: Int64s
    timestamps_ms: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, which: Bools) -> ParsedRecords:
        """Some of the records."""
        return ParsedRecords(
            self.buffer,
            self.batches,
            self.batch[which],
            self.fields.select(which),
            self.offsets[which],
            self.timestamps_ms[which],
        )

    def of_batch(self, name: str) -> Int64s:
        """A field of the batch header, for every record."""
        return self.batches.field(name)[self.batch]


def records_of(group: PayloadGroup, origin: ChunkOrigin) -> Iterator[ParsedRecords]:
    """All records of a group. Raises DamagedBatch before the first of them."""
    group, rows, only = _sound(group, origin)
    if only is not None:
        yield only
        return
    for at in range(0, len(rows.starts), ROWS_MAX):
        yield _read(group, rows, at)


def _sound(
    group: PayloadGroup, origin: ChunkOrigin
) -> tuple[PayloadGroup, WalkedRecords, ParsedRecords | None]:
    """The group without batches that count as empty; and its records, if they are few."""
    while True:
        data = np.frombuffer(group.buffer, np.uint8)
        counts = group.batches.field("record_count")
        rows = walk_records(data, group.starts, group.ends, counts)
        bad, only = rows.bad, None
        if not bad:
            for at in range(0, len(rows.starts), ROWS_MAX):
                only = _read(group, rows, at)
                _find_bad(only, bad)
        if not bad:
            return group, rows, only if len(rows.starts) <= ROWS_MAX else None
        group = _without_empty(group, bad, origin)


def _read(group: PayloadGroup, rows: WalkedRecords, at: int) -> ParsedRecords:
    some = slice(at, at + ROWS_MAX)
    batches, batch = group.batches, rows.batch[some]
    data = np.frombuffer(group.buffer, np.uint8)
    fields = read_fields(data, rows.starts[some], rows.ends[some])
    deltas = fields.offset_deltas
    if batches.codecs.any():
        last_deltas = batches.field("last_offset_delta")
        inside = np.clip(deltas, 0, last_deltas[batch])
        first_rows = np.searchsorted(rows.batch, np.arange(len(batches)))
        places = np.arange(at, at + len(batch)) - first_rows[batch]
        is_full = batches.field("record_count") == last_deltas + 1
        inside = np.where(is_full[batch], places, inside)
        deltas = np.where(batches.codecs[batch] != 0, inside, deltas)
    timestamps = batches.field("base_timestamp")[batch] + fields.timestamp_deltas
    if batches.is_append_time.any():
        stamped = batches.is_append_time[batch]
        timestamps = np.where(stamped, batches.field("max_timestamp")[batch], timestamps)
    offsets = batches.field("base_offset")[batch] + deltas
    return ParsedRecords(group.buffer, batches, batch, fields, offsets, timestamps)


def _find_bad(records: ParsedRecords, bad: dict[int, str]) -> None:
    """Adds the batches that have malformed records to `bad`."""
    batch, deltas = records.batch, records.fields.offset_deltas
    for at in np.unique(batch[records.fields.bad]).tolist():
        bad.setdefault(at, "a record's length is not that of its fields")
    misplaced = (deltas < 0) | (deltas > records.of_batch("last_offset_delta"))
    misplaced[1:] |= (batch[1:] == batch[:-1]) & (deltas[1:] <= deltas[:-1])
    misplaced &= records.batches.codecs[batch] == 0
    for at in np.unique(batch[misplaced]).tolist():
        bad.setdefault(at, "the offsets of its records do not ascend within the batch")


def _without_empty(group: PayloadGroup, bad: dict[int, str], origin: ChunkOrigin) -> PayloadGroup:
    """Raises DamagedBatch if one of the bad batches was not compressed by its producer."""
    batches = group.batches
    is_producers = (batches.codecs != 0) & ~batches.is_control
    for at, what in sorted(bad.items()):
        if not is_producers[at]:
            raise damaged(batches, at, what, origin)
    which = np.zeros(len(batches), np.bool_)
    for at, what in sorted(bad.items()):
        warn_empty(batches, at, what, origin)
        which[at] = True
    return group.without(which)
