"""Planted bugs of snapshots."""

from __future__ import annotations

from dataclasses import replace

from quorumd.raft import snapshot_download
from quorumd.raft.core import Core
from quorumd.raft.events import SnapshotVerified
from quorumd.raft.types import SnapshotId
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.snapshots.manager import SnapshotManager
from quorumd.storage.errors import DamagedSnapshot
from quorumd.storage.snapshot_file import SnapshotFacts, SnapshotWriter
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.control_records import SnapshotFooter
from simulation.planted.table import POWER, SPLITS, Plant, planted

FAR_BEHIND = frozenset({"lost disk", "minority partition", "isolate one"})


@planted(
    "snapshot holds what is not committed",
    "A snapshot ends where the log does, not at the high watermark (KIP-630).",
    caught_by=[
        "snapshots stand for the committed log",
        "epoch and high watermark never go back",
        "no rule is broken",
    ],
    seeds=60,
    faults=SPLITS | {"deposed leader"},
)
def _snapshot_of_uncommitted(plant: Plant) -> None:
    def wrong(snapshots: SnapshotManager) -> int:
        return snapshots._node.core.log.synced_end_offset

    plant(SnapshotManager, "_end_offset", wrong)


@planted(
    "copied snapshot is not verified",
    "What a follower has copied takes the place of its log unread (KIP-595: validated before use).",
    caught_by=["snapshots stand for the committed log"],
    seeds=30,
    faults=frozenset({"lost disk", "damaged piece"}),
)
def _copy_is_not_verified(plant: Plant) -> None:
    right = SnapshotStore.verify_part

    def wrong(store: SnapshotStore, snapshot_id: SnapshotId) -> SnapshotFacts:
        try:
            return right(store, snapshot_id)
        except DamagedSnapshot:
            return SnapshotFacts(
                id=snapshot_id,
                size_bytes=0,
                last_contained_log_timestamp=0,
                kraft_version=1,
                voters=None,
                producers=(),
            )

    plant(SnapshotStore, "verify_part", wrong)


@planted(
    "snapshot forgets producers",
    "The producer state is not in a snapshot, so that a replica that begins with one appends again what"
    " others know for a duplicate.",
    caught_by=[
        "the producer state follows from the log",
        "acknowledged appends are present exactly once",
        "an idempotent producer is not refused",
    ],
    seeds=40,
    faults=FAR_BEHIND,
)
def _snapshot_forgets_producers(plant: Plant) -> None:
    plant(ProducerState, "to_snapshot", lambda producers: ())


@planted(
    "snapshot is named before it is synced",
    "A snapshot gets its name before its bytes are synced (fsync(2)).",
    caught_by=["a sound disk is not refused", "snapshots stand for the committed log"],
    seeds=20,
    faults=POWER | {"snapshot asked for"},
)
def _snapshot_is_not_synced(plant: Plant) -> None:
    def wrong(writer: SnapshotWriter) -> int:
        writer._write_control([SnapshotFooter()])
        writer.close()
        return writer.size_bytes

    plant(SnapshotStore, "_sync", staticmethod(lambda path, sync, what: None))
    plant(SnapshotWriter, "finish", wrong)


@planted(
    "damaged copies are begun anew at once",
    "A snapshot that was copied in vain is copied again without a pause (docs/protocol, snapshots).",
    caught_by=["no snapshot is copied again and again"],
    seeds=36,
    faults=frozenset({"isolate one", "snapshot asked for", "lost disk", "damaged piece"}),
)
def _copied_at_once(plant: Plant) -> None:
    right = snapshot_download.on_snapshot_verified

    def wrong(core: Core, event: SnapshotVerified) -> None:
        right(core, replace(event, problem="it is said to be damaged"))

    plant(snapshot_download, "on_snapshot_verified", wrong)
    plant(snapshot_download, "_is_too_soon", lambda core, snapshot: False)
