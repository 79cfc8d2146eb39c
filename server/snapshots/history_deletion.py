"""Deletes the segments and snapshots that a replica need not keep, a share at a time.

`retention` says what; the rules let it go. Nothing is deleted while a build reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumd.raft.events import Event, LogDeletionRequested
from quorumd.raft.node import RaftNode
from quorumd.server.model.logs import Logger
from quorumd.server.model.runtime import Runtime, TimerHandle
from quorumd.server.snapshots.known_snapshots import KnownSnapshots
from quorumd.server.snapshots.outgoing_copies import OutgoingCopies
from quorumd.server.snapshots.retention import Deletable, next_start, plan_deletion
from quorumd.server.snapshots.settings import SnapshotSettings
from quorumd.storage.log import Log

LOG = Logger("snapshots")

SHARE_PAUSE_S = 0.1
"""Between one share of what is to be deleted and the next."""


class HistoryDeletion:
    """See the module's docstring. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: SnapshotSettings,
        node: RaftNode,
        log: Log,
        runtime: Runtime,
        known: KnownSnapshots,
        copies: OutgoingCopies,
        handle: Callable[[Event], None],
        is_building: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._node = node
        self._log = log
        self._runtime = runtime
        self._known = known
        self._copies = copies
        self._handle = handle
        self._is_building = is_building
        self._goal = 0
        """Start offset of the log when everything that is due is deleted."""
        self._next_share: TimerHandle | None = None

    def close(self) -> None:
        """Delete nothing more."""
        if self._next_share is not None:
            self._next_share.cancel()

    def delete_due(self) -> None:
        """Ask the rules to let go what retention says, unless a build reads it now."""
        if self._is_building() or self._node.newest_snapshot is None:
            return
        node = self._node
        known = [self._known.facts[snapshot] for snapshot in node.snapshots]
        snapshots = [
            Deletable(facts.id.end_offset, facts.size_bytes, facts.last_contained_log_timestamp)
            for facts in known
        ]
        segments = [
            Deletable(segment.end_offset, segment.size_bytes, segment.max_timestamp)
            for segment in self._log.closed_segments()
        ]
        plan = plan_deletion(
            snapshots,
            segments,
            self._log.size_bytes + sum(snapshot.size_bytes for snapshot in snapshots),
            start_offset=node.log_start_offset,
            now_ms=self._runtime.wall_ms(),
            retention_bytes=self._settings.retention_bytes,
            retention_ms=self._settings.retention_ms,
            copied_offset=self._copies.copied_offset(),
        )
        kept = tuple(node.snapshots[plan.snapshots_dropped :])
        start_offset = next_start(segments, node.log_start_offset, plan.start_offset)
        if plan.start_offset > max(self._goal, node.log_start_offset) or plan.snapshots_dropped:
            LOG.info("deleting history", log_start=plan.start_offset, snapshots=len(kept))
        self._goal = plan.start_offset
        if start_offset > node.log_start_offset or plan.snapshots_dropped:
            self._handle(LogDeletionRequested(start_offset=start_offset, snapshots=kept))
            self._known.keep(known[plan.snapshots_dropped :])
            self._copies.keep(self._known.facts.keys())
        if start_offset < plan.start_offset and self._next_share is None:
            at_s = self._runtime.monotonic_s() + SHARE_PAUSE_S
            self._next_share = self._runtime.call_at(at_s, self._delete_next_share)

    def _delete_next_share(self) -> None:
        self._next_share = None
        self.delete_due()
