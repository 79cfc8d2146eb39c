"""`quorumd-pipeline audit`: whether replicas are sound, and hold the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.options import output_option
from quorumd.cli.text import bytes_text, counted, duration_text, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorumd.pipeline.audit import Audited, Done, Finding, Spread, Work

EXIT_FINDINGS = 1
EXIT_UNREAD = 3
FINDINGS_FILE = "findings.parquet"
_WAVES = 32
"""Tasks a core in one job of Spark: between jobs the progress is shown."""

_HELP = f"""Prove that replicas are sound and hold the same, from their files.

A DIR is a storage.dir, a __cluster_metadata-0 directory (Kafka's, too), a backup, or a directory with
several of these. Everything is read: the CRC of every batch, that offsets continue and epochs never go
back; then the replicas are held against each other, and snapshots against the log. A finding names the
first offset, the replicas that are wrong, and those which outvote them. An unfinished write at the end of
a log, and a replica that lags, are notes and no damage.

It can be used beside running nodes: nothing is written there and no lock is taken. It works on files
only; collect those of other machines first, with `quorumctl backup` for example.

Without --master the work is done by processes of this machine, and neither Spark nor Java is needed.
With it Spark spreads ranges of offsets; all directories have to be at the same path on every worker.

\b
Examples:
  quorumd-pipeline audit /srv/node-1 /srv/node-2 /srv/node-3
  quorumd-pipeline audit /srv/collected --findings /srv/audit --output json
  quorumd-pipeline audit /srv/collected --master spark://host:7077

\b
Exit codes: 0 sound, 1 something is wrong, 2 wrong usage, 3 something could not be read.
--findings DIR gets {FINDINGS_FILE}, one row a finding.
"""


@click.command(help=_HELP, short_help="Prove that replicas are sound and hold the same.")
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIR...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--master", metavar="URL", help="Spread the work with Spark, local[*] for example.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that share the work without Spark.  [default: all cores]",
)
@click.option(
    "--findings",
    "findings_directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Where {FINDINGS_FILE} goes; made if it is not there.",
)
@output_option("text", "json")
def audit(
    directories: tuple[Path, ...],
    master: str | None,
    cores: int | None,
    findings_directory: Path | None,
    output: str,
) -> int:
    """The subcommand; returns the exit code."""
    from quorumd.pipeline.audit import audit as run_audit
    from storage.errors import StorageError

    if master is not None and cores is not None:
        raise click.UsageError("--cores is for the audit without Spark: leave one of them out")
    began = time.monotonic()
    try:
        with _spread(master, cores) as spread, _progress() as on_bytes:
            audited = run_audit(directories, spread=spread, on_bytes=on_bytes)
    except StorageError as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_UNREAD
    elapsed_s = time.monotonic() - began
    if findings_directory is not None:
        _write_findings(audited.findings, findings_directory)
    if output == "json":
        click.echo(to_json(_described(audited, elapsed_s)))
    else:
        _show(audited, elapsed_s)
    if audited.unread:
        return EXIT_UNREAD
    return 0 if audited.is_sound else EXIT_FINDINGS


# --- where the work is done


@contextmanager
def _spread(master: str | None, cores: int | None) -> Iterator[Spread]:
    """Over processes of this machine, or with Spark."""
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        from quorumd.pipeline.audit.processes import OverProcesses

        with OverProcesses(cores or len(os.sched_getaffinity(0))) as processes:
            yield processes
        return
    from quorumd.pipeline.session import build_session

    session = build_session("quorumd-pipeline audit", master=master)
    try:
        yield spark_spread(session)
    finally:
        session.stop()


def spark_spread(session: SparkSession) -> Spread:
    """Each piece of work is a task of Spark; no shuffle, and only findings come back."""
    context = session.sparkContext

    def spread(works: Sequence[Work]) -> Iterator[tuple[int, Done]]:
        at_once = _WAVES * context.defaultParallelism
        numbered = list(enumerate(works))
        for begin in range(0, len(numbered), at_once):
            wave = numbered[begin : begin + at_once]
            yield from context.parallelize(wave, len(wave)).map(_do_numbered).collect()

    return spread


def _do_numbered(numbered: tuple[int, Work]) -> tuple[int, Done]:
    from quorumd.pipeline.audit import do_work

    number, work = numbered
    return number, do_work(work)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], object]]:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from quorumd.cli.progress import count_progress

    with count_progress("auditing", 100) as show:
        yield lambda done, total: show(100 * done // max(total, 1))


# --- what is told


def _write_findings(findings: Sequence[Finding], directory: Path) -> None:
    """Replaces the file as a whole. Raises OSError."""
    import pyarrow.parquet as pq

    from quorumd.pipeline.audit import findings_table

    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f".{FINDINGS_FILE}.part"
    pq.write_table(findings_table(findings), part)
    part.replace(directory / FINDINGS_FILE)


def _described(audited: Audited, elapsed_s: float) -> dict[str, Any]:
    from quorumd.pipeline.audit import row_of

    return {
        "sound": audited.is_sound,
        "committed_offset": audited.committed,
        "replicas": [
            {
                "replica": each.label,
                "path": str(each.replica.path),
                "start_offset": each.start_offset,
                "end_offset": each.end_offset,
                "segments": len(each.replica.segments),
                "snapshots": len(each.replica.snapshots),
            }
            for each in audited.surveys
        ],
        "batches": audited.batches,
        "bytes_read": audited.bytes_read,
        "elapsed_s": round(elapsed_s, 3),
        "findings": [row_of(finding) for finding in audited.findings],
    }


def _show(audited: Audited, elapsed_s: float) -> None:
    for each in audited.surveys:
        cells = [
            f"offsets {each.start_offset} to {each.end_offset} (exclusive)",
            counted(len(each.replica.segments), "segment"),
            counted(len(each.replica.snapshots), "snapshot"),
        ]
        click.echo(f"{each.label}  {each.replica.path}  {', '.join(cells)}")
    click.echo(f"known to be committed: everything below offset {audited.committed}")
    for finding in audited.findings:
        _show_finding(finding)
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


def _show_finding(finding: Finding) -> None:
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
