"""Backups made by hand, of the logs that tests/server/snapshot_logs.py thinks up."""

from __future__ import annotations

import hashlib
from pathlib import Path

from quorumd.storage.backup_manifest import BackupFile, BackupManifest, render_manifest
from quorumd.storage.filesystem import FileSystem, replace_file
from quorumd.storage.layout import BACKUP_MANIFEST, log_path
from quorumd.wire.records import read_header
from tests.server.snapshot_logs import Batches, expected_snapshot


def put_backup(
    fs: FileSystem,
    folder: Path,
    batches: Batches,
    *,
    first: int = 0,
    snapshot_after: int | None = None,
    per_segment: int = 7,
    cluster_id: str = "former",
) -> BackupManifest:
    """A backup of the batches from `first` on, in the directory `folder`, which is there.

    With the snapshot of the first `snapshot_after` batches, if that is given.
    """
    files = []

    def put(path: Path, data: bytes) -> None:
        replace_file(fs, path, data)
        digest = hashlib.sha256(data).hexdigest()
        files.append(BackupFile(name=path.name, size_bytes=len(data), sha256=digest))

    epoch = -1
    if snapshot_after is not None:
        snapshot_id, data = expected_snapshot(batches, batches.ends[snapshot_after])
        put(folder / f"{snapshot_id[0]:020d}-{snapshot_id[1]:010d}.checkpoint", data)
        epoch = snapshot_id.epoch
    for at in range(first, len(batches.data), per_segment):
        put(log_path(folder, batches.ends[at]), b"".join(batches.data[at : at + per_segment]))
        epoch = read_header(batches.data[-1]).epoch
    manifest = BackupManifest(
        cluster_id=cluster_id,
        start_offset=batches.ends[first],
        end_offset=batches.ends[-1],
        epoch=epoch,
        begun_at="2026-11-20T20:39:51.749Z",
        ended_at="2026-11-20T20:39:52.000Z",
        files=tuple(files),
    )
    replace_file(fs, folder / BACKUP_MANIFEST, render_manifest(manifest))
    return manifest
