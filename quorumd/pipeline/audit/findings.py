"""The findings of an audit: kind, offsets, replicas; and the findings as an Arrow table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa


class FindingKind(Enum):
    """The kinds of findings; the last four are no damage, and `UNREAD` may be none."""

    BAD_CRC = "bad_crc"
    NO_BATCH = "no_batch"
    WRONG_OFFSET = "wrong_offset"
    MISSING = "missing"
    REPEATED = "repeated"
    EPOCH_ORDER = "epoch_order"
    UNKNOWN_EPOCH = "unknown_epoch"
    RECORD_COUNT = "record_count"
    DIFFERENT_EPOCH = "different_epoch"
    DIFFERENT_RECORDS = "different_records"
    BEGINS_LATE = "begins_late"
    ENDS_EARLY = "ends_early"
    SNAPSHOT_DAMAGED = "snapshot_damaged"
    SNAPSHOT_DIFFERS = "snapshot_differs"
    SNAPSHOT_NOT_LOG = "snapshot_not_log"
    SMALL_FILE = "small_file"
    UNREAD = "unread"
    TORN_TAIL = "torn_tail"
    UNCOMMITTED_TAIL = "uncommitted_tail"
    LAG = "lag"
    NOT_SERVED = "not_served"


_NOTES = frozenset(
    {FindingKind.TORN_TAIL, FindingKind.UNCOMMITTED_TAIL, FindingKind.LAG, FindingKind.NOT_SERVED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Offsets `offset` .. `end_offset` (exclusive) are in doubt, on `replicas`.

    `against` are the replicas that have it right: a majority, empty without a majority:
    then `replicas` are all that differ. `file` and `position` (bytes) name
    the place on the first of the replicas.
    """

    kind: FindingKind
    offset: int
    end_offset: int
    replicas: tuple[str, ...]
    what: str
    against: tuple[str, ...] = ()
    file: str | None = None
    position: int | None = None

    @property
    def is_damage(self) -> bool:
        """False for notes: what sound replicas have, too."""
        return self.kind not in _NOTES

    @property
    def severity(self) -> str:
        if self.kind is FindingKind.UNREAD:
            return "unread"
        return "damage" if self.is_damage else "note"

    @property
    def order(self) -> tuple[bool, int, str, tuple[str, ...], str]:
        """Damage first, each by offset."""
        return (not self.is_damage, self.offset, self.kind.value, self.replicas, self.what)

    @property
    def identity(self) -> tuple[FindingKind, int, tuple[str, ...]]:
        """The part of a finding that stays the same in two passes beside a running node."""
        return (self.kind, self.offset, self.replicas)


FINDINGS = pa.schema(
    [
        pa.field("severity", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("replicas", pa.list_(pa.field("element", pa.string()))),
        pa.field("against", pa.list_(pa.field("element", pa.string()))),
        pa.field("what", pa.string()),
        pa.field("file", pa.string()),
        pa.field("position", pa.int64()),
    ]
)
"""One row a finding; `severity` is damage, unread, or note."""


def findings_table(findings: Iterable[AuditFinding]) -> pa.Table:
    """FINDINGS."""
    return pa.Table.from_pylist([row_of(finding) for finding in findings], schema=FINDINGS)


def row_of(finding: AuditFinding) -> dict[str, object]:
    """A finding by column."""
    return {
        "severity": finding.severity,
        "kind": finding.kind.value,
        "offset": finding.offset,
        "end_offset": finding.end_offset,
        "replicas": list(finding.replicas),
        "against": list(finding.against),
        "what": finding.what,
        "file": finding.file,
        "position": finding.position,
    }
