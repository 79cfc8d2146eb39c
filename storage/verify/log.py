"""A whole log: its segments in a row, its snapshots, and the small files that speak of both.

Beside a running node files come and go. What is wrong with one file is read twice
(quorumd.storage.verify.report.settled); what does not fit together is doubted only if the same files are
still there afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.storage import layout
from quorumd.storage.epoch_checkpoint import EpochStart, epoch_at, epochs_from, parse_epochs
from quorumd.storage.errors import RESTORE, DamagedFile, Misplaced, StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, read_file
from quorumd.storage.quorum_state import load_quorum_state
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.verify.report import TRIES_MAX, Finding, VerifyReport, finding_of, settled
from quorumd.storage.verify.segment import SegmentFacts, walk_segment
from quorumd.storage.verify.snapshot import report_snapshot, walk_snapshot
from quorumd.wire.sequence_check import epoch_problem, segment_problem

_EPOCHS_REMEDY = (
    "No record is in doubt. Stop the node, delete this file, and start the node: it makes the file anew"
    " from the log. Check the disk"
)


@dataclass(slots=True, kw_only=True)
class LogFacts:
    """A verified log: offsets `start_offset` .. `end_offset` (exclusive).

    `last_epoch` is that of the last record, -1 if there is none. `unfinished_bytes` are behind the
    data of the last segment.
    """

    start_offset: int = 0
    end_offset: int = 0
    last_epoch: int = -1
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    unfinished_bytes: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    snapshots: list[SnapshotFacts] = field(default_factory=list)
    """The sound ones, ascending."""
    unheld: SnapshotId | None = None
    """The newest snapshot, if the log does not hold what it stands for: the next start of the node begins
    the log anew at its end."""


def verify_log(
    fs: FileSystem, directory: Path, report: VerifyReport, *, is_backup: bool = False
) -> LogFacts:
    """Verifies a partition's directory, or the log of a backup: that has no indexes and no active
    segment. Raises StorageError if something can't be read.
    """
    for attempt in range(TRIES_MAX):
        if attempt:
            report.pause()
        before = report.findings
        once = _Pass(fs, directory, report, is_backup=is_backup)
        try:
            once.run()
            has_changed = once.has_changed() if once.doubts else False
        except OSError as error:
            path = Path(error.filename) if error.filename else directory
            raise from_os_error(error, path, "reading") from error
        if not has_changed or report.findings > before:
            break
    report.add(*once.doubts)
    for note in once.notes():
        report.on_note(note)
    return once.facts


class _Pass:
    """Everything once. `doubts` are about files that don't fit together; others are reported at once."""

    def __init__(
        self, fs: FileSystem, directory: Path, report: VerifyReport, *, is_backup: bool
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._report = report
        self._is_backup = is_backup
        self._bases: list[int] = []
        self._names: list[str] = []
        self._snapshot_ends: set[int] = set()
        """Of every snapshot that was there at the beginning or at the end, sound or not."""
        self._applied_offset = 0
        self._epochs_files: list[bytes | None] = []
        self._expected: int | None = None
        self._data_end = 0
        """Position behind the batches of the last segment, in bytes."""
        self._is_whole = True
        """False once a segment had findings: what is lost there needs no second one."""
        self._unreadable = 0
        self._first_unreadable = -1
        self._missing_indexes = 0
        self.doubts: list[Finding] = []
        self.facts = LogFacts()

    def run(self) -> None:
        """Raises OSError, StorageError."""
        self._names = self._fs.listdir(self._directory)
        self._bases = layout.segment_bases(self._names)
        self._snapshot_ends.update(each.end_offset for each in layout.snapshot_ids(self._names))
        if not self._is_backup:
            self._read_state()
            self._epochs_files.append(self._read_epochs())
        for base_offset in self._bases:
            self._walk(base_offset)
        if not self._is_backup:
            self._epochs_files.append(self._read_epochs())
        self._check_snapshots()
        if self._is_whole and not self._is_backup:
            self._check_epochs()
            self._check_end()

    def has_changed(self) -> bool:
        """True if a segment has gone since this began."""
        bases = layout.segment_bases(self._fs.listdir(self._directory))
        return not set(self._bases) <= set(bases)

    def notes(self) -> list[str]:
        """Findings that are no damage, and yet worth a line."""
        found = []
        if self._unreadable:
            found.append(
                f"compressed batches that do not unpack: {self._unreadable}, the first at offset"
                f" {self._first_unreadable}. Their producer sent them so, and readers take them for empty"
            )
        if self._missing_indexes:
            missing = self._missing_indexes
            found.append(f"index files that are missing: {missing}. The next start makes them")
        if self.facts.unheld is not None:
            found.append(
                f"the log does not hold what the snapshot of {self.facts.unheld.end_offset}, epoch"
                f" {self.facts.unheld.epoch}, stands for: the next start begins the log anew at its end"
            )
        return found

    def _doubt(
        self,
        path: Path,
        what: str,
        *,
        position: int,
        offset: int,
        remedy: str = RESTORE,
    ) -> None:
        self.doubts.append(
            Finding(path=path, what=what, position=position, offset=offset, remedy=remedy)
        )

    # --- segments

    def _walk(self, base_offset: int) -> None:
        path = layout.log_path(self._directory, base_offset)
        is_last = base_offset == self._bases[-1] and not self._is_backup
        try:
            seen = settled(
                lambda: walk_segment(
                    self._fs,
                    path,
                    self._report,
                    is_last=is_last,
                    has_indexes=not self._is_backup,
                ),
                self._report.pause,
            )
        except FileNotFoundError:
            self._on_gone(base_offset)
            return
        self._report.add(*seen.findings)
        self._check_junction(base_offset, seen)
        self._take(base_offset, seen)

    def _on_gone(self, base_offset: int) -> None:
        """Deleted meanwhile: at the start of the log by retention, at its end by a truncation."""
        left = layout.segment_bases(self._fs.listdir(self._directory))
        if left and base_offset < left[0]:
            self.facts = LogFacts()
            self._expected = None

    def _check_junction(self, base_offset: int, seen: SegmentFacts) -> None:
        expected, facts = self._expected, self.facts
        if expected is not None and (problem := segment_problem(base_offset, expected)):
            self._doubt(seen.path, problem, position=0, offset=min(base_offset, expected))
        if seen.epochs and (problem := epoch_problem(seen.epochs[0].epoch, facts.last_epoch)):
            self._doubt(
                seen.path, f"{problem} in the segment before", position=0, offset=base_offset
            )

    def _take(self, base_offset: int, seen: SegmentFacts) -> None:
        facts = self.facts
        if not facts.segments:
            facts.start_offset = base_offset
        facts.segments += 1
        facts.batches += seen.batches
        facts.records += seen.records
        facts.size_bytes += seen.size_bytes
        facts.end_offset = seen.end_offset
        facts.unfinished_bytes = seen.unfinished_bytes
        self._data_end = seen.size_bytes - seen.unfinished_bytes
        for entry in seen.epochs:
            if entry.epoch > facts.last_epoch:
                facts.last_epoch = entry.epoch
                facts.epochs.append(entry)
        self._expected = None if seen.findings else seen.end_offset
        self._is_whole = self._is_whole and not seen.findings
        if seen.unreadable and not self._unreadable:
            self._first_unreadable = seen.first_unreadable
        self._unreadable += seen.unreadable
        self._missing_indexes += len(seen.missing_indexes)

    # --- small files

    def _read_state(self) -> None:
        try:
            state = load_quorum_state(self._fs, self._directory)
        except (DamagedFile, Misplaced) as error:
            self._report.add(finding_of(error))
            return
        if state is not None:
            self._applied_offset = state.applied_offset

    def _check_end(self) -> None:
        """A log that ends too early, unless a snapshot takes its place."""
        applied, end_offset = self._applied_offset, self.facts.end_offset
        if self.facts.unheld is not None:
            end_offset = self.facts.unheld.end_offset
        if applied > end_offset:
            last = self._bases[-1] if self._bases else 0
            self._doubt(
                layout.log_path(self._directory, last),
                f"the log ends at offset {end_offset}, but {layout.QUORUM_STATE} says that everything"
                f" below {applied} was committed",
                position=self._data_end,
                offset=end_offset,
            )

    def _read_epochs(self) -> bytes | None:
        try:
            return read_file(self._fs, self._directory / layout.EPOCH_CHECKPOINT)
        except FileNotFoundError:
            return None

    def _check_epochs(self) -> None:
        """Before the log was read or after, the file has to say of it what the log says."""
        path = self._directory / layout.EPOCH_CHECKPOINT
        problem: tuple[str, int, int] | None = None
        for data in self._epochs_files:
            problem = self._problem_of_epochs(data)
            if problem is None:
                return
        assert problem is not None, "the file was read"
        what, position, offset = problem
        self._doubt(path, what, position=position, offset=offset, remedy=_EPOCHS_REMEDY)

    def _problem_of_epochs(self, data: bytes | None) -> tuple[str, int, int] | None:
        """(what, byte, offset) if the file contradicts the log; it may say more than that has."""
        facts = self.facts
        if data is None:
            return None
        try:
            entries = parse_epochs(data)
        except ValueError as error:
            return f"unreadable: {error}", 0, facts.start_offset
        newest = facts.snapshots[-1].id.epoch if facts.snapshots else -1
        if not facts.segments and entries and entries[-1].epoch > newest:
            return f"there is no segment, but it names epoch {entries[-1].epoch}", 0, 0
        start_offset = self._log_start(entries)
        known, found = (
            [
                entry
                for entry in epochs_from(epochs, start_offset)
                if entry.start_offset < facts.end_offset
            ]
            for epochs in (entries, facts.epochs)
        )
        if known == found:
            return None
        at = next(
            (
                number
                for number, (one, other) in enumerate(zip(known, found, strict=False))
                if one != other
            ),
            min(len(known), len(found)),
        )
        says = _epoch_text(known[at]) if at < len(known) else "ends there"
        has = _epoch_text(found[at]) if at < len(found) else "has no further epoch"
        offset = min(entry[at].start_offset for entry in (known, found) if at < len(entry))
        return f"it says: {says}; the log: {has}", _line_position(data, known, at), offset

    def _log_start(self, entries: Sequence[EpochStart]) -> int:
        """Start of the log by the epochs of the file: at its first segment, or above.

        Kafka raises the log start to a snapshot's end and trims the file to that at once. Segments that
        end below go later, and the one that holds the log start stays. Source: Apache Kafka 4.3,
        KafkaRaftLog.deleteBeforeSnapshot, UnifiedLog.maybeIncrementLogStartOffset.
        """
        if entries and entries[0].start_offset in self._snapshot_ends:
            return max(entries[0].start_offset, self.facts.start_offset)
        return self.facts.start_offset

    # --- snapshots

    def _check_snapshots(self) -> None:
        facts = self.facts
        names = self._fs.listdir(self._directory)
        parsed = layout.snapshot_ids(names)
        self._snapshot_ends.update(each.end_offset for each in parsed)
        for found in parsed:
            self._walk_snapshot(found)
        covered = max((each.id.end_offset for each in facts.snapshots), default=0)
        if facts.start_offset > covered:
            why = "no snapshot holds what was before"
            if parsed:
                why = "no sound snapshot holds what was before"
            self._doubt(
                layout.log_path(self._directory, facts.start_offset),
                f"the log begins at offset {facts.start_offset}, and {why}",
                position=0,
                offset=covered,
            )
        for each in facts.snapshots:
            self._check_held(each.id, is_newest=each is facts.snapshots[-1])

    def _walk_snapshot(self, snapshot_id: SnapshotId) -> None:
        path = layout.snapshot_path(self._directory, snapshot_id)
        try:
            seen = settled(
                lambda: walk_snapshot(self._fs, path, snapshot_id, self._report), self._report.pause
            )
        except StorageError:
            if self._fs.exists(path):
                raise
            return
        if seen.facts is None and path.name not in self._fs.listdir(self._directory):
            # Deleted meanwhile.
            return
        report_snapshot(seen, path, self._report)
        if seen.facts is not None:
            self.facts.snapshots.append(seen.facts)
            self.facts.size_bytes += seen.facts.size_bytes

    def _check_held(self, snapshot_id: SnapshotId, *, is_newest: bool) -> None:
        """Does the log agree on the record before the snapshot's end?

        After a crash it need not: a snapshot that was copied counts more than a log that ends before it,
        or went another way, as long as nothing of that is known to be committed.
        """
        facts = self.facts
        end_offset, epoch = snapshot_id
        name = layout.snapshot_path(self._directory, snapshot_id).name
        if not self._is_whole:
            return
        if end_offset > facts.end_offset:
            if self._is_backup and facts.segments:
                what = f"the log ends before this snapshot does, at offset {facts.end_offset}"
                self._doubt(self._directory / name, what, position=0, offset=facts.end_offset)
            elif is_newest and name in self._names and not self._is_backup:
                self.facts.unheld = snapshot_id
            return
        found = epoch_at(facts.epochs, end_offset - 1)
        if end_offset <= facts.start_offset or found == epoch:
            return
        if is_newest and not self._is_backup and self._applied_offset < end_offset:
            self.facts.unheld = snapshot_id
            return
        self._doubt(
            self._directory / name,
            f"its epoch is {epoch}, but the record before its end, offset {end_offset - 1}, has epoch"
            f" {found} in the log",
            position=0,
            offset=end_offset - 1,
        )


def _epoch_text(entry: EpochStart) -> str:
    return f"epoch {entry.epoch} begins at offset {entry.start_offset}"


def _line_position(data: bytes, known: Sequence[EpochStart], at: int) -> int:
    """The byte where the line of an entry begins; the end of the file for one that is not there."""
    if at >= len(known):
        return len(data)
    line = f"{known[at].epoch} ".encode()
    found = data.find(b"\n" + line)
    return found + 1 if found >= 0 else 0
