"""Tells what lies at a path, and if it is sound: a node's directory, a log, a backup, or one file of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quorumd.storage import layout
from quorumd.storage.errors import (
    DamagedFile,
    DamagedSnapshot,
    Misplaced,
    NotFormatted,
    StorageError,
    from_os_error,
    is_misplaced,
)
from quorumd.storage.filesystem import FileSystem, RealFileSystem, file_size
from quorumd.storage.meta_properties import (
    MetaProperties,
    has_started,
    missing_storage_id,
    read_meta_properties,
)
from quorumd.storage.quorum_state import missing_quorum_state
from quorumd.storage.snapshot_file import SnapshotFacts, check_cluster
from quorumd.storage.verify.backup import verify_backup
from quorumd.storage.verify.log import LogFacts, verify_log
from quorumd.storage.verify.report import Finding, VerifyReport, finding_of, settled
from quorumd.storage.verify.segment import walk_segment
from quorumd.storage.verify.snapshot import report_snapshot, walk_snapshot
from quorumd.wire.schema import ZERO_UUID

_NO_META = "Restore the file from a backup of this directory, or treat the disk as lost"
_RESTORING = "Run the same `quorumd restore` again"


class PathKind(Enum):
    """The kind of a path that can be verified."""

    STORAGE = "storage"
    LOG = "log"
    BACKUP = "backup"
    SEGMENT = "segment"
    SNAPSHOT = "snapshot"


class NothingToVerify(StorageError):
    """A path that does not exist, or where nothing lies that can be verified: a wrong use."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """The thing at a path that is verified. `size_bytes` is about what has to be read."""

    kind: PathKind
    path: Path
    size_bytes: int


def find_subject(path: Path, fs: FileSystem | None = None) -> Subject:
    """Raises NothingToVerify, or another StorageError if the path can't be read."""
    fs = fs or RealFileSystem()
    try:
        if not fs.exists(path):
            raise NothingToVerify(
                "there is no such file or directory", path=path, remedy="Correct the path"
            )
        try:
            names = fs.listdir(path)
        except NotADirectoryError:
            return _file_subject(fs, path)
        return _directory_subject(fs, path, names)
    except OSError as error:
        raise from_os_error(error, path, "reading") from error


def _file_subject(fs: FileSystem, path: Path) -> Subject:
    if layout.parse_log_name(path.name) is not None:
        return Subject(PathKind.SEGMENT, path, _size(fs, path))
    if layout.parse_snapshot_name(path.name) is not None:
        return Subject(PathKind.SNAPSHOT, path, _size(fs, path))
    raise NothingToVerify(
        "by its name this is no segment (<20 digits>.log) and no snapshot (<20 digits>-<10"
        " digits>.checkpoint)",
        path=path,
        remedy="Name one of these, or the directory with all of them",
    )


def _directory_subject(fs: FileSystem, path: Path, names: list[str]) -> Subject:
    if layout.BACKUP_MANIFEST in names:
        return Subject(PathKind.BACKUP, path, 2 * _size_of_log(fs, path, names))
    if layout.META_PROPERTIES in names or layout.PARTITION_DIRECTORY in names:
        log = path / layout.PARTITION_DIRECTORY
        size = _size_of_log(fs, log, fs.listdir(log)) if fs.exists(log) else 0
        return Subject(PathKind.STORAGE, path, size)
    if any(_is_of_log(name) for name in names) or layout.EPOCH_CHECKPOINT in names:
        return Subject(PathKind.LOG, path, _size_of_log(fs, path, names))
    raise NothingToVerify(
        "there is no log in this directory and no backup",
        path=path,
        remedy=f"Name a storage.dir, a {layout.PARTITION_DIRECTORY} directory, or a directory that"
        " `quorumctl backup` has made",
    )


def _is_of_log(name: str) -> bool:
    return layout.parse_log_name(name) is not None or layout.parse_snapshot_name(name) is not None


def _size_of_log(fs: FileSystem, directory: Path, names: list[str]) -> int:
    return sum(_size(fs, directory / name) for name in names if _is_of_log(name))


def _size(fs: FileSystem, path: Path) -> int:
    try:
        return file_size(fs, path)
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) or is_misplaced(error)):
            raise
        # Deleted since it was listed, or no file, which is going to be a finding.
        return 0


