"""numpy to Arrow: columns out of spans of a buffer, repeated values, times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumd.pipeline.parse.arrays import Bools, Int64s
from quorumd.pipeline.parse.fields import ByteSpans, RecordHeaders
from quorumd.pipeline.schemas import HEADERS, TIMESTAMP

TIME_MS_MAX = ((1 << 63) - 1) // 1000
"""The greatest time that fits in a timestamp of microseconds."""


def binary_column(buffer: memoryview, spans: ByteSpans) -> pa.Array:
    """The bytes of each span. No byte passes through Python: Arrow copies them all at once.

    The spans ascend and do not overlap. So one array of all that is in them, and between them, is laid
    over the buffer, and its even elements are taken.
    """
    count = len(spans.starts)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, np.int64)
    bounds[0::2] = spans.starts
    bounds[1::2] = spans.ends
    # Arrow believes what it is given, and would read whatever lies there.
    if bounds[0] < 0 or bounds[-1] > len(buffer) or (bounds[1:] < bounds[:-1]).any():
        raise AssertionError("a field lies outside the records")
    assert len(buffer) < 1 << 31, "offsets are of 32 bits"
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(buffer)]
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    is_null = spans.is_null if spans.is_null.any() else None
    places = pa.array(np.arange(0, 2 * count, 2), mask=is_null)
    return pc.take(both, places, boundscheck=False)


def text_column(buffer: memoryview, spans: ByteSpans) -> pa.Array:
    """As `binary_column`, as text; what is no UTF-8 becomes U+FFFD, as in Kafka's own readers."""
    raw = binary_column(buffer, spans)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(each, "utf-8", "replace") for each in raw.to_pylist()], pa.string())


def header_column(buffer: memoryview, headers: RecordHeaders) -> pa.Array:
    """A list for each record, null for a record without headers."""
    counts = headers.counts
    if not len(headers.keys.starts):
        return pa.nulls(len(counts), HEADERS)
    keys = text_column(buffer, headers.keys)
    values = binary_column(buffer, headers.values)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(bounds, pairs, type=HEADERS, mask=pa.array(counts == 0))


def time_column(timestamps_ms: Int64s) -> pa.Array:
    """Milliseconds to timestamps, null for a time of more than 292,000 years before or after 1970."""
    is_beyond = (timestamps_ms > TIME_MS_MAX) | (timestamps_ms < -TIME_MS_MAX)
    micros = np.where(is_beyond, 0, timestamps_ms) * 1000
    return number_column(micros, pa.int64(), is_beyond).view(TIMESTAMP)


def number_column(
    values: Int64s | Bools, kind: pa.DataType, is_null: Bools | None = None
) -> pa.Array:
    """Whole numbers, which have to fit."""
    mask = is_null if is_null is not None and is_null.any() else None
    return pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=mask)


def same_column(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """One value, or null, for every row."""
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
