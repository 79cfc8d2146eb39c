"""The directory of a node: format it, open it under its lock, keep a reserve for a full disk.

`format` and `restore` write meta.properties last, so a directory is formatted or it is not. `open` takes
the lock before it reads, checks whose directory it is, and sets up the reserve: 1 MiB of written bytes
that are given back when quorum-state.json finds the disk full, because a node that can't write its vote
can't take part in an election. The lock file stays behind after a stop: its locks are the kernel's (flock,
and fcntl for Kafka) and end with the process; deleting the file would let two processes lock two files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from uuid import UUID

from quorumd.storage.errors import (
    AlreadyFormatted,
    DamagedFile,
    DirectoryLocked,
    DiskFull,
    ForeignDirectory,
    NotFormatted,
    StorageError,
    from_os_error,
)
from quorumd.storage.filesystem import FileSystem, replace_file, write_all
from quorumd.storage.layout import (
    LOCK,
    META_PROPERTIES,
    RESERVE,
    RESTORING,
    TEMPORARY_SUFFIX,
    partition_directory,
)
from quorumd.storage.meta_properties import (
    LogOwner,
    MetaProperties,
    load_meta_properties,
    random_storage_id,
    save_meta_properties,
)
from quorumd.storage.quorum_state import (
    QuorumState,
    load_quorum_state,
    missing_quorum_state,
    save_quorum_state,
)

RESERVE_BYTES = 1 << 20


def format_directory(
    fs: FileSystem,
    storage_dir: Path,
    *,
    node_id: int,
    cluster_id: str | None = None,
    storage_id: UUID | None = None,
    log_owner: LogOwner = LogOwner.QUORUMD,
    bootstrap: bool = False,
    initial_voters: str = "",
) -> MetaProperties:
    """Makes a directory ready for `open_directory`, creating it and its parents if need be.

    `initial_voters` is as in meta.properties. Raises AlreadyFormatted if it has a meta.properties, or a
    log without one.
    """
    meta = MetaProperties(
        node_id=node_id,
        storage_id=storage_id or random_storage_id(),
        cluster_id=cluster_id,
        log_owner=log_owner,
        bootstrap=bootstrap,
        initial_voters=initial_voters,
    )
    log_directory = partition_directory(storage_dir)
    try:
        _check_unused(fs, storage_dir, log_directory)
        _make_directories(fs, log_directory)
    except OSError as error:
        raise from_os_error(error, storage_dir, "formatting") from error
    save_meta_properties(fs, storage_dir, meta)
    return meta


def restore_directory(
    fs: FileSystem,
    storage_dir: Path,
    *,
    node_id: int,
    cluster_id: str,
    fill: Callable[[Path], QuorumState],
    storage_id: UUID | None = None,
    initial_voters: str = "",
) -> MetaProperties:
    """Makes a directory with a log in it ready for `open_directory`, for a new quorum.

    `fill` puts the log, durably, into the empty directory that it is given, and returns the state that
    goes with it. Until all is done the directory can't be opened or formatted, and this can be
    repeated. Raises AlreadyFormatted as `format_directory` does, DirectoryLocked, and what `fill`
    raises.
    """
    log_directory = partition_directory(storage_dir)
    meta = MetaProperties(
        node_id=node_id,
        storage_id=storage_id or random_storage_id(),
        cluster_id=cluster_id,
        bootstrap=True,
        initial_voters=initial_voters,
    )
    check_restorable(fs, storage_dir)
    try:
        _make_directories(fs, storage_dir)
    except OSError as error:
        raise from_os_error(error, storage_dir, "restoring") from error
    handle = _lock(fs, storage_dir)
    try:
        check_restorable(fs, storage_dir)
        _fill(fs, storage_dir, log_directory, fill)
        save_meta_properties(fs, storage_dir, meta)
        fs.unlink(storage_dir / RESTORING)
        fs.fsync_directory(storage_dir)
    except OSError as error:
        raise from_os_error(error, storage_dir, "restoring") from error
    finally:
        fs.close(handle)
    return meta


def check_restorable(fs: FileSystem, storage_dir: Path) -> None:
    """Raises AlreadyFormatted unless `restore_directory` may be used, perhaps a second time."""
    try:
        if fs.exists(storage_dir / META_PROPERTIES) or not fs.exists(storage_dir / RESTORING):
            _check_unused(fs, storage_dir, partition_directory(storage_dir))
    except OSError as error:
        raise from_os_error(error, storage_dir, "reading the directory") from error


def _fill(
    fs: FileSystem, storage_dir: Path, log_directory: Path, fill: Callable[[Path], QuorumState]
) -> None:
    replace_file(fs, storage_dir / RESTORING, b"A restore was begun here and is not finished.\n")
    _make_directories(fs, log_directory)
    for name in fs.listdir(log_directory):
        fs.unlink(log_directory / name)
    state = fill(log_directory)
    save_quorum_state(fs, log_directory, state)


def _check_unused(fs: FileSystem, storage_dir: Path, log_directory: Path) -> None:
    if fs.exists(storage_dir / META_PROPERTIES):
        raise AlreadyFormatted(
            "the directory is formatted already",
            path=storage_dir,
            remedy="Start the node; or, to begin anew, choose another directory",
        )
    if fs.exists(storage_dir / RESTORING):
        raise AlreadyFormatted(
            "a restore was begun here and not finished",
            path=storage_dir,
            remedy="Run the same `quorumd restore` again; or, to begin anew, choose another directory",
        )
    if fs.exists(log_directory) and fs.listdir(log_directory):
        raise AlreadyFormatted(
            "there is a log, but no meta.properties that says whose it is",
            path=log_directory,
            remedy="Restore meta.properties from a backup; or choose an empty directory",
        )


def _make_directories(fs: FileSystem, path: Path) -> None:
    """Creates a directory and its missing parents; each is durable in its parent."""
    if fs.exists(path):
        return
    _make_directories(fs, path.parent)
    fs.mkdir(path)
    fs.fsync_directory(path.parent)


class Directory:
    """An open, locked directory. Made by `open_directory`. Any thread may save."""

    def __init__(self, fs: FileSystem, path: Path, lock_handle: int, meta: MetaProperties) -> None:
        self._fs = fs
        self._lock_handle = lock_handle
        self._meta = meta
        self.path = path
        self.log_directory = partition_directory(path)
        self.reserve = Reserve(fs, path)
        self._saving = Lock()

    @property
    def meta(self) -> MetaProperties:
        return self._meta

    def save_meta(self, meta: MetaProperties) -> None:
        """Replaces meta.properties, with the reserve given back if the disk is full."""
        with self._saving:
            self.reserve.release_if_full(lambda: save_meta_properties(self._fs, self.path, meta))
            self._meta = meta

    def begin(self) -> QuorumState:
        """The stored quorum state. At the first start it is that of epoch 0, and stored by now.

        Raises DamagedFile, also if there is none at a later start: a log that is lost, or not mounted, is
        never taken for a new one.
        """
        state = load_quorum_state(self._fs, self.log_directory)
        if state is None:
            if self._meta.has_started:
                raise missing_quorum_state(self.log_directory)
            state = QuorumState()
            self.save_quorum_state(state)
        if not self._meta.has_started:
            self.save_meta(replace(self._meta, has_started=True))
        return state

    def save_quorum_state(self, state: QuorumState) -> None:
        """Replaces quorum-state.json, with the reserve given back if the disk is full."""
        with self._saving:
            self.reserve.release_if_full(
                lambda: save_quorum_state(self._fs, self.log_directory, state)
            )

    def close(self) -> None:
        """Gives the lock back."""
        self._fs.close(self._lock_handle)


def open_directory(fs: FileSystem, storage_dir: Path, *, node_id: int) -> Directory:
    """Locks and checks a formatted directory.

    Raises NotFormatted, DirectoryLocked, ForeignDirectory (another node's), DamagedFile, Misplaced,
    ReadOnlyDirectory. Leftovers of interrupted replacements are deleted.
    """
    try:
        if not fs.exists(storage_dir / META_PROPERTIES):
            raise _not_formatted(fs, storage_dir)
    except OSError as error:
        raise from_os_error(error, storage_dir, "opening") from error
    handle = _lock(fs, storage_dir)
    try:
        meta = load_meta_properties(fs, storage_dir)
        if meta.node_id != node_id:
            raise ForeignDirectory(
                f"the directory belongs to node {meta.node_id}, this is node {node_id}",
                path=storage_dir,
                remedy="Correct storage.dir or node.id; a directory is never shared or renamed",
            )
        try:
            _make_directories(fs, partition_directory(storage_dir))
            for name in fs.listdir(storage_dir):
                if name in (META_PROPERTIES + TEMPORARY_SUFFIX, RESTORING):
                    fs.unlink(storage_dir / name)
        except OSError as error:
            raise from_os_error(error, storage_dir, "opening") from error
        directory = Directory(fs, storage_dir, handle, meta)
        directory.reserve.ensure()
    except BaseException:
        fs.close(handle)
        raise
    return directory


def _not_formatted(fs: FileSystem, storage_dir: Path) -> StorageError:
    names = fs.listdir(storage_dir) if fs.exists(storage_dir) else []
    if META_PROPERTIES in names:
        return DamagedFile(
            "it is a link to what is not there",
            path=storage_dir / META_PROPERTIES,
            remedy="Put the file that it names back, or mount what holds it",
        )
    if RESTORING in names:
        return NotFormatted(
            "a restore was begun here and not finished",
            path=storage_dir,
            remedy="Run the same `quorumd restore` again, or correct storage.dir",
        )
    return NotFormatted(
        "the directory is not formatted: there is no meta.properties",
        path=storage_dir,
        remedy="If its disk is not mounted, mount it. Otherwise run `quorumd format --config FILE`, or "
        "correct storage.dir",
    )


def _lock(fs: FileSystem, storage_dir: Path) -> int:
    path = storage_dir / LOCK
    try:
        handle = fs.open(path, writable=True, create=True)
        try:
            _take_locks(fs, storage_dir, handle)
        except BaseException:
            fs.close(handle)
            raise
    except OSError as error:
        raise from_os_error(error, path, "locking the directory") from error
    _note_holder(fs, handle)
    return handle


def _take_locks(fs: FileSystem, storage_dir: Path, handle: int) -> None:
    if not fs.try_lock(handle):
        holder = fs.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise DirectoryLocked(
            f"the directory is in use by the process with pid {holder}",
            path=storage_dir,
            remedy="Stop that process first, or correct storage.dir",
        )
    if not fs.try_record_lock(handle):
        raise DirectoryLocked(
            "the directory is in use by a program that is not quorumd, such as a Kafka node",
            path=storage_dir,
            remedy="Correct storage.dir: no other program's directory may be shared (`lslocks` names"
            " the holder of .lock)",
        )


def _note_holder(fs: FileSystem, handle: int) -> None:
    """For the message of the next process only: the lock holds without it."""
    try:
        fs.truncate(handle, 0)
        write_all(fs, handle, [f"{fs.process_id()}\n".encode()], 0)
    except OSError:
        return


class Reserve:
    """1 MiB of disk, given back when it is needed."""

    def __init__(self, fs: FileSystem, storage_dir: Path) -> None:
        self._fs = fs
        self._path = storage_dir / RESERVE
        self._is_there = False

    def ensure(self) -> bool:
        """Sets the reserve up if there is space; says whether it is there. Raises StorageError."""
        if self._is_there:
            return True
        try:
            handle = self._fs.open(self._path, writable=True, create=True)
            try:
                if self._fs.size(handle) != RESERVE_BYTES:
                    self._fs.truncate(handle, 0)
                    write_all(self._fs, handle, [bytes(RESERVE_BYTES)], 0)
                    self._fs.fsync(handle)
            finally:
                self._fs.close(handle)
            self._fs.fsync_directory(self._path.parent)
        except OSError as error:
            failure = from_os_error(error, self._path, "setting up the reserve")
            if not isinstance(failure, DiskFull):
                raise failure from error
            self._release()
            return False
        self._is_there = True
        return True

    def release_if_full(self, action: Callable[[], None]) -> None:
        """Runs `action`; if the disk is full, frees the reserve and runs it again.

        Raises DiskFull only if that was not enough. The reserve comes back with the next call that
        finds space.
        """
        try:
            action()
        except DiskFull:
            self._release()
            action()
            return
        self.ensure()

    def _release(self) -> None:
        self._is_there = False
        try:
            if self._fs.exists(self._path):
                self._fs.unlink(self._path)
                self._fs.fsync_directory(self._path.parent)
        except OSError as error:
            raise from_os_error(error, self._path, "freeing the reserve") from error
