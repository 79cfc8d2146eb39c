"""Recovery of the files that a start finds: checks all of them, repairs what a crash explains.

First everything is read and nothing changed; damage is raised from there. Then repairs follow.

| found | verdict |
|---|---|
| zeros, perhaps with the marker, behind the last batch of the last segment | written ahead: kept |
| a batch of the last segment short or not valid, as power failure leaves it | cut from there on, reported |
| the same, but not as it leaves one: quorumd.storage.torn_tail | DamagedLog |
| a batch with a valid CRC whose offset or epoch does not continue the log; an epoch below 0 | DamagedLog |
| anything but whole batches in a segment that is not the last | DamagedLog |
| first offset of a segment is not the end of the one before (gap, overlap, missing, doubled) | DamagedLog |
| log starts above 0 and no snapshot covers it; epochs are recorded and there is no segment | DamagedLog |
| log does not hold what the newest snapshot stands for, or there is no segment | emptied, begins at its end |
| the same, but the caller did not find that snapshot sound | DamagedLog |
| log ends below an offset that was recorded as committed | DamagedLog |
| .index or .timeindex missing, or saying anything that the log doesn't | rebuilt |
| leader-epoch-checkpoint missing, unreadable or different from the log | rebuilt: the log is the truth |
| .tmp of small files, .part files, indexes without a segment | deleted |
| any other name | left alone, reported |

Which CRCs are verified: all in the last segment, since only its bytes may be newer than the last
sync. It is synced first and its cached pages are dropped, so that what is checked is on the disk,
also after a failed fsync in an earlier life, and is durable before the node counts it. Closed
segments were synced before the next one was begun: their headers are checked (structure, offsets,
epochs), their contents whenever they are read (`Log.read`, `Log.scan_headers`). With an observer
every CRC is verified, because state is built from what it sees. What ends below the newest snapshot
is not observed, and segments that do so are not walked through: quorumd.storage.closed_segment_check.

A log holds what a snapshot stands for if its record before the snapshot's end has the snapshot's
epoch, or if it starts there or later. If not, it ends too early or diverges from what is committed;
a copied snapshot was completed, and the log not emptied yet, or not quite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.storage import layout
from quorumd.storage.batch_walk import reason_of, walk
from quorumd.storage.closed_segment_check import check_closed_segment
from quorumd.storage.epoch_checkpoint import (
    EpochStart,
    epoch_at,
    epochs_from,
    load_epochs,
    save_epochs,
)
from quorumd.storage.errors import RESTORE, DamagedLog, from_os_error
from quorumd.storage.filesystem import FileSystem, file_size, opened
from quorumd.storage.index import SegmentIndex
from quorumd.storage.index_checks import FoundSegment, IndexChecks
from quorumd.storage.log_writer import new_segment
from quorumd.storage.recovery_report import RecoveryReport
from quorumd.storage.segment import Segment, write_indexes
from quorumd.storage.segment_removal import empty_log
from quorumd.storage.torn_tail import Tail, examine_tail, has_unwritten_sector
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BatchHeader
from quorumd.wire.sequence_check import segment_problem, sequence_problem

BatchObserver = Callable[[BatchHeader], object]

_CODEC_BITS = 7
"""Attributes up to this say nothing but the codec: most batches."""
_NO_SNAPSHOT = SnapshotId(0, -1)
"""A snapshot that every log holds."""


@dataclass(slots=True, kw_only=True)
class Recovered:
    """The log as found. `segments` ascend, the last one is active and has its index in memory;
    `index_bytes` has what the index files of the others take, by first offset."""

    segments: list[Segment]
    index_bytes: dict[int, int]
    epochs: list[EpochStart]
    control_offsets: list[int]
    report: RecoveryReport


def recover(
    fs: FileSystem,
    directory: Path,
    *,
    index_interval_bytes: int,
    committed_offset: int = 0,
    snapshots: Sequence[SnapshotId] = (),
    observe: BatchObserver | None = None,
) -> Recovered:
    """Checks and repairs the log in `directory`, which must exist.

    `committed_offset`: an end offset (exclusive) that is known to be committed. `snapshots`: those in
    the directory that were found sound, as (end offset, epoch). `observe` is called with the header
    of every batch that stays and ends above the newest of them, in order. Raises DamagedLog, with
    nothing changed, or another StorageError if a repair fails. An empty directory is an empty log
    without segments.
    """
    try:
        names = fs.listdir(directory)
        newest = max(snapshots, key=_by_epoch, default=_NO_SNAPSHOT)
        inspection = _Inspection(
            fs, directory, names, index_interval_bytes, snapshots, newest, observe
        )
        inspection.run()
    except OSError as error:
        raise from_os_error(error, directory, "reading the log") from error
    if inspection.end_offset < committed_offset:
        raise DamagedLog(
            f"the log ends at offset {inspection.end_offset}, but everything below"
            f" {committed_offset} was committed",
            path=directory,
            offset=inspection.end_offset,
        )
    try:
        return _repair(fs, directory, inspection)
    except OSError as error:
        raise from_os_error(error, directory, "repairing the log") from error


@dataclass(slots=True)
class _Inspection:
    """One pass over the directory that changes nothing."""

    fs: FileSystem
    directory: Path
    names: list[str]
    index_interval_bytes: int
    snapshots: Sequence[SnapshotId]
    newest: SnapshotId
    observe: BatchObserver | None
    found: list[FoundSegment] = field(default_factory=list)
    epochs: list[EpochStart] = field(default_factory=list)
    control_offsets: list[int] = field(default_factory=list)
    tail: Tail | None = None
    tail_reason: str = ""
    start_offset: int = 0
    end_offset: int = 0
    dropped_end_offset: int | None = None
    _epoch: int | None = None

    def run(self) -> None:
        bases = layout.segment_bases(self.names)
        if bases:
            self._check_start(bases[0])
            self.start_offset = self.end_offset = bases[0]
            taken = self._take_history(bases)
            for base_offset in bases[taken:]:
                self._inspect(base_offset, is_last=base_offset == bases[-1])
        else:
            self._check_that_none_are_missing()
        self._check_snapshots()
        if not self._holds(self.newest):
            self._give_up()

    def _check_that_none_are_missing(self) -> None:
        epochs = load_epochs(self.fs, self.directory)
        if epochs and epochs[-1].epoch > self.newest[1]:
            raise DamagedLog(
                f"there is no segment, but leader-epoch-checkpoint names epoch {epochs[-1].epoch}",
                path=self.directory,
                offset=epochs[0].start_offset,
            )

    def _check_start(self, base_offset: int) -> None:
        if not base_offset or any(end >= base_offset for end, _ in self.snapshots):
            return
        named = layout.snapshot_ids(self.names)
        unsound = [each for each in named if each.end_offset >= base_offset]
        why = "no snapshot holds what was before: earlier segments are missing"
        if unsound:
            name = layout.snapshot_path(self.directory, unsound[0]).name
            why = f"{name}, which holds what was before, was not found sound"
        raise DamagedLog(
            f"the log begins at offset {base_offset} and {why}",
            path=layout.log_path(self.directory, base_offset),
            offset=0,
        )

    # --- snapshots

    def _holds(self, snapshot: SnapshotId) -> bool:
        """True if the log has, or begins behind, the record before the snapshot's end."""
        end_offset, epoch = snapshot
        if end_offset <= self.start_offset:
            return True
        return end_offset <= self.end_offset and epoch_at(self.epochs, end_offset - 1) == epoch

    def _check_snapshots(self) -> None:
        named = max(layout.snapshot_ids(self.names), key=_by_epoch, default=_NO_SNAPSHOT)
        if named != self.newest and not (self._holds(named) and self._holds(self.newest)):
            raise DamagedLog(
                f"the log, which ends at offset {self.end_offset}, does not hold what this snapshot"
                " stands for, and the snapshot was not found sound",
                path=layout.snapshot_path(self.directory, named),
                offset=self.end_offset,
                remedy=f"If the file was put there by hand, move it away. Else: {RESTORE}",
            )

    def _give_up(self) -> None:
        """The newest snapshot takes the place of all that was found; nothing of that was observed."""
        self.dropped_end_offset = self.end_offset
        self.start_offset = self.end_offset = self.newest[0]
        self.found.clear()
        self.epochs.clear()
        self.tail = None

    def _take_history(self, bases: Sequence[int]) -> int:
        """Takes the segments below the newest snapshot's end as they are; returns how many."""
        below = [place for place in pairwise(bases) if place[1] <= self.newest[0]]
        if below and self._take(below):
            return len(below)
        self.found.clear()
        self.epochs.clear()
        self.end_offset, self._epoch = self.start_offset, None
        return 0

    def _take(self, below: Sequence[tuple[int, int]]) -> bool:
        """False if leader-epoch-checkpoint is missing, or the log or a snapshot disagrees with it."""
        epochs = epochs_from(load_epochs(self.fs, self.directory) or [], self.start_offset)
        end_offset = below[-1][1]
        if epoch_at(epochs, self.start_offset) < 0:
            return False
        known = [
            (end, epoch) for end, epoch in self.snapshots if self.start_offset < end <= end_offset
        ]
        if any(epoch_at(epochs, end - 1) != epoch for end, epoch in known):
            return False
        for base, end in below:
            self._take_segment(base, end, epochs)
        return self.epochs == [entry for entry in epochs if entry.start_offset < end_offset]

    def _take_segment(self, base: int, end: int, epochs: Sequence[EpochStart]) -> None:
        found = None
        if base == self.end_offset:
            found = check_closed_segment(
                self.fs, self.directory, base, end, epochs, self.index_interval_bytes
            )
        if found is None:
            self._inspect(base, is_last=False)
            return
        self.found.append(found)
        self.epochs += [entry for entry in epochs if base <= entry.start_offset < end]
        self.end_offset, self._epoch = end, epoch_at(epochs, end - 1)

    # --- segments

    def _inspect(self, base_offset: int, *, is_last: bool) -> None:
        path = layout.log_path(self.directory, base_offset)
        problem = segment_problem(base_offset, self.end_offset)
        if problem:
            raise DamagedLog(problem, path=path, offset=min(base_offset, self.end_offset))
        with opened(self.fs, path, writable=is_last) as handle:
            if is_last:
                self.fs.fsync(handle)
                self.fs.drop_cached(handle)
            self._inspect_file(path, base_offset, handle, is_last=is_last)

    def _inspect_file(self, path: Path, base_offset: int, handle: int, *, is_last: bool) -> None:
        size = self.fs.size(handle)
        found = FoundSegment(
            Segment(base_offset, path, 0, base_offset),
            SegmentIndex(base_offset, self.index_interval_bytes),
        )
        checks = IndexChecks(found)
        if not is_last:
            checks.load(self.fs)
        segment = found.segment
        reason = "the last batch is short"
        try:
            self._inspect_batches(found, checks, handle, size, is_last=is_last)
        except CorruptBatch as error:
            reason = reason_of(error)
        except _TornHeader:
            reason = "the header of the last batch is half written"
        segment.end_offset = self.end_offset
        segment.max_timestamp = found.index.max_timestamp
        segment.max_timestamp_offset = found.index.max_timestamp_offset
        if segment.size_bytes < size:
            self._on_rest(segment, handle, size, reason, is_last)
        if not is_last:
            checks.finish()
        self.found.append(found)

    def _inspect_batches(
        self, found: FoundSegment, checks: IndexChecks, handle: int, size: int, *, is_last: bool
    ) -> None:
        """Every batch of a segment; `self.end_offset` and the segment's size follow each of them.

        Runs once per batch of the whole log, so what is rare is decided elsewhere.
        """
        segment = found.segment
        add = found.index.add if is_last else checks.add
        observe = self.observe
        known_end_offset = self.newest[0]
        is_of_log = False
        verify_crc = is_last or observe is not None
        for position, header in walk(self.fs, handle, 0, size, verify_crc=verify_crc):
            base_offset, size_bytes, epoch, _, attributes, delta, _, timestamp, *_ = header
            if base_offset != self.end_offset or epoch != self._epoch or delta < 0:
                self._check_sequence(segment.path, position, header, handle, is_last)
                self._epoch = epoch
                self.epochs.append(EpochStart(epoch, base_offset))
            last_offset = base_offset + delta
            add(position, last_offset, timestamp)
            self.end_offset = last_offset + 1
            segment.size_bytes = position + size_bytes
            if last_offset < known_end_offset or not (is_of_log or self._holds(self.newest)):
                continue
            is_of_log = True
            if attributes > _CODEC_BITS and header.is_control:
                self.control_offsets.append(base_offset)
            if observe is not None:
                observe(header)

    def _check_sequence(
        self, path: Path, position: int, header: BatchHeader, handle: int, is_last: bool
    ) -> None:
        """Lets a batch that begins a new epoch pass. Raises DamagedLog or _TornHeader for others."""
        what = sequence_problem(header, self.end_offset, self._epoch)
        if not what:
            return
        # The first 17 bytes of a header are not covered by its CRC: a batch without the sector in
        # which it begins can look valid, with its offset gone.
        if is_last and has_unwritten_sector(
            self.fs, handle, position, position + 1, self.end_offset
        ):
            raise _TornHeader
        raise DamagedLog(what, path=path, position=position, offset=self.end_offset)

    def _on_rest(
        self, segment: Segment, handle: int, size: int, reason: str, is_last: bool
    ) -> None:
        """Bytes behind the last good batch: zeros or a torn write in the last segment, or damage."""
        position = segment.size_bytes
        tail = examine_tail(
            self.fs, handle, position, size, self.end_offset, epoch=self._epoch or 0
        )
        if not is_last:
            if not tail.torn_bytes:
                self._check_next(segment)
            raise DamagedLog(
                f"not a sequence of whole batches: {reason}",
                path=segment.path,
                position=position,
                offset=self.end_offset,
            )
        self.tail = tail
        self.tail_reason = self.tail.describe(reason)
        if self.tail.damage:
            where = "at the end" if self.tail.valid_after is None else "in the middle"
            raise DamagedLog(
                f"damage {where}: {self.tail_reason}",
                path=segment.path,
                position=position,
                offset=self.end_offset,
            )

    def _check_next(self, segment: Segment) -> None:
        """Zeros behind the data are no damage where only an empty file makes a segment not the last."""
        *_, last_but_one, base_offset = layout.segment_bases(self.names)
        path = layout.log_path(self.directory, base_offset)
        if segment.base_offset == last_but_one and not file_size(self.fs, path):
            raise DamagedLog(
                f"an empty segment behind a gap: it begins at offset {base_offset}, the one before ends at"
                f" {self.end_offset}",
                path=path,
                offset=self.end_offset,
                remedy=f"If the file was put there by hand, move it away. Else: {RESTORE}",
            )


