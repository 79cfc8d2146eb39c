"""The log against a list of batches, under generated appends, truncations, reads and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumd.storage.index import OffsetIndex, TimeIndex
from quorumd.storage.log import Chunk, Log
from quorumd.storage.tail_cache import TailCache
from quorumd.wire.records import read_header
from tests.storage.helpers import START_MS, batch, empty_disk, open_log


def model_read(batches: list[bytes], offset: int, max_bytes: int, end_offset: int) -> bytes:
    """What a read gives: whole batches from the one with `offset`, at least one, none above the end."""
    found = b""
    for data in batches:
        header = read_header(data)
        if header.next_offset <= offset:
            continue
        if header.next_offset > end_offset or (found and len(found) + len(data) > max_bytes):
            break
        found += data
    return found


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fs = empty_disk()
        self.batches: list[bytes] = []
        self.waiting: list[Chunk] = []
        self.epoch = 1
        self.log = self.opened()

    def opened(self) -> Log:
        return open_log(self.fs, segment_bytes=600, tail_cache_bytes=2000, index_interval_bytes=90)

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    @property
    def written(self) -> list[bytes]:
        end = self.waiting[0].base_offset if self.waiting else self.end
        return [data for data in self.batches if read_header(data).next_offset <= end]

    @rule(
        sizes=st.lists(
            st.tuples(st.integers(1, 4), st.integers(0, 150), st.integers(0, 60)),
            min_size=1,
            max_size=8,
        ),
        begins_epoch=st.booleans(),
    )
    def append(self, sizes: list[tuple[int, int, int]], begins_epoch: bool) -> None:
        self.epoch += begins_epoch
        base = end = self.end
        parts = []
        for count, value_bytes, time in sizes:
            parts.append(
                batch(
                    end,
                    count=count,
                    value_bytes=value_bytes,
                    epoch=self.epoch,
                    timestamp=START_MS + time,
                )
            )
            end += count
        self.batches += parts
        data = b"".join(parts)
        self.waiting.append(Chunk(data, base, end))
        self.log.append(data, base, end)

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        self.log.write_many(self.waiting[:count])
        del self.waiting[:count]
        self.log.sync()

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        offset = round(self.end * where)
        kept = [data for data in self.batches if read_header(data).next_offset <= offset]
        assert self.log.truncate_cache(offset) == sum(read_header(b).record_count for b in kept)
        # The disk thread does things in order: what waits is written first.
        if self.waiting:
            self.log.write_many(self.waiting)
            self.waiting = []
        self.batches = kept
        assert self.log.truncate(offset) == self.end

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        if self.waiting:
            self.log.write_many(self.waiting)
            self.waiting = []
        if is_clean:
            self.log.close()
        self.log = self.opened()
        assert self.log.recovery.cut_bytes == 0
        assert self.log.recovery.rebuilt_indexes == ()
        assert not self.log.recovery.rebuilt_epochs

    @rule(where=st.floats(0, 1), max_bytes=st.integers(0, 1500), end=st.floats(0, 1))
    def read(self, where: float, max_bytes: int, end: float) -> None:
        offset = round(self.end * where)
        end_offset = round(self.end * end)
        expected = model_read(self.batches, offset, max_bytes, end_offset)
        cached = self.log.read_cached(offset, max_bytes, end_offset)
        if cached is not None:
            assert b"".join(cached) == expected
        on_disk = self.log.read(offset, max_bytes, end_offset)
        if cached is None:
            assert offset < self.log.written_end_offset
        # A read from disk ends with its segment.
        assert model_read(self.written, offset, max_bytes, end_offset).startswith(on_disk)
        assert bool(on_disk) == bool(model_read(self.written, offset, max_bytes, end_offset))

    @rule(time=st.integers(-1, 61), end=st.floats(0, 1))
    def find_time(self, time: int, end: float) -> None:
        end_offset = round(self.end * end)
        headers = [read_header(data) for data in self.written]
        headers = [header for header in headers if header.next_offset <= end_offset]
        place = next((h for h in headers if h.max_timestamp >= START_MS + time), None)
        found = self.log.offset_for_timestamp(START_MS + time, end_offset)
        assert (found and found.offset) == (place and place.base_offset)
        newest = max(headers, key=lambda h: h.max_timestamp, default=None)
        found = self.log.offset_of_max_timestamp(end_offset)
        assert found == (newest and (newest.base_offset, newest.max_timestamp, newest.epoch))

    @invariant()
    def agrees(self) -> None:
        assert self.log.log_end_offset == self.end
        assert [h.base_offset for h in self.log.scan_headers()] == [
            read_header(data).base_offset for data in self.written
        ]
        expected: list[tuple[int, int]] = []
        for data in self.written:
            header = read_header(data)
            if not expected or expected[-1][0] != header.epoch:
                expected.append((header.epoch, header.base_offset))
        assert self.log.epochs == expected


TestLogAgainstModel = LogMachine.TestCase
TestLogAgainstModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.long
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=8),
    st.data(),
)
@settings(max_examples=50, deadline=None)
def test_the_cache_reads_as_the_model_does(chunks: list[list[int]], data: st.DataObject) -> None:
    cache = TailCache(data.draw(st.integers(0, 3000)))
    batches: list[bytes] = []
    end = 0
    for counts in chunks:
        base = end
        parts = []
        for count in counts:
            parts.append(batch(end, count=count))
            end += count
        batches += parts
        cache.append(base, end, b"".join(parts), data.draw(st.integers(0, base)))
    if data.draw(st.booleans()):
        cut = data.draw(st.sampled_from([0, *(read_header(b).next_offset for b in batches)]))
        cache.truncate(cut)
        batches = [b for b in batches if read_header(b).next_offset <= cut]
        end = cut
    start = cache.start_offset
    for offset in range(end):
        limit = data.draw(st.integers(0, 1000))
        end_offset = data.draw(st.integers(0, end))
        found = cache.read(offset, limit, end_offset)
        if start is None or offset < start:
            assert found is None
        else:
            assert found is not None
            assert b"".join(found) == model_read(batches, offset, limit, end_offset)
    assert cache.read(end, 100, end) is None


@contextmanager
def no_change(index: OffsetIndex | TimeIndex) -> Iterator[None]:
    before = index.to_bytes()
    yield
    assert index.to_bytes() == before


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=20), st.integers(-1, 200))
def test_indexes_look_up_what_a_walk_would_find(steps: list[tuple[int, int]], wanted: int) -> None:
    base = 1 << 40
    offsets = OffsetIndex(base)
    times = TimeIndex(base)
    offset_entries: list[tuple[int, int]] = []
    time_entries: list[tuple[int, int]] = []
    offset, position, time = base, 0, 0
    for offset_step, time_step in steps:
        offset, position, time = offset + offset_step, position + 70, time + time_step
        offsets.append(offset, position)
        times.append(time, offset)
        offset_entries.append((offset, position))
        time_entries.append((time, offset))
    with no_change(offsets), no_change(times):
        below = [at for found, at in offset_entries if found <= base + wanted]
        assert offsets.lookup(base + wanted) == max(below, default=0)
        older = [found for at, found in time_entries if at < wanted]
        assert times.lookup(wanted) == max(older, default=base)
    assert OffsetIndex.from_bytes(base, offsets.to_bytes()).entries() == offset_entries
    assert TimeIndex.from_bytes(base, times.to_bytes()).entries() == time_entries
