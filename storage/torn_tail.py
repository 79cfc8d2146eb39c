"""Telling an unfinished last write from damage: what is behind the first bad place in a file?

Source of the rule: power failure can only harm what was written since the last sync, which is at the
end, and it harms whole sectors: what does not reach the disk leaves what was there, zeros and perhaps
the marker of the write before (quorumd.storage.write_marker). With several batches in a write a hole may have
valid batches behind it; they are as little synced as what is missing.

Damage, because no power failure explains it, is

* anything below the byte where, as the marker at the end of the data says, the last group begins;
* a bad batch of which every sector was written, if the write is complete (the marker is there) or a
  valid batch follows;
* a hole in a file that ends where a batch ends: zeros and marker are cut off only after a sync. (But a
  file whose lengthening was lost may end so too, at the end of a sector.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from quorumd.storage.batch_walk import BATCH_BYTES_MAX, header_at
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.write_marker import LEADING_ZEROS, MARKER_BYTES, read_marker
from quorumd.wire.records import BATCH_OVERHEAD, crc_is_valid

_WINDOW_BYTES = 4 << 20
_FIRST_WINDOW_BYTES = 4 << 10
_SECTOR_BYTES = 512
"""The smallest there are: whatever a disk writes at once is a multiple."""


class Tail(NamedTuple):
    """The bytes behind the last good batch, and how they came to be.

    `torn_bytes`: up to the last byte that is neither zero nor of the marker that ends a write; 0 if
    there is nothing else. `valid_after`: position of a valid batch among them, or None. `damage`
    says why this is no unfinished write, or is "".
    """

    torn_bytes: int = 0
    valid_after: int | None = None
    damage: str = ""

    def describe(self, reason: str) -> str:
        """All that is wrong, for a first bad batch that is bad for this reason."""
        follows = f", and a valid batch follows at byte {self.valid_after}"
        text = reason if self.valid_after is None else reason + follows
        return f"{text}; {self.damage}" if self.damage else text


def examine_tail(
    fs: FileSystem,
    handle: int,
    start: int,
    end: int,
    next_offset: int,
    *,
    epoch: int,
    is_closed: bool = False,
) -> Tail:
    """Examines bytes `start` .. `end` (exclusive) of a file, which ends there.

    A closed segment was synced as a whole: whatever is bad in it is damage, and no reason is searched for.

    A valid batch is one that could belong to this log: its offset is above `next_offset`, which the
    bad batch at `start` should have had, its epoch not below `epoch`, its CRC right. Every position
    is tried, not only those that a (possibly damaged) size field leads to. Raises OSError.
    """
    data_end = _end_of_data(fs, handle, start, end)
    group_start = _last_group_start(fs, handle, start, data_end)
    if group_start is not None:
        data_end -= MARKER_BYTES
    if data_end == start:
        return Tail()
    # The last bytes of a batch are often zeros, so a header may begin less than 61 bytes before.
    search = _Search(fs, handle, end, data_end + BATCH_OVERHEAD, next_offset, epoch)
    found = search.first_batch(start + 1)
    if is_closed:
        return Tail(data_end - start, found)
    damage = ""
    if group_start is not None and start < group_start:
        damage = f"everything below byte {group_start} was synced"
    elif group_start is not None or found is not None:
        bad_end = data_end if found is None else found
        if not has_unwritten_sector(fs, handle, start, bad_end, next_offset):
            damage = "all of its sectors were written"
        elif found is not None and search.is_cut_behind_batch(found):
            damage = "everything was synced before the file was cut to its data"
    return Tail(data_end - start, found, damage)


def has_unwritten_sector(
    fs: FileSystem, handle: int, start: int, end: int, next_offset: int
) -> bool:
    """True if a sector with any of bytes `start` .. `end` (exclusive) was never written.

    A batch begins at `start` and should begin with `next_offset`. From there on such a sector has
    nothing but zeros and the marker that ended the write before. Raises OSError.
    """
    sectors = _sectors_from(fs, handle, start, end)
    first = next(sectors)
    should_be = next_offset.to_bytes(8, "big") + b"size"
    # A sector that ends where the offset still has zeros says nothing.
    if not any(first) and any(should_be[: len(first)]):
        return True
    return any(not any(sector) for sector in sectors)


def _sectors_from(fs: FileSystem, handle: int, start: int, end: int) -> Iterator[bytearray]:
    """All that lies behind `start` in each sector, with zeros in place of a marker at `start`."""
    at = start
    sectors_end = end + -end % _SECTOR_BYTES
    while at < sectors_end:
        first_bytes = _SECTOR_BYTES - at % _SECTOR_BYTES
        wanted_bytes = min(first_bytes + _WINDOW_BYTES, sectors_end - at)
        window = bytearray(fs.pread(handle, wanted_bytes, at))
        if at == start:
            marker = slice(LEADING_ZEROS, MARKER_BYTES)
            window[marker] = bytes(len(window[marker]))
        yield window[:first_bytes]
        for begin in range(first_bytes, len(window), _SECTOR_BYTES):
            yield window[begin : begin + _SECTOR_BYTES]
        at += first_bytes + _WINDOW_BYTES


def _end_of_data(fs: FileSystem, handle: int, start: int, end: int) -> int:
    """Position behind the last byte that is not zero, `start` if there is none."""
    sizes = _window_sizes()
    while end > start:
        begin = max(start, end - next(sizes))
        kept = fs.pread(handle, end - begin, begin).rstrip(b"\0")
        if kept:
            return begin + len(kept)
        end = begin
    return start


def _window_sizes() -> Iterator[int]:
    """In bytes, ever larger: most often the data are near, and a file may have many bad places."""
    size = _FIRST_WINDOW_BYTES
    while True:
        yield size
        size = min(2 * size, _WINDOW_BYTES)


def _last_group_start(fs: FileSystem, handle: int, start: int, data_end: int) -> int | None:
    """Start of the last group by the marker at the end of the data, None if there is none."""
    position = data_end - MARKER_BYTES
    if position < start:
        return None
    return read_marker(fs.pread(handle, MARKER_BYTES, position), position)


class _Search:
    """For batches that could belong to the log behind the bad place.

    Headers are searched for below byte `search_end` of a file that ends at `end` (both exclusive); the former
    may be behind the latter.
    """

    def __init__(
        self,
        fs: FileSystem,
        handle: int,
        end: int,
        search_end: int,
        next_offset: int,
        epoch: int,
    ) -> None:
        self._fs = fs
        self._handle = handle
        self._file_end = end
        self._end = search_end
        self._next_offset = next_offset
        self._epoch = epoch
        self._pattern = _batch_pattern(next_offset)

    def first_batch(self, start: int) -> int | None:
        """Position of the first valid batch that begins at `start` or behind it."""
        sizes = _window_sizes()
        while self._end - start >= BATCH_OVERHEAD:
            window_bytes = next(sizes)
            window = self._fs.pread(self._handle, min(window_bytes, self._end - start), start)
            for match in self._pattern.finditer(window):
                if self._batch_bytes(start + match.start()):
                    return start + match.start()
            start += window_bytes - BATCH_OVERHEAD
        return None

    def is_cut_behind_batch(self, start: int) -> bool:
        """True if the file was made to end where a batch ends that begins at `start` or behind it.

        At the end of a sector it may as well end because its lengthening was lost.
        """
        if self._file_end % _SECTOR_BYTES == 0:
            return False
        start = max(start, self._file_end - BATCH_BYTES_MAX)
        end, sizes = self._file_end, _window_sizes()
        while True:
            begin = max(start, end - next(sizes))
            window = self._fs.pread(self._handle, end - begin, begin)
            for match in reversed(list(self._pattern.finditer(window))):
                position = begin + match.start()
                if self._batch_bytes(position) == self._file_end - position:
                    return True
            if begin == start:
                return False
            end = begin + BATCH_OVERHEAD

    def _batch_bytes(self, position: int) -> int:
        """The size of the valid batch at a position, 0 if there is none."""
        header = header_at(self._fs, self._handle, position)
        if header is None or header.base_offset <= self._next_offset or header.epoch < self._epoch:
            return 0
        if header.size_bytes > BATCH_BYTES_MAX:
            return 0
        data = self._fs.pread(self._handle, header.size_bytes, position)
        return header.size_bytes if crc_is_valid(data, 0, header) else 0


def _batch_pattern(next_offset: int) -> re.Pattern[bytes]:
    """Pattern of places where a header may begin: upper half of the offset, a size below 16 MiB, magic 2."""
    upper = {half.to_bytes(4, "big") for half in (next_offset >> 32, (next_offset >> 32) + 1)}
    either = b"|".join(re.escape(half) for half in sorted(upper))
    return re.compile(b"(?=(?:" + either + rb").{4}[\x00\x01].{7}\x02)", re.DOTALL)
