"""The whole audit: scan, ranges, verdicts, snapshots; and a second pass over whatever seems wrong.

A running node writes, truncates and deletes while it is read. What it does to its files cannot always
be distinguished from damage in one pass, but is never the same twice: only what was found both times is
reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quorumd.pipeline.audit.compare import Difference, EpochChange, RangeResult, examine_range
from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.scan import (
    RangeTask,
    ScannedReplica,
    scan_replica,
    task_between,
    tasks_of,
)
from quorumd.pipeline.audit.snapshots import (
    SnapshotResult,
    SnapshotTask,
    examine_snapshots,
    snapshot_tasks,
)
from quorumd.pipeline.audit.verdict import epoch_findings, lag_findings, reach_verdict
from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.files import RANGE_BYTES, Replica, find_replicas

AuditTask = RangeTask | SnapshotTask
TaskResult = RangeResult | SnapshotResult
TaskRunner = Callable[[Sequence[AuditTask]], Iterable[tuple[int, TaskResult]]]
"""Runs the tasks somewhere, and gives (task number, result) in any order."""

_PASSES = 4
_PAUSE_S = 0.1
_WIDENINGS = 20


class BadReplicas(PipelineError):
    """Directories that can't be compared with each other: a wrong use."""

    exit_code = 2


@dataclass(slots=True, kw_only=True)
class AuditReport:
    """Replicas and findings of an audit, damage first. `committed` is the committed bound (exclusive)."""

    replicas: list[ScannedReplica] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)
    committed: int = 0
    bytes_read: int = 0
    batches: int = 0
    passes: int = 1

    @property
    def is_sound(self) -> bool:
        return not any(finding.is_damage for finding in self.findings)

    @property
    def unread(self) -> list[AuditFinding]:
        return [finding for finding in self.findings if finding.kind is FindingKind.UNREAD]


def run_task(task: AuditTask) -> TaskResult:
    """Runs one task, wherever its files can be read."""
    return examine_range(task) if isinstance(task, RangeTask) else examine_snapshots(task)


def in_this_process(tasks: Sequence[AuditTask]) -> Iterable[tuple[int, TaskResult]]:
    """A TaskRunner in the calling thread."""
    return ((number, run_task(task)) for number, task in enumerate(tasks))


def audit(
    paths: Sequence[str | Path],
    *,
    run_tasks: TaskRunner = in_this_process,
    on_bytes: Callable[[int, int], object] = lambda done, total: None,
    range_bytes: int = RANGE_BYTES,
    labels: Sequence[str] | None = None,
) -> AuditReport:
    """Audits the replicas in these directories.

    `on_bytes` is called with the bytes done and the bytes in total. `labels` are names for copies of what
    replicas serve, one a path: their logs may begin anywhere, and have no snapshots. Raises BadReplicas;
    StorageError for a path where no replica is, or that can't be read.
    """
    found = _run_pass(paths, labels, run_tasks, on_bytes, range_bytes, None)
    for _ in range(_PASSES - 1):
        doubts = [each for each in found.findings if each.is_damage]
        if not doubts:
            break
        time.sleep(_PAUSE_S)
        again = _run_pass(paths, labels, run_tasks, lambda done, total: None, range_bytes, doubts)
        known = {each.identity for each in doubts}
        confirmed = [each for each in again.findings if each.identity in known]
        notes = [each for each in found.findings if not each.is_damage]
        again_doubts = [each for each in again.findings if each.is_damage]
        found = replace(
            found,
            replicas=again.replicas,
            findings=sorted([*confirmed, *notes], key=lambda each: each.order),
            bytes_read=found.bytes_read + again.bytes_read,
            passes=found.passes + 1,
        )
        if len(confirmed) == len(again_doubts):
            break
    return found


