"""Reading a file of record batches in windows: `walk` for all headers of a file that is taken as it is,
`header_at` for a single one, `BatchCursor` for whole batches.

Knows positions, not offsets or epochs: their order is checked by quorumd.wire.sequence_check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quorumd.storage.filesystem import FileSystem
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    crc_is_valid,
    iter_headers,
    read_header,
    scan,
)

WINDOW_BYTES = 1 << 20
"""Bytes that a reader of a whole file reads at a time."""
CHUNK_BYTES = 256 << 10
"""The same where other work waits meanwhile."""
SEEK_WINDOW_BYTES = 64 << 10
"""The same on the way from an index entry to a batch: an index leads to some KiB before it."""
BATCH_BYTES_MAX: Final = 16 << 20
"""No batch in a log is larger (a follower in Kafka dies above 8 MiB): a larger size field is damage,
and nothing of that size is read into memory because of it."""

Batches = list[tuple[int, BatchHeader]]
"""(position, header) of batches that follow each other; the position is in bytes from the first one's."""


def header_at(fs: FileSystem, handle: int, position: int) -> BatchHeader | None:
    """The header at a position of a file, None if there is none. Raises OSError if reading fails.

    No CRC covers its first 17 bytes, and none is checked.
    """
    try:
        return read_header(fs.pread(handle, BATCH_OVERHEAD, position))
    except CorruptBatch:
        return None


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

    Without `verify_crc` only headers are read, and bodies larger than a window are not read.
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
    batches, problem = _sound_batches(window)
    yield from batches
    if problem is not None:
        raise problem


def _sound_batches(window: bytes) -> tuple[Batches, CorruptBatch | None]:
    """The whole batches that a window begins with, CRCs verified; what is wrong with the one behind them."""
    try:
        return scan(window), None
    except CorruptBatch as error:
        return list(iter_headers(window, 0, error.position)), error


class BatchCursor:
    """Reads batches below byte `end` of a file, at positions that the caller names.

    Reads ahead by `window_bytes`, at least a header's. Beside a running node that may be older than what
    the node has written since, so a batch that is not sound is read once more before it counts as such.
    """

    def __init__(
        self,
        fs: FileSystem,
        handle: int,
        end: int,
        *,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._fs = fs
        self._handle = handle
        self._end = end
        self._batch_bytes_max = batch_bytes_max
        self._window_bytes = window_bytes
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

    def read_chunk(self, position: int) -> tuple[bytes, Batches]:
        """The bytes of one read, and the sound batches that it begins with: one at least.

        Raises CorruptBatch if the first one is not sound, OSError if reading fails.
        """
        self._load(position, self._window_bytes)
        batches, problem = _sound_batches(self._window)
        if batches:
            return self._window, batches
        if problem is not None:
            raise problem
        header, data, is_valid = self._take(position)
        if not is_valid:
            raise CorruptBatch("the CRC does not match the contents")
        return data, [(0, header)]

    def read_header(self, position: int) -> BatchHeader:
        """The header at a position, of a batch that fits into the file. Raises as `read` does."""
        if self._ahead_bytes(position) < BATCH_OVERHEAD:
            self._load(position, self._window_bytes)
        header = read_header(self._window, position - self._window_at)
        left = self._end - position
        if header.size_bytes > min(left, self._batch_bytes_max):
            raise CorruptBatch(f"a batch of {header.size_bytes} bytes where {left} are left")
        return header

    def reread(self, position: int) -> bool:
        """Reads anew from a position what was read ahead. False, without a read, if nothing was."""
        if self._window_at == position:
            return False
        self._load(position, self._window_bytes)
        return True

    def has_changed(self, position: int) -> bool:
        """True if a node has written at a position since the last read, which began there."""
        assert self._window_at == position, "what is not sound was read from its start"
        before = self._window
        self._load(position, len(before))
        return self._window != before

    def _take(self, position: int) -> tuple[BatchHeader, bytes, bool]:
        header = self.read_header(position)
        if self._ahead_bytes(position) < header.size_bytes:
            # With the header of the next one.
            self._load(position, max(self._window_bytes, header.size_bytes + BATCH_OVERHEAD))
            header = read_header(self._window)
            if header.size_bytes > len(self._window):
                raise CorruptBatch("the file got shorter")
        at = position - self._window_at
        is_valid = crc_is_valid(self._window, at, header)
        return header, self._window[at : at + header.size_bytes], is_valid

    def _ahead_bytes(self, position: int) -> int:
        """Number of bytes from a position on that are at hand."""
        at = position - self._window_at
        return len(self._window) - at if at >= 0 else 0

    def _load(self, position: int, size: int) -> None:
        self._window = b""  # Not held beside the next one.
        self._window_at = position
        self._window = self._fs.pread(self._handle, min(size, self._end - position), position)


def reason_of(error: CorruptBatch) -> str:
    """The error's message without the position."""
    return str(error).rpartition(" (batch at byte")[0]
