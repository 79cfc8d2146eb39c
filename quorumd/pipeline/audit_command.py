"""`quorumd-pipeline audit`: whether replicas are sound, and hold the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.options import (
    Count,
    command_config_option,
    option_group,
    output_option,
    servers_option,
    timeout_option,
    to_ms,
)
from quorumd.cli.program import EXIT_FAILED
from quorumd.cli.text import bytes_text, counted, duration_text, to_json
from quorumd.client.addresses import parse_addresses
from quorumd.pipeline.cli import EXIT_DAMAGED
from quorumd.raft.types import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorumd.client.security import Security
    from quorumd.pipeline.audit import AuditFinding, AuditReport, AuditTask, TaskResult, TaskRunner
    from quorumd.pipeline.audit.replica_copy import ReplicaCopy

FINDINGS_FILE = "findings.parquet"
SHOWN_MAX = 100
"""Of more findings only the first are shown to people."""
_WAVES = 32
"""Tasks a core in one job of Spark: between jobs the progress is shown."""

_HELP = f"""Prove that replicas are sound and hold the same, from their files or over the network.

A DIR is a storage.dir, a __cluster_metadata-0 directory (Kafka's, too), a backup, or a directory with
several of these. Everything is read: the CRC of every batch, that offsets continue and epochs never go
back; then the replicas are held against each other, and snapshots against the log. A finding names the
first offset, the replicas that are wrong, and those which outvote them. An unfinished write at the end of
a log, and a replica that lags, are notes and no damage.

It can be used beside running nodes: nothing is written there and no lock is taken.

With --bootstrap-server the replicas of a live quorum are asked for their logs, each for its own: all that
is committed is copied to a temporary directory (TMPDIR), audited there, and deleted. Snapshots, and what
is not committed, are only seen in files.

Without --master the work is done by processes of this machine, and neither Spark nor Java is needed.
With it Spark spreads ranges of offsets; all directories have to be at the same path on every worker.

\b
Examples:
  quorumd-pipeline audit /srv/node-1 /srv/node-2 /srv/node-3
  quorumd-pipeline audit -b db1:9093,db2:9093,db3:9093
  quorumd-pipeline audit /srv/collected --findings /srv/audit --output json
  quorumd-pipeline audit /srv/collected --master spark://host:7077

\b
Exit codes: 0 sound, 1 something could not be read or written, or a replica
could not be reached, 2 wrong usage, 3 damage or a difference.
--findings DIR gets {FINDINGS_FILE}, one row a finding.
"""


_audit_options = option_group(
    servers_option("Audit the live quorum that these nodes belong to."),
    command_config_option,
    timeout_option,
    click.option(
        "--master", metavar="URL", help="Spread the work with Spark, local[*] for example."
    ),
    click.option(
        "--cores",
        type=Count(min=1),
        metavar="N",
        help="Processes that share the work without Spark.  [default: all cores]",
    ),
    click.option(
        "--findings",
        "findings_directory",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Where {FINDINGS_FILE} goes; made if it is not there.",
    ),
)


@click.command(help=_HELP, short_help="Prove that replicas are sound and hold the same.")
@click.argument(
    "directories",
    nargs=-1,
    metavar="[DIR...]",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@_audit_options
@output_option("text", "json")
def audit(
    directories: tuple[Path, ...],
    servers: str | None,
    security: Security | None,
    timeout_s: float,
    master: str | None,
    cores: int | None,
    findings_directory: Path | None,
    output: str,
) -> int:
    """The subcommand; returns the exit code."""
    from quorumd.client.errors import QuorumError
    from quorumd.pipeline.audit import audit as run_audit
    from quorumd.security.errors import CertificateProblem
    from quorumd.storage.errors import StorageError

    addresses = _addresses(servers, directories)
    _check_usage(master, cores, addresses)
    if findings_directory is not None:
        findings_directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    copies: list[ReplicaCopy] = []
    try:
        if addresses:
            audited, copies = _audit_live(addresses, security, to_ms(timeout_s), cores)
        else:
            with _task_runner(master, cores) as run_tasks, _progress("auditing") as on_bytes:
                audited = run_audit(directories, run_tasks=run_tasks, on_bytes=on_bytes)
    except (StorageError, QuorumError, CertificateProblem) as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_FAILED
    elapsed_s = time.monotonic() - began
    is_written = findings_directory is None or _write_findings(
        audited.findings, findings_directory / FINDINGS_FILE
    )
    replicas = _replicas_read(copies) if addresses else _replicas_found(audited)
    if output == "json":
        click.echo(to_json(_described(audited, replicas, elapsed_s)))
    else:
        _show(audited, replicas, elapsed_s)
    if audited.is_sound:
        return 0 if is_written else EXIT_FAILED
    is_damaged = any(finding.severity == "damage" for finding in audited.findings)
    return EXIT_DAMAGED if is_damaged else EXIT_FAILED


def _check_usage(master: str | None, cores: int | None, addresses: Sequence[Address]) -> None:
    """Raises UsageError."""
    if master is not None and cores is not None:
        raise click.UsageError("--cores is for the audit without Spark: leave one of them out")
    if master is not None and addresses:
        raise click.UsageError(
            "--master is for directories: what is copied from nodes is only here"
        )


def _addresses(servers: str | None, directories: Sequence[Path]) -> tuple[Address, ...]:
    """Empty if the directories count. Raises UsageError unless one of both is given."""
    source = click.get_current_context().get_parameter_source("servers")
    if directories and source is click.core.ParameterSource.ENVIRONMENT:
        servers = None
    if (servers is None) != bool(directories):
        raise click.UsageError("Give directories, or --bootstrap-server for a live quorum.")
    if servers is None:
        return ()
    try:
        return parse_addresses(servers)
    except ValueError as error:
        raise click.UsageError(f"--bootstrap-server: {error}") from None


# --- where the work is done


def _audit_live(
    addresses: Sequence[Address], security: Security | None, timeout_ms: int, cores: int | None
) -> tuple[AuditReport, list[ReplicaCopy]]:
    """Raises QuorumError, StorageError, BadReplicas."""
    from quorumd.pipeline.audit.collect import audit_copies, collected
    from quorumd.pipeline.audit.processes import ProcessRunner

    with ExitStack() as stack:
        with _progress("reading replicas") as on_offsets:
            copying = collected(
                addresses, timeout_ms=timeout_ms, security=security, on_offsets=on_offsets
            )
            copies = stack.enter_context(copying)
        processes = stack.enter_context(ProcessRunner(cores or _cores_here()))
        with _progress("auditing") as on_bytes:
            return audit_copies(copies, run_tasks=processes, on_bytes=on_bytes), copies


@contextmanager
def _task_runner(master: str | None, cores: int | None) -> Iterator[TaskRunner]:
    """Over processes of this machine, or with Spark."""
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        from quorumd.pipeline.audit.processes import ProcessRunner

        with ProcessRunner(cores or _cores_here()) as processes:
            yield processes
        return
    from quorumd.pipeline.session import build_session

    session = build_session("quorumd-pipeline audit", master=master)
    try:
        yield spark_runner(session)
    finally:
        session.stop()


def _cores_here() -> int:
    return len(os.sched_getaffinity(0))


def spark_runner(session: SparkSession) -> TaskRunner:
    """Each audit task is a task of Spark; no shuffle, and only findings come back."""
    context = session.sparkContext

    def run_tasks(tasks: Sequence[AuditTask]) -> Iterator[tuple[int, TaskResult]]:
        at_once = _WAVES * context.defaultParallelism
        numbered = list(enumerate(tasks))
        for begin in range(0, len(numbered), at_once):
            wave = numbered[begin : begin + at_once]
            yield from context.parallelize(wave, len(wave)).map(_do_numbered).collect()

    return run_tasks


def _do_numbered(numbered: tuple[int, AuditTask]) -> tuple[int, TaskResult]:
    from quorumd.pipeline.audit import run_task

    number, task = numbered
    return number, run_task(task)


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], object]]:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from quorumd.cli.progress import count_progress

    with count_progress(label, 100) as show:
        yield lambda done, total: show(100 * done // max(total, 1))


# --- output


def _write_findings(findings: Sequence[AuditFinding], path: Path) -> bool:
    """Replaces the file as a whole; says so on stderr if it can't be written, and leaves nothing of it."""
    import pyarrow.parquet as pq

    from quorumd.pipeline.audit import findings_table

    part = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(findings_table(findings), part)
        part.replace(path)
    except OSError as error:
        # The text of one of pyarrow is longer than what happened.
        why = error.strerror if error.errno is None else os.strerror(error.errno)
        click.echo(f"Error: {path} can't be written: {why}", err=True)
        with suppress(OSError):
            part.unlink()
        return False
    return True


def _replicas_found(audited: AuditReport) -> list[tuple[str, dict[str, Any]]]:
    """Of each directory, a line for people and an entry for programs."""
    found = []
    for each in audited.replicas:
        segments, snapshots = len(each.replica.segments), len(each.replica.snapshots)
        counts = f"{counted(segments, 'segment')}, {counted(snapshots, 'snapshot')}"
        offsets = f"offsets {each.start_offset} to {each.end_offset} (exclusive)"
        entry = {
            "replica": each.label,
            "path": str(each.replica.path),
            "start_offset": each.start_offset,
            "end_offset": each.end_offset,
            "segments": segments,
            "snapshots": snapshots,
        }
        found.append((f"{each.label}  {each.replica.path}  {offsets}, {counts}", entry))
    return found


def _replicas_read(copies: Sequence[ReplicaCopy]) -> list[tuple[str, dict[str, Any]]]:
    """Of each replica that could be asked, the same."""
    found = []
    for each in copies:
        if each.address is None:
            continue
        offsets = f"offsets {each.start} to {each.end} (exclusive)"
        entry = {
            "replica": each.label,
            "replica_id": each.key.id,
            "storage_id": each.storage_id,
            "address": str(each.address),
            "start_offset": each.start,
            "end_offset": each.end,
        }
        found.append((f"{each.label}  {each.storage_id or '-'}  {offsets}", entry))
    return found


def _described(
    audited: AuditReport, replicas: Sequence[tuple[str, dict[str, Any]]], elapsed_s: float
) -> dict[str, Any]:
    from quorumd.pipeline.audit import row_of

    return {
        "sound": audited.is_sound,
        "committed_offset": audited.committed,
        "replicas": [entry for _, entry in replicas],
        "batches": audited.batches,
        "bytes_read": audited.bytes_read,
        "elapsed_s": round(elapsed_s, 3),
        "findings": [row_of(finding) for finding in audited.findings],
    }


def _show(
    audited: AuditReport, replicas: Sequence[tuple[str, dict[str, Any]]], elapsed_s: float
) -> None:
    for line, _ in replicas:
        click.echo(line)
    click.echo(f"known to be committed: everything below offset {audited.committed}")
    for finding in audited.findings[:SHOWN_MAX]:
        _show_finding(finding)
    left = len(audited.findings) - SHOWN_MAX
    if left > 0:
        click.echo(f"  and {left:,} more: --findings DIR and --output json have all")
    speed = bytes_text(audited.bytes_read / max(elapsed_s, 0.001))
    click.echo(
        f"{counted(audited.batches, 'batch')}, {bytes_text(audited.bytes_read)} in"
        f" {duration_text(elapsed_s)} ({speed}/s)"
    )
    count = sum(finding.is_damage for finding in audited.findings)
    if audited.is_sound:
        click.echo("sound")
    elif len(audited.unread) == count:
        click.echo(f"NOT ALL COULD BE READ: {counted(count, 'problem')}")
    else:
        click.echo(f"NOT SOUND: {counted(count, 'problem')}")


def _show_finding(finding: AuditFinding) -> None:
    marks = {"damage": "DAMAGED", "unread": "UNREAD ", "note": "note   "}
    place = f"offset {finding.offset}"
    if finding.end_offset > finding.offset + 1:
        place = f"offsets {finding.offset} to {finding.end_offset - 1}"
    who = ", ".join(finding.replicas)
    against = f" (right: {', '.join(finding.against)})" if finding.against else ""
    click.echo(f"  {marks[finding.severity]}  {place}, {who}: {finding.what}{against}")
    if finding.file is not None:
        position = "" if finding.position is None else f", byte {finding.position}"
        click.echo(f"           {finding.file}{position}")
