"""The files of a backup in the making: all or nothing, and durable before they get their name.

They are written into `.<name>.part` beside the target, which is renamed at the end. A process that dies
half-way leaves that behind, and the next backup of the same name takes it over; a lock keeps two from doing
so at once.
Layout: docs/storage-format.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from quorumd.client.errors import QuorumError
from quorumd.client.spool import SnapshotSpool
from quorumd.raft.types import SnapshotId
from quorumd.storage import layout
from quorumd.storage.backup_manifest import BackupFile, BackupManifest, render_manifest

SEGMENT_BYTES = 128 << 20
"""About the size of a segment file."""
_HASH_STEP_BYTES = 1 << 20


class BackupRefused(QuorumError):
    """The target can't be taken for a backup."""

    exit_code = 2


class _Segment:
    """A segment file that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self.file = path.open("xb")

    def write(self, data: memoryview) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.size_bytes += len(data)


class BackupFiles:
    """See the module; use it in `with`. All methods raise QuorumError if the disk does not do."""

    def __init__(self, target: Path) -> None:
        """Raises BackupRefused if something is at the target already, or there is nowhere to put it."""
        # A rename would take a link for a file that is in the way.
        self.target = Path(os.path.realpath(target))
        self._folder = self.target.with_name(f".{self.target.name}.part")
        self._lock = -1
        self._is_finished = False
        self._segment: _Segment | None = None
        self._segments: list[BackupFile] = []
        self._snapshot: Path | None = None
        self._spool_file: IO[bytes] | None = None
        self._check_target()

    def _check_target(self) -> None:
        parent = self.target.parent
        if not parent.is_dir():
            raise BackupRefused(f"{parent}: there is no such directory. Make it first")
        if self.target.exists() and not self.target.is_dir():
            raise BackupRefused(f"{self.target}: a file is in the way. Name a new directory")
        with _explained(self.target):
            if self.target.is_dir() and any(self.target.iterdir()):
                raise BackupRefused(
                    f"{self.target}: the directory is not empty. Name a new one: a backup is never "
                    "written over another one"
                )

    def __enter__(self) -> Self:
        with _explained(self._folder):
            while not self._lock_folder():
                pass
            for path in self._folder.iterdir():
                path.unlink()
        return self

    def _lock_folder(self) -> bool:
        """False if the former holder of the lock has renamed or removed the directory meanwhile."""
        self._folder.mkdir(exist_ok=True)
        lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(self._folder).st_ino == os.fstat(lock).st_ino:
                self._lock = lock
                return True
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(lock)
            raise BackupRefused(
                f"{self.target}: another backup is being written there at present"
            ) from None
        os.close(lock)
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_finished:
            for file in (self._spool_file, None if self._segment is None else self._segment.file):
                if file is not None:
                    with suppress(OSError):
                        file.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    # --- the snapshot

    def new_spool(self, snapshot_id: SnapshotId) -> SnapshotSpool:
        """Begins with a snapshot; one that was begun before is dropped."""
        self.drop_snapshot()
        with _explained(self._folder):
            self._snapshot = layout.snapshot_path(self._folder, snapshot_id)
            self._spool_file = self._snapshot.open("xb+")
        return SnapshotSpool(snapshot_id, self._spool_file)

    def drop_snapshot(self) -> None:
        """Forgets the snapshot, if there is one."""
        if self._snapshot is not None:
            with _explained(self._folder):
                self._snapshot.unlink(missing_ok=True)
            self._snapshot = None

    # --- the log

    def begin_log(self) -> None:
        """Forgets what was written of a log before."""
        with _explained(self._folder):
            self._close_segment()
            for segment in self._segments:
                (self._folder / segment.name).unlink()
        self._segments.clear()

    def append(self, data: memoryview, base_offset: int) -> None:
        """Whole batches, the first of which has this offset, behind what was appended before."""
        with _explained(self._folder):
            segment = self._segment
            if segment is not None and segment.size_bytes + len(data) > SEGMENT_BYTES:
                self._close_segment()
                segment = None
            if segment is None:
                path = layout.log_path(self._folder, base_offset)
                segment = self._segment = _Segment(path)
            segment.write(data)

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        with segment.file as file:
            file.flush()
            os.fsync(file.fileno())
        self._segments.append(
            BackupFile(
                name=segment.path.name,
                size_bytes=segment.size_bytes,
                sha256=segment.digest.hexdigest(),
            )
        )

    # --- the end

    def finish(
        self,
        *,
        cluster_id: str,
        start_offset: int,
        end_offset: int,
        epoch: int,
        begun_at: str,
        ended_at: str,
    ) -> BackupManifest:
        """Makes all of it durable, and a backup."""
        with _explained(self._folder):
            self._close_segment()
            snapshots = [] if self._snapshot is None else [_hashed(self._snapshot)]
            manifest = BackupManifest(
                cluster_id=cluster_id,
                start_offset=start_offset,
                end_offset=end_offset,
                epoch=epoch,
                begun_at=begun_at,
                ended_at=ended_at,
                files=(*snapshots, *self._segments),
            )
            with (self._folder / layout.BACKUP_MANIFEST).open("xb") as file:
                file.write(render_manifest(manifest))
                file.flush()
                os.fsync(file.fileno())
            os.fsync(self._lock)
        with _explained(self.target):
            os.rename(self._folder, self.target)
            self._folder = self.target
            _sync_directory(self.target.parent)
            self._is_finished = True
        return manifest


def _hashed(path: Path) -> BackupFile:
    """A file that is complete, made durable."""
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as file:
        while data := file.read(_HASH_STEP_BYTES):
            digest.update(data)
            size_bytes += len(data)
        os.fsync(file.fileno())
    return BackupFile(name=path.name, size_bytes=size_bytes, sha256=digest.hexdigest())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> QuorumError:
    """The error for a disk that refused to write the backup."""
    return QuorumError(
        f"{path}: the backup can't be written: {error.strerror or error}. Nothing of it is left; name "
        "another place, or make room"
    )
