"""Split points of a closed segment by its offset index, without reading the segment."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from quorumd.storage import layout
from quorumd.storage.batch_walk import header_at
from quorumd.storage.filesystem import FileSystem, read_file
from quorumd.storage.index import OffsetIndex


class BatchStart(NamedTuple):
    """A batch begins at this byte, with this offset."""

    position: int
    offset: int


def split_points(
    fs: FileSystem, handle: int, path: Path, base_offset: int, range_bytes: int
) -> list[BatchStart]:
    """Batch starts about `range_bytes` apart, no further if it can be avoided.

    None at all if the index is missing, not in order, or not borne out by a batch that it leads to.
    Raises OSError.
    """
    size = fs.size(handle)
    entries = _entries(fs, layout.index_path(path.parent, base_offset), base_offset)
    positions = [position for _, position in entries]
    first = header_at(fs, handle, 0)
    if first is None or first.base_offset != base_offset:
        return []
    points = [BatchStart(0, base_offset)]
    while size - points[-1].position > range_bytes:
        last = points[-1].position
        at = bisect_right(positions, last + range_bytes) - 1
        if at < 0 or positions[at] <= last:
            at += 1
        if at == len(entries):
            break
        last_offset, position = entries[at]
        header = header_at(fs, handle, position)
        if header is None or header.last_offset != last_offset:
            return []
        points.append(BatchStart(position, header.base_offset))
    return points[1:]


def _entries(fs: FileSystem, path: Path, base_offset: int) -> list[tuple[int, int]]:
    """(last offset, position) of each entry; none if the file is unusable."""
    try:
        entries = OffsetIndex.from_bytes(base_offset, read_file(fs, path)).entries()
    except (FileNotFoundError, ValueError):
        return []
    # A killed Kafka controller leaves zeros behind the entries.
    while entries and entries[-1] == (base_offset, 0):
        entries.pop()
    if any(b[0] <= a[0] or b[1] <= a[1] for a, b in pairwise(entries)):
        return []
    return entries
