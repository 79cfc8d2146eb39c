"""The directories of replicas: replica id, segments, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from quorumd.raft.types import uuid_to_text
from quorumd.storage import layout
from quorumd.storage.backup_manifest import load_manifest
from quorumd.storage.errors import NotFormatted, StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.meta_properties import read_meta_properties

_REMEDY = (
    f"Name a storage.dir, a {layout.PARTITION_DIRECTORY} directory, a backup, or a directory with several"
    " of these"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """A segment: `base_offset` is in its name, `next_base` in that of the following one.

    `may_be_unfinished`: the last one of a node, which may write to it or have been killed while it did.
    """

    path: Path
    base_offset: int
    next_base: int | None
    may_be_unfinished: bool
    replica_id: int | None
    storage_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A complete snapshot of the log below `end_offset` (exclusive)."""

    path: Path
    end_offset: int
    epoch: int
    replica_id: int | None
    storage_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A log: a node's, or a backup's.

    `path` is as it was named, `log_directory` where the segments are. Id, storage id and cluster id are
    None where no meta.properties says them; a backup's backup.json says the cluster id. `problem` says what
    is wrong with that file, or is "". Segments and snapshots ascend by offset; there is at least one of
    either.
    """

    path: Path
    log_directory: Path
    segments: tuple[LogSegment, ...]
    snapshots: tuple[Snapshot, ...]
    replica_id: int | None = None
    storage_id: str | None = None
    cluster_id: str | None = None
    problem: str = ""

    @property
    def label(self) -> str:
        """For people: the replica's id if it is known, else its directory."""
        return str(self.path) if self.replica_id is None else f"replica {self.replica_id}"


@dataclass(frozen=True, slots=True)
class _Identity:
    replica_id: int | None = None
    storage_id: str | None = None
    cluster_id: str | None = None
    problem: str = ""


def find_replicas(paths: Sequence[str | Path], fs: FileSystem | None = None) -> list[Replica]:
    """The replicas at the paths, in their order; of a directory with several, by name.

    Raises StorageError for a path where none is, or that can't be read.
    """
    fs = fs or RealFileSystem()
    return [replica for path in paths for replica in _find(fs, Path(path))]


def _find(fs: FileSystem, path: Path) -> list[Replica]:
    names = _list(fs, path)
    replica = _replica_at(fs, path, names)
    if replica is not None:
        return [replica]
    found = []
    for name in names:
        if (inner := _list_if_directory(fs, path / name)) is not None:
            replica = _replica_at(fs, path / name, inner)
            found += [replica] if replica is not None else []
    if not found:
        what = "there is no log in this directory"
        if layout.META_PROPERTIES in names:
            what = "there is no log yet: this node has never been started"
        raise StorageError(what, path=path, remedy=_REMEDY)
    return found


def _list(fs: FileSystem, path: Path) -> list[str]:
    try:
        return fs.listdir(path)
    except FileNotFoundError:
        raise StorageError("there is no such directory", path=path, remedy=_REMEDY) from None
    except NotADirectoryError:
        raise StorageError("this is a file", path=path, remedy=_REMEDY) from None
    except OSError as error:
        raise from_os_error(error, path, "reading the directory") from error


def _list_if_directory(fs: FileSystem, path: Path) -> list[str] | None:
    try:
        return fs.listdir(path)
    except (NotADirectoryError, FileNotFoundError):
        return None
    except OSError as error:
        raise from_os_error(error, path, "reading the directory") from error


def _replica_at(fs: FileSystem, path: Path, names: list[str]) -> Replica | None:
    """The replica whose storage.dir, log, or backup a directory is."""
    if layout.PARTITION_DIRECTORY in names:
        log_directory = layout.partition_directory(path)
        identity = _identity(fs, path)
        return _replica(path, log_directory, _list(fs, log_directory), identity, is_node=True)
    if layout.BACKUP_MANIFEST in names:
        return _replica(path, path, names, _backups_identity(fs, path), is_node=False)
    real = path.resolve()
    is_below = real.name == layout.PARTITION_DIRECTORY
    identity = _identity(fs, real.parent) if is_below else _Identity()
    return _replica(path, path, names, identity, is_node=True)


def _identity(fs: FileSystem, storage_dir: Path) -> _Identity:
    try:
        meta = read_meta_properties(fs, storage_dir)
    except NotFormatted:
        return _Identity()
    except StorageError as error:
        return _Identity(problem=str(error))
    storage_id = uuid_to_text(meta.storage_id) if meta.storage_id.int else None
    return _Identity(meta.node_id, storage_id, meta.cluster_id)


def _backups_identity(fs: FileSystem, backup: Path) -> _Identity:
    try:
        return _Identity(cluster_id=load_manifest(fs, backup).cluster_id or None)
    except StorageError as error:
        return _Identity(problem=str(error))


def _replica(
    path: Path, directory: Path, names: list[str], identity: _Identity, *, is_node: bool
) -> Replica | None:
    bases, snapshots = layout.segment_bases(names), layout.snapshot_ids(names)
    if not bases and not snapshots:
        return None
    return Replica(
        path=path,
        log_directory=directory,
        segments=tuple(
            LogSegment(
                path=layout.log_path(directory, base),
                base_offset=base,
                next_base=next_base,
                may_be_unfinished=is_node and next_base is None,
                replica_id=identity.replica_id,
                storage_id=identity.storage_id,
            )
            for base, next_base in zip_longest(bases, bases[1:])
        ),
        snapshots=tuple(
            Snapshot(
                path=layout.snapshot_path(directory, snapshot_id),
                end_offset=snapshot_id[0],
                epoch=snapshot_id[1],
                replica_id=identity.replica_id,
                storage_id=identity.storage_id,
            )
            for snapshot_id in snapshots
        ),
        replica_id=identity.replica_id,
        storage_id=identity.storage_id,
        cluster_id=identity.cluster_id,
        problem=identity.problem,
    )
