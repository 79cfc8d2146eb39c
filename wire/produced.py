"""Checks of a leader for a batch that a client sends, before the leader takes it into the log.

Reads the bytes alone: topic, leadership and producer sequences are checked elsewhere. The records of a
compressed batch are checked where they are unpacked (`packed_records`).
Source: the order and codes of Apache Kafka 4.3 (LogValidator, UnifiedLog). Stricter in one point:
offset deltas must be 0..n-1, because Kafka stores others of an uncompressed batch as they are, and readers
then see wrong offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from crc32c import crc32c

from quorumd.wire.batch_header import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_FROM,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    VIEW_PAYS_BYTES,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.packed_records import UNPACKED_BYTES_MAX
from quorumd.wire.record_walk import check_records, is_plain_record, plain_record_key

MAX_AHEAD_MS: Final = 3_600_000
"""Time that a timestamp may be ahead of the clock: Kafka's message.timestamp.after.max.ms."""
_MAX_BEHIND_MS: Final = 2**63 - 1
"""Time behind it: Kafka's message.timestamp.before.max.ms, which leaves out what 64 bits do not hold."""

# base offset, length, magic, crc, attributes, last offset delta, base and max timestamp, producer id,
# base sequence, record count
_HEADER: Final = Struct(">qi4xbIhiqqq2xii")
_RECORD_BYTES_MIN: Final = 7
_ZSTD: Final = 4
_ZSTD_FROM_VERSION: Final = 7
_OLD_HEADER_BYTES: Final = 17
_crc32c: Final = crc32c  # a compiled module reads a constant, and looks a name up
_OLD_BATCH_LENGTH_MIN: Final = 14


Checked = tuple[int, int, int, int, int]
"""Of a batch: size in bytes, attributes, newest timestamp (ms), producer id and record count."""


def check_produced(
    data: bytes,
    produce_version: int,
    max_batch_bytes: int,
    now_ms: int,
    keys: list[bytes | None] | None = None,
) -> tuple[Checked, Iterator[None] | None]:
    """The one batch in `data`, a Produce request's records, and the steps to check its records.

    It may be appended once the last step is made, or at once if there is none, and if it is compressed once
    `read_keyed` has unpacked it. Bytes behind it that are no whole batch are ignored. `keys`, where given,
    gets the keys of records that are not compressed.
    This, or a step, raises RefusedBatch with, in this order:
    CORRUPT_MESSAGE or INVALID_RECORD (not one whole batch of magic 2), UNSUPPORTED_COMPRESSION_TYPE (zstd
    below version 7), INVALID_RECORD (base offset not 0), MESSAGE_TOO_LARGE, CORRUPT_MESSAGE (CRC),
    INVALID_RECORD (record count, control batch, producer id without sequence), INVALID_TIMESTAMP,
    UNSUPPORTED_COMPRESSION_TYPE (codecs 5-7), TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_RECORD (more
    records than the compressed bytes can hold), MESSAGE_TOO_LARGE (more than could come uncompressed), and
    INVALID_RECORD or INVALID_TIMESTAMP for a record.
    """
    if len(data) < BATCH_OVERHEAD:
        raise _not_a_batch(data)
    (
        base_offset,
        length,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        base_sequence,
        record_count,
    ) = _HEADER.unpack_from(data)
    size = length + LOG_OVERHEAD
    if magic != MAGIC or size < BATCH_OVERHEAD:
        raise _not_a_batch(data)
    checked = (size, attributes, max_timestamp, producer_id, record_count)
    if size != len(data):
        if size > len(data):
            raise _not_a_batch(data)
        _refuse_second_batch(data, size)
        data = data[:size]
    if attributes & CODEC_MASK == _ZSTD and produce_version < _ZSTD_FROM_VERSION:
        raise _refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {_ZSTD_FROM_VERSION} or later, not {produce_version}.",
        )
    if base_offset:
        raise _refused(ErrorCode.INVALID_RECORD, f"The base offset is {base_offset}, not 0.")
    if size > max_batch_bytes:
        raise _refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {size} bytes; at most {max_batch_bytes} are taken here"
            " (log.max.batch.bytes). Send smaller batches.",
        )
    if _crc32c(data[CRC_FROM:] if size < VIEW_PAYS_BYTES else memoryview(data)[CRC_FROM:]) != crc:
        raise _refused(ErrorCode.CORRUPT_MESSAGE, "The CRC does not match the batch's contents.")
    if record_count < 1 or last_offset_delta != record_count - 1:
        raise _refused(
            ErrorCode.INVALID_RECORD,
            f"{record_count} records do not end at offset delta {last_offset_delta}.",
        )
    if attributes & CONTROL_BIT:
        raise _refused(ErrorCode.INVALID_RECORD, "Clients must not write control batches.")
    if producer_id >= 0 and base_sequence < 0:
        raise _refused(
            ErrorCode.INVALID_RECORD,
            f"Producer id {producer_id} comes with the sequence {base_sequence}.",
        )
    latest_ms = now_ms + MAX_AHEAD_MS
    if max_timestamp > latest_ms:
        raise _refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"The batch's timestamps are more than {MAX_AHEAD_MS} ms ahead of the server's clock.",
        )
    if attributes:
        codec = attributes & CODEC_MASK
        if codec > _ZSTD:
            raise _refused(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"There is no compression codec {codec}."
            )
        if attributes & TRANSACTIONAL_BIT:
            raise _refused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "Transactions are not available here: unset transactional.id.",
            )
        if codec:
            packed_bytes = size - BATCH_OVERHEAD
            if record_count * _RECORD_BYTES_MIN > packed_bytes * UNPACKED_BYTES_MAX[codec]:
                raise _refused(
                    ErrorCode.INVALID_RECORD,
                    f"{record_count} records cannot be packed into {packed_bytes} bytes.",
                )
            if record_count * _RECORD_BYTES_MIN > max_batch_bytes:
                raise _refused(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"The batch has {record_count} records; packed or not, at most"
                    f" {max_batch_bytes // _RECORD_BYTES_MIN} are taken here (log.max.batch.bytes)."
                    " Send smaller batches.",
                )
            return checked, None
    if (
        record_count == 1
        and -1 <= base_timestamp <= latest_ms
        and is_plain_record(data, BATCH_OVERHEAD)
    ):
        if keys is not None:
            keys.append(plain_record_key(data, BATCH_OVERHEAD))
        return checked, None
    deltas = timestamp_deltas(base_timestamp, now_ms)
    return checked, check_records(data, BATCH_OVERHEAD, record_count, deltas, keys)


