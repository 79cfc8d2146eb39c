"""What a snapshot may hold, when the next one is due, and what counts for `retention.bytes`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from quorumd.raft.events import LogDeletionRequested
from quorumd.raft.types import SnapshotId
from quorumd.storage.log import Log
from quorumd.storage.segment_table import ClosedSegment
from tests.server.test_snapshot_manager import NEW, OLD, Bench


def test_a_snapshot_holds_nothing_that_is_not_on_this_disk() -> None:
    """A majority of others may have committed what is still on its way to it."""
    bench = Bench()
    bench.grow(40)
    bench.node.committed_offset = 45
    bench.write(1000)
    assert bench.ends() == [40]


def test_time_alone_begins_one_build_in_each_interval() -> None:
    bench = Bench()
    bench.wait(3_600)
    assert bench.ends() == [30]
    bench.built(SnapshotId(30, 1))
    bench.grow(40)
    bench.wait(3_500)
    bench.write(1)
    assert bench.ends() == [30]
    bench.wait(100)
    assert bench.ends() == [30, 40]


def test_snapshots_count_for_the_size_that_is_kept() -> None:
    bench = Bench()
    sizes = sum(len(each) for each in bench.contents.values())
    segment = ClosedSegment(0, 5, 50, -1)
    deletion = bench.snapshots.deletion
    log = SimpleNamespace(closed_segments=lambda: [segment], size_bytes=100)
    deletion._log = cast(Log, log)
    for retention_bytes, deletes in ((sizes + 100, False), (sizes + 99, True)):
        deletion._settings = replace(deletion._settings, retention_bytes=retention_bytes)
        deletion.delete_due()
        asked = [event for event in bench.events if isinstance(event, LogDeletionRequested)]
        assert asked == (
            [LogDeletionRequested(start_offset=5, snapshots=(OLD, NEW))] if deletes else []
        )
