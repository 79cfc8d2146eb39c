"""The records of a snapshot as they were in the log: at their own offsets, without the added header.

A record says in its last header which offset it had (quorumd.wire.snapshot_records). Where none does, as in
Kafka's own snapshots, and for control records, which are about the snapshot as a whole, the offset is the
last one that the snapshot stands for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumd.pipeline.parse.arrays import Int64s
from quorumd.pipeline.parse.columns import binary_column
from quorumd.pipeline.parse.fields import ByteSpans, RecordHeaders
from quorumd.pipeline.parse.headers import damaged
from quorumd.pipeline.parse.origin import ChunkOrigin
from quorumd.pipeline.parse.rows import ParsedRecords
from quorumd.wire.snapshot_records import OFFSET_HEADER

_DIGITS = r"^[0-9]{1,19}$"
_BEYOND = (1 << 64) - 1


def as_in_log(records: ParsedRecords, snapshot_end: int, origin: ChunkOrigin) -> ParsedRecords:
    """`snapshot_end` is exclusive. Raises DamagedBatch if an offset is none below it."""
    headers = records.fields.headers
    rows = np.flatnonzero(headers.counts)
    last = np.cumsum(headers.counts)[rows] - 1
    names = binary_column(records.buffer, headers.keys.select(last))
    is_added = pc.equal(names, OFFSET_HEADER).to_numpy(zero_copy_only=False)
    rows, last = rows[is_added], last[is_added]
    offsets = np.full(len(records), max(snapshot_end - 1, 0), np.int64)
    offsets[rows] = _offsets(records, rows, headers.values.select(last), snapshot_end, origin)
    counts = headers.counts.copy()
    counts[rows] -= 1
    is_kept = np.ones(len(headers.keys.starts), np.bool_)
    is_kept[last] = False
    kept = RecordHeaders(counts, headers.keys.select(is_kept), headers.values.select(is_kept))
    return replace(records, fields=replace(records.fields, headers=kept), offsets=offsets)


def _offsets(
    records: ParsedRecords, rows: Int64s, spans: ByteSpans, snapshot_end: int, origin: ChunkOrigin
) -> Int64s:
    """The numbers that the spans are."""
    texts = binary_column(records.buffer, spans)
    is_number = pc.match_substring_regex(texts, _DIGITS).fill_null(False)
    numbers = pc.if_else(is_number, texts.cast(pa.string(), safe=False), str(_BEYOND))
    found: npt.NDArray[np.uint64] = numbers.cast(pa.uint64()).to_numpy()
    bad = np.flatnonzero(found >= snapshot_end)
    if len(bad):
        at = int(records.batch[rows[bad[0]]])
        name = OFFSET_HEADER.decode()
        what = (
            f"the header {name} of a record is no offset below the snapshot's end, {snapshot_end}"
        )
        raise damaged(records.batches, at, what, origin)
    return found.astype(np.int64)
