"""The directory of a stopped node as the source of a backup: locked, verified, and read to its end.

What the node did not know to be committed is taken, too: its acknowledgement may have committed it. Only
what is taken has to be sound. Indexes, the checkpoint of epochs and quorum-state.json are no part of a
backup, and a snapshot is none that a sound one or the log stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.storage import layout
from quorumd.storage.errors import (
    EXIT_DAMAGED,
    DamagedFile,
    DamagedLog,
    Misplaced,
    NotFormatted,
    StorageError,
    from_os_error,
)
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.meta_properties import LogOwner, MetaProperties, read_meta_properties
from quorumd.storage.quorum_state import QuorumState, load_quorum_state
from quorumd.storage.reader import FoundBatch, LogFile
from quorumd.storage.verify.paths import PathKind, Subject, find_subject, verify
from quorumd.storage.verify.report import Finding, VerifyReport, listed
from quorumd.wire.sequence_check import sequence_problem

_STEP_BYTES = 1 << 20
_DUMP = "`quorumctl dump-log --print-data` shows what can be read there"


class NodeRuns(StorageError):
    """A node runs on a directory that has to be that of a stopped one; nothing was written."""

    exit_code = 2


class NoSource(StorageError):
    """There is nothing in this directory that a backup could be made of; nothing was written."""

    exit_code = 2


class DamagedSource(StorageError):
    """The log or the snapshot that a backup would hold is not sound; nothing was written."""

    exit_code = EXIT_DAMAGED


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSource:
    """A stopped node's log: offsets `start_offset` .. `end_offset` (exclusive), the last of `epoch`.

    Everything below `known_end` is committed, as quorum-state.json says, or a snapshot, which has nothing
    else; it is never below `start_offset`, to which a snapshot reaches. `cluster_id` is "" if nothing in the
    directory says it.
    """

    log_directory: Path
    cluster_id: str
    start_offset: int
    end_offset: int
    epoch: int
    known_end: int
    snapshot: SnapshotId | None
    segments: tuple[Path, ...]
    """In the order of the log."""

    def batches(self) -> Iterator[FoundBatch]:
        """The batches of the log, up to its end. Raises StorageError, also if they have changed."""
        offset, epoch = self.start_offset, -1
        for path in self.segments:
            for batch in LogFile(path).batches():
                if offset == self.end_offset:
                    return
                problem = sequence_problem(batch.header, offset, epoch)
                if problem or not batch.crc_is_valid:
                    raise _changed(path, problem or "the CRC does not match the contents")
                offset, epoch = batch.header.next_offset, batch.header.epoch
                yield batch
        if offset != self.end_offset:
            raise _changed(self.log_directory, f"the log ends at offset {offset}")

    def snapshot_chunks(self) -> Iterator[tuple[bytes, int]]:
        """The snapshot's bytes in order, each part with the size of the whole. Raises StorageError."""
        assert self.snapshot is not None, "there is one to be read"
        path = layout.snapshot_path(self.log_directory, self.snapshot)
        fs, position = RealFileSystem(), 0
        try:
            handle = fs.open(path)
            try:
                size_bytes = fs.size(handle)
                while chunk := fs.pread(handle, _STEP_BYTES, position):
                    yield chunk, size_bytes
                    position += len(chunk)
            finally:
                fs.close(handle)
        except OSError as error:
            raise from_os_error(error, path, "reading") from error


@contextmanager
def lock_stopped(storage_dir: Path, fs: FileSystem | None = None) -> Iterator[None]:
    """No node works on the directory meanwhile; nothing is written there. Raises NodeRuns if one does."""
    fs = fs or RealFileSystem()
    path = storage_dir / layout.LOCK
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        yield  # It was never started, or is a copy.
        return
    except OSError as error:
        raise from_os_error(error, path, "opening") from error
    try:
        if not fs.try_lock(handle):
            raise NodeRuns(
                "a node runs on this directory",
                path=storage_dir,
                remedy="Stop it first (SIGTERM): it then writes down how far the log is committed",
            )
        yield
    finally:
        fs.close(handle)


