"""`quorumctl backup`: everything that is committed, from a live quorum into a directory.

That of a stopped node's directory: quorumd/cli/directory_backup.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from quorumd.cli.key_value_state import ReadMeter
from quorumd.cli.options import (
    Target,
    optional_quorum_options,
    output_option,
    run_tidily,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import bytes_text, counted, now_text, to_json

if TYPE_CHECKING:
    from quorumd.cli.backup_files import BackupFiles
    from quorumd.client.client import QuorumClient
    from quorumd.client.reading import RawFetched
    from quorumd.raft.types import SnapshotId
    from quorumd.storage.backup_manifest import BackupManifest

_ATTEMPTS_MAX = 5
_FETCH_BYTES = 1 << 20

_HELP = """Copy everything that is committed from a running quorum into a new DIRECTORY.

That is the log from its start to where it was committed when the backup began, batch for batch as the
leader has it, and the newest snapshot if there is one. The quorum goes on meanwhile; a change of leader
only costs time. All of it is durable when the command ends. A backup that ends early leaves nothing behind.

A backup is for `quorumd restore`, which begins a NEW quorum with it; `quorumctl verify` proves it sound.

With --storage-dir it is made of what one stopped node has on its disk, where the other disks are lost.
All of that log is taken, up to its last whole batch, once what is taken was proved sound. Of several
directories use the one whose log ends in the highest epoch, and of these the one that ends last:
`quorumctl verify` shows both.

\b
Examples:
  quorumctl backup -b localhost:9093 /backup/2026-11-20
  quorumctl backup --storage-dir /var/lib/quorumd /backup/what-is-left
  quorumctl backup --output json /backup/2026-11-20 && quorumctl verify /backup/2026-11-20

