"""Power is lost at every single call to the file system, and what was synced is still there.

The workload writes one batch or several per sync, with one write or two, rolls, also in the middle of
a write, begins epochs, truncates within and across segments, synced or not, and stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from quorumd.storage.errors import DamagedLog
from quorumd.storage.filesystem import read_file
from quorumd.storage.layout import log_path, partition_directory, time_index_path
from quorumd.storage.log import Chunk, Log
from quorumd.wire.records import iter_headers
from tests.storage.faulty_filesystem import FaultyFileSystem, Survival
from tests.storage.helpers import (
    DIRECTORY,
    at_losses,
    batch,
    contents,
    crash,
    crash_points,
    empty_disk,
    open_log,
)

pytestmark = pytest.mark.sim

SEGMENT_BYTES = 700
SIZES = [10, 1200, 40, 300, 5000, 90]


def reopen(fs: FaultyFileSystem, segment_bytes: int = SEGMENT_BYTES) -> Log:
    return open_log(fs, segment_bytes=segment_bytes, index_interval_bytes=100)


@dataclass
class Story:
    """What the log must hold after a crash at this moment: `synced`, maybe some of `unsynced`.

    `is_large`: batches of many sizes, up to more than a page, in segments of many pages.
    """

    batches_per_sync: int
    is_large: bool = False
    synced: list[bytes] = field(default_factory=list)
    unsynced: list[bytes] = field(default_factory=list)

    def reopen(self, fs: FaultyFileSystem) -> Log:
        return reopen(fs, 30_000 if self.is_large else SEGMENT_BYTES)

    def run(self, fs: FaultyFileSystem) -> None:
        log = self.reopen(fs)
        self.append(log, 8, epoch=1)
        self.truncate(log, 6)
        self.append(log, 9, epoch=3)
        self.truncate(log, 2)
        self.write(log, epoch=3, value_bytes=30)
        self.truncate(log, 2 + self.batches_per_sync // 2)
        self.append(log, 6, epoch=4, value_bytes=300)
        log.close()
        log = self.reopen(fs)
        self.append(log, 4, epoch=4)
        self.write(log, epoch=4, value_bytes=30)
        log.close()

    def append(self, log: Log, count: int, *, epoch: int, value_bytes: int = 10) -> None:
        for number in range(count):
            self.write(log, epoch=epoch, value_bytes=value_bytes)
            if self.batches_per_sync > 1 and number % 2:
                self.write(log, epoch=epoch, value_bytes=value_bytes)
            log.sync()
            self.synced += self.unsynced
            self.unsynced = []

    def write(self, log: Log, *, epoch: int, value_bytes: int) -> None:
        start = log.log_end_offset
        chunks = []
        for offset in range(start, start + self.batches_per_sync):
            size = SIZES[offset % len(SIZES)] if self.is_large else value_bytes
            chunks.append(Chunk(batch(offset, epoch=epoch, value_bytes=size), offset, offset + 1))
        self.unsynced += [bytes(chunk.data) for chunk in chunks]
        for chunk in chunks:
            log.append(chunk.data, chunk.base_offset, chunk.end_offset)
        log.write_many(chunks)

    def truncate(self, log: Log, offset: int) -> None:
        everything = self.synced + self.unsynced
        self.synced = self.synced[:offset]
        self.unsynced = everything[len(self.synced) :]
        log.truncate_cache(offset)
        log.truncate(offset)
        self.synced = everything[:offset]
        self.unsynced = []

    def check(self, fs: FaultyFileSystem) -> None:
        log = self.reopen(fs)
        found = contents(log)
        must = b"".join(self.synced)
        may = must + b"".join(self.unsynced)
        assert found.startswith(must), "something that was synced is gone"
        assert may.startswith(found), "something is there that was never appended"
        assert [h.base_offset for h in log.scan_headers()] == list(range(log.log_end_offset))
        self.go_on(fs, log, found)

    def go_on(self, fs: FaultyFileSystem, log: Log, found: bytes) -> None:
        """The log takes appends, stops cleanly and comes back, indexes and all."""
        start = log.log_end_offset
        more = [batch(start + i, epoch=9) for i in range(9)]
        for offset, data in enumerate(more, start):
            log.append(data, offset, offset + 1)
            log.write(data, offset, offset + 1)
        log.sync()
        log.close()
        again = self.reopen(fs)
        assert again.recovery.messages() == []
        assert contents(again) == found + b"".join(more)
        assert again.epochs[-1] == (9, start)


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize(
    ("batches_per_sync", "is_large"), [(1, False), (4, False), (5, True)], ids=str
)
def test_nothing_synced_is_lost_wherever_the_power_goes(
    batches_per_sync: int, is_large: bool, survival: Survival
) -> None:
    points = list(crash_points(Story(batches_per_sync, is_large).run))

    def look(at: int, story: Story, fs: FaultyFileSystem) -> None:
        try:
            story.check(fs.crash(survival, Random(at)))
        except (AssertionError, DamagedLog) as error:
            error.add_note(f"power lost at call {at}, {survival}")
            raise

    # Small segments are full after two writes: far more calls of the same kinds.
    chosen = frozenset(points if len(points) < 1000 else points[::9])
    at_losses(Story(batches_per_sync, is_large), chosen, look)


@pytest.mark.parametrize("survival", [Survival.PREFIX, Survival.SECTORS, Survival.PAGES])
@pytest.mark.parametrize(("batches_per_sync", "is_large"), [(1, False), (5, True)], ids=str)
def test_a_second_crash_during_recovery_loses_nothing_either(
    batches_per_sync: int, is_large: bool, survival: Survival
) -> None:
    points = list(crash_points(Story(batches_per_sync, is_large).run))

    def look(at: int, story: Story, fs: FaultyFileSystem) -> None:
        random = Random(at)
        second = fs.crash(survival, random)
        again = second.calls + random.randint(1, 6)
        crash(second, again, lambda disk: story.reopen(disk).close())
        try:
            story.check(second.crash(survival, random))
        except (AssertionError, DamagedLog) as error:
            error.add_note(f"power lost at call {at} and then at call {again}")
            raise

    at_losses(Story(batches_per_sync, is_large), frozenset(points[::3]), look)


def test_an_interrupted_roll_leaves_a_closed_segment_with_good_indexes() -> None:
    def look(at: int, story: Story, fs: FaultyFileSystem) -> None:
        after = fs.crash(Survival.LOSE, Random(0))
        log = reopen(after)
        names = after.listdir(DIRECTORY)
        bases = [int(name[:20]) for name in names if name.endswith(".log")]
        for base in bases[:-1]:
            times = read_file(after, time_index_path(DIRECTORY, base))
            data = read_file(after, log_path(DIRECTORY, base))
            newest = max(header.max_timestamp for _, header in iter_headers(data))
            assert times[-12:-4] == newest.to_bytes(8, "big")
        log.close()

    at_losses(Story(1), frozenset(crash_points(Story(1).run)), look)


def test_a_directory_entry_is_synced_before_bytes_are_acknowledged() -> None:
    disk = empty_disk()
    log = reopen(disk)
    Story(1).append(log, 1, epoch=1)
    after = disk.crash(Survival.LOSE, Random(0))
    assert partition_directory(DIRECTORY.parent) == DIRECTORY
    assert reopen(after).log_end_offset == 1
