"""The batches of a piece: whether each is sound, and whether they follow each other.

A piece was planned by the segment's index as a rule, so nobody has looked inside. If it is not what was
planned, the whole segment is walked through to say what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quorumd.pipeline.audit.findings import Finding, Kind
from quorumd.pipeline.audit.scan import Piece
from quorumd.pipeline.audit.structure import structure_findings
from quorumd.pipeline.files import FileRange, plan_segment, read_bytes
from quorumd.pipeline.parse.headers import (
    Batches,
    Bools,
    Int64s,
    Walked,
    crc_is_valid,
    walk_headers,
)

IDENTITY = ("base_offset", "next_offset", "epoch", "crc", "size")
"""What tells batches apart: with a valid CRC, batches that agree in all of these are the same bytes."""


@dataclass(slots=True)
class Loaded:
    """Bytes of a file that are whole batches. `numbers` has a row a batch, columns as in IDENTITY."""

    replica: int
    segment_base: int
    range: FileRange
    data: bytes
    batches: Batches
    numbers: Int64s
    crc_ok: Bools


@dataclass(slots=True)
class PieceSeen:
    """What reading a piece has given."""

    parts: list[Loaded] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0


def load(piece: Piece, label: str) -> PieceSeen:
    """Reads a piece. Raises FileChanged, StorageError."""
    seen = PieceSeen()
    data = read_bytes(piece.range)
    seen.bytes_read += len(data)
    walked = walk_headers(memoryview(data))
    if _is_as_planned(walked, piece.range):
        seen.parts.append(_loaded(piece, piece.range, data, walked.batches))
    else:
        _load_damaged(piece, label, seen)
    for part in seen.parts:
        seen.findings += _batch_findings(part, label)
    return seen


def _is_as_planned(walked: Walked, planned: FileRange) -> bool:
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


def _load_damaged(piece: Piece, label: str, seen: PieceSeen) -> None:
    """Those batches of the piece that can be made out, and what is between them."""
    begin = piece.range.origin.position
    end = begin + piece.range.size_bytes
    plan = plan_segment(piece.segment, by_index=False)
    for finding in structure_findings(label, piece.segment, plan):
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
                seen.parts.append(_loaded(piece, each, data, inside))


def _loaded(piece: Piece, file_range: FileRange, data: bytes, batches: Batches) -> Loaded:
    columns = [
        batches.field("base_offset"),
        batches.next_offsets,
        batches.field("epoch"),
        batches.field("crc"),
        batches.ends - batches.positions,
    ]
    crc_ok = crc_is_valid(memoryview(data), batches)
    numbers = np.stack(columns, axis=1)
    base = piece.segment.base_offset
    return Loaded(piece.replica, base, file_range, data, batches, numbers, crc_ok)


def _batch_findings(part: Loaded, label: str) -> list[Finding]:
    """Batches that are in their place, but not sound."""
    batches = part.batches
    bases, nexts = batches.field("base_offset"), batches.next_offsets
    counts = batches.field("record_count")
    bad_counts = part.crc_ok & (counts != nexts - bases)
    found = []
    for kind, bad in (
        (Kind.BAD_CRC, ~part.crc_ok),
        (Kind.RECORD_COUNT, bad_counts),
    ):
        for at in np.flatnonzero(bad).tolist():
            texts = {
                Kind.BAD_CRC: "the CRC does not match the contents",
                Kind.RECORD_COUNT: f"{counts[at]} records in {nexts[at] - bases[at]} offsets",
            }
            found.append(
                Finding(
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
