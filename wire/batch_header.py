"""The 61-byte header of a record batch (magic 2): read it, check the CRC, stamp offset and epoch.

Knows nothing of what is behind the header. Works on `bytes` and `memoryview` without copying.
Source: KIP-98, "Message Format"; Apache Kafka 4.3, DefaultRecordBatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from quorumd.wire.errors import CorruptBatch

BATCH_OVERHEAD: Final = 61
"""Bytes of a batch without records."""
LOG_OVERHEAD: Final = 12
"""Bytes before the ones that the batch's own length field counts."""
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

CRC_FROM: Final = 21
"""The CRC covers everything from this byte to the end of the batch."""
VIEW_PAYS_BYTES: Final = 4096
"""To copy fewer bytes costs less than a view of them."""

# base offset, length, epoch, magic, crc, attributes, last offset delta, base and max timestamp,
# producer id, producer epoch, base sequence, record count
HEADER: Final = Struct(">qiibIhiqqqhii")
STAMP: Final = Struct(">qii")
"""Fields that a leader sets anew in a batch: base offset, length and epoch, its first 16 bytes."""
_LENGTH: Final = Struct(">i")
_new_tuple: Final = tuple.__new__


class BatchHeader(NamedTuple):
    """A batch header. `size_bytes` is the whole batch, header included; times are ms."""

    base_offset: int
    size_bytes: int
    epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """One past the last offset, whatever the record count says."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd, 5-7 nothing known."""
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        """True if every record's timestamp is `max_timestamp`."""
        return bool(self.attributes & APPEND_TIME_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)


def packed_delta(header: BatchHeader, claimed: int, place: int) -> int:
    """The offset delta of a record of a compressed batch, which claims one and is at a place in the batch.

    A leader checks the claim, but earlier versions did not. In a batch with as many records as offsets, as
    each that a leader takes, it does not count: the acknowledgement went by places, too. Else one outside the
    batch is moved to the nearest inside.
    """
    if header.record_count == header.last_offset_delta + 1:
        return place
    return max(0, min(claimed, header.last_offset_delta))


def read_header(data: bytes | memoryview, at: int = 0) -> BatchHeader:
    """The header at `at`; the CRC is not checked and the batch need not be whole.

    Raises CorruptBatch if fewer than 61 bytes are there, magic is not 2 or the size is below 61.
    """
    if isinstance(data, bytes):
        return _read_header(data, at, at)
    return _read_header(bytes(data[at : at + BATCH_OVERHEAD]), 0, at)


def _read_header(data: bytes, at: int, place: int) -> BatchHeader:
    """The header at `at`, which an error calls `place`."""
    if len(data) - at < BATCH_OVERHEAD:
        raise CorruptBatch(f"only {len(data) - at} bytes of a batch header of 61", place)
    (
        base_offset,
        length,
        epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise CorruptBatch(f"magic is {magic} instead of 2", place)
    if length < BATCH_OVERHEAD - LOG_OVERHEAD:
        raise CorruptBatch(f"a batch length of {length} is too small for a header", place)
    return _new_tuple(
        BatchHeader,
        (
            base_offset,
            length + LOG_OVERHEAD,
            epoch,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ),
    )


def crc_is_valid(data: bytes | memoryview, at: int, header: BatchHeader) -> bool:
    """True if the batch at `at` is whole and its CRC-32C is the one that its header holds."""
    end = at + header.size_bytes
    if end > len(data):
        return False
    return bool(crc32c(memoryview(data)[at + CRC_FROM : end]) == header.crc)


def iter_headers(
    data: bytes | memoryview, at: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in `data[at:end]`; a cut last one ends it silently.

    No CRC is checked. Raises CorruptBatch for a wrong magic or an impossible size.
    """
    if end is None:
        end = len(data)
    while end - at >= BATCH_OVERHEAD:
        header = read_header(data, at)
        if at + header.size_bytes > end:
            return
        yield at, header
        at += header.size_bytes


def scan(data: bytes | memoryview) -> list[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch, every CRC verified; a cut last batch is left out.

    Raises CorruptBatch with the position of the first batch whose CRC, magic or size is wrong.
    """
    view = memoryview(data)
    found: list[tuple[int, BatchHeader]] = []
    at = 0
    end = len(data)
    while end - at >= BATCH_OVERHEAD:
        header = read_header(data, at)
        batch_end = at + header[1]
        if batch_end > end:
            break
        if crc32c(view[at + CRC_FROM : batch_end]) != header[3]:
            raise CorruptBatch("the CRC does not match the contents", at)
        found.append((at, header))
        at = batch_end
    return found


def packed_stamp(base_offset: int, length: int, epoch: int) -> bytes:
    """The first 16 bytes of a batch; `length` (bytes) is that of its header's field."""
    return STAMP.pack(base_offset, length, epoch)


def stamp(data: bytes | memoryview, base_offset: int, epoch: int) -> bytes:
    """The batch at the start of `data` with this base offset and leader epoch, as new bytes.

    The CRC covers neither, so it stays. Bytes behind the batch are left out.
    """
    (length,) = _LENGTH.unpack_from(data, 8)
    head = packed_stamp(base_offset, length, epoch)
    return b"".join((head, memoryview(data)[STAMP.size : length + LOG_OVERHEAD]))
