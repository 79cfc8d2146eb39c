"""Directories of nodes, made by hand, and what comes of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

import pyarrow as pa

from quorumd.pipeline.files import (
    FilePlan,
    FileRange,
    Replica,
    find_replicas,
    plan_segment,
    read_rows,
)
from quorumd.storage.directory import format_directory
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import PARTITION_DIRECTORY
from quorumd.storage.log import Log
from tests.pipeline.parsed import ALL, Row, rows_of
from tests.storage.helpers import append, batch, open_log

FS = RealFileSystem()
STORAGE_ID = UUID(int=(1 << 90) + 7)
SEGMENT_BYTES = 20_000


def make_node(folder: Path, node_id: int, *, count: int = 300) -> None:
    """The storage.dir of a stopped node with at least so many records."""
    format_directory(
        FS, folder, node_id=node_id, cluster_id="a cluster", storage_id=STORAGE_ID, bootstrap=True
    )
    log = open_log(FS, folder / PARTITION_DIRECTORY, segment_bytes=SEGMENT_BYTES)
    fill(log, 0, count)
    log.close()


def fill(log: Log, start: int, end: int) -> None:
    """Batches of one to seven records, a few per write."""
    random = Random(start)
    offset = start
    while offset < end:
        data, first = b"", offset
        for _ in range(random.randrange(1, 4)):
            count = random.randrange(1, 8)
            size = random.choice((10, 200, 900))
            data += batch(offset, count=count, epoch=1 + offset // 100, value_bytes=size)
            offset += count
        append(log, data, first, offset)


def segments_of(folder: Path) -> list[Path]:
    """The segment files of a storage.dir."""
    return sorted((folder / PARTITION_DIRECTORY).glob("*.log"))


def the_replica(path: Path) -> Replica:
    """The only one there is."""
    (replica,) = find_replicas([path])
    return replica


def plans_of(replica: Replica, range_bytes: int = 5_000) -> list[FilePlan]:
    """Of all its segments."""
    return [plan_segment(segment, range_bytes=range_bytes) for segment in replica.segments]


def ranges_of(replica: Replica, range_bytes: int = 5_000) -> list[FileRange]:
    """Of all its segments."""
    return [each for plan in plans_of(replica, range_bytes) for each in plan.ranges]


def offsets_in(file_range: FileRange, start: int = 0, end: int = ALL) -> list[int]:
    """Of its records."""
    parts = read_rows("records", file_range, start, end)
    return [offset for part in parts for offset in part["offset"].to_pylist()]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file: when it was changed, and what is in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def rows_in(file_range: FileRange) -> list[Row]:
    """Its records."""
    return list(rows_of(pa.Table.from_batches(read_rows("records", file_range, 0, ALL))))