def stopped_subject(storage_dir: Path) -> Subject:
    """The directory, to be verified. Raises NoSource, or another StorageError."""
    subject = find_subject(storage_dir)
    if subject.kind is not PathKind.STORAGE:
        raise NoSource(
            f"this is a {subject.kind.value}, not the storage.dir of a node",
            path=storage_dir,
            remedy=f"Name the directory with {layout.META_PROPERTIES} in it",
        )
    return subject


def backup_source(
    subject: Subject,
    *,
    on_bytes: Callable[[int], object],
    on_finding: Callable[[Finding], object],
) -> BackupSource:
    """Verifies a stopped node's directory, which has to be locked, as far as a backup would hold it.

    `on_bytes` gets how many more bytes were read, `on_finding` what is damaged and not needed. Raises
    NoSource, DamagedSource, or another StorageError.
    """
    fs, storage_dir = RealFileSystem(), subject.path
    meta = _meta(fs, storage_dir)
    found: list[Finding] = []
    report = VerifyReport(
        on_finding=found.append,
        on_note=lambda note: None,
        on_bytes=on_bytes,
        pause=lambda: None,
    )
    facts = verify(subject, report, fs)
    log_directory = layout.partition_directory(storage_dir)
    snapshot = facts.snapshots[-1].id if facts.snapshots else None
    bad: list[Finding] = []
    for finding in found:
        if _is_taken(finding.path, snapshot):
            bad.append(finding)
        else:
            on_finding(finding)
    if bad:
        raise DamagedSource(
            f"the log is damaged:{listed(bad)}\nNothing was written",
            path=storage_dir,
            remedy=f"Use the directory of another node. {_DUMP}",
        )
    state = _state(fs, log_directory)
    start_offset, end_offset, epoch = facts.start_offset, facts.end_offset, facts.last_epoch
    bases = layout.segment_bases(fs.listdir(log_directory)) if facts.batches else []
    if snapshot is not None and (facts.unheld is not None or not facts.batches):
        bases = []
        start_offset = end_offset = snapshot.end_offset
        epoch = snapshot.epoch
    if not bases and snapshot is None:
        raise NoSource(
            "there is nothing to back up: this node has no records",
            path=storage_dir,
            remedy="Name the directory of another node",
        )
    return BackupSource(
        log_directory=log_directory,
        cluster_id=meta.cluster_id or state.cluster_id or "",
        start_offset=start_offset,
        end_offset=end_offset,
        epoch=epoch,
        known_end=max(state.applied_offset, 0 if snapshot is None else snapshot.end_offset),
        snapshot=snapshot,
        segments=tuple(layout.log_path(log_directory, base) for base in bases),
    )


def _meta(fs: FileSystem, storage_dir: Path) -> MetaProperties:
    try:
        meta = read_meta_properties(fs, storage_dir)
    except NotFormatted as error:
        raise NoSource(
            f"there is no {layout.META_PROPERTIES}, which says whose log this is",
            path=storage_dir,
            remedy="Put it back: docs/storage-format.md has its keys",
        ) from error
    if meta.log_owner is LogOwner.KAFKA or any(
        map(fs.exists, layout.kafkas_own_files(storage_dir))
    ):
        raise NoSource(
            "this is the log of a Kafka quorum",
            path=storage_dir,
            remedy="`quorumctl export-kafka` makes the directory of a controller from that of an observer",
        )
    return meta


def _state(fs: FileSystem, log_directory: Path) -> QuorumState:
    """What is known of it: a damaged one is among the findings."""
    try:
        return load_quorum_state(fs, log_directory) or QuorumState()
    except (DamagedFile, Misplaced):
        return QuorumState()


def _is_taken(path: Path, snapshot: SnapshotId | None) -> bool:
    if layout.parse_log_name(path.name) is not None:
        return True
    return snapshot is not None and layout.parse_snapshot_name(path.name) == snapshot


def _changed(path: Path, what: str) -> DamagedLog:
    return DamagedLog(
        f"it was sound when it was verified, and is not any more: {what}",
        path=path,
        remedy=f"Nothing was written. Check the disk, and copy the directory to another one first. {_DUMP}",
    )
