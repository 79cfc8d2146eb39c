"""This replica's own snapshots: they can be offered to others, and what they stand for can be deleted.

Source: KIP-630.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.effects import DeleteLogPrefix
from quorumd.raft.events import LogDeletionRequested, SnapshotTaken


def on_snapshot_taken(core: Core, event: SnapshotTaken) -> None:
    """From now on the snapshot can be offered, and the records below its end can be deleted.

    A log that was reset meanwhile may be behind a newer one already.
    """
    newest = core.log.snapshot
    if newest is None or newest.end_offset < event.snapshot.end_offset:
        core.log.snapshots.append(event.snapshot)
        if core.recorded_offset < event.snapshot.end_offset:
            # So that a start need not doubt whether the log reaches that far.
            core.persist()


def on_log_deletion_requested(core: Core, event: LogDeletionRequested) -> None:
    """Drop history that a snapshot stands for; a slow follower gets the snapshot then."""
    kept = tuple(s for s in core.log.snapshots if s in event.snapshots)
    newest = core.log.snapshot
    if newest is None or newest not in kept:
        return
    start_offset = max(core.log.start_offset, min(event.start_offset, newest.end_offset))
    core.log.delete_prefix(start_offset, kept)
    core.effects.append(
        DeleteLogPrefix(write=core.writes.next(), start_offset=start_offset, snapshots=kept)
    )
