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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from quorumd.config.model import Config
from quorumd.raft.types import uuid_to_text
from quorumd.server.admin.first_voters import FirstVoters, FormatRefused, first_voters
from quorumd.storage.backup_manifest import BackupManifest, load_manifest, render_manifest
from quorumd.storage.directory import check_restorable, restore_directory
from quorumd.storage.errors import EXIT_DAMAGED, StorageError
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.meta_properties import MetaProperties, random_storage_id
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.restored_log import restore_log
from quorumd.storage.verify.backup import verify_backup
from quorumd.storage.verify.report import Finding, VerifyReport, listed

EPOCH_GAP = 1000
"""The new quorum's epochs begin so far above the backup's. A later backup of the former quorum, restored on
another node by mistake, then has no epoch in common with the new quorum's log, and is detected."""
_PAUSE_S = 0.1

OnBytes = Callable[[int], object]
"""Takes how many more bytes are done."""
Progress = Callable[[str, int], AbstractContextManager[OnBytes]]
"""Shows a step of the work with this name and so many bytes."""


class DamagedBackup(StorageError):
    """The backup is not sound; nothing was written."""

    exit_code = EXIT_DAMAGED


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredNode:
    """The result of a restore: what the directory holds now, and for which quorum."""

    manifest: BackupManifest
    meta: MetaProperties
    cluster_id: str


def restore_node(
    fs: FileSystem,
    backup: Path,
    config: Config,
    *,
    cluster_id: str | None,
    keep_cluster_id: bool,
    standalone: bool,
    initial_voters: str | None,
    progress: Progress,
) -> RestoredNode:
    """Makes the directory of one of a new quorum's first voters, with what a backup holds.

    At most one of `cluster_id` and `keep_cluster_id`, and one of `standalone` and `initial_voters`, is
    given; without either of the latter quorum.voters names the voters. All of the backup is verified
    before anything is written. Raises FormatRefused and StorageError.
    """
    is_named = standalone or initial_voters is not None
    voters = {voter.id for voter in config.quorum_voters}
    if is_named and voters:
        raise FormatRefused(
            "quorum.voters names the voters already: leave --standalone and --initial-voters out, or "
            "remove that key and set quorum.bootstrap.servers instead."
        )
    if not is_named and voters and config.node_id not in voters:
        raise FormatRefused(
            f"node.id {config.node_id} is not in quorum.voters. Restore on the voters "
            "of the new quorum; others join it with `quorumd format` and copy its log."
        )
    first = first_voters(config, not is_named, standalone, initial_voters)
    check_restorable(fs, config.storage_dir)
    size_bytes = load_manifest(fs, backup).size_bytes
    with progress("verifying", 2 * size_bytes) as advance:
        manifest = _check_backup(fs, backup, advance)
    if keep_cluster_id:
        if not manifest.cluster_id:
            raise FormatRefused("--keep-cluster-id: the backup does not say which one that was.")
        cluster_id = manifest.cluster_id
    cluster_id = cluster_id or _cluster_id_for(manifest, config, first)
    with progress("restoring", size_bytes) as advance:
        meta = _write_directory(fs, backup, config, manifest, first, cluster_id, advance)
    return RestoredNode(manifest=manifest, meta=meta, cluster_id=cluster_id)


def _check_backup(fs: FileSystem, backup: Path, on_bytes: OnBytes) -> BackupManifest:
    """Reads all of a backup. Raises DamagedBackup, or another StorageError if there is none."""
    found: list[Finding] = []
    report = VerifyReport(
        on_finding=found.append,
        on_note=lambda note: None,
        on_bytes=on_bytes,
        pause=lambda: time.sleep(_PAUSE_S),
    )
    verify_backup(fs, backup, report)
    if found:
        raise DamagedBackup(
            f"the backup is damaged:{listed(found)}\nNothing was written",
            path=backup,
            remedy="Use another backup",
        )
    return load_manifest(fs, backup)


def _write_directory(
    fs: FileSystem,
    backup: Path,
    config: Config,
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


def _cluster_id_for(manifest: BackupManifest, config: Config, first: FirstVoters) -> str:
    """Cluster id of the quorum that these voters begin with this backup."""
    voters = first.text or ",".join(sorted(map(str, config.quorum_voters)))
    seed = render_manifest(manifest) + voters.encode()
    draws = (hashlib.sha256(seed + b"%d" % number).digest() for number in itertools.count())
    return uuid_to_text(random_storage_id(lambda end: int.from_bytes(next(draws)) % end))
