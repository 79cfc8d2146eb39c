"""Walking through a file of record batches in windows: `walk` for a file that is taken as it is,
`BatchCursor` for one that a running node writes to, or that may have bad batches in the middle.

Knows positions, not offsets or epochs: their order is checked by quorumd.wire.sequence_check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quorumd.storage.filesystem import FileSystem
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    RECORD_BYTES_MAX,
    BatchHeader,
    crc_is_valid,
    iter_headers,
    read_header,
    scan,
)

WINDOW_BYTES = 1 << 20
BATCH_BYTES_MAX: Final = 16 << 20
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


class BatchCursor:
    """Reads one batch after the other below byte `end` of a file, at positions that the caller names.

    Reads ahead. Beside a running node that may be older than what the node has written since, so a batch
    that is not sound is read once more before it counts as such.
    """

    def __init__(
        self, fs: FileSystem, handle: int, end: int, *, batch_bytes_max: int = BATCH_BYTES_MAX
    ) -> None:
        self._fs = fs
        self._handle = handle
        self._end = end
        self._batch_bytes_max = batch_bytes_max
        self._window = b""
        self._window_at = -1

    def read(self, position: int) -> tuple[BatchHeader, bytes, bool]:
        """The batch at a position, and whether its CRC is right.

        Raises CorruptBatch if no batch can be made out there, OSError if reading fails.
        """
        try:
            found = self._take(position)
        except CorruptBatch:
            if not self.reread(position):
                raise
            return self._take(position)
        is_valid = found[2]
        return found if is_valid or not self.reread(position) else self._take(position)

    def reread(self, position: int) -> bool:
        """Reads anew from a position what was read ahead. False, without a read, if nothing was."""
        if self._window_at == position:
            return False
        self._load(position, WINDOW_BYTES)
        return True

    def has_changed(self, position: int) -> bool:
        """True if a node has written at a position since the last read, which began there."""
        assert self._window_at == position, "what is not sound was read from its start"
        before = self._window
        self._load(position, len(before))
        return self._window != before

    def _take(self, position: int) -> tuple[BatchHeader, bytes, bool]:
        at = position - self._window_at
        if at < 0 or len(self._window) - at < BATCH_OVERHEAD:
            at = self._load(position, WINDOW_BYTES)
        header = read_header(self._window, at)
        left = self._end - position
        if header.size_bytes > min(left, self._batch_bytes_max):
            raise CorruptBatch(f"a batch of {header.size_bytes} bytes where {left} are left")
        if at + header.size_bytes > len(self._window):
            at = self._load(position, max(WINDOW_BYTES, header.size_bytes))
            header = read_header(self._window, at)
            if at + header.size_bytes > len(self._window):
                raise CorruptBatch("the file got shorter")
        is_valid = crc_is_valid(self._window, at, header)
        return header, self._window[at : at + header.size_bytes], is_valid

    def _load(self, position: int, size: int) -> int:
        self._window_at = position
        self._window = self._fs.pread(self._handle, min(size, self._end - position), position)
        return 0


def reason_of(error: CorruptBatch) -> str:
    """What is wrong, without the position."""
    return str(error).rpartition(" (batch at byte")[0]
