"""`quorumctl backup --storage-dir`: a backup of the disk of a stopped node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click

from quorumd.cli.backup_files import BackupFiles, BackupRefused, disk_error
from quorumd.cli.options import run_tidily
from quorumd.cli.paths import read_progress
from quorumd.cli.text import counted, now_text
from quorumd.client.errors import QuorumError
from quorumd.client.spool import SnapshotSpool
from quorumd.storage.backup_manifest import BackupManifest
from quorumd.storage.verify.report import Finding
from quorumd.storage.verify.stopped import (
    BackupSource,
    backup_source,
    lock_stopped,
    stopped_subject,
)
from quorumd.wire.errors import CorruptBatch

_STEP_BATCHES = 64


def back_up_directory(storage_dir: Path, directory: Path) -> BackupManifest:
    """Verifies what the node has, and copies it. Says on stderr what its user has to know of it.

    Raises StorageError for the source, QuorumError for the backup.
    """
    files = BackupFiles(directory)
    if files.target.is_relative_to(storage_dir.resolve()):
        raise BackupRefused(
            f"{directory}: this is in the directory that is to be backed up. Name a place on another disk"
        )
    begun_at = now_text()
    subject = stopped_subject(storage_dir)
    with lock_stopped(storage_dir):
        with read_progress("verifying", subject.size_bytes) as advance:
            source = backup_source(subject, on_bytes=advance, on_finding=_warn)
        _say_what_is_unknown(source)
        with read_progress("copying", subject.size_bytes) as advance:
            return run_tidily(_back_up(source, files, begun_at, advance))


def _warn(finding: Finding) -> None:
    click.echo(f"Warning: {finding}. A backup does not need this", err=True)


def _say_what_is_unknown(source: BackupSource) -> None:
    unknown = source.end_offset - source.known_end
    if unknown > 0:
        click.echo(
            f"the last {counted(unknown, 'offset')} may never have been committed: the node knew of less "
            "when it last wrote that down. They are taken",
            err=True,
        )


async def _back_up(
    source: BackupSource, files: BackupFiles, begun_at: str, on_bytes: Callable[[int], object]
) -> BackupManifest:
    """Lets signals in between its steps, which end it tidily."""
    with files:
        if source.snapshot is not None:
            await _copy_snapshot(source, files.new_spool(source.snapshot), files.target, on_bytes)
        for number, batch in enumerate(source.batches()):
            files.append(memoryview(batch.data), batch.header.base_offset)
            on_bytes(len(batch.data))
            if number % _STEP_BATCHES == 0:
                await asyncio.sleep(0)
        return files.finish(
            cluster_id=source.cluster_id,
            start_offset=source.start_offset,
            end_offset=source.end_offset,
            epoch=source.epoch,
            begun_at=begun_at,
            ended_at=now_text(),
        )


async def _copy_snapshot(
    source: BackupSource, spool: SnapshotSpool, target: Path, on_bytes: Callable[[int], object]
) -> None:
    for chunk, size_bytes in source.snapshot_chunks():
        try:
            spool.write(chunk, size_bytes)
        except CorruptBatch as error:
            raise QuorumError(
                f"the snapshot {spool.id} changes while it is read: {error}"
            ) from None
        except OSError as error:
            raise disk_error(target, error) from error
        on_bytes(len(chunk))
        await asyncio.sleep(0)
    spool.close()
