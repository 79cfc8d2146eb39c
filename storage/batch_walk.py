"""Walking through a file of record batches in windows, by headers or with every CRC verified.

Knows positions, not offsets or epochs: what may follow what is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorumd.storage.filesystem import FileSystem
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    RECORD_BYTES_MAX,
    BatchHeader,
    iter_headers,
    read_header,
    scan,
)

WINDOW_BYTES = 1 << 20
BATCH_BYTES_MAX = 16 << 20
"""No batch in a log is larger (a follower in Kafka dies above 8 MiB): a larger size field is damage,
and nothing of that size is read into memory because of it."""
SNAPSHOT_BATCH_BYTES_MAX = RECORD_BYTES_MAX + 1024
"""No batch in a snapshot is larger: one with the largest record that a compressed batch may hold."""


def walk(
    fs: FileSystem,
    handle: int,
    start: int,
    end: int,
    *,
    verify_crc: bool = False,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in bytes `start` .. `end` (exclusive) of a file.

    Without `verify_crc` only headers are looked at, and bodies larger than a window are not read.
    Ends silently before bytes that are no whole batch, such as a cut last one. Raises CorruptBatch
    with the position in the file at a magic, size or CRC that is wrong, after yielding everything
    before it; OSError if reading fails.
    """
    position = start
    size = window_bytes
    while end - position >= BATCH_OVERHEAD:
        window = fs.pread(handle, min(size, end - position), position)
        size = window_bytes
        at = 0
        try:
            for batch_at, header in _verified(window) if verify_crc else iter_headers(window):
                at = batch_at + header[1]
                yield position + batch_at, header
            if len(window) - at < BATCH_OVERHEAD:
                if at == 0:
                    return
                position += at
                continue
            header = read_header(window, at)
        except CorruptBatch as error:
            raise CorruptBatch(reason_of(error), position + error.position) from None
        position += at
        if header.size_bytes > BATCH_BYTES_MAX:
            raise CorruptBatch(f"a batch of {header.size_bytes} bytes", position)
        if position + header.size_bytes > end:
            return
        if not verify_crc:
            yield position, header
            position += header.size_bytes
        elif at == 0 and len(window) >= header.size_bytes:
            raise AssertionError("a whole batch was passed over")
        else:
            size = max(window_bytes, header.size_bytes)


def _verified(window: bytes) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from scan(window)
    except CorruptBatch as error:
        yield from iter_headers(window, 0, error.position)
        raise


def reason_of(error: CorruptBatch) -> str:
    """What is wrong, without the position."""
    return str(error).rpartition(" (batch at byte")[0]
