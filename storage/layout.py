"""Names of files and directories below `storage.dir`, and nothing else.

    <storage.dir>/meta.properties  .lock  .reserve  .restoring
    <storage.dir>/__cluster_metadata-0/
        <first offset, 20 digits>.log  .index  .timeindex
        <end offset, 20 digits>-<epoch, 10 digits>.checkpoint  .checkpoint.part
        leader-epoch-checkpoint  quorum-state.json

A backup has segments, perhaps a snapshot, and backup.json in one directory.
Source: Apache Kafka 4.3, LogFileUtils, Snapshots and MetaPropertiesEnsemble.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.wire.metadata_topic import PARTITION, TOPIC

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
RESERVE = ".reserve"
RESTORING = ".restoring"
"""There while a restore is not finished."""
BACKUP_MANIFEST = "backup.json"
PARTITION_DIRECTORY = f"{TOPIC}-{PARTITION}"
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
QUORUM_STATE = "quorum-state.json"
KAFKA_QUORUM_STATE = "quorum-state"
KAFKA_PARTITION = "partition.metadata"
KAFKA_BOOTSTRAP = "bootstrap.checkpoint"

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TEMPORARY_SUFFIX = ".tmp"
PART_SUFFIX = ".part"
"""Of a snapshot that is not complete, and of what is only needed to make one."""

_OFFSET_MAX = (1 << 63) - 1
_EPOCH_MAX = (1 << 31) - 1
_SEGMENT = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex)")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
# Kafka puts a random number in between.
_PART = re.compile(r"[0-9]{20}-([0-9]{10}(-[^.]*)?\.checkpoint|[0-9]+\.run)\.part")
_KAFKA_LEFTOVER = re.compile(r"[0-9]{20}\.(txnindex|snapshot)|.*\.(deleted|part)")
_KNOWN = frozenset({EPOCH_CHECKPOINT, QUORUM_STATE, KAFKA_QUORUM_STATE, KAFKA_PARTITION})


def partition_directory(storage_dir: Path) -> Path:
    """The directory of the log and of the small files beside it."""
    return storage_dir / PARTITION_DIRECTORY


def kafkas_own_files(storage_dir: Path) -> tuple[Path, ...]:
    """Files that Kafka's nodes and tools write, and quorumd does not; each may be missing."""
    directory = partition_directory(storage_dir)
    return (
        storage_dir / KAFKA_BOOTSTRAP,
        directory / KAFKA_QUORUM_STATE,
        directory / KAFKA_PARTITION,
    )


def log_path(directory: Path, base_offset: int) -> Path:
    """Of the segment that begins at an offset, in a partition directory or a backup."""
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


def index_path(directory: Path, base_offset: int) -> Path:
    """Of the offset index of the same segment."""
    return directory / f"{base_offset:020d}{INDEX_SUFFIX}"


def time_index_path(directory: Path, base_offset: int) -> Path:
    """Of the time index of the same segment."""
    return directory / f"{base_offset:020d}{TIME_INDEX_SUFFIX}"


def snapshot_path(directory: Path, snapshot_id: SnapshotId) -> Path:
    """Of a complete snapshot."""
    end_offset, epoch = snapshot_id
    return directory / f"{end_offset:020d}-{epoch:010d}.checkpoint"


def part_path(directory: Path, snapshot_id: SnapshotId) -> Path:
    """Of the same snapshot while it is written or copied."""
    path = snapshot_path(directory, snapshot_id)
    return path.with_name(path.name + PART_SUFFIX)


def run_path(directory: Path, end_offset: int, number: int) -> Path:
    """Of a sorted run of records that a snapshot is made from, gone when the snapshot is there."""
    return directory / f"{end_offset:020d}-{number}.run{PART_SUFFIX}"


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """(first offset, suffix) of a segment's file, or None for any other name."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), match[2]) if match and int(match[1]) <= _OFFSET_MAX else None


def parse_log_name(name: str) -> int | None:
    """First offset of a segment's `.log` file, or None for any other name."""
    parsed = parse_segment_name(name)
    return parsed[0] if parsed is not None and parsed[1] == LOG_SUFFIX else None


def segment_bases(names: Iterable[str]) -> list[int]:
    """The first offsets of the segments among the names in a directory, ascending."""
    return sorted(base for base in map(parse_log_name, names) if base is not None)


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The id of a complete snapshot, or None for any other name."""
    match = _SNAPSHOT.fullmatch(name)
    if match is None or int(match[1]) > _OFFSET_MAX or int(match[2]) > _EPOCH_MAX:
        return None
    return SnapshotId(int(match[1]), int(match[2]))


def snapshot_ids(names: Iterable[str]) -> list[SnapshotId]:
    """The ids of the complete snapshots among the names in a directory, ascending."""
    return sorted(filter(None, map(parse_snapshot_name, names)))


def is_part(name: str) -> bool:
    """True for an unfinished snapshot, or a run for one, which a start deletes; Kafka's included."""
    return _PART.fullmatch(name) is not None


def is_part_of(name: str, end_offset: int) -> bool:
    """True for what is only there while a snapshot that ends at `end_offset` is made."""
    return is_part(name) and name.startswith(f"{end_offset:020d}-")


def is_known_name(name: str) -> bool:
    """True for what belongs in the partition directory, Kafka's own files included."""
    return (
        name in _KNOWN
        or parse_segment_name(name) is not None
        or parse_snapshot_name(name) is not None
        or _KAFKA_LEFTOVER.fullmatch(name) is not None
    )


def is_temporary(name: str) -> bool:
    """True for the new form of a small file that is being replaced: a segment or a snapshot never has one."""
    stem = name.removesuffix(TEMPORARY_SUFFIX)
    if stem == name:
        return False
    is_index = parse_segment_name(stem) is not None and parse_log_name(stem) is None
    return stem in _KNOWN or is_index
