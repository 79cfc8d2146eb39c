"""The jobs of the disk thread, and the listener for their completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quorumd.raft.types import SnapshotId
from quorumd.storage.log import Chunk
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_store import SnapshotStore


@dataclass(slots=True)
class WriteRecords:
    """Append a chunk of batches to the log."""

    write: int
    chunk: Chunk


class Truncate(NamedTuple):
    """Drop everything from `end_offset` on."""

    write: int
    end_offset: int


class SaveState(NamedTuple):
    """Replace `quorum-state.json`."""

    write: int
    state: QuorumState


class DoneAhead(NamedTuple):
    """A quorum state that is on disk already, or a deletion: it did not wait for the records before it."""

    write: int


class StoreChunk(NamedTuple):
    """Bytes of an unfinished snapshot, from `position` on."""

    write: int
    snapshot: SnapshotId
    position: int
    data: bytes


class DropChunks(NamedTuple):
    """Delete the unfinished file of a snapshot that is not downloaded any more."""

    write: int
    snapshot: SnapshotId


class InstallSnapshot(NamedTuple):
    """Complete a snapshot that was copied, and begin the log anew behind it."""

    write: int
    snapshot: SnapshotId


class DeleteFiles(NamedTuple):
    """Delete segments that end at `start_offset` or before, and snapshots older than the last of
    these that are not among them."""

    write: int
    start_offset: int
    kept: tuple[SnapshotId, ...]


Job = (
    WriteRecords
    | Truncate
    | SaveState
    | DoneAhead
    | StoreChunk
    | DropChunks
    | InstallSnapshot
    | DeleteFiles
)


class DiskListener(Protocol):
    """Called on the event loop."""

    def on_writes_completed(self, write: int, sync_s: float | None) -> None:
        """Everything up to this write is on disk; `sync_s` is how long the log's sync took."""

    def on_state_saved(self, write: int) -> None:
        """The quorum state of this write is on disk, though records before it wait for space."""

    def on_disk_failed(self, error: BaseException) -> None:
        """The disk cannot be relied on any more: the process has to end."""

    def on_disk_full(self, is_full: bool) -> None:
        """Writes stop for lack of space, or go on again."""

    def on_chunk_not_stored(self, snapshot: SnapshotId, problem: str) -> None:
        """The disk has no space for a snapshot that is downloaded: its unfinished file is deleted."""


class LogFiles(Protocol):
    """The methods of `quorumd.storage.log.Log` that the disk thread calls."""

    def write_many(self, chunks: Sequence[Chunk]) -> None: ...
    def sync(self) -> object: ...
    def truncate(self, offset: int, /) -> object: ...
    def reset(self, end_offset: int, /) -> None: ...
    def delete_before(self, offset: int, /) -> object: ...
    def prepare(self) -> None: ...


class Files(NamedTuple):
    """The files of a partition, as the disk thread changes them."""

    log: LogFiles
    snapshots: SnapshotStore
    save_state: Callable[[QuorumState], None]
