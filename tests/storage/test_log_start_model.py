"""A log that is deleted from, reset and crashed, against a list of batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumd.storage.errors import OffsetNotInLog
from quorumd.storage.layout import snapshot_path
from quorumd.storage.log import Chunk, Log
from quorumd.wire.records import read_header
from tests.storage.faulty_filesystem import PowerLoss, Survival
from tests.storage.helpers import (
    DIRECTORY,
    START_MS,
    batch,
    contents,
    empty_disk,
    open_log,
)

pytestmark = pytest.mark.sim

SEGMENT_BYTES = 600


def end_of(data: bytes) -> int:
    return read_header(data).next_offset


class LogMachine(RuleBasedStateMachine):
    """`batches` from `start` on were appended; the last of them, in `waiting`, are not written.

    A crash loses what is above `synced_end`, or some of it. Snapshots stand for committed records.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fs = empty_disk()
        self.start = 0
        self.batches: list[bytes] = []
        self.waiting: list[Chunk] = []
        self.synced_end = 0
        self.snapshots: list[tuple[int, int]] = []
        self.epoch = 1
        self.log = self.opened()

    def opened(self, committed_offset: int = 0) -> Log:
        self.seen: list[int] = []
        return open_log(
            self.fs,
            segment_bytes=SEGMENT_BYTES,
            tail_cache_bytes=1500,
            index_interval_bytes=90,
            snapshots=self.snapshots,
            observe=lambda header: self.seen.append(header.base_offset),
            committed_offset=committed_offset,
        )

    @property
    def end(self) -> int:
        return end_of(self.batches[-1]) if self.batches else self.start

    @property
    def written_end(self) -> int:
        return self.waiting[0].base_offset if self.waiting else self.end

    @property
    def committed_end(self) -> int:
        return self.snapshots[-1][0] if self.snapshots else 0

    def ends(self, low: int, high: int) -> list[int]:
        """Where a batch ends, or the log begins, between two offsets (inclusive)."""
        return [end for end in (self.start, *map(end_of, self.batches)) if low <= end <= high]

    def epoch_before(self, offset: int) -> int:
        return next(read_header(data).epoch for data in self.batches if end_of(data) == offset)

    # --- what is done

    @initialize(count=st.integers(0, 60))
    def fill(self, count: int) -> None:
        for number in range(count):
            self.append([(1 + number % 3, number * 7 % 100)], number % 20 == 0, "synced")

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 150)), min_size=1, max_size=12),
        begins_epoch=st.booleans(),
        how_far=st.sampled_from(["appended", "written", "synced"]),
    )
    def append(self, sizes: list[tuple[int, int]], begins_epoch: bool, how_far: str) -> None:
        self.epoch += begins_epoch
        base = end = self.end
        parts = []
        for count, value_bytes in sizes:
            parts.append(batch(end, count=count, value_bytes=value_bytes, epoch=self.epoch))
            end += count
        self.batches += parts
        data = b"".join(parts)
        self.waiting.append(Chunk(data, base, end))
        self.log.append(data, base, end)
        if how_far != "appended":
            self.write_all()
        if how_far == "synced":
            self.sync()

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        chunks, self.waiting = self.waiting[:count], self.waiting[count:]
        self.log.write_many(chunks)

    def write_all(self) -> None:
        """The disk thread does things in order: what waits is written first."""
        if self.waiting:
            self.write(len(self.waiting))

    @rule()
    def sync(self) -> None:
        end = self.written_end
        assert self.log.sync() == end
        self.synced_end = end

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        low = max(self.start, self.committed_end)
        offset = low + round((self.end - low) * where)
        kept = [data for data in self.batches if end_of(data) <= offset]
        end = end_of(kept[-1]) if kept else self.start
        if end < self.committed_end:
            return
        assert self.log.truncate_cache(offset) == end
        # What was synced is no longer promised.
        self.synced_end = min(self.synced_end, end)
        self.write_all()
        assert self.log.truncate(offset) == end
        self.batches = kept

    @rule(where=st.floats(0, 1))
    def take_snapshot(self, where: float) -> None:
        ends = self.ends(max(self.start, self.committed_end) + 1, self.synced_end)
        if ends:
            end = ends[round((len(ends) - 1) * where)]
            self.put_snapshot(end, self.epoch_before(end))

    def put_snapshot(self, end_offset: int, epoch: int) -> None:
        """Complete and durable at once."""
        self.snapshots.append((end_offset, epoch))
        self.fs.put(snapshot_path(DIRECTORY, self.snapshots[-1]), b"")

    @rule(where=st.floats(0, 1))
    def delete(self, where: float) -> None:
        self.take_snapshot(1)
        offset = self.start + round((self.committed_end - self.start) * where)
        start = self.log.delete_before(offset)
        ends = [segment.end_offset for segment in self.log.closed_segments()]
        assert self.start <= start <= max(self.start, offset)
        assert not ends or ends[0] > offset
        event("segments deleted" if start > self.start else "nothing deleted")
        self.batches = [data for data in self.batches if end_of(data) > start]
        self.start = start

    @rule(where=st.floats(0, 1), ahead=st.integers(0, 20), is_written_between=st.booleans())
    def reset(self, where: float, ahead: int, is_written_between: bool) -> None:
        """To a snapshot of a log that went another way at its last record, or further."""
        low = max(self.start, self.committed_end)
        end_offset = low + 1 + round((self.end - low) * where) + ahead
        self.epoch += 1
        self.write_all()
        self.put_snapshot(end_offset, self.epoch)
        self.start = self.synced_end = end_offset
        self.batches = []
        self.log.reset_cache(end_offset)
        if is_written_between:
            self.append([(2, 10), (1, 100)], False, "appended")
            assert self.log.read_cached(end_offset, 1, self.end) == [self.batches[0]]
        self.log.reset(end_offset)
        event("reset")

    @rule()
    def drop_old_snapshots(self) -> None:
        for old in self.snapshots[:-1]:
            self.fs.remove(snapshot_path(DIRECTORY, old))
        del self.snapshots[:-1]

    # --- what happens to it

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        self.write_all()
        if is_clean:
            self.log.close()
        self.log = self.opened(committed_offset=self.synced_end)
        self.synced_end = self.end
        assert self.log.recovery.messages() == []

    @rule(survival=st.sampled_from(Survival), seed=st.integers(0, 1 << 32))
    def power_loss(self, survival: Survival, seed: int) -> None:
        self.fs = self.fs.crash(survival, Random(seed))
        self.come_back(self.start, max(self.synced_end, self.committed_end), self.written_end)

    @rule(
        what=st.sampled_from(["write", "truncate", "delete", "reset"]),
        where=st.floats(0, 1),
        calls=st.integers(1, 25),
        survival=st.sampled_from(Survival),
        seed=st.integers(0, 1 << 32),
    )
    def power_loss_in_the_midst(
        self, what: str, where: float, calls: int, survival: Survival, seed: int
    ) -> None:
        """At some call of a change that may get as far as its end."""
        changes: dict[str, Callable[[], None]] = {
            "write": self.write_all,
            "truncate": lambda: self.truncate(where),
            "delete": lambda: self.delete(where),
            "reset": lambda: self.reset(where, calls, False),
        }
        start, end = self.start, self.end
        self.write_all()
        self.fs.crash_at = self.fs.calls + calls
        try:
            changes[what]()
        except PowerLoss:
            event(f"power lost in {what}, {self.fs.log[-1]}")
        self.fs = self.fs.crash(survival, Random(seed))
        low = max(self.synced_end, self.committed_end)
        if what == "reset" and self.start != start:
            start = end = self.start
        self.come_back(start, low, max(end, self.start))

    def come_back(self, start: int, low: int, high: int) -> None:
        """After a crash: the log begins at `start` or later, ends at `low` .. `high` (inclusive)."""
        self.waiting = []
        self.log = self.opened(committed_offset=self.committed_end)
        found = self.log.log_end_offset
        assert found in self.ends(low, high) or found == self.start
        assert start <= self.log.log_start_offset <= max(start, self.committed_end)
        self.batches = [data for data in self.batches if end_of(data) <= found]
        self.synced_end = found
        if self.log.log_start_offset < self.start:
            # Deleted, and back.
            self.start = self.log.log_start_offset
            self.batches = [self.log.read(self.start, 1, found)]
            while self.end < found:
                self.batches.append(self.log.read(self.end, 1, found))
        self.start = self.log.log_start_offset
        self.batches = [data for data in self.batches if end_of(data) > self.start]

    # --- what must hold

    @invariant()
    def bounds_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.written_end_offset == self.written_end
        written = [data for data in self.batches if end_of(data) <= self.written_end]
        assert contents(log) == b"".join(written)
        assert [h.base_offset for h in log.scan_headers()] == [
            read_header(data).base_offset for data in written
        ]

    @invariant()
    def epochs_agree(self) -> None:
        expected: list[tuple[int, int]] = []
        for data in self.batches:
            header = read_header(data)
            if end_of(data) <= self.written_end and [header.epoch] != [e for e, _ in expected[-1:]]:
                expected.append((header.epoch, header.base_offset))
        assert self.log.epochs == expected

    @invariant()
    def segments_agree(self) -> None:
        closed = self.log.closed_segments()
        places = [self.start, *(segment.end_offset for segment in closed)]
        assert [segment.base_offset for segment in closed] == places[:-1]
        names = [name for name in self.fs.listdir(DIRECTORY) if name.endswith(".log")]
        assert [int(name[:20]) for name in names] == places
        sizes = {
            name: len(self.fs.contents(DIRECTORY / name)) for name in self.fs.listdir(DIRECTORY)
        }
        for segment in closed:
            of_it = [size for name, size in sizes.items() if int_of(name) == segment.base_offset]
            assert (len(of_it), sum(of_it)) == (3, segment.size_bytes)

    @rule(where=st.floats(0, 1), max_bytes=st.integers(0, 1500))
    def read(self, where: float, max_bytes: int) -> None:
        offset = round(self.end * where)
        if offset < self.start:
            for call in (self.log.read, self.log.read_cached):
                with pytest.raises(OffsetNotInLog):
                    call(offset, max_bytes, self.end)
            return
        at = bisect_left(self.batches, offset + 1, key=end_of)
        expected = b"".join(self.batches[at:])
        cached = self.log.read_cached(offset, max_bytes, self.end)
        on_disk = self.log.read(offset, max_bytes, self.end)
        if cached is not None:
            assert expected.startswith(b"".join(cached))
            assert bool(cached) == bool(expected)
        assert expected.startswith(on_disk)
        assert bool(on_disk) == (offset < self.written_end)
        assert cached is not None or on_disk

    @rule(time=st.integers(-1, 200))
    def find_time(self, time: int) -> None:
        headers = [read_header(d) for d in self.batches if end_of(d) <= self.written_end]
        first = next((h for h in headers if h.max_timestamp >= START_MS + time), None)
        found = self.log.offset_for_timestamp(START_MS + time, self.end)
        assert (found and found.offset) == (first and max(first.base_offset, time))


def int_of(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdigit() else -1


TestLogStartAgainstModel = LogMachine.TestCase
TestLogStartAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
