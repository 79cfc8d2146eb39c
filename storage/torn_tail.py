"""Telling an unfinished last write from damage: is there a valid batch behind the bad place?

Source of the rule: a crash can only harm what was written since the last sync, which is at the end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from storage.batch_walk import BATCH_BYTES_MAX
from storage.filesystem import FileSystem
from wire.errors import CorruptBatch
from wire.records import BATCH_OVERHEAD, crc_is_valid, read_header

_WINDOW_BYTES = 4 << 20


class Tail(NamedTuple):
    """What is behind the last good batch.

    `torn_bytes`: up to the last byte that is not zero; 0 if there are only zeros. `valid_after`:
    position of a valid batch among them, or None.
    """

    torn_bytes: int
    valid_after: int | None


def examine_tail(
    fs: FileSystem, handle: int, start: int, end: int, next_offset: int, *, epoch: int
) -> Tail:
    """Looks through bytes `start` .. `end` (exclusive) of a file.

    A valid batch is one that could belong to this log: its offset is above `next_offset`, which the
    bad batch at `start` should have had, its epoch not below `epoch`, its CRC right. Every position
    is tried, not only those that a (possibly damaged) size field leads to. Raises OSError.
    """
    data_end = _end_of_data(fs, handle, start, end)
    if data_end == start:
        return Tail(0, None)
    # The last bytes of a batch are often zeros, so a header may begin less than 61 bytes before.
    search_end = min(end, data_end + BATCH_OVERHEAD)
    found = _find_batch(fs, handle, start + 1, search_end, next_offset, epoch)
    return Tail(data_end - start, found)


def _end_of_data(fs: FileSystem, handle: int, start: int, end: int) -> int:
    """Position behind the last byte that is not zero, `start` if there is none."""
    while end > start:
        begin = max(start, end - _WINDOW_BYTES)
        kept = fs.pread(handle, end - begin, begin).rstrip(b"\0")
        if kept:
            return begin + len(kept)
        end = begin
    return start


def _find_batch(
    fs: FileSystem, handle: int, start: int, end: int, next_offset: int, epoch: int
) -> int | None:
    pattern = _batch_pattern(next_offset)
    while end - start >= BATCH_OVERHEAD:
        window = fs.pread(handle, min(_WINDOW_BYTES, end - start), start)
        for match in pattern.finditer(window):
            if _is_batch(fs, handle, start + match.start(), next_offset, epoch):
                return start + match.start()
        if len(window) < _WINDOW_BYTES:
            return None
        start += len(window) - BATCH_OVERHEAD
    return None


def _batch_pattern(next_offset: int) -> re.Pattern[bytes]:
    """Where a header may begin: upper half of the offset, a size below 16 MiB, magic 2."""
    upper = {half.to_bytes(4, "big") for half in (next_offset >> 32, (next_offset >> 32) + 1)}
    either = b"|".join(re.escape(half) for half in sorted(upper))
    return re.compile(b"(?=(?:" + either + rb").{4}[\x00\x01].{7}\x02)", re.DOTALL)


def _is_batch(fs: FileSystem, handle: int, position: int, next_offset: int, epoch: int) -> bool:
    try:
        header = read_header(fs.pread(handle, BATCH_OVERHEAD, position))
    except CorruptBatch:
        return False
    if header.base_offset <= next_offset or header.epoch < epoch:
        return False
    if header.size_bytes > BATCH_BYTES_MAX:
        return False
    return crc_is_valid(fs.pread(handle, header.size_bytes, position), 0, header)