class _TornHeader(Exception):
    """Control flow: the batch at hand is part of an unfinished write."""


def _repair(fs: FileSystem, directory: Path, inspection: _Inspection) -> Recovered:
    tail = inspection.tail
    cut = tail is not None and tail.torn_bytes > 0
    if cut:
        _cut(fs, inspection.found[-1].segment)
    rebuilt = list(_rebuild_indexes(fs, inspection.found[:-1]))
    segments = [found.segment for found in inspection.found]
    names = inspection.names
    if inspection.dropped_end_offset is not None:
        # First of all the snapshot's own name has to last.
        fs.fsync_directory(directory)
        empty_log(fs, directory, inspection.start_offset)
        names = fs.listdir(directory)
        interval = inspection.index_interval_bytes
        segments = [new_segment(directory, inspection.start_offset, interval)]
    removed = _remove_leftovers(fs, directory, names, segments)
    rebuilt_epochs = (load_epochs(fs, directory) or []) != inspection.epochs
    if rebuilt_epochs:
        save_epochs(fs, directory, inspection.epochs)
    if inspection.found:
        inspection.found[-1].segment.index = inspection.found[-1].index
    try:
        # The last life may have ended between creating, renaming or deleting a file and this.
        fs.fsync_directory(directory)
    except OSError as error:
        raise from_os_error(error, directory, "syncing the directory") from error
    report = RecoveryReport(
        log_start_offset=inspection.start_offset,
        log_end_offset=inspection.end_offset,
        dropped_end_offset=inspection.dropped_end_offset,
        cut_bytes=tail.torn_bytes if tail is not None else 0,
        cut_path=segments[-1].path if cut else None,
        cut_position=segments[-1].size_bytes if cut else 0,
        cut_reason=inspection.tail_reason if cut else "",
        rebuilt_indexes=tuple(rebuilt),
        rebuilt_epochs=rebuilt_epochs,
        removed_files=tuple(removed),
        foreign_files=tuple(_foreign(inspection.names)),
    )
    return Recovered(
        segments=segments,
        index_bytes={segment.base_offset: _index_bytes(fs, segment) for segment in segments[:-1]},
        epochs=inspection.epochs,
        control_offsets=inspection.control_offsets,
        report=report,
    )