def _run_pass(
    paths: Sequence[str | Path],
    given_labels: Sequence[str] | None,
    run_tasks: TaskRunner,
    on_bytes: Callable[[int, int], object],
    range_bytes: int,
    doubts: Sequence[AuditFinding] | None,
) -> AuditReport:
    """One pass over everything, or only over what is in doubt."""
    found_replicas = find_replicas(paths)
    labels = _labels(found_replicas) if given_labels is None else given_labels
    replicas = [
        scan_replica(number, label, replica, range_bytes, is_whole=given_labels is None)
        for number, (label, replica) in enumerate(zip(labels, found_replicas, strict=True))
    ]
    committed = max(each.committed for each in replicas)
    found = AuditReport(replicas=replicas, committed=committed)
    tasks = [task for task in tasks_of(replicas) if _is_wanted(task, doubts, replicas)]
    total = sum(task.size_bytes for task in tasks)
    raw = [finding for each in replicas for finding in each.findings]
    differences: list[Difference] = []
    starts: list[list[EpochChange]] = [[] for _ in replicas]
    for _ in range(_WIDENINGS):
        wider: set[tuple[int, int]] = set()
        for _, done in run_tasks(tasks):
            assert isinstance(done, RangeResult), "ranges give this"
            found.bytes_read += done.bytes_read
            found.batches += done.batches
            raw += done.findings
            differences += done.differences
            for at, epochs in done.epochs.items():
                starts[at] += epochs
            wider.update(done.open)
            on_bytes(found.bytes_read, max(total, found.bytes_read))
        tasks = [task_between(replicas, start, end) for start, end in _merged(wider)]
        if not tasks:
            break
    in_order = [sorted(set(each)) for each in starts]
    verdict = reach_verdict(replicas, sorted(set(differences)), in_order, committed)
    raw += verdict.findings
    for each, epochs in zip(replicas, in_order, strict=True):
        raw += epoch_findings(each, epochs)
    findings = _tidied(raw)
    doubted = {label for each in findings if each.is_damage for label in each.replicas}
    for _, done in run_tasks(snapshot_tasks(replicas, doubted, verdict.tails)):
        assert isinstance(done, SnapshotResult), "snapshots give this"
        found.bytes_read += done.bytes_read
        findings += done.findings
        on_bytes(found.bytes_read, max(total, found.bytes_read))
    findings += lag_findings(replicas, committed)
    found.findings = sorted(findings, key=lambda each: each.order)
    return found


def _is_wanted(
    task: RangeTask, doubts: Sequence[AuditFinding] | None, replicas: Sequence[ScannedReplica]
) -> bool:
    """Whatever is in doubt; and which epochs logs and snapshots end with, to judge it."""
    if doubts is None:
        return True
    ends = (end for each in replicas for end in (each.end_offset, *each.snapshot_ends))
    return any(task.start < end <= task.end for end in ends) or any(
        each.offset < task.end and max(each.end_offset, each.offset + 1) >= task.start
        for each in doubts
    )


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Overlapping ones as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _labels(replicas: Sequence[Replica]) -> list[str]:
    """Unique names. Raises BadReplicas."""
    clusters = {each.cluster_id: each for each in replicas if each.cluster_id is not None}
    if len(clusters) > 1:
        (one, first), (other, second) = sorted(clusters.items())[:2]
        raise BadReplicas(
            f"these are replicas of different clusters: {first.path} of {one}, {second.path} of {other}"
        )
    places: dict[Path, Replica] = {}
    for each in replicas:
        earlier = places.setdefault(each.log_directory.resolve(), each)
        if earlier is not each:
            raise BadReplicas(f"{each.path} and {earlier.path} are the same directory")
    labels = [each.label for each in replicas]
    return [
        label if labels.count(label) == 1 else f"{label} ({each.path})"
        for label, each in zip(labels, replicas, strict=True)
    ]


def _tidied(raw: Iterable[AuditFinding]) -> list[AuditFinding]:
    """Each fault once: together for all replicas that have it, and without what follows from another."""
    unique = sorted(set(raw), key=lambda each: each.order)
    kept = [each for each in unique if not _has_cause(each, unique)]
    together: dict[tuple[object, ...], AuditFinding] = {}
    for each in kept:
        place = (each.kind, each.offset, each.end_offset)
        mergeable = each.kind in (
            FindingKind.MISSING,
            FindingKind.REPEATED,
            FindingKind.BEGINS_LATE,
        )
        earlier = together.get(place) if mergeable else None
        if earlier is None:
            together[(*place, *(() if mergeable else (each.replicas, each.what)))] = each
        else:
            replicas = (*earlier.replicas, *each.replicas)
            together[place] = replace(earlier, replicas=replicas)
    return list(together.values())


_CAUSES = {
    FindingKind.EPOCH_ORDER: FindingKind.DIFFERENT_EPOCH,
    FindingKind.UNKNOWN_EPOCH: FindingKind.DIFFERENT_EPOCH,
    # A damaged header may claim offsets of the batches that follow.
    FindingKind.REPEATED: FindingKind.BAD_CRC,
}


def _has_cause(each: AuditFinding, others: Sequence[AuditFinding]) -> bool:
    """True if the finding is only there because of another: an epoch or an offset that was changed."""
    cause = _CAUSES.get(each.kind)
    return cause is not None and any(
        other.kind is cause and set(each.replicas) <= set(other.replicas) and _meets(each, other)
        for other in others
    )


def _meets(each: AuditFinding, cause: AuditFinding) -> bool:
    if each.kind is FindingKind.REPEATED:
        return cause.end_offset == each.end_offset
    return cause.offset <= each.offset <= cause.end_offset
