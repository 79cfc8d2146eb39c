"""Reading the committed log: one Fetch response as batches of records.

A batch that does not unpack to what its header says is, for every reader alike, an empty batch; it
is reported beside the records. Knows nothing of leaders and retries.
Source: KIP-98 (record batches), KIP-227 and KIP-516 (Fetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quorumd.client.errors import ConnectionFailed
from quorumd.wire.control_records import LeaderChange, decode_control_batch
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.messages.fetch import FetchResponsePartition
from quorumd.wire.records import BatchHeader, Record, iter_records, scan

READ = "read the log"
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""Once the batches of a response have unpacked to so much, those behind them are left to the next Fetch."""
RECORDS_AT_A_TIME = 2000
"""Behind so many other tasks have a turn."""
_RECORD_BYTES = 300
"""Bytes that a record costs in memory, besides its key and value."""


class FetchedBatch(NamedTuple):
    """A committed batch. `problem` says why its records can't be read; there are none then.

    A control batch has no records either; the one that begins an epoch names its leader.
    """

    header: BatchHeader
    records: tuple[Record, ...]
    problem: str | None = None
    leader_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The result of one Fetch: batches in order, and the offset to read next.

    `next_offset` and `high_watermark` are exclusive ends; `next_offset` passes control batches and
    unreadable ones, so it may move without records.
    """

    batches: tuple[FetchedBatch, ...]
    next_offset: int
    high_watermark: int
    log_start_offset: int

    @property
    def records(self) -> Iterator[Record]:
        """The records of all batches, ascending by offset."""
        return (record for batch in self.batches for record in batch.records)


class RawFetched(NamedTuple):
    """The bytes of whole batches as in the log; the first batch holds the requested offset.

    `batches` are (position in `data`, header). There may be none.
    """

    data: memoryview
    batches: list[tuple[int, BatchHeader]]


async def batches_from(
    data: bytes | memoryview, offset: int
) -> tuple[tuple[FetchedBatch, ...], int]:
    """The batches from `offset` on (records below it are cut off), and the next offset to read.

    These need not be all: what compressed batches unpack to is held. Other tasks have turns meanwhile. Raises
    ConnectionFailed if the bytes are damaged: fetch them again, perhaps from another node.
    """
    try:
        found = scan(data)
    except CorruptBatch as error:
        raise ConnectionFailed(f"sent damaged records: {error}") from None
    view = memoryview(data)
    batches: list[FetchedBatch] = []
    held_bytes = read_count = 0
    for position, header in found:
        if header.next_offset <= offset:
            continue
        if held_bytes > UNPACKED_BYTES_MAX:
            break
        batch = view[position : position + header.size_bytes]
        records: list[Record] = []
        problem: str | None = None
        try:
            for record in () if header.is_control else iter_records(batch):
                if record.offset >= offset:
                    records.append(record)
                read_count += 1
                if read_count % RECORDS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
        except CorruptBatch as error:
            records, problem = [], str(error)
        leader_id = _named_leader(batch) if header.is_control else None
        batches.append(FetchedBatch(header, tuple(records), problem, leader_id))
        offset = header.next_offset
        if header.codec:
            held_bytes += sum(
                _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
                for record in records
            )
    return tuple(batches), offset


def raw_batches_from(data: bytes | memoryview, offset: int) -> RawFetched:
    """The batches from the one that has `offset` on. Raises ConnectionFailed as `batches_from` does."""
    try:
        found = scan(data)
    except CorruptBatch as error:
        raise ConnectionFailed(f"sent damaged records: {error}") from None
    if data and not found:
        raise ConnectionFailed(f"sent {len(data)} bytes but no whole batch at offset {offset}")
    return RawFetched(memoryview(data), [each for each in found if each[1].next_offset > offset])


async def fetched_from(partition: FetchResponsePartition, offset: int) -> Fetched:
    """The leader's response for `offset`. Raises ConnectionFailed as `batches_from` does."""
    data = partition.records or b""
    batches, next_offset = await batches_from(data, offset)
    if data and next_offset == offset:
        raise ConnectionFailed(f"sent {len(data)} bytes but no whole batch at offset {offset}")
    return Fetched(
        batches=batches,
        next_offset=next_offset,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
    )


async def raw_fetched_from(partition: FetchResponsePartition, offset: int) -> RawFetched:
    """The same as bytes."""
    return raw_batches_from(partition.records or b"", offset)


def _named_leader(data: memoryview) -> int | None:
    """The leader that a control batch names; None for one of another kind, even of no known kind."""
    try:
        changes = [record for _, record in decode_control_batch(data)]
    except CorruptBatch:
        return None
    return next((each.leader_id for each in changes if isinstance(each, LeaderChange)), None)
