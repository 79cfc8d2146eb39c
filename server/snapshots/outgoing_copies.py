"""Copies of snapshots that replicas make from here: their progress, and the soundness of the files.

Chunks are served as they lie on the disk, and no request says that a copy arrived damaged. But a replica that
got a damaged one begins again: then the file is read and checked here, step by step between other reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from quorumd.raft.node import RaftNode
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.server.model.logs import Logger
from quorumd.server.model.partition_view import CopyProgress
from quorumd.server.model.runtime import Reader, Runtime
from quorumd.storage.errors import StorageError
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotNotFound, SnapshotStore

LOG = Logger("snapshots")

CHECK_AGAIN_S = 600.0
"""A snapshot that was found sound is not read again for so long: clients may copy it often."""


class _Copy(NamedTuple):
    snapshot: SnapshotId
    position: int
    at_ms: int


class OutgoingCopies:
    """See the module's docstring. All methods are for the event loop's thread.

    A replica that has not asked for the next chunk for `silent_s` does not copy any more. `on_damage` takes
    what is wrong with a snapshot.
    """

    def __init__(
        self,
        node: RaftNode,
        store: SnapshotStore,
        reader: Reader,
        runtime: Runtime,
        silent_s: float,
        on_damage: Callable[[SnapshotId, str], None],
    ) -> None:
        self._node = node
        self._store = store
        self._reader = reader
        self._runtime = runtime
        self._silent_s = silent_s
        self._on_damage = on_damage
        self._served: dict[SnapshotId, float] = {}
        self._copies: dict[ReplicaKey, _Copy] = {}
        self._check_from: dict[SnapshotId, float] = {}
        """Of those that were copied before: from when on the next copy is a reason to check them."""
        self._is_checking = False
        self._is_closed = False

    def close(self) -> None:
        """Check nothing any more."""
        self._is_closed = True

    def note(self, snapshot: SnapshotId, replica: ReplicaKey | None, position: int) -> None:
        """A replica, or a client if it is None, has all before `position` and asks for the next chunk."""
        now_s = self._runtime.monotonic_s()
        self._served[snapshot] = now_s
        if replica is not None:
            self._copies[replica] = _Copy(snapshot, position, self._runtime.monotonic_ms())
        if position == 0:
            if snapshot not in self._check_from:
                self._check_from[snapshot] = now_s
            elif now_s >= self._check_from[snapshot]:
                self.check(snapshot, partial(self._checked, snapshot))

    def copied_offset(self) -> int | None:
        """End offset of the oldest snapshot that is being copied at present."""
        silent_since_s = self._runtime.monotonic_s() - self._silent_s
        self._served = {key: at for key, at in self._served.items() if at >= silent_since_s}
        return min((snapshot.end_offset for snapshot in self._served), default=None)

    def keep(self, snapshots: Collection[SnapshotId]) -> None:
        """Only these are left."""
        self._check_from = {key: at for key, at in self._check_from.items() if key in snapshots}

    def progress(self, known: Mapping[SnapshotId, SnapshotFacts]) -> dict[ReplicaKey, CopyProgress]:
        """The replicas that copy one of these, and have fetched no records since."""
        oldest_ms = self._runtime.monotonic_ms() - int(self._silent_s * 1000)
        self._copies = {key: copy for key, copy in self._copies.items() if copy.at_ms >= oldest_ms}
        fetched_ms = {row.key: row.last_fetch_ms or 0 for row in self._node.progress()}
        return {
            key: CopyProgress(copy.snapshot, copy.position, known[copy.snapshot].size_bytes)
            for key, copy in self._copies.items()
            if copy.snapshot in known and fetched_ms.get(key, 0) <= copy.at_ms
        }

    def _checked(self, snapshot: SnapshotId, problem: str) -> None:
        if problem:
            self._on_damage(snapshot, problem)
            return
        self._check_from[snapshot] = self._runtime.monotonic_s() + CHECK_AGAIN_S
        LOG.info(
            "a snapshot that is copied again and again was read and is sound",
            end_offset=snapshot.end_offset,
        )

    def check(self, snapshot: SnapshotId, done: Callable[[str], None]) -> None:
        """Read all of it, a batch at a time, unless another one is being read. `done` gets what is wrong
        with it, "" if nothing is."""
        if self._is_checking:
            return
        self._is_checking = True
        steps = self._store.verifying(snapshot)

        def is_at_end() -> bool:
            return next(steps, None) is None

        def on_step(outcome: bool | BaseException) -> None:
            if self._is_closed:
                return
            if outcome is False:
                self._reader.run(is_at_end, on_step)
                return
            self._is_checking = False
            if isinstance(outcome, (StorageError, SnapshotNotFound)):
                done(str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                done("")

        self._reader.run(is_at_end, on_step)
