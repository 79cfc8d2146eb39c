"""Replicas' directories to ranges of bytes that can be parsed one by one. No Spark.

    replicas = find_replicas([path, ...])         whose directories, their segments and snapshots
    plan = plan_segment(segment)                  ranges of a few MiB, where the data ends, what is damaged
    rows = read_rows("records", range, 0, end)    anywhere else: the range's rows

Reads and nothing else: no lock, no write, so a node may run beside it. What it has not finished writing is
distinguished from damage by the rules of its own start (quorumd.storage.torn_tail).
"""

from quorumd.pipeline.files.plan import (
    RANGE_BYTES,
    FilePlan,
    FileRange,
    plan_segment,
    plan_snapshot,
)
from quorumd.pipeline.files.read import FileChanged, read_bytes, read_rows
from quorumd.pipeline.files.replicas import LogSegment, Replica, Snapshot, find_replicas
from quorumd.pipeline.files.times import first_offset_since

__all__ = [
    "RANGE_BYTES",
    "FileChanged",
    "FilePlan",
    "FileRange",
    "LogSegment",
    "Replica",
    "Snapshot",
    "find_replicas",
    "first_offset_since",
    "plan_segment",
    "plan_snapshot",
    "read_bytes",
    "read_rows",
]
