"""Power is lost at every call while old segments are deleted, or a log begins anew behind a snapshot."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from quorumd.storage.errors import DamagedLog
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.layout import parse_snapshot_name
from quorumd.storage.log import Log
from simulation.machines.disk import ProcessKilled, SimDisk
from tests.storage.faulty_filesystem import FaultyFileSystem, Survival
from tests.storage.helpers import (
    DIRECTORY,
    at_losses,
    batch,
    contents,
    crash,
    crash_points,
    open_log,
    put_snapshot,
)

pytestmark = pytest.mark.sim

SEGMENT_BYTES = 700


@dataclass
class Story:
    """What the log must hold after a power loss at this moment.

    `batches` from offset `start` on, of which those below `synced_end` must be there, and the log may
    begin at any of `starts`: deleted segments may be back. If the snapshot `coming` is there, the log
    must be empty behind it.
    """

    start: int = 0
    starts: list[int] = field(default_factory=lambda: [0])
    batches: list[bytes] = field(default_factory=list)
    synced_end: int = 0
    coming: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.batches)

    def reopen(self, fs: FileSystem) -> Log:
        return open_log(
            fs, segment_bytes=SEGMENT_BYTES, index_interval_bytes=100, snapshots=snapshots_on(fs)
        )

    def run(self, fs: FileSystem) -> None:
        log = self.reopen(fs)
        self.append(log, 18, epoch=1)
        self.append(log, 9, epoch=3)
        put_snapshot(fs, 10, 1)
        self.delete(log, 10)
        self.append(log, 4, epoch=3)
        put_snapshot(fs, 25, 3)
        self.write(log, epoch=3)
        self.delete(log, 25)
        log.close()
        log = self.reopen(fs)
        # The newest snapshot ends behind the log.
        self.reset(fs, log, 60, 5)
        self.append(log, 17, epoch=5)
        put_snapshot(fs, 70, 5)
        self.write(log, epoch=6)
        # It ends in the midst of a log that went another way.
        self.reset(fs, log, 75, 7)
        self.append(log, 16, epoch=7)
        self.write(log, epoch=7)
        put_snapshot(fs, 82, 7)
        self.delete(log, 82)
        # It ends where an old segment begins.
        self.reset(fs, log, log.closed_segments()[-1].end_offset, 8)
        self.reset(fs, log, 130, 8)
        self.append(log, 3, epoch=9)
        log.close()

    def append(self, log: Log, count: int, *, epoch: int) -> None:
        for _ in range(count):
            self.write(log, epoch=epoch)
            log.sync()
            self.synced_end = self.end

    def write(self, log: Log, *, epoch: int) -> None:
        offset = self.end
        data = batch(offset, epoch=epoch, value_bytes=[10, 90, 40][offset % 3])
        self.batches.append(data)
        log.append(data, offset, offset + 1)
        log.write(data, offset, offset + 1)

    def delete(self, log: Log, offset: int) -> None:
        ends = [segment.end_offset for segment in log.closed_segments()]
        self.starts = [self.starts[0], *(end for end in ends if end <= offset)]
        start = log.delete_before(offset)
        del self.batches[: start - self.start]
        self.start = start
        self.starts = [start]

    def reset(self, fs: FileSystem, log: Log, end_offset: int, epoch: int) -> None:
        self.coming = (end_offset, epoch)
        put_snapshot(fs, end_offset, epoch)
        self.begin_at_snapshot()
        log.reset_cache(end_offset)
        log.reset(end_offset)

    def begin_at_snapshot(self) -> None:
        """From now on every start empties the log, however far the reset got."""
        assert self.coming is not None
        self.start = self.synced_end = self.coming[0]
        self.starts = [self.start]
        self.batches = []
        self.coming = None

    def check(self, fs: FileSystem) -> None:
        if self.coming in snapshots_on(fs):
            self.begin_at_snapshot()
        log = self.reopen(fs)
        assert log.log_start_offset in self.starts
        assert self.synced_end <= log.log_end_offset <= self.end
        offsets = list(range(log.log_start_offset, log.log_end_offset))
        found = contents(log)
        assert found == b"".join(self.batches[offset - self.start] for offset in offsets)
        assert [header.base_offset for header in log.scan_headers()] == offsets
        assert [entry.start_offset for entry in log.epochs[:1]] == offsets[:1]
        self.go_on(fs, log, found)

    def go_on(self, fs: FileSystem, log: Log, found: bytes) -> None:
        """The log takes appends, stops cleanly and comes back, indexes and all."""
        end = log.log_end_offset
        more = [batch(offset, epoch=19) for offset in range(end, end + 9)]
        for offset, data in enumerate(more, end):
            log.append(data, offset, offset + 1)
            log.write(data, offset, offset + 1)
        log.sync()
        log.close()
        again = self.reopen(fs)
        assert again.recovery.messages() == []
        assert contents(again) == found + b"".join(more)
        assert again.epochs[-1] == (19, end)


def snapshots_on(fs: FileSystem) -> list[tuple[int, int]]:
    found = (parse_snapshot_name(name) for name in fs.listdir(DIRECTORY))
    return [snapshot for snapshot in found if snapshot]


@pytest.mark.parametrize("survival", Survival)
def test_nothing_needed_is_lost_wherever_the_power_goes(survival: Survival) -> None:
    def look(at: int, story: Story, fs: FaultyFileSystem) -> None:
        try:
            story.check(fs.crash(survival, Random(at)))
        except (AssertionError, DamagedLog) as error:
            error.add_note(f"power lost at call {at}, {survival}")
            raise

    at_losses(Story(), frozenset(crash_points(Story().run)), look)


@pytest.mark.parametrize("survival", Survival)
def test_a_second_crash_during_recovery_loses_nothing_either(survival: Survival) -> None:
    def look(at: int, story: Story, fs: FaultyFileSystem) -> None:
        random = Random(at)
        second = fs.crash(survival, random)
        again = second.calls + random.randint(1, 12)
        crash(second, again, lambda found: story.reopen(found).close())
        try:
            story.check(second.crash(survival, random))
        except (AssertionError, DamagedLog) as error:
            error.add_note(f"power lost at call {at} and then at call {again}")
            raise

    at_losses(Story(), frozenset(list(crash_points(Story().run))[::2]), look)


@pytest.mark.parametrize("seed", range(150))
def test_on_a_simulated_disk_as_well(seed: int) -> None:
    random = Random(seed)
    fs = SimDisk(random)
    for path in (DIRECTORY.parent, DIRECTORY):
        fs.mkdir(path)
        fs.fsync_directory(path.parent)
    story = Story()
    fs.crash_after(random.randrange(1, 1500))
    with suppress(ProcessKilled):
        story.run(fs)
    for _ in range(2):
        fs.power_loss()
        fs.crash_after(random.randrange(1, 60))
        with suppress(ProcessKilled):
            story.reopen(fs).close()
    fs.power_loss()
    story.check(fs)
