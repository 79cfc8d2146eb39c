"""Reads log files for `dump-log`: batches, their contents, and damage.

Decides what is damage; knows no output format.
Source of the rules: quorumd.wire.sequence_check (offsets and epochs), KIP-630 (snapshots).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quorumd.storage.reader import FoundBatch, LogFile, TailKind
from quorumd.wire.control_records import (
    ControlRecord,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    decode_control_batch,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import Record, iter_records
from quorumd.wire.sequence_check import epoch_problem, offset_problem

NOT_DAMAGED = (TailKind.NONE, TailKind.ZEROS)


@dataclass(slots=True)
class FileSummary:
    """Summary of one file. Offsets are -1 without any batch; `next_offset` is exclusive."""

    batches: int = 0
    records: int = 0
    control_records: int = 0
    first_offset: int = -1
    next_offset: int = -1
    first_epoch: int = -1
    last_epoch: int = -1
    end_position: int = 0
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBatch:
    """A batch and what is in it.

    `control` pairs each control record with its offset and the voter set before it. `records` is
    None unless asked for. `problems` are sentences; those about damage are in the summary, too.
    """

    found: FoundBatch
    control: tuple[tuple[int, ControlRecord, KRaftVoters | None], ...] = ()
    records: tuple[Record, ...] | None = None
    problems: tuple[str, ...] = ()


class VoterHistory:
    """The voter sets of one directory: those of its snapshots, and the newest one of its log."""

    def __init__(self) -> None:
        self.current: KRaftVoters | None = None
        self._snapshots: list[tuple[int, KRaftVoters]] = []
        self._has_log_begun = False

    def begin(self, file: LogFile) -> None:
        """The next file's sets are compared with the last one that comes before it in the log."""
        if file.snapshot_id is not None:
            self.current = None
        elif not self._has_log_begun:
            self._has_log_begun = True
            start = file.base_offset or 0
            before = [voters for end_offset, voters in self._snapshots if end_offset <= start]
            self.current = before[-1] if before else None

    def seen(self, file: LogFile, voters: KRaftVoters) -> None:
        self.current = voters
        if file.snapshot_id is not None:
            self._snapshots.append((file.snapshot_id[0], voters))


class FileWalk:
    """One file, batch by batch; afterwards `summary` is complete.

    `is_closed` says that another segment follows: then nothing may be unfinished in this one.
    """

    def __init__(
        self, file: LogFile, history: VoterHistory, *, with_records: bool, is_closed: bool
    ) -> None:
        self.file = file
        self.summary = FileSummary()
        self._history = history
        self._with_records = with_records
        self._is_closed = is_closed or file.snapshot_id is not None
        self._expected = file.base_offset
        self._first: ControlRecord | None = None
        self._last: ControlRecord | None = None

    def batches(self) -> Iterator[DumpedBatch]:
        """Every batch that can be made out. Raises StorageError if the file can't be read."""
        self._history.begin(self.file)
        for found in self.file.batches():
            batch = self._dump(found)
            if self.summary.batches == 1 and batch.control:
                self._first = batch.control[0][1]
            self._last = batch.control[-1][1] if batch.control else None
            yield batch
        self._check_tail()
        if self.file.snapshot_id is not None:
            self._check_snapshot()

    def _dump(self, found: FoundBatch) -> DumpedBatch:
        problems = self._out_of_place(found)
        if not found.crc_is_valid:
            problems.append("the CRC does not match the contents: they are damaged")
        self._damaged(found, problems)
        self._count(found)
        if not found.crc_is_valid:
            return DumpedBatch(found=found, problems=tuple(problems))
        if found.header.is_control:
            return self._dump_control(found, problems)
        if not self._with_records:
            return DumpedBatch(found=found, problems=tuple(problems))
        try:
            records = tuple(iter_records(found.data))
        except CorruptBatch as error:
            # The producer sent it so: every reader sees an empty batch, and nothing is damaged.
            problems.append(f"does not unpack to its records, so readers see none: {_bare(error)}")
            records = ()
        return DumpedBatch(found=found, records=records, problems=tuple(problems))

    def _dump_control(self, found: FoundBatch, problems: list[str]) -> DumpedBatch:
        control = []
        try:
            for offset, record in decode_control_batch(found.data):
                control.append((offset, record, self._history.current))
                if isinstance(record, KRaftVoters):
                    self._history.seen(self.file, record)
        except CorruptBatch as error:
            unreadable = f"a control record that can't be read: {_bare(error)}"
            self._damaged(found, [unreadable])
            problems.append(unreadable)
        return DumpedBatch(found=found, control=tuple(control), problems=tuple(problems))

    def _out_of_place(self, found: FoundBatch) -> list[str]:
        header = found.header
        expected = header.base_offset if self._expected is None else self._expected
        self._expected = max(header.next_offset, header.base_offset + 1)
        problems = (
            offset_problem(header, expected),
            epoch_problem(header.epoch, self.summary.last_epoch),
        )
        return [problem for problem in problems if problem]

    def _damaged(self, found: FoundBatch, problems: list[str]) -> None:
        self.summary.damage.extend(
            f"byte {found.position}, offset {found.header.base_offset}: {problem}"
            for problem in problems
        )

    def _count(self, found: FoundBatch) -> None:
        header, summary = found.header, self.summary
        if not summary.batches:
            summary.first_offset, summary.first_epoch = header.base_offset, header.epoch
        summary.batches += 1
        count = max(0, header.record_count)
        if header.is_control:
            summary.control_records += count
        else:
            summary.records += count
        summary.next_offset = max(summary.next_offset, header.next_offset)
        summary.last_epoch = max(summary.last_epoch, header.epoch)
        summary.end_position = found.position + header.size_bytes

    def _check_snapshot(self) -> None:
        """Header first, footer last: a file without its footer was never finished."""
        if not isinstance(self._first, SnapshotHeader):
            self.summary.damage.append("byte 0: the snapshot does not begin with its header")
        if not isinstance(self._last, SnapshotFooter):
            where = f"byte {self.summary.end_position}"
            self.summary.damage.append(f"{where}: the snapshot ends without its footer")

    def _check_tail(self) -> None:
        tail, summary = self.file.tail, self.summary
        if tail is None or tail.kind in NOT_DAMAGED:
            return
        where = f"byte {tail.position}, after offset {summary.next_offset - 1}"
        if not summary.batches:
            where = f"byte {tail.position}"
        what = f"{tail.size_bytes:,} bytes are no batch ({_bare(tail.reason)})"
        if tail.kind is TailKind.TORN and not self._is_closed:
            what += (
                ": an unfinished last write. Beside a running node look again; a stopped one cuts "
                "these bytes off when it starts"
            )
        summary.damage.append(f"{where}: {what}")


def _bare(error: CorruptBatch | str) -> str:
    """Without the position inside the batch, which would be taken for one in the file."""
    return str(error).partition(" (batch at byte")[0]
