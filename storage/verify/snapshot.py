"""One snapshot, whole: its form, and that it speaks of nothing beyond its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.storage.errors import DamagedSnapshot
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.snapshot_file import SnapshotFacts, SnapshotReader
from quorumd.storage.verify.report import Finding, VerifyReport, finding_of
from quorumd.wire.snapshot_records import OFFSET_HEADER, SnapshotRecords

REMEDY = (
    "Keep a copy and check the disk. If the log does not begin at 0 the node does not start without this"
    " snapshot: format a new directory (without --bootstrap), and the node copies the quorum's. Otherwise"
    " stop the node, move the file away, and start it: it takes another one"
)


@dataclass(slots=True)
class SnapshotSeen:
    """`facts` are None if it is not sound."""

    facts: SnapshotFacts | None = None
    is_kafkas: bool = False
    findings: list[Finding] = field(default_factory=list)


def walk_snapshot(
    fs: FileSystem, path: Path, snapshot_id: SnapshotId, report: VerifyReport
) -> SnapshotSeen:
    """Reads all of a snapshot. Raises StorageError if it can't be read."""
    seen = SnapshotSeen()
    done_bytes = 0
    try:
        reader = SnapshotReader(fs, path, snapshot_id)
        try:
            _check_producers(reader.facts(), path)
            seen.is_kafkas = reader.is_kafkas
            for _ in reader.kafka_records() if reader.is_kafkas else _own_records(reader, path):
                report.on_bytes(reader.position - done_bytes)
                done_bytes = reader.position
            report.on_bytes(reader.position - done_bytes)
            seen.facts = reader.facts()
        finally:
            reader.close()
    except DamagedSnapshot as error:
        found_here = finding_of(error)
        seen.findings.append(
            Finding(path=path, what=found_here.what, position=found_here.position, remedy=REMEDY)
        )
    return seen


def report_snapshot(seen: SnapshotSeen, path: Path, report: VerifyReport) -> None:
    """Adds the findings of a snapshot, and a note if it is Kafka's."""
    report.add(*seen.findings)
    if seen.is_kafkas and seen.facts is not None:
        report.on_note(
            f"{path.name} is a snapshot of Apache Kafka: quorumctl reads it, but its records have no keys,"
            " so that a quorumd node makes no snapshot of its own from it"
        )


def _own_records(reader: SnapshotReader, path: Path) -> Iterator[SnapshotRecords]:
    end_offset = reader.facts().id.end_offset
    for found in reader.records(check=True):
        for key, held in zip(found.keys, found.held, strict=True):
            offset = _offset_of(held)
            if offset >= end_offset:
                raise DamagedSnapshot(
                    f"key {key!r} has a record with offset {offset}, and the snapshot ends at"
                    f" {end_offset}",
                    path=path,
                    position=reader.position,
                )
        yield found


def _check_producers(facts: SnapshotFacts, path: Path) -> None:
    end_offset = facts.id.end_offset
    for producer in facts.producers:
        if any(batch.last_offset >= end_offset for batch in producer.batches):
            raise DamagedSnapshot(
                f"producer {producer.producer_id} has a batch beyond the end of the snapshot,"
                f" {end_offset}",
                path=path,
                position=0,
            )


def _offset_of(held: bytes) -> int:
    """The offset that a record had; its last header says it."""
    return int(held[held.rindex(OFFSET_HEADER) + len(OFFSET_HEADER) + 1 :])
