"""Findings about the order of a segment's batches: holes, repetitions, wrong offsets, no batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.files import FilePlan, LogSegment
from quorumd.pipeline.parse import DamagedBatch
from quorumd.storage.reader import TailKind
from quorumd.wire.batch_header import BATCH_OVERHEAD, read_header
from quorumd.wire.errors import CorruptBatch

_SECTOR_BYTES = 512


class ContiguousBatches(NamedTuple):
    """Batches one behind the other without a hole: bytes `position` .. `end`, offsets likewise."""

    position: int
    end: int
    start_offset: int
    end_offset: int


def contiguous_batches(plan: FilePlan) -> list[ContiguousBatches]:
    """The ranges of a segment, put together where they continue each other."""
    found: list[ContiguousBatches] = []
    for each in plan.ranges:
        position = each.origin.position
        new = ContiguousBatches(
            position, position + each.size_bytes, each.start_offset, each.end_offset
        )
        last = found[-1] if found else None
        if last and last.end == new.position and last.end_offset == new.start_offset:
            found[-1] = ContiguousBatches(last.position, new.end, last.start_offset, new.end_offset)
        else:
            found.append(new)
    return found


def structure_findings(label: str, segment: LogSegment, plan: FilePlan) -> Iterator[AuditFinding]:
    """Every place of a segment where the next batch does not follow."""
    runs = contiguous_batches(plan)
    before = ContiguousBatches(0, 0, segment.base_offset, segment.base_offset)
    for number, here in enumerate(runs):
        after = _after(segment, plan, runs, number)
        if after is not None and _is_misplaced(before, here, after):
            count = after.start_offset - before.end_offset
            first = before.end_offset
            what = f"{count} offsets from {first} on are called {here.start_offset} and on"
            yield _finding(FindingKind.WRONG_OFFSET, label, plan, before.end, before, after, what)
            # As if they had the offsets that belong there.
            before = ContiguousBatches(here.position, here.end, first, after.start_offset)
        else:
            yield from _junction(label, plan, before, here)
            before = here
    yield from _end(label, segment, plan, before)


def _after(
    segment: LogSegment, plan: FilePlan, runs: Sequence[ContiguousBatches], number: int
) -> ContiguousBatches | None:
    """The start of the next contiguous batches, or of the next segment."""
    if number + 1 < len(runs):
        return runs[number + 1]
    if segment.next_base is None or plan.tail.kind is not TailKind.NONE:
        return None
    end = plan.tail.position
    return ContiguousBatches(end, end, segment.next_base, segment.next_base)


def _is_misplaced(
    before: ContiguousBatches, here: ContiguousBatches, after: ContiguousBatches
) -> bool:
    """As many offsets as are missing around it, in its place, but other ones."""
    adjoins = before.end == here.position and here.end == after.position
    missing = after.start_offset - before.end_offset
    is_other = here.start_offset != before.end_offset
    return adjoins and is_other and missing == here.end_offset - here.start_offset


def _junction(
    label: str, plan: FilePlan, before: ContiguousBatches, here: ContiguousBatches
) -> Iterator[AuditFinding]:
    if here.position > before.end:
        yield from _no_batch(label, plan, before, here)
    elif here.start_offset > before.end_offset:
        what = f"offsets {before.end_offset} to {here.start_offset - 1} are missing"
        yield _finding(FindingKind.MISSING, label, plan, here.position, before, here, what)
    elif here.start_offset < before.end_offset:
        what = f"offset {here.start_offset} comes again, behind offset {before.end_offset - 1}"
        yield AuditFinding(
            kind=FindingKind.REPEATED,
            offset=here.start_offset,
            end_offset=before.end_offset,
            replicas=(label,),
            what=what,
            file=str(plan.path),
            position=here.position,
        )


def _no_batch(
    label: str, plan: FilePlan, before: ContiguousBatches, here: ContiguousBatches
) -> Iterator[AuditFinding]:
    """Bytes that are no batch, between batches."""
    damage = _damage_at(plan.damages, before.end)
    what = damage.what if damage else plan.tail.reason or "bytes that are no batch"
    kind = FindingKind.BAD_CRC if "CRC" in what.partition(";")[0] else FindingKind.NO_BATCH
    yield _finding(kind, label, plan, before.end, before, here, what)


def _end(
    label: str, segment: LogSegment, plan: FilePlan, last: ContiguousBatches
) -> Iterator[AuditFinding]:
    """Findings about the bytes behind the last batch, and about a next segment that does not follow."""
    tail, next_base = plan.tail, segment.next_base
    if tail.kind is TailKind.TORN and not _is_whole_batch(plan, last):
        yield AuditFinding(
            kind=FindingKind.TORN_TAIL,
            offset=last.end_offset,
            end_offset=last.end_offset,
            replicas=(label,),
            what=f"an unfinished write of {tail.size_bytes} bytes: {tail.reason}",
            file=str(plan.path),
            position=tail.position,
        )
        return
    follower = ContiguousBatches(tail.position + tail.size_bytes, 0, _following(next_base, last), 0)
    if tail.kind in (TailKind.DAMAGE, TailKind.TORN):
        yield from _no_batch(label, plan, last, follower)
    elif next_base is not None and next_base > last.end_offset:
        what = f"offsets {last.end_offset} to {next_base - 1} are missing at the end of a segment"
        yield _finding(FindingKind.MISSING, label, plan, last.end, last, follower, what)
    elif next_base is not None and next_base < last.end_offset:
        yield AuditFinding(
            kind=FindingKind.REPEATED,
            offset=next_base,
            end_offset=last.end_offset,
            replicas=(label,),
            what=f"the segment goes on to offset {last.end_offset - 1}, and the next one begins at"
            f" {next_base}",
            file=str(plan.path),
            position=last.end,
        )


def _is_whole_batch(plan: FilePlan, last: ContiguousBatches) -> bool:
    """The file ends where its last, bad batch does: it was cut to its data, and that only after a sync.

    A file whose lengthening was lost may end at the end of a sector (quorumd.storage.torn_tail).
    """
    tail = plan.tail
    if (tail.position + tail.size_bytes) % _SECTOR_BYTES == 0:
        return False
    with plan.path.open("rb") as file:
        file.seek(tail.position)
        data = file.read(BATCH_OVERHEAD)
    try:
        header = read_header(data)
    except CorruptBatch:
        return False
    return header.base_offset == last.end_offset and header.size_bytes == tail.size_bytes


def _following(next_base: int | None, last: ContiguousBatches) -> int:
    """First offset of the next segment; one past the end if there is none."""
    return last.end_offset + 1 if next_base is None else next_base


def _damage_at(damages: Sequence[DamagedBatch], position: int) -> DamagedBatch | None:
    return next((each for each in damages if each.position == position), None)


def _finding(
    kind: FindingKind,
    label: str,
    plan: FilePlan,
    position: int,
    before: ContiguousBatches,
    after: ContiguousBatches,
    what: str,
) -> AuditFinding:
    return AuditFinding(
        kind=kind,
        offset=before.end_offset,
        end_offset=max(after.start_offset, before.end_offset),
        replicas=(label,),
        what=what,
        file=str(plan.path),
        position=position,
    )
