"""The payloads of batches, a few MiB at a time, compressed ones unpacked.

A compressed batch that does not unpack to the records that it counts was sent so by its producer, and
counts as empty for every reader of the log. One that unpacks to more than `UNPACKED_BYTES_MAX` is
refused instead of believed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quorumd.pipeline.parse.arrays import Bools, Int64s
from quorumd.pipeline.parse.headers import BatchHeaders, damaged
from quorumd.pipeline.parse.origin import ChunkOrigin
from quorumd.wire.batch_header import BATCH_OVERHEAD
from quorumd.wire.compression import CompressionType, unpack
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import RECORD_BYTES_MAX

GROUP_BYTES = 8 << 20
"""About the most that is read together."""
UNPACKED_BYTES_MAX = RECORD_BYTES_MAX + 1024
"""Of one batch: room for the largest record that any reader takes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PayloadGroup:
    """Batches, and where the payload of each begins and ends in `buffer`."""

    batches: BatchHeaders
    buffer: memoryview
    starts: Int64s
    ends: Int64s

    def without(self, which: Bools) -> PayloadGroup:
        """The other batches."""
        return replace(
            self,
            batches=self.batches.select(~which),
            starts=self.starts[~which],
            ends=self.ends[~which],
        )


def groups_of(
    chunk: memoryview, batches: BatchHeaders, origin: ChunkOrigin
) -> Iterator[PayloadGroup]:
    """All batches, in groups. Raises DamagedBatch for an unknown codec, and for a decompression bomb."""
    unknown = np.flatnonzero(batches.codecs > max(CompressionType))
    if len(unknown):
        at = int(unknown[0])
        what = f"there is no compression codec {batches.codecs[at]}"
        raise damaged(batches, at, what, origin)
    number = batches.positions // GROUP_BYTES
    for some in np.split(np.arange(len(batches)), np.flatnonzero(np.diff(number)) + 1):
        if not len(some):
            continue
        group = batches.select(some)
        if group.codecs.any():
            yield from _unpacked(chunk, group, origin)
        else:
            begin, end = int(group.positions[0]), int(group.ends[-1])
            starts = group.positions + BATCH_OVERHEAD - begin
            yield PayloadGroup(group, chunk[begin:end], starts, group.ends - begin)


def _unpacked(
    chunk: memoryview, batches: BatchHeaders, origin: ChunkOrigin
) -> Iterator[PayloadGroup]:
    parts: list[bytes | memoryview] = []
    sizes: list[int] = []
    first = total = 0
    codecs = batches.codecs.tolist()
    ends = batches.ends.tolist()
    for at, begin in enumerate((batches.positions + BATCH_OVERHEAD).tolist()):
        payload = chunk[begin : ends[at]]
        if codecs[at]:
            parts.append(_unpack(codecs[at], payload, batches, at, origin))
        else:
            parts.append(payload)
        sizes.append(len(parts[-1]))
        total += sizes[-1]
        if total >= GROUP_BYTES or at == len(batches) - 1:
            yield _joined(batches.select(slice(first, at + 1)), parts, sizes)
            parts, sizes, first, total = [], [], at + 1, 0


def _joined(
    batches: BatchHeaders, parts: list[bytes | memoryview], sizes: list[int]
) -> PayloadGroup:
    ends = np.cumsum(np.array(sizes, np.int64))
    return PayloadGroup(batches, memoryview(b"".join(parts)), ends - sizes, ends)


def _unpack(
    codec: int, payload: memoryview, batches: BatchHeaders, at: int, origin: ChunkOrigin
) -> bytes:
    """The unpacked payload; empty for one that does not unpack, so that its record count is wrong."""
    parts = []
    size = 0
    try:
        for part in unpack(codec, payload):
            parts.append(part)
            size += len(part)
            if size > UNPACKED_BYTES_MAX:
                what = f"it unpacks to more than {UNPACKED_BYTES_MAX:,} bytes"
                raise damaged(batches, at, what, origin)
    except CorruptBatch:
        return b""
    return b"".join(parts)


def warn_empty(batches: BatchHeaders, at: int, what: str, origin: ChunkOrigin) -> None:
    """Warns of a compressed batch that counts as empty."""
    _log.warning(
        "the batch at offset %d%s counts as empty, as for every reader: its producer compressed"
        " something else than its records (%s)",
        batches.field("base_offset")[at],
        f" of {origin.file}" if origin.file else "",
        what,
    )
