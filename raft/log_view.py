"""The rules' view of the log: offsets, epochs and voter sets, never record bytes.

Three cursors: the start, the end, and the end of what this replica has synced. Every change here is
paired with an effect that makes the disk follow. Source: KIP-595 (log reconciliation), KIP-320.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quorumd.raft.control import VotersRecord
from quorumd.raft.types import OffsetAndEpoch, SnapshotId, VoterSet, position_of

_PAST_ALL_OFFSETS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class VoterEntry:
    """A voter set and the offset of the record that named it; -1 if configuration did."""

    offset: int
    record: VotersRecord


@dataclass(slots=True)
class LogView:
    """Offsets are exclusive ends, except epoch starts, which are inclusive."""

    start_offset: int = 0
    end_offset: int = 0
    synced_end_offset: int = 0
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    voter_entries: list[VoterEntry] = field(default_factory=list)
    snapshots: list[SnapshotId] = field(default_factory=list)
    """Ends of the log that complete snapshots here stand for, ascending; a log that starts above 0
    has one that ends there or later (KIP-630)."""

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; of an empty log, of the snapshot that it starts at, else 0."""
        if self.epoch_starts:
            return self.epoch_starts[-1][0]
        return self.snapshots[-1].epoch if self.snapshots else 0

    @property
    def snapshot(self) -> SnapshotId | None:
        """The newest snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def end(self) -> OffsetAndEpoch:
        """End offset of the log (exclusive), and the epoch of its last record."""
        return position_of(self.end_offset, self.last_epoch)

    def ends_at(self, position: OffsetAndEpoch) -> bool:
        """True if `position` is the end of this log, without making it."""
        return position[0] == self.end_offset and position[1] == self.last_epoch

    @property
    def voters(self) -> VoterSet:
        """The latest voter set, committed or not (KIP-856, internal listener)."""
        return self.voter_entries[-1].record.voters

    @property
    def voters_offset(self) -> int:
        """Offset of the record that named the latest voter set, -1 for a configured one."""
        return self.voter_entries[-1].offset

    def has_data_behind(self, entry: VoterEntry) -> bool:
        """True if clients have written behind this voter set: there is more than leaders write themselves.

        These write one record at the start of their epoch, and one for each voter set.
        """
        own = sum(start > entry.offset for _, start in self.epoch_starts)
        own += sum(other.offset > entry.offset for other in self.voter_entries)
        return self.end_offset - (entry.offset + 1) > own

    def append(self, end_offset: int, epochs: Iterable[tuple[int, int]]) -> None:
        """Records up to `end_offset` follow; `epochs` are their (epoch, first offset) runs."""
        assert end_offset > self.end_offset, "an append moves the log end forward"
        for epoch, start_offset in epochs:
            last_epoch = self.last_epoch
            assert epoch >= last_epoch, "epochs never go back along the log"
            if epoch > last_epoch or not self.epoch_starts:
                self.epoch_starts.append((epoch, start_offset))
        self.end_offset = end_offset

    def add_voters(self, offset: int, record: VotersRecord) -> None:
        """The record at `offset` names the voters from now on."""
        self.voter_entries.append(VoterEntry(offset, record))

    def truncate(self, end_offset: int) -> bool:
        """Drop everything from `end_offset` on. Returns True if a voter set went with it."""
        assert self.start_offset <= end_offset <= self.end_offset
        self.end_offset = end_offset
        self.synced_end_offset = min(self.synced_end_offset, end_offset)
        while self.epoch_starts and self.epoch_starts[-1][1] >= end_offset:
            self.epoch_starts.pop()
        before = len(self.voter_entries)
        while self.voter_entries[-1].offset >= end_offset:
            self.voter_entries.pop()
        return len(self.voter_entries) != before

    def reset(self, snapshot: SnapshotId, record: VotersRecord | None) -> None:
        """Be empty behind a snapshot, whose voter set counts as of its last offset."""
        self.start_offset = self.end_offset = self.synced_end_offset = snapshot.end_offset
        self.epoch_starts.clear()
        self.snapshots[:] = [snapshot]
        del self.voter_entries[1:]
        if record is not None:
            self.add_voters(snapshot.end_offset - 1, record)

    def delete_prefix(self, start_offset: int, snapshots: Iterable[SnapshotId]) -> None:
        """Drop what is below `start_offset`, and all snapshots but these."""
        self.snapshots[:] = snapshots
        assert self.start_offset <= start_offset <= self.end_offset
        assert not start_offset or self.snapshots[-1].end_offset >= start_offset
        self.start_offset = start_offset
        while len(self.epoch_starts) > 1 and self.epoch_starts[1][1] <= start_offset:
            self.epoch_starts.pop(0)
        if self.epoch_starts and self.epoch_starts[0][1] < start_offset:
            self.epoch_starts[0] = (self.epoch_starts[0][0], start_offset)

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        """Largest epoch not above `epoch`, and where it ends (exclusive).

        Source: KIP-595, Fetch request handling, step 3; KIP-320, OffsetsForLeaderEpoch.
        """
        if not self.epoch_starts or epoch >= self.last_epoch:
            return self.end
        at = bisect_right(self.epoch_starts, (epoch, _PAST_ALL_OFFSETS))
        if at == 0:
            return OffsetAndEpoch(self.epoch_starts[0][1], epoch)
        return OffsetAndEpoch(self.epoch_starts[at][1], self.epoch_starts[at - 1][0])

    def prefix_end(self, end_offset: int) -> OffsetAndEpoch:
        """`end_offset` (exclusive) with the epoch of the last record of this log below it.

        As in `last_epoch` that is the epoch of a snapshot if the part is empty, else 0.
        """
        for epoch, start_offset in reversed(self.epoch_starts):
            if start_offset < end_offset:
                return OffsetAndEpoch(end_offset, epoch)
        ends = (each.epoch for each in self.snapshots if each.end_offset == end_offset)
        return OffsetAndEpoch(end_offset, next(ends, 0))

    def contains(self, position: OffsetAndEpoch) -> bool:
        """True if a log that ends at `position` is a prefix of this one."""
        offset, epoch = position
        starts = self.epoch_starts
        if starts and offset == self.end_offset and epoch == starts[-1][0]:
            return True
        if offset == 0:
            return self.start_offset == 0
        if offset >= self.start_offset and SnapshotId(offset, epoch) in self.snapshots:
            return True
        if not self.start_offset < offset <= self.end_offset:
            return False
        last_epoch, last_start = starts[-1]
        if epoch == last_epoch:
            return offset > last_start
        # Below the first epoch and above the last one, the one that is found has another number.
        at = bisect_right(starts, (epoch, _PAST_ALL_OFFSETS)) - 1
        found, start_offset = starts[at]
        return found == epoch and start_offset < offset <= starts[at + 1][1]

    def snapshot_for(self, position: OffsetAndEpoch) -> SnapshotId | None:
        """The snapshot that a log that ends at `position` needs first; None if the log will do.

        That is the newest one, for an empty log and for one that ends, or may agree, only below this
        one's start (KIP-630; Kafka, validation of offset and epoch).
        """
        newest = self.snapshot
        if newest is None or position.offset == 0:
            return newest
        if self.contains(position):
            return None
        reaches = self.diverging_from(position).offset if self.epoch_starts else 0
        return newest if min(position.offset, reaches) <= self.start_offset else None

    def diverging_from(self, position: OffsetAndEpoch) -> OffsetAndEpoch:
        """Point at which a log that ends at `position`, which this one does not contain, parts from this one.

        The largest epoch not above the position's that may still agree, and where it ends here
        (KIP-595, Fetch request handling, step 3).
        """
        found = self.end_offset_for(position.epoch)
        if found.epoch == position.epoch and position.offset <= found.offset:
            return self.end_offset_for(position.epoch - 1)
        return found

    def truncation_point(self, diverging: OffsetAndEpoch) -> int:
        """Offset to cut at after a leader said that its log ends `diverging.epoch` at `diverging.offset`.

        Everything of a later epoch diverges, and in that epoch itself everything from that offset on
        (KIP-595, Fetch response handling, step 2). Where this log has nothing of that epoch, what it
        has of earlier ones may still agree; only the next fetch will show. So the cut is always
        between two batches: two logs have the same batches in an epoch that they share.
        """
        own = self.end_offset_for(diverging.epoch)
        return min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
