"""Scans each replica without reading its closed segments, and splits it into ranges of a few MiB.

The committed bound. Files say that offsets below some point are committed in two places: `appliedOffset`
of quorum-state.json, written with every change of epoch or vote, and the end of each complete snapshot.
Both are too low rather than too high, and their maximum over all replicas is what is taken: the least that
was committed. What a majority has in its logs proves nothing more: a record of an older epoch can be on a
majority and still be replaced (Raft, figure 8), and the files do not name the voters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.structure import structure_findings
from quorumd.pipeline.files import FileRange, LogSegment, Replica, find_replicas, plan_segment
from quorumd.storage import layout
from quorumd.storage.errors import DamagedFile, StorageError
from quorumd.storage.filesystem import FileSystem, RealFileSystem
from quorumd.storage.quorum_state import QuorumState, load_quorum_state

_TRIES = 5


class ReplicaRange(NamedTuple):
    """Whole batches of one replica, and the segment that they are in. `replica` counts from 0."""

    replica: int
    segment: LogSegment
    range: FileRange


@dataclass(slots=True)
class ScannedReplica:
    """A replica: offsets `start_offset` .. `end_offset` (exclusive) in its segments.

    `applied_offset` is what its quorum-state.json says is committed, 0 if nothing; `leader_epoch` the
    newest epoch that it knows of, None if no file says so. `covered_end` is the end with a snapshot that
    has taken the log's place.
    """

    label: str
    replica: Replica
    start_offset: int = 0
    end_offset: int = 0
    applied_offset: int = 0
    leader_epoch: int | None = None
    ranges: list[ReplicaRange] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def snapshot_ends(self) -> list[int]:
        return [each.end_offset for each in self.replica.snapshots]

    @property
    def covered_end(self) -> int:
        return max([self.end_offset, *self.snapshot_ends])

    @property
    def committed(self) -> int:
        """The end (exclusive) of the offsets that this replica's files prove to be committed."""
        return max([self.applied_offset, *self.snapshot_ends])


class RangeTask(NamedTuple):
    """Offsets `start` .. `end` (exclusive) on all replicas that have some of them.

    `log_bounds` are the offsets of each replica's whole log: what is beyond is no hole.
    """

    start: int
    end: int
    ranges: tuple[ReplicaRange, ...]
    log_bounds: tuple[tuple[int, int], ...]
    labels: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.range.size_bytes for part in self.ranges)


def scan_replica(
    number: int, label: str, replica: Replica, range_bytes: int, *, is_whole: bool = True
) -> ScannedReplica:
    """Raises StorageError if something can't be read. Unless it `is_whole`, its log may begin anywhere."""
    fs = RealFileSystem()
    for attempt in range(_TRIES):
        if attempt:
            # A running node has deleted a segment meanwhile.
            (replica,) = find_replicas([replica.path])
        try:
            found = _scan_once(fs, number, label, replica, range_bytes)
        except StorageError as error:
            if attempt == _TRIES - 1 or fs.exists(error.path):
                raise
        else:
            if is_whole:
                found.findings += _ends(found)
            return found
    raise AssertionError("the last try returns or raises")


def _scan_once(
    fs: FileSystem, number: int, label: str, replica: Replica, range_bytes: int
) -> ScannedReplica:
    # The committed offset is read before the log, which may grow; the newest epoch afterwards.
    found = ScannedReplica(label, replica)
    before = _state(fs, found)
    found.applied_offset = before.applied_offset if before else 0
    for segment in replica.segments:
        try:
            plan = plan_segment(segment, range_bytes=range_bytes)
        except StorageError as error:
            if not fs.exists(segment.path):
                raise
            found.end_offset = segment.next_base or segment.base_offset
            found.findings.append(_unread(found, segment, error))
            continue
        found.findings += structure_findings(label, segment, plan)
        found.ranges += [ReplicaRange(number, segment, each) for each in plan.ranges]
        found.end_offset = plan.end_offset
    if replica.segments:
        found.start_offset = replica.segments[0].base_offset
    else:
        found.start_offset = found.end_offset = replica.snapshots[-1].end_offset
    after = _state(fs, found)
    found.leader_epoch = after.leader_epoch if after else None
    if replica.problem:
        found.findings.append(_small_file(found, replica.path, replica.problem))
    return found


def _state(fs: FileSystem, found: ScannedReplica) -> QuorumState | None:
    """None where there is no such file, as in a backup; a damaged one is a finding."""
    try:
        return load_quorum_state(fs, found.replica.log_directory)
    except DamagedFile as error:
        found.findings.append(_small_file(found, error.path, error.what))
        return None


def _unread(found: ScannedReplica, segment: LogSegment, error: StorageError) -> AuditFinding:
    return AuditFinding(
        kind=FindingKind.UNREAD,
        offset=segment.base_offset,
        end_offset=found.end_offset,
        replicas=(found.label,),
        what=error.what,
        file=str(error.path),
    )


def _small_file(found: ScannedReplica, path: Path, what: str) -> AuditFinding:
    return AuditFinding(
        kind=FindingKind.SMALL_FILE,
        offset=0,
        end_offset=0,
        replicas=(found.label,),
        what=what,
        file=str(path),
    )


def _ends(found: ScannedReplica) -> list[AuditFinding]:
    """A log that begins after what its snapshots hold, or ends before what was committed."""
    replica, label = found.replica, found.label
    held = max((each.end_offset for each in replica.snapshots), default=0)
    findings = []
    if found.start_offset > held:
        findings.append(
            AuditFinding(
                kind=FindingKind.BEGINS_LATE,
                offset=held,
                end_offset=found.start_offset,
                replicas=(label,),
                what=f"the log begins at offset {found.start_offset}, and no snapshot holds what was"
                " before",
                file=str(replica.log_directory),
            )
        )
    if found.applied_offset > found.covered_end:
        findings.append(
            AuditFinding(
                kind=FindingKind.ENDS_EARLY,
                offset=found.covered_end,
                end_offset=found.applied_offset,
                replicas=(label,),
                what=f"the log ends at offset {found.covered_end}, but its {layout.QUORUM_STATE} says"
                f" that everything below {found.applied_offset} was committed",
                file=str(replica.log_directory),
            )
        )
    return findings


def tasks_of(replicas: Sequence[ScannedReplica]) -> list[RangeTask]:
    """Ranges of offsets, cut where the longest log is cut; together they are all ranges."""
    bounds: set[int] = set()
    low = high = -1
    for found in sorted(replicas, key=lambda each: each.start_offset - each.end_offset):
        for part in found.ranges:
            for offset in (part.range.start_offset, part.range.end_offset):
                if not low <= offset <= high:
                    bounds.add(offset)
        if found.ranges:
            low = min(bounds)
            high = max(bounds)
    ordered = sorted(bounds)
    return [task_between(replicas, start, end) for start, end in pairwise(ordered)]


def task_between(replicas: Sequence[ScannedReplica], start: int, end: int) -> RangeTask:
    """The task for these offsets on all replicas."""
    return RangeTask(
        start=start,
        end=end,
        ranges=tuple(
            part
            for found in replicas
            for part in found.ranges
            if part.range.start_offset < end and part.range.end_offset > start
        ),
        log_bounds=tuple((found.start_offset, found.end_offset) for found in replicas),
        labels=tuple(found.label for found in replicas),
    )