\b
Exit codes: 0 done, 1 failed, 2 refused or wrong usage, 3 the log in the --storage-dir is damaged.
"""


@click.command(help=_HELP, short_help="Copy what is committed into a new directory.")
@optional_quorum_options
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--storage-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="storage.dir of a stopped node, instead of a running quorum.",
)
@output_option("text", "json")
@timeout_option
@click.pass_context
def backup(
    context: click.Context,
    target: Target | None,
    directory: Path,
    storage_dir: Path | None,
    output: str,
    timeout_s: float,
) -> None:
    """Copies, and says what was copied."""
    if storage_dir is not None:
        if context.get_parameter_source("servers") is ParameterSource.COMMANDLINE:
            raise click.UsageError("give either --bootstrap-server or --storage-dir.")
        from quorumd.cli.directory_backup import back_up_directory

        manifest = back_up_directory(storage_dir, directory)
    elif target is not None:
        manifest = run_tidily(_back_up(target, directory, to_ms(timeout_s)))
    else:
        raise click.UsageError(
            "Missing option '--bootstrap-server' / '-b'; or --storage-dir, for the disk of a stopped node."
        )
    if output == "json":
        click.echo(
            to_json(
                {
                    "directory": str(directory),
                    "cluster_id": manifest.cluster_id,
                    "start_offset": manifest.start_offset,
                    "end_offset": manifest.end_offset,
                    "epoch": manifest.epoch,
                    "size_bytes": manifest.size_bytes,
                    "files": [file.name for file in manifest.files],
                }
            )
        )
        return
    snapshot = "" if manifest.snapshot is None else " and a snapshot"
    click.echo(
        f"backed up offsets {manifest.start_offset} to {manifest.end_offset} (exclusive) of cluster "
        f"{manifest.cluster_id or '(no id)'} to {directory}: "
        f"{counted(len(manifest.segments), 'segment')}{snapshot}, {bytes_text(manifest.size_bytes)}"
    )


async def _back_up(target: Target, directory: Path, timeout_ms: int) -> BackupManifest:
    from quorumd.cli.backup_files import BackupFiles, disk_error

    try:
        with BackupFiles(directory) as files, ReadMeter() as meter:
            async with target.client(timeout_ms) as client:
                return await _Backup(client, files, meter).run()
    except OSError as error:
        raise disk_error(directory, error) from error


class _Overtaken(Exception):
    """The log begins above what is wanted now: retention has deleted it."""


class _Backup:
    """One run: the snapshot, then the log from its start on, again if that has moved meanwhile."""

    def __init__(self, client: QuorumClient, files: BackupFiles, meter: ReadMeter) -> None:
        self._client = client
        self._files = files
        self._meter = meter
        self._offset = 0
        self._epoch = -1

    async def run(self) -> BackupManifest:
        """Raises what the client raises, and QuorumError."""
        from quorumd.client.client import LATEST
        from quorumd.client.errors import QuorumError

        begun_at = now_text()
        cluster_id = (await self._client.describe_quorum()).cluster_id
        committed = (await self._client.list_offsets(LATEST)).offset
        if committed <= 0:
            raise QuorumError("there is nothing to back up: nothing is committed yet")
        start_offset = await self._copy(committed)
        if (await self._client.describe_quorum()).cluster_id != cluster_id:
            raise QuorumError(
                f"the addresses lead to two quorums, {cluster_id} and another one: name nodes of one"
            )
        return self._files.finish(
            cluster_id=cluster_id,
            start_offset=start_offset,
            end_offset=self._offset,
            epoch=self._epoch,
            begun_at=begun_at,
            ended_at=now_text(),
        )

    async def _copy(self, committed: int) -> int:
        """Copies everything below `committed`; returns where the log begins."""
        from quorumd.client.client import EARLIEST
        from quorumd.client.errors import QuorumError

        for _ in range(_ATTEMPTS_MAX):
            snapshot = await self._copy_snapshot()
            start_offset = (await self._client.list_offsets(EARLIEST)).offset
            covered, self._epoch = snapshot or (0, -1)
            if start_offset > covered:
                continue
            try:
                await self._copy_log(start_offset, max(committed, covered))
            except _Overtaken:
                continue
            return start_offset
        raise QuorumError(
            f"retention has deleted the start of the log {_ATTEMPTS_MAX} times while it was copied. Try "
            "when less is written, or set retention.bytes and retention.ms higher"
        )

    async def _copy_snapshot(self) -> SnapshotId | None:
        self._files.drop_snapshot()
        spool = await self._client.download_snapshot(self._files.new_spool, self._meter.download)
        if spool is None:
            return None
        spool.close()
        return spool.id

    async def _copy_log(self, start_offset: int, end_offset: int) -> None:
        from quorumd.client.errors import LogReplaced, OffsetNotReached
        from quorumd.client.timing import Deadline
        from quorumd.wire.sequence_check import sequence_problem

        self._files.begin_log()
        self._offset, epoch = start_offset, -1
        deadline = Deadline(self._client.timeout_ms)
        while self._offset < end_offset:
            data, batches = await self._fetch()
            wanted = [each for each in batches if each[1].base_offset < end_offset]
            base_offset = self._offset
            for _, header in wanted:
                if sequence_problem(header, self._offset, epoch):
                    found = header.base_offset, header.epoch
                    raise LogReplaced(self._offset, epoch, *found)
                self._offset, epoch = header.next_offset, header.epoch
            if wanted:
                first, (last, header) = wanted[0][0], wanted[-1]
                self._files.append(data[first : last + header.size_bytes], base_offset)
                self._epoch = epoch
                deadline = Deadline(self._client.timeout_ms)
            elif deadline.has_passed:
                raise OffsetNotReached(end_offset - 1, self._offset, deadline.timeout_ms)
            self._meter.read(self._offset - start_offset, end_offset - start_offset)

    async def _fetch(self) -> RawFetched:
        """The next batches. Raises _Overtaken."""
        from quorumd.client.errors import OffsetOutOfRange
        from quorumd.client.timing import Deadline, RetryBackoff

        deadline, backoff = Deadline(self._client.timeout_ms), RetryBackoff()
        while True:
            try:
                return await self._client.fetch_raw(self._offset, max_bytes=_FETCH_BYTES)
            except OffsetOutOfRange as error:
                if error.offset < error.log_start_offset:
                    raise _Overtaken from None
                # A deposed leader that has not noticed yet knows of less than was read elsewhere.
                if deadline.has_passed:
                    raise
            await asyncio.sleep(backoff.next_s())
