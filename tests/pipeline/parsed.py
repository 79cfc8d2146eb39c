"""Rows of parsed chunks as plain tuples, and what other decoders say of the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c

from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.schemas import TABLES
from quorumd.wire.batch_header import read_header
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import Record, build_batch, iter_records

ALL = (1 << 63) - 1
TIME_MS_MAX = ALL // 1000
NOWHERE = ChunkOrigin()
NOW = 1_700_000_000_000
ORIGIN = ChunkOrigin(3, "storage", "/data/00000000000000000100.log", 4096)

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record; a time (ms) that no timestamp can hold is None."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def table_of(
    table: str,
    chunk: bytes | memoryview,
    start: int = 0,
    end: int = ALL,
    origin: ChunkOrigin = NOWHERE,
) -> pa.Table:
    """All rows as one table; each part of it has the declared schema, and is valid and not empty."""
    found = list(parse(table, chunk, start, end, origin))
    for part in found:
        assert part.schema.equals(TABLES[table], check_metadata=True)
        assert part.num_rows
        part.validate(full=True)
    return pa.Table.from_batches(found, TABLES[table])


def rows_of(table: pa.Table) -> list[Row]:
    """The columns that make a record."""
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        Row(
            offset,
            None if time is None else time // 1000,
            key,
            value,
            tuple((each["key"], each["value"]) for each in headers or ()),
        )
        for offset, time, key, value, headers in zip(
            table["offset"].to_pylist(),
            times,
            table["key"].to_pylist(),
            table["value"].to_pylist(),
            table["headers"].to_pylist(),
            strict=True,
        )
    ]


def parsed(chunk: bytes | memoryview, start: int = 0, end: int = ALL) -> list[Row]:
    """The records of a chunk."""
    return rows_of(table_of("records", chunk, start, end))


def by_wire(batch: bytes) -> list[Row] | None:
    """What quorumd.wire.records says of one uncompressed batch; None if it is not sound."""
    header = read_header(batch)
    try:
        records = list(iter_records(batch))
    except CorruptBatch:
        return None
    deltas = [record.offset - header.base_offset for record in records]
    is_ascending = all(a < b for a, b in pairwise(deltas))
    if not is_ascending or any(not 0 <= each <= header.last_offset_delta for each in deltas):
        return None
    return [
        Row(
            record.offset,
            _time(record.timestamp),
            record.key,
            record.value,
            tuple((_text(name), value) for name, value in record.headers),
        )
        for record in records
    ]


def by_aiokafka(batches: Sequence[bytes]) -> list[Row]:
    """What aiokafka says of valid batches."""
    rows = []
    records = MemoryRecords(b"".join(batches))
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        rows += [_row(record) for record in batch]
    return rows


def _row(record: Any) -> Row:
    headers = tuple((name, value) for name, value in record.headers)
    return Row(record.offset, _time(record.timestamp), record.key, record.value, headers)


def _time(timestamp_ms: int) -> int | None:
    wrapped = (timestamp_ms + (1 << 63)) % (1 << 64) - (1 << 63)
    return wrapped if -TIME_MS_MAX <= wrapped <= TIME_MS_MAX else None


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def with_crc(batch: bytes) -> bytes:
    """The batch with the CRC that its bytes have now."""
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def patched(batch: bytes, at: int, raw: bytes) -> bytes:
    """The batch with other bytes at a place, and the CRC that goes with them."""
    return with_crc(batch[:at] + raw + batch[at + len(raw) :])


def numbered(count: int, base_offset: int = 0, **settings: int | bool) -> bytes:
    """A batch of records that say which offset they have."""
    records = [
        Record(timestamp=NOW + i, key=b"k%d" % (base_offset + i), value=b"v%d" % (base_offset + i))
        for i in range(count)
    ]
    return build_batch(records, base_offset=base_offset, **settings)


def chunk_of(*counts: int, base_offset: int = 0, **settings: int | bool) -> bytes:
    """Batches of so many records, one behind the other."""
    parts = []
    for count in counts:
        parts.append(numbered(count, base_offset, **settings))
        base_offset += count
    return b"".join(parts)


def expected(start: int, end: int) -> list[tuple[int, bytes, bytes]]:
    """What `short` makes of such records."""
    return [(offset, b"k%d" % offset, b"v%d" % offset) for offset in range(start, end)]


def short(found: list[Row]) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value."""
    return [(row.offset, row.key, row.value) for row in found]
