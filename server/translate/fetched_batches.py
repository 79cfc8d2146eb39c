"""The records of a fetch response, taken over as one piece: one pass over the headers, each CRC verified."""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from quorumd.raft.control import RaftControlRecord
from quorumd.server.translate.control_records import control_records_of
from quorumd.storage.log import Chunk, ChunkSummary
from quorumd.wire.batch_header import (
    BATCH_OVERHEAD,
    CONTROL_BIT,
    CRC_FROM,
    LOG_OVERHEAD,
    MAGIC,
    VIEW_PAYS_BYTES,
    BatchHeader,
    read_header,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.sequence_check import offset_problem

# base offset, length, epoch, magic, crc, attributes, last offset delta, max timestamp, producer id
_HEADER: Final = Struct(">qiibIhi8xqq")
_OFFSET: Final = Struct(">q")
_LENGTH_MIN: Final = BATCH_OVERHEAD - LOG_OVERHEAD


class FetchedBatches:
    """Whole batches of a leader that follow one another without a gap, and what they say."""

    __slots__ = ("chunk", "control", "count", "epochs", "of_producers")

    def __init__(
        self,
        chunk: Chunk,
        count: int,
        epochs: list[tuple[int, int]],
        control: list[tuple[int, RaftControlRecord]],
        of_producers: list[BatchHeader],
    ) -> None:
        self.chunk = chunk
        """As the log takes them."""
        self.count = count
        self.epochs = epochs
        """Each epoch with its first offset."""
        self.control = control
        """Control records with their offsets."""
        self.of_producers = of_producers
        """Batches of idempotent producers."""


def fetched_batches(data: bytes, batches_max: int) -> FetchedBatches | None:
    """The whole batches at the start of `data`, `batches_max` at most; None if there is none.

    What is left of a batch at the end is no record: Apache Kafka's leaders cut a response at so many bytes.
    Raises CorruptBatch, with its position, for the first one that is damaged or out of order.
    """
    end = len(data)
    if end < BATCH_OVERHEAD:
        return None
    epochs: list[tuple[int, int]] = []
    control: list[tuple[int, RaftControlRecord]] = []
    of_producers: list[BatchHeader] = []
    first_offset: int
    (first_offset,) = _OFFSET.unpack_from(data)
    next_offset = first_offset
    newest_ms = newest_offset = last_epoch = -1
    at = count = 0
    base_offset: int
    length: int
    epoch: int
    magic: int
    crc: int
    attributes: int
    delta: int
    timestamp_ms: int
    producer_id: int
    while end - at >= BATCH_OVERHEAD and count < batches_max:
        base_offset, length, epoch, magic, crc, attributes, delta, timestamp_ms, producer_id = (
            _HEADER.unpack_from(data, at)
        )
        if magic != MAGIC or length < _LENGTH_MIN:
            read_header(data, at)  # raises what is wrong
        batch_end = at + length + LOG_OVERHEAD
        if batch_end > end:
            break
        if length < VIEW_PAYS_BYTES:
            found: int = crc32c(data[at + CRC_FROM : batch_end])
        else:
            found = crc32c(memoryview(data)[at + CRC_FROM : batch_end])
        if found != crc:
            raise CorruptBatch("the CRC does not match the contents", at)
        if base_offset != next_offset or delta < 0:
            raise CorruptBatch(offset_problem(read_header(data, at), next_offset), at)
        next_offset = base_offset + delta + 1
        if epoch != last_epoch or not count:
            epochs.append((epoch, base_offset))
            last_epoch = epoch
        if attributes & CONTROL_BIT:
            control += control_records_of(data[at:batch_end])
        elif producer_id >= 0:
            of_producers.append(read_header(data, at))
        if timestamp_ms > newest_ms or not count:
            newest_ms, newest_offset = timestamp_ms, next_offset - 1
        at = batch_end
        count += 1
    if not count:
        return None
    summary = ChunkSummary(last_epoch, newest_ms, newest_offset) if len(epochs) == 1 else None
    chunk = Chunk(data if at == end else data[:at], first_offset, next_offset, summary)
    return FetchedBatches(chunk, count, epochs, control, of_producers)
