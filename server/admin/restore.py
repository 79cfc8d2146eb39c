"""`quorumd restore`: the directory of a node that begins a new quorum with what a backup holds.

Everything is verified before anything is written. The cluster id, if none is given, follows from the
backup and the first voters: nodes that restore the same backup for the same quorum agree, others never
mix.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from quorumd.config.model import Config
from quorumd.raft.types import uuid_to_text
from quorumd.server.admin.first_voters import FirstVoters
from quorumd.storage.backup_manifest import BackupManifest, load_manifest, render_manifest
from quorumd.storage.directory import restore_directory
from quorumd.storage.errors import EXIT_DAMAGED, StorageError
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.meta_properties import MetaProperties, random_storage_id
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.restored_log import restore_log
from quorumd.storage.verify.backup import verify_backup
from quorumd.storage.verify.report import Finding, Report

EPOCH_GAP = 1000
"""The new quorum's epochs begin so far above the backup's. A later backup of the former quorum, restored on
another node by mistake, then has no epoch in common with what the new quorum writes, and is told apart."""
_LISTED_MAX = 20
_PAUSE_S = 0.1

OnBytes = Callable[[int], object]


class DamagedBackup(StorageError):
    """The backup is not sound; nothing was written."""

    exit_code = EXIT_DAMAGED


def check_backup(fs: FileSystem, backup: Path, on_bytes: OnBytes) -> BackupManifest:
    """Reads all of a backup. Raises DamagedBackup, or another StorageError if there is none."""
    found: list[Finding] = []
    report = Report(
        on_finding=found.append,
        on_note=lambda note: None,
        on_bytes=on_bytes,
        pause=lambda: time.sleep(_PAUSE_S),
    )
    verify_backup(fs, backup, report)
    if found:
        lines = "".join(f"\n  {finding}" for finding in found[:_LISTED_MAX])
        more = f"\n  and {len(found) - _LISTED_MAX} more" if len(found) > _LISTED_MAX else ""
        raise DamagedBackup(
            f"the backup is damaged:{lines}{more}\nNothing was written",
            path=backup,
            remedy="Use another backup",
        )
    return load_manifest(fs, backup)


def restore(
    fs: FileSystem,
    backup: Path,
    config: Config,
    *,
    manifest: BackupManifest,
    first: FirstVoters,
    cluster_id: str,
    on_bytes: OnBytes,
) -> MetaProperties:
    """Makes storage.dir from a backup that was checked. Raises StorageError."""

    def fill(directory: Path) -> QuorumState:
        restore_log(
            fs,
            backup,
            manifest,
            directory,
            segment_bytes=config.log_segment_bytes,
            on_bytes=on_bytes,
        )
        return QuorumState(
            cluster_id=cluster_id,
            leader_epoch=manifest.epoch + EPOCH_GAP,
            applied_offset=manifest.end_offset,
        )

    return restore_directory(
        fs,
        config.storage_dir,
        node_id=config.node_id,
        cluster_id=cluster_id,
        fill=fill,
        storage_id=first.storage_id,
        initial_voters=first.text,
    )


def cluster_id_for(manifest: BackupManifest, config: Config, first: FirstVoters) -> str:
    """That of the quorum that these voters begin with this backup."""
    voters = first.text or ",".join(sorted(map(str, config.quorum_voters)))
    seed = render_manifest(manifest) + voters.encode()
    draws = (hashlib.sha256(seed + b"%d" % number).digest() for number in itertools.count())
    return uuid_to_text(random_storage_id(lambda end: int.from_bytes(next(draws)) % end))
