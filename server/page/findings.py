"""Problems of now and of soon, in words, from figures alone: the first thing on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from quorumd.raft.types import ReplicaKey
from quorumd.server.page.replicas import Health, ReplicaRow

EPOCHS_MANY = 8
"""So many new epochs in the history's five minutes are more than an operator's restarts."""


class Level(StrEnum):
    """An error is what does not work; a warning is what will not, if one thing more happens."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Problem(NamedTuple):
    """A sentence of the page, and how bad it is."""

    level: Level
    text: str


class WaitingChange(NamedTuple):
    """A change of voters or leader under way; `replica` is None where it is about several."""

    kind: str
    replica: ReplicaKey | None
    waiting_ms: int
    is_seen: bool
    """So long this node has seen it; it may be older."""
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """`report_problem` is why there is no report of the leader."""

    problems: Sequence[str]
    warnings: Sequence[str]
    rows: Sequence[ReplicaRow]
    has_report: bool
    """The rows are those of the leader's report."""
    is_report_due: bool
    """There is a leader, and it had the time to respond."""
    report_problem: str
    changes: Sequence[WaitingChange]
    is_settled: bool
    """The voter set in force is committed."""
    epochs_begun: int
    snapshot_problem: str
    disk_free_bytes: int | None
    segment_bytes: int
    storage_dir: str


def findings(facts: PageFacts) -> list[Problem]:
    """Worst first."""
    found = [*_found(facts)]
    return sorted(found, key=lambda each: list(Level).index(each.level))


def _found(facts: PageFacts) -> Iterator[Problem]:
    for text in facts.problems:
        yield Problem(Level.ERROR, f"This node: {text}")
    yield from _voters(facts)
    if facts.is_report_due and not facts.has_report:
        reason = facts.report_problem or "it has not responded yet"
        yield Problem(
            Level.WARNING,
            "The leader was asked how the others do, and did not say: what is shown of them is what "
            f"this node knows ({reason})",
        )
    for change in facts.changes:
        who = "" if change.replica is None else f" {change.replica}"
        since = f"{'at least ' if change.is_seen else ''}{duration(change.waiting_ms)}"
        what = f"{_KINDS.get(change.kind, change.kind)}{who}"
        why = f": {change.waits_for}" if change.waits_for else ""
        yield Problem(Level.NOTE, f"{what} has waited for {since}{why}")
    if not facts.is_settled and not facts.changes:
        yield Problem(Level.NOTE, "The newest voter set is not committed yet")
    for text in facts.warnings:
        yield Problem(Level.WARNING, f"This node: {text}")
    if facts.epochs_begun >= EPOCHS_MANY:
        yield Problem(
            Level.WARNING,
            f"{facts.epochs_begun} epochs began in the last minutes: leaders do not last. A slow disk, a "
            "network that loses packets, or a quorum.fetch.timeout.ms that is too short would do that",
        )
    if facts.snapshot_problem:
        yield Problem(
            Level.WARNING, f"This node can't take a snapshot now: {facts.snapshot_problem}"
        )
    free_bytes = facts.disk_free_bytes
    if free_bytes is not None and free_bytes < 2 * facts.segment_bytes:
        yield Problem(
            Level.WARNING,
            f"This node: {size(free_bytes)} are free on the disk of {facts.storage_dir}, less "
            "than twice log.segment.bytes",
        )


_KINDS = {
    "add": "Adding voter",
    "remove": "Removing voter",
    "reassign": "The reassignment",
    "transfer": "Handing leadership to",
}


def _voters(facts: PageFacts) -> Iterator[Problem]:
    voters = [row for row in facts.rows if row.role != "observer"]
    if not voters:
        return
    needed = len(voters) // 2 + 1
    gone = [row for row in voters if row.health is Health.GONE]
    if not facts.has_report:
        left = len(voters) - len(gone)
        if left < needed:
            yield Problem(
                Level.ERROR,
                f"Nothing can be committed: of {len(voters)} voters at most {left} "
                f"{'runs' if left == 1 else 'run'}, {needed} are needed",
            )
        if gone:
            yield Problem(
                Level.WARNING,
                f"{_named(gone, facts)}: connections are refused, so the process does not run",
            )
        return
    absent = [row for row in voters if row.health in (Health.GONE, Health.SILENT)]
    for row in absent:
        last = (
            "has not fetched from this leader"
            if row.contact_ms is None
            else f"has not fetched for {duration(row.contact_ms)}"
        )
        why = ", and connections to its process are refused" if row in gone else ""
        yield Problem(Level.WARNING, f"{_named([row], facts)} {last}{why}")
    for row in facts.rows:
        if row.health is Health.BEHIND:
            since = "" if row.caught_up_ms is None else f", for {duration(row.caught_up_ms)}"
            yield Problem(
                Level.WARNING, f"{_named([row], facts)} is {row.lag} records behind{since}"
            )
    present = len(voters) - len(absent)
    if present < needed:
        yield Problem(
            Level.ERROR,
            f"Nothing can be committed: {present} of {len(voters)} voters fetch, {needed} are needed",
        )
    elif absent and present == needed:
        yield Problem(
            Level.WARNING,
            f"If one more voter fails, the quorum stops: {present} of {len(voters)} are there, "
            f"{needed} are needed",
        )


def _named(rows: Iterable[ReplicaRow], facts: PageFacts) -> str:
    """The storage id only where two replicas have the same id."""
    ids = [row.key.id for row in facts.rows]
    return ", ".join(
        f"{'Observer' if row.role == 'observer' else 'Voter'} "
        f"{row.key if ids.count(row.key.id) > 1 else row.key.id}"
        for row in rows
    )


def duration(ms: int) -> str:
    """For people: two units at most."""
    seconds = ms // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
