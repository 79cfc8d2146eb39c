"""Batches and records as rows of the tables `records`, `batches` and `control`."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from quorumd.pipeline.parse.arrays import Bools
from quorumd.pipeline.parse.columns import (
    binary_column,
    header_column,
    number_column,
    same_column,
    time_column,
)
from quorumd.pipeline.parse.control import control_rows, control_types
from quorumd.pipeline.parse.headers import BatchHeaders
from quorumd.pipeline.parse.origin import ChunkOrigin
from quorumd.pipeline.parse.rows import ParsedRecords
from quorumd.pipeline.schemas import BATCHES, CONTROL, RECORDS
from quorumd.wire.compression import CompressionType
from quorumd.wire.metadata_topic import PARTITION, TOPIC

_INT32 = pa.int32()
_INT64 = pa.int64()
_TEXT = pa.string()
_UNKNOWN_CODEC: Final = "unknown"
_CODECS: Final = [
    *(codec.name.lower() for codec in CompressionType),
    *[_UNKNOWN_CODEC] * (8 - len(CompressionType)),
]


def record_rows(records: ParsedRecords, origin: ChunkOrigin) -> pa.RecordBatch:
    """RECORDS. Raises DamagedBatch for a control record without a type."""
    count = len(records)
    fields = records.fields
    types, is_data = control_types(records, origin)
    columns = [
        binary_column(records.buffer, fields.keys),
        binary_column(records.buffer, fields.values),
        same_column(TOPIC, _TEXT, count),
        same_column(PARTITION, _INT32, count),
        number_column(records.offsets, _INT64),
        time_column(records.timestamps_ms),
        number_column(records.batches.is_append_time[records.batch], _INT32),
        header_column(records.buffer, fields.headers),
        number_column(records.of_batch("epoch"), _INT32),
        number_column(records.of_batch("base_offset"), _INT64),
        number_column(types, _INT32, is_data),
        number_column(records.of_batch("crc"), _INT64),
        same_column(origin.replica_id, _INT32, count),
        same_column(origin.storage_id, _TEXT, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def batches_as_rows(
    batches: BatchHeaders, start: int, end: int, origin: ChunkOrigin
) -> pa.RecordBatch:
    """RECORDS, of batches without records: their topic is null, and says so.

    Such a row stands for the batch's offsets from `batch_base_offset` to `offset` (inclusive), those that are
    within the range. A row for each would be more than there is room for: a few bytes may claim 2^31 of them.
    """
    first = np.maximum(batches.field("base_offset"), start)
    last = np.minimum(batches.next_offsets, end) - 1
    known = {
        "offset": number_column(last, _INT64),
        "epoch": number_column(batches.field("epoch"), _INT32),
        "batch_base_offset": number_column(first, _INT64),
        "crc": number_column(batches.field("crc"), _INT64),
        "replica_id": same_column(origin.replica_id, _INT32, len(batches)),
        "storage_id": same_column(origin.storage_id, _TEXT, len(batches)),
    }
    columns = [known.get(each.name, pa.nulls(len(batches), each.type)) for each in RECORDS]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def batch_rows(batches: BatchHeaders, crc_ok: Bools, origin: ChunkOrigin) -> pa.RecordBatch:
    """BATCHES."""
    count = len(batches)
    base_offsets = batches.field("base_offset")
    sizes = batches.ends - batches.positions
    columns = [
        number_column(base_offsets, _INT64),
        number_column(batches.next_offsets - 1, _INT64),
        number_column(batches.field("epoch"), _INT32),
        number_column(batches.field("crc"), _INT64),
        pa.array(crc_ok),
        number_column(sizes, _INT32),
        number_column(batches.field("record_count"), _INT32),
        pa.array(_CODECS, _TEXT).take(pa.array(batches.codecs)),
        pa.array(batches.is_control),
        time_column(batches.field("max_timestamp")),
        number_column(batches.field("producer_id"), _INT64),
        number_column(batches.field("producer_epoch"), _INT32),
        number_column(batches.field("base_sequence"), _INT32),
        same_column(origin.replica_id, _INT32, count),
        same_column(origin.storage_id, _TEXT, count),
        same_column(origin.file, _TEXT, count),
        number_column(batches.positions + origin.position, _INT64),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BATCHES)


def control_table_rows(records: ParsedRecords, origin: ChunkOrigin) -> pa.RecordBatch:
    """CONTROL, of records that are all control records. Raises DamagedBatch."""
    count = len(records)
    decoded = control_rows(records, origin)
    columns = [
        number_column(records.offsets, _INT64),
        time_column(records.timestamps_ms),
        number_column(records.of_batch("epoch"), _INT32),
        pa.array([row.type for row in decoded], _INT32),
        pa.array([row.type_name for row in decoded], _TEXT),
        pa.array([row.version for row in decoded], _INT32),
        pa.array([row.json for row in decoded], _TEXT),
        same_column(origin.replica_id, _INT32, count),
        same_column(origin.storage_id, _TEXT, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CONTROL)
