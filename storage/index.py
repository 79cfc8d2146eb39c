"""Sparse indexes of one segment: offset -> position, timestamp -> offset. Kafka's formats.

`.index`: 8 bytes an entry, int32 last offset of a batch minus the segment's first offset, int32
position of that batch. `.timeindex`: 12 bytes an entry, int64 timestamp in ms, int32 offset minus
the first offset; the offset is the last one of the batch that raised the segment's greatest
timestamp to that value. Both ascend strictly. The last time entry is the segment's greatest
timestamp, so it is added when the segment is closed.

They live in memory while their segment is written to, go to disk when it is closed, and follow from
the log: nothing is lost with them.
Source: Apache Kafka 4.3, OffsetIndex, TimeIndex and LogSegment.append.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from struct import Struct
from typing import Final

from quorumd.storage.filesystem import FileSystem, read_file

_TIME_ENTRY: Final = Struct(">qi")
OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12


class OffsetIndex:
    """Entries (last offset of a batch, its position); offsets are absolute at this interface."""

    __slots__ = ("_base_offset", "_offsets", "_positions")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> OffsetIndex:
        """Reads a file. Raises ValueError unless it is whole entries; order is not checked."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise ValueError(f"{len(data)} bytes are no whole entries of {OFFSET_ENTRY_BYTES}")
        both = array("i", data)
        if sys.byteorder == "little":
            both.byteswap()
        index = cls(base_offset)
        index._offsets = both[0::2]
        index._positions = both[1::2]
        return index

    def to_bytes(self) -> bytes:
        both = array("i", bytes(OFFSET_ENTRY_BYTES * len(self._offsets)))
        both[0::2] = self._offsets
        both[1::2] = self._positions
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def entries(self) -> list[tuple[int, int]]:
        """(last offset, position) of each entry."""
        offsets = (self._base_offset + relative for relative in self._offsets)
        return list(zip(offsets, self._positions, strict=True))

    def append(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self._base_offset)
        self._positions.append(position)

    def lookup(self, offset: int) -> int:
        """Position of a batch that contains `offset` or lies before it: where a search begins."""
        at = bisect_right(self._offsets, offset - self._base_offset) - 1
        return self._positions[at] if at >= 0 else 0

    def cut(self, position: int) -> int:
        """Drops the entries of batches at or above `position`; returns the last one left, or 0."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:]
        del self._positions[keep:]
        return self._positions[-1] if self._positions else 0


def indexed_position(
    fs: FileSystem, path: Path, base_offset: int, offset: int, size_bytes: int
) -> int:
    """Byte at which the search for `offset` begins, by the `.index` of a segment of `size_bytes`.

    0, the segment's start, if the file is missing or makes no sense. Raises OSError.
    """
    try:
        start = OffsetIndex.from_bytes(base_offset, read_file(fs, path)).lookup(offset)
    except (FileNotFoundError, ValueError):
        return 0
    return start if 0 <= start < size_bytes else 0


class TimeIndex:
    """Entries (timestamp in ms, offset); offsets are absolute at this interface."""

    __slots__ = ("_base_offset", "_offsets", "_timestamps")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Reads a file. Raises ValueError unless it is whole entries; order is not checked."""
        if len(data) % TIME_ENTRY_BYTES:
            raise ValueError(f"{len(data)} bytes are no whole entries of {TIME_ENTRY_BYTES}")
        index = cls(base_offset)
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
        return index

    def to_bytes(self) -> bytes:
        pairs = zip(self._timestamps, self._offsets, strict=True)
        return b"".join(_TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs)

    def __len__(self) -> int:
        return len(self._timestamps)

    def entries(self) -> list[tuple[int, int]]:
        """(timestamp, offset) of each entry."""
        offsets = (self._base_offset + relative for relative in self._offsets)
        return list(zip(self._timestamps, offsets, strict=True))

    @property
    def last(self) -> tuple[int, int]:
        """The greatest timestamp and its offset, (-1, -1) if there is no entry."""
        if not self._timestamps:
            return -1, -1
        return self._timestamps[-1], self._base_offset + self._offsets[-1]

    def append(self, timestamp: int, offset: int) -> None:
        """Adds an entry unless the timestamp is not above the last one."""
        if timestamp > self.last[0]:
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self._base_offset)

    def lookup(self, timestamp: int) -> int:
        """Offset from which to search for `timestamp`: every record before it is older."""
        at = bisect_left(self._timestamps, timestamp) - 1
        return self._base_offset + (self._offsets[at] if at >= 0 else 0)

    def cut(self, offset: int) -> None:
        """Drops the entries at or above `offset`."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        del self._timestamps[keep:]
        del self._offsets[keep:]


class SegmentIndex:
    """Both indexes of a segment that is being written or walked through.

    Invariant: a time entry covers everything below the last offset entry, so that after `cut` only
    the batches from there on have to be read again. A batch above `due_above` gets an entry.
    """

    __slots__ = (
        "due_above",
        "interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.interval_bytes = interval_bytes
        self.due_above = interval_bytes

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Takes the next batch."""
        if position > self.due_above:
            self.add_entry(position, last_offset)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset

    def add_entry(self, position: int, last_offset: int) -> None:
        """An offset entry for the batch at `position`, before its timestamp is noted."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        self.offsets.append(last_offset, position)
        self.due_above = position + self.interval_bytes

    def note_timestamp(self, max_timestamp: int, offset: int) -> None:
        """The greatest timestamp of some batches, and the last offset of the first that has it."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = offset

    def finish(self) -> None:
        """Before the segment is closed: the last time entry is its greatest timestamp."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)

    def cut(self, position: int, offset: int) -> int:
        """Forgets the batches from `position`, which begins with `offset`.

        Returns the position from which the batches that are left have to be added again: only their
        timestamps are missing, so `add` may be called for them as they are.
        """
        resume = self.offsets.cut(position)
        self.times.cut(offset)
        self.max_timestamp, self.max_timestamp_offset = self.times.last
        self.due_above = resume + self.interval_bytes
        return resume
