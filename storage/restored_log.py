"""The log of a backup as the log of a new quorum: every byte as it was, but for the former voters.

The records of the log that say who votes (KRaftVersion, KRaftVoters) belong to the former quorum. They
stay where they are under another type, which every reader skips, and so they do in the snapshot. So the
log names no voters, as that of any new quorum: its first leader does, in the first records behind the
backup's end. The result depends on the backup alone, so all who restore it have the same log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.storage import layout
from quorumd.storage.backup_manifest import BackupFile, BackupManifest
from quorumd.storage.batch_walk import reason_of
from quorumd.storage.errors import DamagedLog, from_os_error
from quorumd.storage.filesystem import Buffer, FileSystem, write_all
from quorumd.storage.log import Log
from quorumd.storage.reader import LogFile
from quorumd.storage.snapshot_file import read_facts
from quorumd.wire.control_records import mask_voters
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import read_header

_STEP_BYTES = 4 << 20
_SYNC_STEP_BYTES = 64 << 20
_REMEDY = "Use another backup, or repeat this"


def restore_log(
    fs: FileSystem,
    backup: Path,
    manifest: BackupManifest,
    directory: Path,
    *,
    segment_bytes: int,
    on_bytes: Callable[[int], object] = lambda step_bytes: None,
) -> None:
    """Makes the log in an empty directory, durably; `on_bytes` gets how many more were copied.

    The backup has to be sound. Raises DamagedLog if it is not what its manifest says, DiskFull, or
    another StorageError; what is in the directory is of no use then.
    """
    for file in manifest.files:
        _copy(fs, backup / file.name, file, directory / file.name, on_bytes)
    snapshots = []
    if manifest.snapshot is not None:
        snapshot_id = _id_of(manifest.snapshot)
        path = layout.snapshot_path(directory, snapshot_id)
        snapshots.append(read_facts(fs, path, snapshot_id).id)
    # As a start opens it, which also makes the indexes and the other files that follow from the log.
    log = Log.open(
        fs,
        directory,
        segment_bytes=segment_bytes,
        tail_cache_bytes=0,
        committed_offset=manifest.end_offset,
        snapshots=snapshots,
    )
    bounds = log.log_start_offset, log.log_end_offset
    log.close()
    if bounds != (manifest.start_offset, manifest.end_offset):
        raise DamagedLog(
            f"the backup's log has offsets {bounds[0]} to {bounds[1]}, and not those of"
            f" {layout.BACKUP_MANIFEST}",
            path=backup,
            remedy=_REMEDY,
        )


def _id_of(file: BackupFile) -> SnapshotId:
    found = layout.parse_snapshot_name(file.name)
    assert found is not None, "a snapshot is known by its name"
    return found


def _copy(
    fs: FileSystem, source: Path, file: BackupFile, target: Path, on_bytes: Callable[[int], object]
) -> None:
    digest = hashlib.sha256()
    try:
        handle = fs.open(target, writable=True, create=True)
        try:
            writer = _Writer(fs, handle)
            for batch in LogFile(source, fs).batches():
                digest.update(batch.data)
                writer.add(_without_voters(source, batch.position, batch.data))
                on_bytes(len(batch.data))
            writer.flush()
            fs.fsync(handle)
        finally:
            fs.close(handle)
    except OSError as error:
        raise from_os_error(error, target, "writing") from error
    if writer.position != file.size_bytes or digest.hexdigest() != file.sha256:
        raise DamagedLog(
            f"its contents are not those that {layout.BACKUP_MANIFEST} names",
            path=source,
            position=0,
            remedy=_REMEDY,
        )


def _without_voters(source: Path, position: int, batch: bytes) -> bytes:
    header = read_header(batch)
    if not header.is_control:
        return batch
    try:
        return mask_voters(batch)
    except CorruptBatch as error:
        raise DamagedLog(
            f"a control batch can't be read: {reason_of(error)}",
            path=source,
            position=position,
            offset=header.base_offset,
            remedy=_REMEDY,
        ) from error


class _Writer:
    """Gathers batches for fewer and larger writes."""

    def __init__(self, fs: FileSystem, handle: int) -> None:
        self._fs = fs
        self._handle = handle
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._synced = 0
        self._written = 0

    @property
    def position(self) -> int:
        """The bytes that were added."""
        return self._written + self._held_bytes

    def add(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _STEP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what is held. Raises OSError."""
        write_all(self._fs, self._handle, [b"".join(self._held)], self._written)
        self._written += self._held_bytes
        self._held.clear()
        self._held_bytes = 0
        if self._written - self._synced >= _SYNC_STEP_BYTES:
            self._fs.fdatasync(self._handle)
            self._synced = self._written
