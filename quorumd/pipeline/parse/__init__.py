"""A chunk of the log to Arrow: rows of one table out of whole batches. No Spark.

A chunk is bytes of a segment, of a snapshot, or of a Fetch response. Nothing but the chunk is read, and no
record beyond its batch. A batch is believed only after its CRC was checked; the table `batches` says in
`crc_ok` what the check found.

A compressed batch that does not unpack to the records that it counts has no rows, as for every reader of
the log: the leader does not unpack what it appends. A warning names it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from quorumd.pipeline.parse.arrays import Bools
from quorumd.pipeline.parse.headers import (
    BatchHeaders,
    WalkedChunk,
    check_chunk,
    crc_is_valid,
    stop_error,
    walk_headers,
)
from quorumd.pipeline.parse.origin import ChunkOrigin, DamagedBatch
from quorumd.pipeline.parse.payloads import groups_of
from quorumd.pipeline.parse.rows import ParsedRecords, records_of
from quorumd.pipeline.parse.snapshots import as_in_log
from quorumd.pipeline.parse.tables import (
    batch_rows,
    batches_as_rows,
    control_table_rows,
    record_rows,
)

__all__ = ["ChunkOrigin", "DamagedBatch", "parse"]


def parse(
    table: str,
    chunk: bytes | bytearray | memoryview,
    start_offset: int,
    end_offset: int,
    origin: ChunkOrigin,
    *,
    crc_is_checked: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Rows of `table` with start_offset <= offset < end_offset, in the chunk's order.

    The offset of a row of `batches` is its base offset. The chunk begins and ends at batch boundaries;
    batches outside the range are skipped, but have to be in their place. A RecordBatch has rows of a
    few MiB of the chunk, and is never empty. Raises DamagedBatch for the first damaged batch, possibly
    after some rows, ValueError if there is no such table. `crc_is_checked`: the caller has found every
    CRC of the chunk valid, as the client does with what it fetches; it is not checked again.

    Of a part of a snapshot (`origin.snapshot_end`) all `batches` are rows, at the offsets that they have
    in the file; its records and control records are rows as parse.snapshots says, the latter only of
    `control` and `control_records`, because they are about the snapshot. Users can't name the tables
    `control_records` and `log_records`, which have the columns of `records`. `log_records` has its rows, and
    of the log one more for each batch without a row in the range: see parse.tables.batches_as_rows.
    """
    view = memoryview(chunk).cast("B")
    walked = walk_headers(view)
    if table == "batches":
        yield from _batches(view, walked, start_offset, end_offset, origin, crc_is_checked)
        return
    if table not in ("records", "log_records", "control", "control_records"):
        raise ValueError(f"there is no table {table!r}: records, batches or control")
    is_wanted = np.ones(len(walked.batches), np.bool_)
    if origin.snapshot_end is None:
        is_wanted = _overlaps(walked.batches, start_offset, end_offset)
    check_chunk(view, walked, is_wanted, origin, crc_is_checked=crc_is_checked)
    if table in ("control", "control_records"):
        is_wanted &= walked.batches.is_control
    elif origin.snapshot_end is not None:
        is_wanted &= ~walked.batches.is_control
    batches = walked.batches.select(is_wanted)
    is_empty = np.ones(len(batches), np.bool_)
    for records in _records(view, batches, start_offset, end_offset, origin):
        if table == "control":
            yield control_table_rows(records, origin)
        else:
            yield record_rows(records, origin)
        if table == "log_records":
            is_empty &= ~np.isin(batches.field("base_offset"), records.of_batch("base_offset"))
    if table == "log_records" and origin.snapshot_end is None and is_empty.any():
        yield batches_as_rows(batches.select(is_empty), start_offset, end_offset, origin)


def _batches(
    view: memoryview,
    walked: WalkedChunk,
    start: int,
    end: int,
    origin: ChunkOrigin,
    crc_is_checked: bool,
) -> Iterator[pa.RecordBatch]:
    batches = walked.batches
    if origin.snapshot_end is None:
        base_offsets = batches.field("base_offset")
        batches = batches.select((base_offsets >= start) & (base_offsets < end))
    if len(batches):
        is_valid = np.ones(len(batches), np.bool_)
        if not crc_is_checked:
            is_valid = crc_is_valid(view, batches)
        yield batch_rows(batches, is_valid, origin)
    if walked.stop is not None:
        raise stop_error(walked, origin)


def _records(
    view: memoryview, batches: BatchHeaders, start: int, end: int, origin: ChunkOrigin
) -> Iterator[ParsedRecords]:
    """The records of these batches that are in the range."""
    for group in groups_of(view, batches, origin):
        for found in records_of(group, origin):
            records = found
            if origin.snapshot_end is not None:
                records = as_in_log(records, origin.snapshot_end, origin)
            in_range = (records.offsets >= start) & (records.offsets < end)
            if not in_range.all():
                records = records.select(in_range)
            if len(records):
                yield records


def _overlaps(batches: BatchHeaders, start: int, end: int) -> Bools:
    found: Bools = (batches.next_offsets > start) & (batches.field("base_offset") < end)
    return found