def timestamp_deltas(base_ms: int, now_ms: int) -> range:
    """Valid differences in ms of records' timestamps from the base timestamp of their batch."""
    return range(now_ms - _MAX_BEHIND_MS - base_ms, now_ms + MAX_AHEAD_MS - base_ms + 1)


def _refused(error: ErrorCode, message: str) -> RefusedBatch:
    return RefusedBatch(error, message)


def _not_a_batch(data: bytes) -> RefusedBatch:
    """The reason why `data`, which doesn't begin with a whole batch of magic 2, is refused."""
    if len(data) < _OLD_HEADER_BYTES:
        return _refused(ErrorCode.INVALID_RECORD, "There is no record batch in the request.")
    length = int.from_bytes(data[8:12], "big", signed=True)
    magic = int.from_bytes(data[16:17], "big", signed=True)
    if magic in (0, 1):
        return _refused(
            ErrorCode.INVALID_RECORD,
            f"Records of the old format {magic} are not taken: the client must write format 2.",
        )
    if magic != MAGIC:
        return _refused(ErrorCode.CORRUPT_MESSAGE, f"There is no record format {magic}.")
    if length + LOG_OVERHEAD < BATCH_OVERHEAD:
        return _refused(
            ErrorCode.CORRUPT_MESSAGE, f"A batch length of {length} is too small for a header."
        )
    return _refused(
        ErrorCode.INVALID_RECORD,
        f"The batch should have {length + LOG_OVERHEAD} bytes but only {len(data)} are there.",
    )


def _refuse_second_batch(data: bytes, at: int) -> None:
    """Raises RefusedBatch if another whole batch, of whatever format, begins at `at`."""
    left = len(data) - at
    length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    if length >= _OLD_BATCH_LENGTH_MIN and length + LOG_OVERHEAD <= left:
        raise _refused(
            ErrorCode.INVALID_RECORD, "A request must hold exactly one batch per partition."
        )
