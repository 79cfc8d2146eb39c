"""Do the index files of a closed segment say what the log says? Decided in passing, by one walk."""

from __future__ import annotations

from dataclasses import dataclass

from quorumd.storage.filesystem import FileSystem, read_file
from quorumd.storage.index import OffsetIndex, SegmentIndex, TimeIndex
from quorumd.storage.segment import Segment


@dataclass(slots=True)
class FoundSegment:
    """A segment as a start finds it: `index` is what its indexes should be."""

    segment: Segment
    index: SegmentIndex
    index_is_good: bool = False
    time_index_is_good: bool = False


class IndexChecks:
    """Builds the indexes of a segment anew and compares the files with the log in passing."""

    def __init__(self, found: FoundSegment) -> None:
        self._found = found
        self._positions: dict[int, int] | None = None
        self._times: list[tuple[int, int]] | None = None
        self._matched = 0
        self._times_matched = 0

    def load(self, fs: FileSystem) -> None:
        """Reads the files; one that is missing or no whole entries is not good."""
        segment = self._found.segment
        try:
            data = read_file(fs, segment.index_path)
            entries = OffsetIndex.from_bytes(segment.base_offset, data).entries()
            positions = {position: offset for offset, position in entries}
            if len(positions) == len(entries) and list(positions) == sorted(positions):
                self._positions = positions
        except (FileNotFoundError, ValueError):
            self._positions = None
        try:
            data = read_file(fs, segment.time_index_path)
            self._times = TimeIndex.from_bytes(segment.base_offset, data).entries()
        except (FileNotFoundError, ValueError):
            self._times = None

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Takes the next batch into the new index, and compares it with the old one."""
        index = self._found.index
        if self._positions is not None and self._positions.get(position) == last_offset:
            self._matched += 1
        if self._times is not None and max_timestamp > index.max_timestamp:
            expected = self._times_matched
            if expected < len(self._times) and self._times[expected] == (
                max_timestamp,
                last_offset,
            ):
                self._times_matched += 1
        index.add(position, last_offset, max_timestamp)

    def finish(self) -> None:
        """Judges the files: good if the log bears out every entry and none is badly missed."""
        found = self._found
        index = found.index
        index.finish()
        if self._positions is not None:
            is_too_sparse = self._matched == 0 and len(index.offsets) > 0
            found.index_is_good = self._matched == len(self._positions) and not is_too_sparse
        if self._times is not None:
            last = self._times[-1] if self._times else (-1, -1)
            found.time_index_is_good = (
                self._times_matched == len(self._times) and last == index.times.last
            )
