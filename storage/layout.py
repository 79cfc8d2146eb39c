"""Names of files and directories below `storage.dir`, and nothing else.

    <storage.dir>/meta.properties  .lock  .reserve
    <storage.dir>/__cluster_metadata-0/
        <first offset, 20 digits>.log  .index  .timeindex
        <end offset, 20 digits>-<epoch, 10 digits>.checkpoint
        leader-epoch-checkpoint  quorum-state.json

Source: Apache Kafka 4.3, LogFileUtils, Snapshots and MetaPropertiesEnsemble.
"""

from __future__ import annotations

import re
from pathlib import Path

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
RESERVE = ".reserve"
PARTITION_DIRECTORY = "__cluster_metadata-0"
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
QUORUM_STATE = "quorum-state.json"
KAFKA_QUORUM_STATE = "quorum-state"

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TEMPORARY_SUFFIX = ".tmp"

_SEGMENT = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex)")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_KAFKA_LEFTOVER = re.compile(r"[0-9]{20}\.(txnindex|snapshot)|.*\.(deleted|part)")
_KNOWN = frozenset({EPOCH_CHECKPOINT, QUORUM_STATE, KAFKA_QUORUM_STATE, "partition.metadata"})


def partition_directory(storage_dir: Path) -> Path:
    return storage_dir / PARTITION_DIRECTORY


def log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


def index_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{INDEX_SUFFIX}"


def time_index_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{TIME_INDEX_SUFFIX}"


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """(first offset, suffix) of a segment's file, or None for any other name."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def parse_snapshot_name(name: str) -> tuple[int, int] | None:
    """(end offset, exclusive; epoch) of a complete snapshot, or None for any other name."""
    match = _SNAPSHOT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def is_known_name(name: str) -> bool:
    """True for what belongs in the partition directory, Kafka's own files included."""
    return (
        name in _KNOWN
        or parse_segment_name(name) is not None
        or parse_snapshot_name(name) is not None
        or _KAFKA_LEFTOVER.fullmatch(name) is not None
    )
