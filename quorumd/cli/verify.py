"""`quorumctl verify`: whether log files, snapshots, directories and backups are sound, offline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.options import output_option
from quorumd.cli.paths import EXIT_DAMAGED, read_progress, worst_exit_code
from quorumd.cli.text import bytes_text, counted, to_json

if TYPE_CHECKING:
    from quorumd.storage.verify.log import LogFacts
    from quorumd.storage.verify.paths import Subject
    from quorumd.storage.verify.report import Finding

_LISTED_MAX = 1000
_PAUSE_S = 0.1

_HELP = """Prove that what lies on a disk is sound.

A PATH is a storage.dir, a __cluster_metadata-0 directory, a backup, a segment (.log) or a snapshot
(.checkpoint). Everything is read: the CRC and the records of every batch, that offsets and epochs continue
from batch to batch and from segment to segment, indexes, snapshots, the small files, the sums of a
backup, and that all of them agree. Nothing is written and no lock is taken, so it can be used beside a
running node: what that has not finished writing is no damage.

Each finding names the file, the byte, the offset, what is wrong and what to do next.

\b
Examples:
  quorumctl verify /var/lib/quorumd
  quorumctl verify /backup/2026-11-20 --output json
  quorumctl verify 00000000000000000000.log

\b
Exit codes: 0 sound, 1 something could not be read, 2 wrong usage or nothing there to verify,
3 damage was found.
"""


@dataclass(slots=True)
class VerifyOutcome:
    """Findings at one path. Of very many only the first are listed."""

    subject: Subject
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.finding_count += 1
        if len(self.findings) < _LISTED_MAX:
            self.findings.append(finding)


@click.command(help=_HELP, short_help="Prove that log files, snapshots and backups are sound.")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@output_option("text", "json")
def verify(paths: tuple[Path, ...], output: str) -> int:
    """Goes through all paths, whatever is wrong with one of them; returns the worst exit code."""
    show = _show_json if output == "json" else _show_text
    return worst_exit_code(paths, lambda path: _verify(path, show))


def _verify(path: Path, show: Callable[[VerifyOutcome, LogFacts], None]) -> int:
    from quorumd.storage.verify.paths import find_subject, verify
    from quorumd.storage.verify.report import VerifyReport

    outcome = VerifyOutcome(find_subject(path))
    with read_progress("verifying", outcome.subject.size_bytes) as advance:
        report = VerifyReport(
            on_finding=outcome.add,
            on_note=outcome.notes.append,
            on_bytes=advance,
            pause=lambda: time.sleep(_PAUSE_S),
        )
        facts = verify(outcome.subject, report)
    show(outcome, facts)
    return EXIT_DAMAGED if outcome.finding_count else 0


# --- for people


def _show_text(outcome: VerifyOutcome, facts: LogFacts) -> None:
    subject = outcome.subject
    click.echo(f"{subject.path}  ({subject.kind.value})")
    click.echo(f"  {_contents(facts)}")
    if facts.unfinished_bytes:
        click.echo(
            f"  ends at offset {facts.end_offset}; {facts.unfinished_bytes:,} bytes behind it are not"
            " (yet) records"
        )
    for note in outcome.notes:
        click.echo(f"  {note}")
    for number, finding in enumerate(outcome.findings, 1):
        click.echo(f"  DAMAGED  {finding}")
        following = outcome.findings[number : number + 1]
        if not following or following[0].remedy != finding.remedy:
            click.echo(f"           {finding.remedy}")
    left = outcome.finding_count - len(outcome.findings)
    if left:
        click.echo(f"  and {left:,} more")
    click.echo(f"  {_verdict(outcome)}")


def _contents(facts: LogFacts) -> str:
    epochs = "no epoch" if facts.last_epoch < 0 else f"epoch {facts.last_epoch}"
    if len(facts.epochs) > 1:
        epochs = f"epochs {facts.epochs[0].epoch}-{facts.last_epoch}"
    cells = [f"offsets {facts.start_offset} to {facts.end_offset} (exclusive)", epochs]
    if facts.segments:
        batches, records = counted(facts.batches, "batch"), counted(facts.records, "record")
        cells += [f"{records} in {batches}", counted(facts.segments, "segment")]
    if facts.snapshots:
        cells.append(counted(len(facts.snapshots), "snapshot"))
    return ", ".join([*cells, bytes_text(facts.size_bytes)])


def _verdict(outcome: VerifyOutcome) -> str:
    if not outcome.finding_count:
        return "sound"
    return f"NOT SOUND: {counted(outcome.finding_count, 'problem')}"


# --- for programs


def _show_json(outcome: VerifyOutcome, facts: LogFacts) -> None:
    described: dict[str, Any] = {
        "path": str(outcome.subject.path),
        "kind": outcome.subject.kind.value,
        "sound": not outcome.finding_count,
        "start_offset": facts.start_offset,
        "end_offset": facts.end_offset,
        "epoch": facts.last_epoch,
        "segments": facts.segments,
        "snapshots": len(facts.snapshots),
        "batches": facts.batches,
        "records": facts.records,
        "size_bytes": facts.size_bytes,
        "unfinished_bytes": facts.unfinished_bytes,
        "finding_count": outcome.finding_count,
        "findings": [
            {
                "file": str(finding.path),
                "position": finding.position,
                "offset": finding.offset,
                "what": finding.what,
                "remedy": finding.remedy,
            }
            for finding in outcome.findings
        ],
        "notes": outcome.notes,
    }
    click.echo(to_json(described))
