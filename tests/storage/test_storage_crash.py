"""Power is lost at every single call to the file system, and what was synced is still there.

The workload writes with one batch per sync (so that any subset of sectors may survive) or several
(then sectors survive in order), rolls, begins epochs, truncates within and across segments, and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from storage.errors import DamagedLog
from storage.filesystem import read_file
from storage.layout import log_path, partition_directory, time_index_path
from storage.log import Chunk, Log
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss, Survival
from tests.storage.helpers import DIRECTORY, batch, contents, empty_disk, open_log
from wire.records import iter_headers

SEGMENT_BYTES = 700


def reopen(fs: FaultyFileSystem) -> Log:
    return open_log(fs, segment_bytes=SEGMENT_BYTES, index_interval_bytes=100)


@dataclass
class Story:
    """What the log must hold after a crash at this moment: `synced`, maybe some of `unsynced`."""

    batches_per_sync: int
    synced: list[bytes] = field(default_factory=list)
    unsynced: list[bytes] = field(default_factory=list)

    def run(self, fs: FaultyFileSystem) -> None:
        log = reopen(fs)
        self.append(log, 8, epoch=1)
        self.truncate(log, 6)
        self.append(log, 9, epoch=3)
        self.truncate(log, 2)
        self.append(log, 6, epoch=4, value_bytes=300)
        log.close()
        log = reopen(fs)
        self.append(log, 4, epoch=4)
        log.close()

    def append(self, log: Log, count: int, *, epoch: int, value_bytes: int = 10) -> None:
        for _ in range(count):
            start = log.log_end_offset
            offsets = range(start, start + self.batches_per_sync)
            self.unsynced = [batch(i, epoch=epoch, value_bytes=value_bytes) for i in offsets]
            chunks = [Chunk(data, i, i + 1) for i, data in zip(offsets, self.unsynced, strict=True)]
            for chunk in chunks:
                log.append(*chunk[:3])
            log.write_many(chunks)
            log.sync()
            self.synced += self.unsynced
            self.unsynced = []

    def truncate(self, log: Log, offset: int) -> None:
        self.unsynced = self.synced[offset:]
        self.synced = self.synced[:offset]
        log.truncate_cache(offset)
        log.truncate(offset)
        self.unsynced = []

    def check(self, fs: FaultyFileSystem) -> None:
        log = reopen(fs)
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
        again = reopen(fs)
        assert again.recovery.messages() == []
        assert contents(again) == found + b"".join(more)
        assert again.epochs[-1] == (9, start)


def crash_points(run: Callable[[FaultyFileSystem], object]) -> Iterator[int]:
    fs = empty_disk()
    before = fs.calls
    run(fs)
    yield from range(before + 1, fs.calls + 2)


def crash(fs: FaultyFileSystem, at: int, run: Callable[[FaultyFileSystem], object]) -> None:
    fs.crash_at = at
    with suppress(PowerLoss):
        run(fs)


@pytest.mark.parametrize(
    ("batches_per_sync", "survival"),
    [
        (1, Survival.LOSE),
        (1, Survival.KEEP),
        (1, Survival.PREFIX),
        (1, Survival.SECTORS),
        (4, Survival.LOSE),
        (4, Survival.KEEP),
        (4, Survival.PREFIX),
    ],
)
def test_nothing_synced_is_lost_wherever_the_power_goes(
    batches_per_sync: int, survival: Survival
) -> None:
    # With several batches there are far more calls of the same kinds: every sixth will do.
    points = list(crash_points(Story(batches_per_sync).run))
    for at in points if batches_per_sync == 1 else points[::6]:
        story = Story(batches_per_sync)
        fs = empty_disk()
        crash(fs, at, story.run)
        try:
            story.check(fs.crash(survival, Random(at)))
        except (AssertionError, DamagedLog) as error:
            error.add_note(f"power lost at call {at}, {survival}")
            raise


def test_a_second_crash_during_recovery_loses_nothing_either() -> None:
    for at in list(crash_points(Story(1).run))[::5]:
        story = Story(1)
        fs = empty_disk()
        crash(fs, at, story.run)
        random = Random(at)
        second = fs.crash(Survival.PREFIX, random)
        crash(second, random.randint(1, 12), lambda disk: reopen(disk).close())
        story.check(second.crash(Survival.PREFIX, random))


def test_sectors_of_several_batches_in_any_order_never_lose_what_was_synced() -> None:
    # A hole in front of a valid batch can't be told from damage: the node may refuse to start then,
    # but it never cuts anything that was synced.
    refusals: list[str] = []
    for at in list(crash_points(Story(8).run))[::20]:
        story = Story(8)
        fs = empty_disk()
        crash(fs, at, story.run)
        try:
            story.check(fs.crash(Survival.SECTORS, Random(at)))
        except DamagedLog as error:
            refusals.append(str(error))
    assert all("valid batch follows" in text for text in refusals)
    assert len(refusals) < 20


def test_an_interrupted_roll_leaves_a_closed_segment_with_good_indexes() -> None:
    for at in crash_points(Story(1).run):
        story = Story(1)
        fs = empty_disk()
        crash(fs, at, story.run)
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


def test_a_directory_entry_is_synced_before_bytes_are_acknowledged() -> None:
    disk = empty_disk()
    log = reopen(disk)
    Story(1).append(log, 1, epoch=1)
    after = disk.crash(Survival.LOSE, Random(0))
    assert partition_directory(DIRECTORY.parent) == DIRECTORY
    assert reopen(after).log_end_offset == 1
