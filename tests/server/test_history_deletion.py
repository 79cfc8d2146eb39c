"""History that is due goes a share at a time: appends and votes wait for what the disk deletes."""

from __future__ import annotations

import pytest

from quorumd.raft.events import Event, LogDeletionRequested
from quorumd.raft.types import SnapshotId
from quorumd.server.snapshots.history_deletion import SHARE_PAUSE_S
from quorumd.server.snapshots.manager import DELETION_INTERVAL_S
from quorumd.server.snapshots.retention import SEGMENTS_AT_ONCE
from quorumd.storage.segment_table import ClosedSegment
from tests.server.test_snapshot_manager import NEW, Bench

DUE = NEW.end_offset
FIRST, SECOND = SEGMENTS_AT_ONCE, min(2 * SEGMENTS_AT_ONCE, DUE)


class Deleting(Bench):
    """A node with a segment for each offset below its newest snapshot, all of them too old."""

    def __init__(self) -> None:
        super().__init__(retention_ms=1000)
        self.closed[:] = [ClosedSegment(end - 1, end, 100, 0) for end in range(1, DUE + 1)]

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        if isinstance(event, LogDeletionRequested):
            self.log.start_offset = event.start_offset

    def deleted(self) -> None:
        """The disk is done with what it was asked for."""
        start_offset = self.log.start_offset
        self.closed[:] = [each for each in self.closed if each.end_offset > start_offset]

    def starts(self) -> list[int]:
        """Where the log was asked to start, one request after the other."""
        return [each.start_offset for each in self.events if isinstance(each, LogDeletionRequested)]


@pytest.fixture
def deleting() -> Deleting:
    bench = Deleting()
    bench.wait(DELETION_INTERVAL_S)
    return bench


def test_what_is_due_goes_a_share_at_a_time(deleting: Deleting) -> None:
    assert deleting.starts() == [FIRST]
    deleting.deleted()
    deleting.wait(SHARE_PAUSE_S)
    assert deleting.starts() == [FIRST, SECOND]
    deleting.deleted()
    deleting.wait(3 * DELETION_INTERVAL_S)
    assert deleting.starts() == [FIRST, SECOND], "nothing is left that is due"


def test_a_share_waits_for_a_disk_that_is_slow(deleting: Deleting) -> None:
    deleting.wait(3 * DELETION_INTERVAL_S)
    assert deleting.starts() == [FIRST]
    deleting.deleted()
    deleting.wait(SHARE_PAUSE_S)
    assert deleting.starts() == [FIRST, SECOND]


def test_a_build_that_begins_meanwhile_keeps_the_rest(deleting: Deleting) -> None:
    deleting.write(1000)
    deleting.deleted()
    deleting.wait(3 * DELETION_INTERVAL_S)
    assert deleting.starts() == [FIRST]
    deleting.built(SnapshotId(30, 1))
    assert deleting.starts() == [FIRST, SECOND]
