"""The batch headers of a chunk, all of them as columns, and what is wrong with them.

Source of the format: KIP-98; of the rules of a log: KIP-595 (each batch begins where the one before it
ends, epochs never decrease).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from quorumd.pipeline.parse.arrays import Bools, Int64s
from quorumd.pipeline.parse.origin import ChunkOrigin, DamagedBatch
from quorumd.wire.batch_header import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_FROM,
    LOG_OVERHEAD,
    MAGIC,
)

_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
_OPAQUE = np.dtype((np.void, BATCH_OVERHEAD))
_read_length = Struct(">i").unpack_from
_LENGTH_AT = 8
_LENGTH_MIN = BATCH_OVERHEAD - LOG_OVERHEAD
_OFFSET_MAX = (1 << 63) - (1 << 31) - 1
"""Above it the offset behind a batch could be beyond 64 bits."""


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """Headers of batches of one chunk; `positions` are their first bytes in it."""

    positions: Int64s
    _raw: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.positions)

    def field(self, name: str) -> Int64s:
        """A field of every header, as 64-bit numbers."""
        return self._raw[name].astype(np.int64)

    @property
    def ends(self) -> Int64s:
        """End position of each batch in the chunk (exclusive)."""
        return self.positions + self.field("length") + LOG_OVERHEAD

    @property
    def next_offsets(self) -> Int64s:
        """One past the last offset of each batch."""
        return self.field("base_offset") + self.field("last_offset_delta") + 1

    @property
    def codecs(self) -> Int64s:
        return self.field("attributes") & CODEC_MASK

    @property
    def is_control(self) -> Bools:
        return self._has(CONTROL_BIT)

    @property
    def is_append_time(self) -> Bools:
        return self._has(APPEND_TIME_BIT)

    def _has(self, bit: int) -> Bools:
        found: Bools = (self.field("attributes") & bit) != 0
        return found

    def select(self, which: Bools | Int64s | slice) -> BatchHeaders:
        """Some of the batches, in the order in which they are named."""
        return BatchHeaders(self.positions[which], self._raw[which])


@dataclass(frozen=True, slots=True)
class WalkedChunk:
    """All batches up to the end of a chunk, or up to where no batch is: `stop` says what is there."""

    batches: BatchHeaders
    end: int
    stop: str | None


def walk_headers(chunk: memoryview) -> WalkedChunk:
    """The batches of a chunk, judged by length and magic alone."""
    positions = []
    size = len(chunk)
    at = 0
    stop = None
    while size - at >= BATCH_OVERHEAD:
        (length,) = _read_length(chunk, at + _LENGTH_AT)
        if length < _LENGTH_MIN:
            stop = f"a batch length of {length} is too small for a header"
            break
        if length > size - at - LOG_OVERHEAD:
            stop = f"a batch of {length + LOG_OVERHEAD} bytes where {size - at} are left"
            break
        positions.append(at)
        at += length + LOG_OVERHEAD
    if stop is None and at < size:
        stop = f"{size - at} bytes are too few for a header"
    return _up_to_magic(chunk, np.array(positions, np.int64), at, stop)


def _up_to_magic(chunk: memoryview, positions: Int64s, end: int, stop: str | None) -> WalkedChunk:
    if not len(positions):
        return WalkedChunk(BatchHeaders(positions, np.empty(0, _HEADER)), end, stop)
    # Every byte as the start of a possible header; only those of batches are copied.
    places = np.ndarray((len(chunk) - BATCH_OVERHEAD + 1,), _OPAQUE, buffer=chunk, strides=(1,))
    batches = BatchHeaders(positions, places[positions].view(_HEADER))
    others = np.flatnonzero(batches.field("magic") != MAGIC)
    if len(others):
        first = int(others[0])
        magic = int(batches.field("magic")[first])
        end, stop = int(positions[first]), f"magic is {magic} instead of {MAGIC}"
        batches = batches.select(slice(first))
    return WalkedChunk(batches, end, stop)


def crc_is_valid(chunk: memoryview, batches: BatchHeaders) -> Bools:
    """For each batch whether its CRC-32C is the one that its header holds."""
    starts = (batches.positions + CRC_FROM).tolist()
    ends = batches.ends.tolist()
    found = [crc32c(chunk[start:end]) for start, end in zip(starts, ends, strict=True)]
    is_valid: Bools = np.array(found, np.int64) == batches.field("crc")
    return is_valid


def check_chunk(
    chunk: memoryview,
    walked: WalkedChunk,
    in_range: Bools,
    origin: ChunkOrigin,
    *,
    crc_is_checked: bool,
) -> None:
    """Raises DamagedBatch for the first batch that is not sound, or does not follow the one before.

    Unless `crc_is_checked`, the CRC is checked for batches `in_range` and, if the walk came to a stop, for
    all before it.
    """
    batches = walked.batches
    bad_crc = np.zeros(len(batches), np.bool_)
    if not crc_is_checked:
        read = np.ones(len(batches), np.bool_) if walked.stop is not None else in_range
        bad_crc[read] = ~crc_is_valid(chunk, batches.select(read))
    damages = [
        found
        for bad, describe in (
            (bad_crc, lambda _: "the CRC does not match the contents"),
            (_bad_numbers(batches), lambda at: _numbers_text(batches, at)),
            (_out_of_place(batches), lambda at: _place_text(batches, at)),
        )
        if (found := _first(bad, describe)) is not None
    ]
    if damages:
        at, what = min(damages, key=itemgetter(0))
        raise damaged(batches, at, what, origin)
    if walked.stop is not None:
        raise stop_error(walked, origin)


def stop_error(walked: WalkedChunk, origin: ChunkOrigin) -> DamagedBatch:
    """The error for bytes that are no batch; their offset follows from the batch before."""
    assert walked.stop is not None, "the walk came to the end"
    offset = int(walked.batches.next_offsets[-1]) if len(walked.batches) else None
    return DamagedBatch(walked.stop, offset, origin.file, origin.position + walked.end)


def damaged(batches: BatchHeaders, at: int, what: str, origin: ChunkOrigin) -> DamagedBatch:
    """The error for one of the batches."""
    offset = int(batches.field("base_offset")[at])
    position = origin.position + int(batches.positions[at])
    return DamagedBatch(what, offset, origin.file, position)


def _first(bad: Bools, describe: Any) -> tuple[int, str] | None:
    if not bad.any():
        return None
    at = int(bad.argmax())
    return at, describe(at)


def _bad_numbers(batches: BatchHeaders) -> Bools:
    base_offset, delta = batches.field("base_offset"), batches.field("last_offset_delta")
    count = batches.field("record_count")
    bad: Bools = (base_offset < 0) | (base_offset > _OFFSET_MAX) | (delta < 0) | (count < 0)
    return bad


def _numbers_text(batches: BatchHeaders, at: int) -> str:
    return (
        f"its header says {batches.field('record_count')[at]} records and a last offset delta of"
        f" {batches.field('last_offset_delta')[at]}"
    )


def _out_of_place(batches: BatchHeaders) -> Bools:
    """The rule of `quorumd.wire.sequence_check` for all batches at once: a call for each is too slow."""
    bad = np.zeros(len(batches), np.bool_)
    epochs = batches.field("epoch")
    bad[1:] = (batches.field("base_offset")[1:] != batches.next_offsets[:-1]) | (
        epochs[1:] < epochs[:-1]
    )
    return bad


def _place_text(batches: BatchHeaders, at: int) -> str:
    expected, base_offset = batches.next_offsets[at - 1], batches.field("base_offset")[at]
    if expected != base_offset:
        return f"the batch before it ends at offset {expected} (exclusive)"
    epochs = batches.field("epoch")
    return f"its epoch {epochs[at]} comes after epoch {epochs[at - 1]}"
