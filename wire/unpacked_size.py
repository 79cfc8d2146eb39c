"""How much the records of a compressed batch unpack to, found out without holding them.

A batch of two kilobytes can unpack to gigabytes, in every program that reads it. Most batches show by their
size, or by the blocks that they are made of, that they do not; only the others are unpacked for it.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import Final

from quorumd.wire.batch_header import BATCH_OVERHEAD, BatchHeader
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import CorruptBatch, RefusedBatch, TooLargeBlock

PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""What the records of one batch may unpack to."""

UNPACKED_BYTES_MAX: Final = (1, 1032, 22, 255, 32_768)
"""What a byte unpacks to at the most, by codec: none, gzip, snappy, lz4, zstd."""

BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024
"""A block of snappy is unpacked in one step. Kafka's clients make blocks of 32 KiB; librdkafka and others
make one of the whole batch, which has 1 MB there unless they are told otherwise."""

_ZSTD: Final = 4
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024


def check_unpacked_size(header: BatchHeader, data: bytes) -> Generator[None, None, None]:
    """Steps that find out whether a compressed batch unpacks to more than PAYLOAD_BYTES_MAX.

    Raises RefusedBatch, MESSAGE_TOO_LARGE, if it does. What does not unpack counts as far as it does.
    """
    codec = header.codec
    if (len(data) - BATCH_OVERHEAD) * UNPACKED_BYTES_MAX[codec] <= PAYLOAD_BYTES_MAX:
        return
    payload = data[BATCH_OVERHEAD:]
    if codec != _ZSTD or _has_many_blocks(payload):
        yield from _count(codec, payload)


def refused_block(error: TooLargeBlock) -> RefusedBatch:
    """The refusal of a batch with such a block."""
    return RefusedBatch(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{error}; at most {BLOCK_BYTES_MAX} are taken here. Send smaller batches, or another compression.",
    )


def _has_many_blocks(payload: bytes) -> bool:
    """True if blocks of zstd, were they full, could unpack to more than PAYLOAD_BYTES_MAX."""
    from quorumd.wire.compression import zstd_blocks

    blocks_max = PAYLOAD_BYTES_MAX // _ZSTD_BLOCK_BYTES_MAX
    return len(list(islice(zstd_blocks(payload), blocks_max + 1))) > blocks_max


def _count(codec: int, payload: bytes) -> Generator[None, None, None]:
    from quorumd.wire.compression import unpack_in_steps

    size = 0
    try:
        for chunk in unpack_in_steps(codec, payload, block_bytes_max=BLOCK_BYTES_MAX):
            size += len(chunk)
            if size > PAYLOAD_BYTES_MAX:
                raise RefusedBatch(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"The records unpack to more than {PAYLOAD_BYTES_MAX} bytes. Send smaller batches.",
                )
            yield
    except TooLargeBlock as error:
        raise refused_block(error) from None
    except CorruptBatch:
        return
