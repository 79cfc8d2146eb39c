"""The snapshots of one partition directory: which there are, reading them, and taking new ones in.

A snapshot that is copied or built is a part first, `<name>.part`; `complete_part` gives it its name, and
from then on it never changes. What belongs in a part, and when a snapshot may go, is decided by the
caller. For any thread, a part for one at a time; no file stays open between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar

from quorumd.raft.types import SnapshotId
from quorumd.storage import layout
from quorumd.storage.batch_walk import BatchCursor, reason_of
from quorumd.storage.errors import DamagedSnapshot, from_os_error
from quorumd.storage.filesystem import FileSystem, write_all
from quorumd.storage.segment import fsync_failed
from quorumd.storage.snapshot_file import (
    SYNC_STEP_BYTES,
    SnapshotFacts,
    read_facts,
    verify_snapshot,
    verifying,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.snapshot_records import SNAPSHOT_BATCH_BYTES_MAX

T = TypeVar("T")


class SnapshotNotFound(Exception):
    """There is no such snapshot, or no longer."""

    def __init__(self, snapshot_id: SnapshotId) -> None:
        super().__init__(f"no snapshot with end offset {snapshot_id[0]}, epoch {snapshot_id[1]}")


class PositionOutOfRange(Exception):
    """A position (bytes) that a snapshot does not have, or that its part doesn't go on at."""

    def __init__(self, position: int, size_bytes: int) -> None:
        super().__init__(f"position {position} in a snapshot of {size_bytes} bytes")
        self.position = position
        self.size_bytes = size_bytes


