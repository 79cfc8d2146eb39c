"""One segment, from its first byte to its last: batches, their order, their records, its indexes.

What counts as an unfinished write, and what as damage, is decided as by a start: quorumd.storage.torn_tail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quorumd.storage import layout
from quorumd.storage.batch_walk import BatchCursor, reason_of
from quorumd.storage.epoch_checkpoint import EpochStart
from quorumd.storage.errors import from_os_error, is_misplaced
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.torn_tail import examine_tail, has_unwritten_sector
from quorumd.storage.verify.index_proof import IndexProof
from quorumd.storage.verify.report import FINDINGS_MAX, Finding, VerifyReport, finding_of
from quorumd.wire.control_records import raw_control_records
from quorumd.wire.errors import CorruptBatch, RefusedBatch
from quorumd.wire.record_walk import check_records
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    iter_records,
)
from quorumd.wire.sequence_check import epoch_problem, offset_problem


@dataclass(slots=True, kw_only=True)
class SegmentFacts:
    """Facts of a segment that was verified. Offsets are `start_offset` .. `end_offset` (exclusive).

    `unreadable` counts compressed batches that do not unpack: all readers take them for empty.
    `unfinished_bytes` are behind the data, and no records (yet).
    """

    path: Path
    start_offset: int
    end_offset: int
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    last_epoch: int = -1
    unreadable: int = 0
    first_unreadable: int = -1
    unfinished_bytes: int = 0
    missing_indexes: list[Path] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, what: str, position: int, offset: int | None) -> None:
        """A finding; of very many in one file only the first are kept."""
        if len(self.findings) < FINDINGS_MAX:
            finding = Finding(path=self.path, what=what, position=position, offset=offset)
            self.findings.append(finding)


def walk_segment(
    fs: FileSystem, path: Path, report: VerifyReport, *, is_last: bool, has_indexes: bool = True
) -> SegmentFacts:
    """Reads a segment. `is_last`: a node may write to it, or have been killed while it did.

    Raises OSError, FileNotFoundError among them.
    """
    named = layout.parse_segment_name(path.name)
    walk = _Walk(fs, path, None if named is None else named[0], report, is_last=is_last)
    if named is not None and has_indexes and not is_last:
        walk.indexes = IndexProof(fs, path.parent, named[0])
    return walk.run()


class _Walk:
    """One pass. `_expected` is the offset that has to come next, None where that is unknown."""

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        base_offset: int | None,
        report: VerifyReport,
        *,
        is_last: bool,
    ) -> None:
        self._fs = fs
        self._report = report
        self._is_last = is_last
        self._expected = base_offset
        self._is_named = base_offset is not None
        self._facts = SegmentFacts(path=path, start_offset=-1, end_offset=base_offset or 0)
        self._handle = -1
        self._size = 0
        self.indexes: IndexProof | None = None

    def run(self) -> SegmentFacts:
        facts = self._facts
        try:
            self._handle = self._fs.open(facts.path)
        except OSError as error:
            if not is_misplaced(error):
                raise
            facts.start_offset = facts.end_offset
            facts.findings.append(finding_of(from_os_error(error, facts.path, "reading")))
            return facts
        try:
            # Taken once: what a running node appends meanwhile is not read.
            self._size = facts.size_bytes = self._fs.size(self._handle)
            self._cursor = BatchCursor(self._fs, self._handle, self._size)
            position: int | None = 0
            while position is not None and position < self._size:
                position = self._step(position)
        finally:
            self._fs.close(self._handle)
        if facts.start_offset < 0:
            facts.start_offset = facts.end_offset
        if self.indexes is not None:
            facts.missing_indexes = self.indexes.missing
            if not facts.findings:
                facts.findings += self.indexes.findings()
        return facts

    def _step(self, position: int) -> int | None:
        """Checks the batch at a position; returns where the next one is, None for nowhere."""
        try:
            header, batch, is_valid = self._cursor.read(position)
            if not is_valid:
                raise CorruptBatch("the CRC does not match the contents")
            self._check_start(position, header)
        except CorruptBatch as error:
            if self._cursor.reread(position):
                return position
            after = self._on_bad(position, reason_of(error))
            self._report.on_bytes((self._size if after is None else after) - position)
            return after
        self._check_place(position, header)
        self._check_contents(position, header, batch)
        self._count(position, header)
        self._report.on_bytes(header.size_bytes)
        return position + header.size_bytes

    def _check_start(self, position: int, header: BatchHeader) -> None:
        """Raises CorruptBatch for a batch of which the first sector never reached the disk.

        No CRC covers its offset, so it can seem valid.
        """
        expected = self._expected
        if not self._is_last or expected in (None, header.base_offset):
            return
        if has_unwritten_sector(self._fs, self._handle, position, position + 1, expected):
            raise CorruptBatch("the header of the batch is half written")

    def _on_bad(self, position: int, reason: str) -> int | None:
        """No valid batch here: the end of the data, or damage. Returns where the next batch is."""
        facts = self._facts
        next_offset = facts.end_offset if self._expected is None else self._expected
        tail = examine_tail(
            self._fs,
            self._handle,
            position,
            self._size,
            next_offset,
            epoch=max(facts.last_epoch, 0),
            is_closed=not self._is_last,
        )
        if self._is_last and not tail.damage:
            facts.unfinished_bytes = self._size - position
            return None
        if self._cursor.has_changed(position):
            return position
        facts.add(tail.describe(reason), position, self._expected)
        self._expected = None
        return tail.valid_after

    # --- what the batch says

    def _check_place(self, position: int, header: BatchHeader) -> None:
        facts, expected = self._facts, self._expected
        if expected is not None and header.base_offset != expected:
            what = offset_problem(header, expected)
            if not facts.batches and self._is_named:
                name = f"{expected} is in the name of the file"
                what = f"a batch with offset {header.base_offset} where {name}"
            facts.add(what, position, expected)
        what = epoch_problem(header.epoch, facts.last_epoch)
        if what:
            facts.add(what, position, header.base_offset)
        elif header.epoch > facts.last_epoch:
            facts.last_epoch = header.epoch
            facts.epochs.append(EpochStart(header.epoch, header.base_offset))

    def _check_contents(self, position: int, header: BatchHeader, batch: bytes) -> None:
        if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
            what = f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
            self._facts.add(what, position, header.base_offset)
            return
        try:
            if header.is_control:
                raw_control_records(batch)
            elif header.codec:
                self._unpack(header, batch)
            else:
                for _ in check_records(batch, BATCH_OVERHEAD, header.record_count):
                    pass
        except RefusedBatch as error:
            self._facts.add(error.message.rstrip("."), position, header.base_offset)
        except CorruptBatch as error:
            what = f"a control record can't be read: {reason_of(error)}"
            self._facts.add(what, position, header.base_offset)

    def _unpack(self, header: BatchHeader, batch: bytes) -> None:
        try:
            for _ in iter_records(batch):
                pass
        except CorruptBatch:
            # No node unpacks it before it is in the log: its producer sent it so.
            if not self._facts.unreadable:
                self._facts.first_unreadable = header.base_offset
            self._facts.unreadable += 1

    def _count(self, position: int, header: BatchHeader) -> None:
        facts = self._facts
        if facts.start_offset < 0:
            facts.start_offset = header.base_offset
        facts.batches += 1
        facts.records += max(0, header.record_count)
        self._expected = facts.end_offset = max(header.next_offset, header.base_offset + 1)
        if self.indexes is not None:
            self.indexes.add(position, header.last_offset, header.max_timestamp)