def _rebuild_indexes(fs: FileSystem, closed: Sequence[FoundSegment]) -> Iterator[Path]:
    for found in closed:
        segment = found.segment
        if not (found.index_is_good and found.time_index_is_good):
            write_indexes(fs, segment, found.index)
            if not found.index_is_good:
                yield segment.index_path
            if not found.time_index_is_good:
                yield segment.time_index_path


def _index_bytes(fs: FileSystem, segment: Segment) -> int:
    return file_size(fs, segment.index_path) + file_size(fs, segment.time_index_path)


def _cut(fs: FileSystem, segment: Segment) -> None:
    try:
        with opened(fs, segment.path, writable=True) as handle:
            fs.truncate(handle, segment.size_bytes)
            fs.fsync(handle)
    except OSError as error:
        raise from_os_error(error, segment.path, "cutting off the torn tail") from error


def _remove_leftovers(
    fs: FileSystem, directory: Path, names: list[str], segments: list[Segment]
) -> list[str]:
    bases = {segment.base_offset for segment in segments}
    active = segments[-1].base_offset if segments else None
    removed = []
    try:
        for name in names:
            parsed = layout.parse_segment_name(name)
            is_orphan = parsed is not None and parsed[0] not in bases
            # The indexes of a cleanly stopped log's last segment go stale with the first write.
            is_stale = parsed is not None and parsed[0] == active and parsed[1] != layout.LOG_SUFFIX
            if layout.is_temporary(name) or layout.is_part(name) or is_orphan or is_stale:
                fs.unlink(directory / name)
                if not is_stale:
                    removed.append(name)
    except OSError as error:
        raise from_os_error(error, directory, "deleting leftovers") from error
    return removed


def _by_epoch(snapshot: SnapshotId) -> tuple[int, int]:
    end_offset, epoch = snapshot
    return epoch, end_offset


def _foreign(names: list[str]) -> Iterator[str]:
    return (
        name for name in names if not layout.is_known_name(name) and not layout.is_temporary(name)
    )
