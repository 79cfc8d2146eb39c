"""The first offset at or after a time: where a read that begins at a time begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from quorumd.pipeline.files.plan import plan_segment
from quorumd.pipeline.files.read import read_bytes
from quorumd.pipeline.files.replicas import LogSegment
from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.parse.columns import TIME_MS_MAX
from quorumd.pipeline.schemas import TIMESTAMP
from quorumd.storage import layout
from quorumd.storage.filesystem import RealFileSystem, read_file
from quorumd.storage.index import TimeIndex
from quorumd.wire.batch_header import iter_headers


def first_offset_since(segments: Sequence[LogSegment], timestamp_ms: int) -> int | None:
    """The offset of the first record in the segments of a log at this time or later, None if all are older.

    A closed segment whose time index says that it is older is not read. Raises as `plan_segment` and
    `read_rows` do.
    """
    if timestamp_ms > TIME_MS_MAX:
        return None
    for segment in segments:
        if _newest_ms(segment) < timestamp_ms:
            continue
        for batch, base_offset, next_offset in _batches_since(segment, timestamp_ms):
            for rows in parse("records", batch, base_offset, next_offset, ChunkOrigin()):
                time = pa.scalar(timestamp_ms * 1000, pa.int64()).cast(TIMESTAMP)
                found = rows.filter(pc.greater_equal(rows["timestamp"], time))
                if found.num_rows:
                    return int(found["offset"][0].as_py())
    return None


def _batches_since(segment: LogSegment, timestamp_ms: int) -> Iterator[tuple[bytes, int, int]]:
    """Batches that may have such a record, with their first offset and the one behind the last."""
    for file_range in plan_segment(segment).ranges:
        data = read_bytes(file_range)
        for at, header in iter_headers(data):
            if header.max_timestamp >= timestamp_ms:
                yield data[at : at + header.size_bytes], header.base_offset, header.next_offset


def _newest_ms(segment: LogSegment) -> int:
    """Last time in the time index of a closed segment; far in the future if it is of no use."""
    unknown = (1 << 63) - 1
    if segment.next_base is None:
        return unknown
    path = layout.time_index_path(segment.path.parent, segment.base_offset)
    try:
        data = read_file(RealFileSystem(), path)
        entries = TimeIndex.from_bytes(segment.base_offset, data).entries()
    except (OSError, ValueError):
        return unknown
    is_sound = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    return entries[-1][0] if entries and is_sound else unknown
