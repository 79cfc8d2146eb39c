"""Reading the committed log: one Fetch answer as batches of records.

A batch that does not unpack to what its header says is, for every reader alike, an empty batch; it
is reported beside the records. Knows nothing of leaders and retries.
Source: KIP-98 (record batches), KIP-227 and KIP-516 (Fetch).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quorumd.client.errors import ConnectionFailed
from wire.errors import CorruptBatch
from wire.records import BatchHeader, Record, iter_records, scan


class FetchedBatch(NamedTuple):
    """A committed batch. `problem` says why its records can't be read; there are none then."""

    header: BatchHeader
    records: tuple[Record, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one Fetch brought: batches in order, and where to read on.

    Control batches are left out. `next_offset` and `high_watermark` are exclusive ends;
    `next_offset` passes control batches and unreadable ones, so it may move without records.
    """

    batches: tuple[FetchedBatch, ...]
    next_offset: int
    high_watermark: int
    log_start_offset: int

    @property
    def records(self) -> Iterator[Record]:
        """The records of all batches, ascending by offset."""
        return (record for batch in self.batches for record in batch.records)


def batches_from(data: bytes | memoryview, offset: int) -> tuple[tuple[FetchedBatch, ...], int]:
    """The batches from `offset` on (records below it are cut off), and the next offset to read.

    Raises ConnectionFailed if the bytes are damaged: they must come again, from elsewhere perhaps.
    """
    try:
        found = scan(data)
    except CorruptBatch as error:
        raise ConnectionFailed(f"sent damaged records: {error}") from None
    view = memoryview(data)
    batches = []
    for position, header in found:
        if header.next_offset <= offset:
            continue
        if not header.is_control:
            batches.append(
                _read_batch(view[position : position + header.size_bytes], header, offset)
            )
        offset = header.next_offset
    return tuple(batches), offset


def _read_batch(data: memoryview, header: BatchHeader, offset: int) -> FetchedBatch:
    try:
        records = tuple(iter_records(data))
    except CorruptBatch as error:
        return FetchedBatch(header, (), str(error))
    return FetchedBatch(header, tuple(record for record in records if record.offset >= offset))