class SnapshotStore:
    """See the module. All methods raise StorageError if the disk fails or is full."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        self._ids: list[SnapshotId] = []
        self.damaged: list[DamagedSnapshot] = []
        """Faults of the snapshots that `open` left out. Their files stay."""

    def open(self) -> list[SnapshotFacts]:
        """Finds the complete snapshots whose beginning and end are sound, ascending."""
        try:
            names = self._fs.listdir(self._directory)
        except OSError as error:
            raise from_os_error(error, self._directory, "reading the directory") from error
        found = []
        for snapshot_id in layout.snapshot_ids(names):
            try:
                found.append(read_facts(self._fs, self.path(snapshot_id), snapshot_id))
            except DamagedSnapshot as error:
                self.damaged.append(error)
        with self._lock:
            self._ids = [facts.id for facts in found]
        return found

    def quarantine(self, snapshot_id: SnapshotId, damage: DamagedSnapshot) -> None:
        """Counts a snapshot that `open` found sound among the damaged ones; its file stays."""
        with self._lock:
            self._ids.remove(snapshot_id)
        self.damaged.append(damage)

    @property
    def ids(self) -> list[SnapshotId]:
        """The snapshots that `open` found and those that were completed since, ascending."""
        with self._lock:
            return list(self._ids)

    def path(self, snapshot_id: SnapshotId) -> Path:
        """Of a complete snapshot."""
        return layout.snapshot_path(self._directory, snapshot_id)

    # --- complete snapshots

    def facts(self, snapshot_id: SnapshotId) -> SnapshotFacts:
        """The facts of a snapshot, without its records. Raises SnapshotNotFound, DamagedSnapshot."""
        self._check_known(snapshot_id)
        return read_facts(self._fs, self.path(snapshot_id), snapshot_id)

    def verify(self, snapshot_id: SnapshotId) -> SnapshotFacts:
        """Reads and checks all of it. Raises as `facts`."""
        self._check_known(snapshot_id)
        return verify_snapshot(self._fs, self.path(snapshot_id), snapshot_id)

    def verifying(self, snapshot_id: SnapshotId) -> Iterator[int]:
        """The same in steps of a batch each; every one gives how many bytes were found good."""
        self._check_known(snapshot_id)
        yield from verifying(self._fs, self.path(snapshot_id), snapshot_id)

    def size_bytes(self, snapshot_id: SnapshotId) -> int:
        """Raises SnapshotNotFound."""
        return self._on_snapshot(snapshot_id, self._fs.size)

    def read(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Up to `max_bytes` from byte `position`; fewer only at the end.

        Raises SnapshotNotFound, and PositionOutOfRange unless there is a byte at `position`, as Kafka's
        leader does.
        """

        def read(handle: int) -> bytes:
            size = self._fs.size(handle)
            if not 0 <= position < size:
                raise PositionOutOfRange(position, size)
            return self._fs.pread(handle, min(max_bytes, size - position), position)

        return self._on_snapshot(snapshot_id, read)

    def _check_known(self, snapshot_id: SnapshotId) -> None:
        if snapshot_id not in self.ids:
            raise SnapshotNotFound(snapshot_id)

    def _on_snapshot(self, snapshot_id: SnapshotId, action: Callable[[int], T]) -> T:
        self._check_known(snapshot_id)
        try:
            return self._on_file(self.path(snapshot_id), "reading", action)
        except FileNotFoundError:
            raise SnapshotNotFound(snapshot_id) from None

    def delete(self, snapshot_id: SnapshotId) -> None:
        """Deletes a snapshot durably. Raises SnapshotNotFound."""
        with self._lock:
            if snapshot_id not in self._ids:
                raise SnapshotNotFound(snapshot_id)
            self._ids.remove(snapshot_id)
        self._unlink([self.path(snapshot_id)])

    # --- parts

    def write_part(self, snapshot_id: SnapshotId, position: int, data: bytes | memoryview) -> None:
        """Appends to a part; at position 0 it begins anew. After DiskFull it is as before.

        Raises PositionOutOfRange unless the part ends at byte `position`.
        """
        fs = self._fs

        def write(handle: int) -> None:
            size = fs.size(handle)
            if position == 0:
                fs.truncate(handle, 0)
            elif position != size:
                raise PositionOutOfRange(position, size)
            try:
                write_all(fs, handle, [data], position)
            except OSError:
                fs.truncate(handle, position)
                raise
            if position // SYNC_STEP_BYTES != (position + len(data)) // SYNC_STEP_BYTES:
                self._sync(path, fs.fdatasync, handle)

        path = self._part(snapshot_id)
        self._on_file(path, "writing", write, is_writable=True)

    def part_facts(self, snapshot_id: SnapshotId) -> SnapshotFacts:
        """The facts of a part that is whole, without its records. Raises DamagedSnapshot."""
        return read_facts(self._fs, self._part(snapshot_id), snapshot_id)

    def verify_part(self, snapshot_id: SnapshotId) -> SnapshotFacts:
        """Reads and checks all of a part. Raises DamagedSnapshot, SnapshotNotFound."""
        part = self._part(snapshot_id)
        try:
            if not self._fs.exists(part):
                raise SnapshotNotFound(snapshot_id)
        except OSError as error:
            raise from_os_error(error, part, "reading the snapshot") from error
        return verify_snapshot(self._fs, part, snapshot_id)

    def part_batches(self, snapshot_id: SnapshotId) -> Iterator[bytes]:
        """Each batch of a part that was verified.

        Raises SnapshotNotFound, DamagedSnapshot: it may have been dropped since, or begun anew.
        """
        fs, part, position = self._fs, self._part(snapshot_id), 0
        try:
            handle = fs.open(part)
            try:
                size = fs.size(handle)
                cursor = BatchCursor(fs, handle, size, batch_bytes_max=SNAPSHOT_BATCH_BYTES_MAX)
                while position < size:
                    header, data, _ = cursor.read(position)
                    yield data
                    position += header.size_bytes
            finally:
                fs.close(handle)
        except FileNotFoundError:
            raise SnapshotNotFound(snapshot_id) from None
        except CorruptBatch as error:
            what = f"not a whole snapshot: {reason_of(error)}"
            raise DamagedSnapshot(what, path=part, position=position) from error
        except OSError as error:
            raise from_os_error(error, part, "reading the snapshot") from error

    def complete_part(self, snapshot_id: SnapshotId) -> None:
        """Makes a part, written here or by a builder, the snapshot that it is: durably, all or nothing.

        It has to be whole, which is not checked here. A second call does no harm. Raises SnapshotNotFound.
        """
        part, path = self._part(snapshot_id), self.path(snapshot_id)
        try:
            if self._fs.exists(part):
                self._on_file(
                    part,
                    "syncing",
                    lambda handle: self._sync(part, self._fs.fsync, handle),
                    is_writable=True,
                )
                self._fs.rename(part, path)
            elif not self._fs.exists(path):
                raise SnapshotNotFound(snapshot_id)
        except OSError as error:
            raise from_os_error(error, part, "completing the snapshot") from error
        self._sync(path, self._fs.fsync_directory, self._directory)
        with self._lock:
            self._ids = sorted({*self._ids, snapshot_id})

    def drop_part(self, snapshot_id: SnapshotId) -> None:
        """Deletes a part if there is one."""
        self._unlink([self._part(snapshot_id)])

    def drop_build(self, end_offset: int) -> None:
        """Deletes what a builder that died has left of a snapshot that ends there."""
        try:
            names = self._fs.listdir(self._directory)
        except OSError as error:
            raise from_os_error(error, self._directory, "reading the directory") from error
        left = [name for name in names if layout.is_part_of(name, end_offset)]
        self._unlink([self._directory / name for name in left])

    def _part(self, snapshot_id: SnapshotId) -> Path:
        return layout.part_path(self._directory, snapshot_id)

    # --- files

    def _on_file(
        self, path: Path, doing: str, action: Callable[[int], T], *, is_writable: bool = False
    ) -> T:
        """Does something with an open file, which is created if it is to be written to.

        `doing` is for the message of an error. Raises FileNotFoundError.
        """
        try:
            handle = self._fs.open(path, writable=is_writable, create=is_writable)
            try:
                return action(handle)
            finally:
                self._fs.close(handle)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise from_os_error(error, path, doing) from error

    @staticmethod
    def _sync(path: Path, sync: Callable[[T], None], what: T) -> None:
        try:
            sync(what)
        except OSError as error:
            # Never DiskFull: a second sync would not miss what the first one has lost.
            raise fsync_failed(error, path) from error

    def _unlink(self, paths: Sequence[Path]) -> None:
        try:
            present = [path for path in paths if self._fs.exists(path)]
            for path in present:
                self._fs.unlink(path)
            if present:
                self._fs.fsync_directory(self._directory)
        except OSError as error:
            raise from_os_error(error, self._directory, "deleting a snapshot") from error