def verify(subject: Subject, report: VerifyReport, fs: FileSystem | None = None) -> LogFacts:
    """Verifies a subject and returns what it holds. Raises StorageError if something can't be read."""
    fs = fs or RealFileSystem()
    path = subject.path
    match subject.kind:
        case PathKind.BACKUP:
            return verify_backup(fs, path, report)
        case PathKind.STORAGE:
            return _verify_storage(fs, path, report)
        case PathKind.LOG:
            return verify_log(fs, path, report)
        case PathKind.SEGMENT:
            return _verify_segment(fs, path, report)
        case PathKind.SNAPSHOT:
            return _verify_snapshot(fs, path, report)


def _verify_storage(fs: FileSystem, storage_dir: Path, report: VerifyReport) -> LogFacts:
    meta = _check_meta(fs, storage_dir, report)
    log = layout.partition_directory(storage_dir)
    has_log = fs.exists(log)
    facts = verify_log(fs, log, report) if has_log else LogFacts()
    names = fs.listdir(log) if has_log else []
    has_state = layout.QUORUM_STATE in names or layout.KAFKA_QUORUM_STATE in names
    has_run = bool(facts.batches) or (meta is not None and meta.has_started)
    if has_run and not has_state:
        report.add(finding_of(missing_quorum_state(log)))
    elif not has_log:
        report.on_note("there is no log yet: the node has never been started")
    if meta is not None:
        for snapshot in facts.snapshots:
            _check_cluster(log, snapshot, meta, report)
    return facts


def _check_meta(fs: FileSystem, storage_dir: Path, report: VerifyReport) -> MetaProperties | None:
    path = storage_dir / layout.META_PROPERTIES
    try:
        meta = read_meta_properties(fs, storage_dir)
        if meta.storage_id == ZERO_UUID and has_started(fs, storage_dir, meta):
            report.add(finding_of(missing_storage_id(storage_dir)))
        return meta
    except (DamagedFile, Misplaced) as error:
        report.add(finding_of(error))
    except NotFormatted:
        what, remedy = "it is missing: nothing says whose directory this is", _NO_META
        if fs.exists(storage_dir / layout.RESTORING):
            what, remedy = "it is missing: a restore was begun here and not finished", _RESTORING
        report.add(Finding(path=path, what=what, remedy=remedy))
    return None


def _check_cluster(
    log: Path, snapshot: SnapshotFacts, meta: MetaProperties, report: VerifyReport
) -> None:
    try:
        check_cluster(snapshot, meta.cluster_id, layout.snapshot_path(log, snapshot.id))
    except DamagedSnapshot as damage:
        report.add(finding_of(damage))


def _verify_segment(fs: FileSystem, path: Path, report: VerifyReport) -> LogFacts:
    """A node writes to it only if no other segment follows, and if it is no part of a backup."""
    base_offset = layout.parse_log_name(path.name)
    assert base_offset is not None, "it was found by its name"
    try:
        names = fs.listdir(path.parent)
        is_backup = layout.BACKUP_MANIFEST in names
        is_last = not is_backup and layout.segment_bases(names)[-1:] == [base_offset]
        seen = settled(
            lambda: walk_segment(fs, path, report, is_last=is_last, has_indexes=not is_backup),
            report.pause,
        )
    except OSError as error:
        raise from_os_error(error, path, "reading") from error
    report.add(*seen.findings)
    return LogFacts(
        start_offset=seen.start_offset,
        end_offset=seen.end_offset,
        last_epoch=seen.last_epoch,
        segments=1,
        batches=seen.batches,
        records=seen.records,
        size_bytes=seen.size_bytes,
        unfinished_bytes=seen.unfinished_bytes,
        epochs=seen.epochs,
    )


def _verify_snapshot(fs: FileSystem, path: Path, report: VerifyReport) -> LogFacts:
    snapshot_id = layout.parse_snapshot_name(path.name)
    assert snapshot_id is not None, "it was found by its name"
    seen = walk_snapshot(fs, path, snapshot_id, report)
    report_snapshot(seen, path, report)
    facts = LogFacts(
        start_offset=0, end_offset=snapshot_id.end_offset, last_epoch=snapshot_id.epoch
    )
    if seen.facts is not None:
        facts.snapshots.append(seen.facts)
        facts.size_bytes = seen.facts.size_bytes
    return facts
