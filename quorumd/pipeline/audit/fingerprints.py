"""The batches of a range: whether each is sound, and whether they follow each other.

A range is planned by the segment's index as a rule, without reading its batches. If it is not what was
planned, the whole segment is walked through to say what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.scan import ReplicaRange
from quorumd.pipeline.audit.structure import structure_findings
from quorumd.pipeline.files import FileRange, plan_segment, read_bytes
from quorumd.pipeline.parse.arrays import Bools, Int64s
from quorumd.pipeline.parse.headers import BatchHeaders, WalkedChunk, crc_is_valid, walk_headers

BatchFingerprint = tuple[int, int, int, int, int]
"""Base offset, next offset, epoch, CRC, size (bytes): with a valid CRC, batches that agree in all of these
are the same bytes."""


@dataclass(slots=True)
class LoadedBatches:
    """Bytes of a file that are whole batches. `numbers` has a row a batch, columns as in BatchFingerprint."""

    replica: int
    segment_base: int
    range: FileRange
    data: bytes
    batches: BatchHeaders
    numbers: Int64s
    crc_ok: Bools


@dataclass(slots=True)
class LoadedRange:
    """The batches of a range, and the findings about them."""

    parts: list[LoadedBatches] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)
    bytes_read: int = 0


def load_range(wanted: ReplicaRange, label: str) -> LoadedRange:
    """Reads a range of one replica. Raises FileChanged, StorageError."""
    seen = LoadedRange()
    data = read_bytes(wanted.range)
    seen.bytes_read += len(data)
    walked = walk_headers(memoryview(data))
    if _is_as_planned(walked, wanted.range):
        seen.parts.append(_loaded(wanted, wanted.range, data, walked.batches))
    else:
        _load_damaged(wanted, label, seen)
    for part in seen.parts:
        seen.findings += _batch_findings(part, label)
    return seen


def _is_as_planned(walked: WalkedChunk, planned: FileRange) -> bool:
    """Batches from end to end, from the first offset to the last."""
    batches = walked.batches
    if walked.stop is not None or not len(batches):
        return False
    bases, nexts = batches.field("base_offset"), batches.next_offsets
    return bool(
        bases[0] == planned.start_offset
        and nexts[-1] == planned.end_offset
        and (bases[1:] == nexts[:-1]).all()
        and (nexts > bases).all()
    )


def _load_damaged(wanted: ReplicaRange, label: str, seen: LoadedRange) -> None:
    """The readable batches of a damaged range, and findings about the bytes between them."""
    begin = wanted.range.origin.position
    end = begin + wanted.range.size_bytes
    plan = plan_segment(wanted.segment, by_index=False)
    for finding in structure_findings(label, wanted.segment, plan):
        at = finding.position
        if at is not None and begin <= at < end:
            seen.findings.append(finding)
    for each in plan.ranges:
        position = each.origin.position
        if position < end and position + each.size_bytes > begin:
            data = read_bytes(each)
            seen.bytes_read += len(data)
            walked = walk_headers(memoryview(data))
            places = walked.batches.positions + position
            inside = walked.batches.select((places >= begin) & (places < end))
            if len(inside):
                seen.parts.append(_loaded(wanted, each, data, inside))


def _loaded(
    wanted: ReplicaRange, file_range: FileRange, data: bytes, batches: BatchHeaders
) -> LoadedBatches:
    columns = [
        batches.field("base_offset"),
        batches.next_offsets,
        batches.field("epoch"),
        batches.field("crc"),
        batches.ends - batches.positions,
    ]
    crc_ok = crc_is_valid(memoryview(data), batches)
    numbers = np.stack(columns, axis=1)
    base = wanted.segment.base_offset
    return LoadedBatches(wanted.replica, base, file_range, data, batches, numbers, crc_ok)


def _batch_findings(part: LoadedBatches, label: str) -> list[AuditFinding]:
    """Batches that are in their place, but not sound."""
    batches = part.batches
    bases, nexts = batches.field("base_offset"), batches.next_offsets
    counts = batches.field("record_count")
    bad_counts = part.crc_ok & (counts != nexts - bases)
    found = []
    for kind, bad in (
        (FindingKind.BAD_CRC, ~part.crc_ok),
        (FindingKind.RECORD_COUNT, bad_counts),
    ):
        for at in np.flatnonzero(bad).tolist():
            texts = {
                FindingKind.BAD_CRC: "the CRC does not match the contents",
                FindingKind.RECORD_COUNT: f"{counts[at]} records in {nexts[at] - bases[at]} offsets",
            }
            found.append(
                AuditFinding(
                    kind=kind,
                    offset=int(bases[at]),
                    end_offset=int(nexts[at]),
                    replicas=(label,),
                    what=texts[kind],
                    file=part.range.origin.file,
                    position=part.range.origin.position + int(batches.positions[at]),
                )
            )
    return found
