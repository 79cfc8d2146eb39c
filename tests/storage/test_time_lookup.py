"""Searches for a timestamp in batches that claim a greater one than any of their records has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from quorumd.storage import segment_reads
from quorumd.storage.errors import DamagedLog
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from quorumd.storage.segment_reads import SEARCH_EFFORT_MAX
from quorumd.wire.records import Record, RecordPlace, build_batch, iter_places, iter_records
from tests.storage.helpers import START_MS, append, batch, open_log

CLAIMED_MS = START_MS + 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(RealFileSystem(), tmp_path)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[RecordPlace]]:
    """The records that were looked at."""
    seen: list[RecordPlace] = []

    def counting(data: bytes) -> Iterator[RecordPlace]:
        for place in iter_places(data):
            seen.append(place)
            yield place

    monkeypatch.setattr(segment_reads, "iter_places", counting)
    return lambda: seen


def lying(count: int, value: bytes = b"", codec: int = 4) -> bytes:
    """A batch at offset 0 whose header claims CLAIMED_MS."""
    records = [Record(i, START_MS, None, value) for i in range(count)]
    data = bytearray(build_batch(records, base_offset=0, epoch=1, codec=codec))
    data[35:43] = struct.pack(">q", CLAIMED_MS)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def moved(data: bytes, offset: int) -> bytes:
    """The batch with another base offset, which its CRC does not cover."""
    return struct.pack(">q", offset) + data[8:]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("count", "value"), [(SEARCH_EFFORT_MAX // 5, b""), (200, bytes(2_000_000))]
)
def test_a_search_looks_at_so_much_and_believes_the_header_then(
    log: Log, examined: Callable[[], list[RecordPlace]], count: int, value: bytes
) -> None:
    data = lying(count, value)
    end = 12 * count
    for offset in range(0, end, count):
        append(log, moved(data, offset), offset, offset + count)
    append(log, batch(end, timestamp=CLAIMED_MS), end, end + 1)
    found = log.offset_for_timestamp(CLAIMED_MS, end + 1)
    assert found is not None
    assert found.offset % count == 0, "the first record of a batch: nothing is missed from there"
    assert found.offset < end
    assert found.timestamp == CLAIMED_MS
    assert len(examined()) <= SEARCH_EFFORT_MAX
    assert sum(place.size_bytes for place in examined()) <= 2048 * SEARCH_EFFORT_MAX


def test_a_few_batches_that_claim_too_much_are_passed_over(log: Log) -> None:
    for offset in range(0, 40, 10):
        append(log, moved(lying(10), offset), offset, offset + 10)
    append(log, batch(40, timestamp=CLAIMED_MS), 40, 41)
    assert log.offset_for_timestamp(CLAIMED_MS, 41) == (40, CLAIMED_MS, 1)


def test_a_log_with_a_batch_that_claims_too_much_is_not_empty(log: Log) -> None:
    append(log, batch(0, timestamp=START_MS - 5), 0, 1)
    append(log, moved(lying(10, codec=0), 1), 1, 11)
    append(log, batch(11, timestamp=START_MS + 5), 11, 12)
    assert log.offset_of_max_timestamp(12) == (1, START_MS, 1)
    append(log, batch(12, timestamp=CLAIMED_MS + 1), 12, 13)
    assert log.offset_of_max_timestamp(13) == (12, CLAIMED_MS + 1, 1)


def test_of_a_batch_that_cannot_be_read_the_header_counts(log: Log) -> None:
    data = bytearray(lying(10))
    data[61:] = bytes(len(data) - 61)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    append(log, bytes(data), 0, 10)
    assert log.offset_of_max_timestamp(10) == (0, CLAIMED_MS, 1)


@pytest.mark.parametrize("codec", range(5))
def test_places_are_those_of_the_records(codec: int) -> None:
    records = [
        Record(7 + i, START_MS + i * 100, b"k" * i, None if i % 3 else b"v" * i, (("h", b"x"),) * i)
        for i in range(300)
    ]
    data = build_batch(records, base_offset=7, epoch=1, codec=codec)
    places = list(iter_places(data))
    assert [place[:2] for place in places] == [record[:2] for record in iter_records(data)]
    assert [place[:2] for place in places] == [record[:2] for record in records]


def appended(log: Log, *times_ms: int) -> None:
    """One record each, which the files have not got."""
    for time_ms in times_ms:
        at = log.log_end_offset
        record = Record(at, START_MS + time_ms, None, b"")
        log.append(build_batch([record], base_offset=at, epoch=1), at, at + 1)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 500])
def test_the_greatest_time_is_that_of_a_record_below_the_end_wherever_that_is(
    tmp_path: Path, segment_bytes: int
) -> None:
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=segment_bytes, index_interval_bytes=1)
    times = [50, 40, 50, 60, 60, 10, 70, 0, 65, 90, 90, 89, 20, 95, 94, 99, 3, 99, 100, 1]
    for offset, time in enumerate(times):
        append(log, batch(offset, timestamp=START_MS + time), offset, offset + 1)
    for end in range(1, len(times) + 1):
        greatest = max(times[:end])
        found = log.offset_of_max_timestamp(end)
        assert found is not None
        assert (found.offset, found.timestamp) == (times.index(greatest), START_MS + greatest)
        for time in range(0, 101, 5):
            first = next((at for at in range(end) if times[at] >= time), None)
            place = log.offset_for_timestamp(START_MS + time, end)
            assert (None if place is None else place.offset) == first, (end, time)


def test_what_a_slow_disk_has_not_got_yet_is_found(log: Log) -> None:
    append(log, batch(0, count=2), 0, 2)
    appended(log, 50, 40, 60)
    unwritten = log.unwritten()
    wanted = [
        log.offset_for_timestamp(START_MS + time, end, unwritten=unwritten)
        for time, end in ((45, 5), (55, 5), (55, 4), (61, 5))
    ]
    assert wanted == [(2, START_MS + 50, 1), (4, START_MS + 60, 1), None, None]
    assert log.offset_of_max_timestamp(5, unwritten=unwritten) == (4, START_MS + 60, 1)
    assert log.offset_of_max_timestamp(4, unwritten=unwritten) == (2, START_MS + 50, 1)
    assert log.offset_of_max_timestamp(2, unwritten=unwritten) == (1, START_MS + 1, 1)


def test_in_what_a_slow_disk_has_not_got_yet_the_first_of_one_time_counts(log: Log) -> None:
    append(log, batch(0, count=2), 0, 2)
    appended(log, 50, 50, 40)
    unwritten = log.unwritten()
    found = log.offset_for_timestamp(START_MS + 50, 5, unwritten=unwritten)
    assert found == log.offset_of_max_timestamp(5, unwritten=unwritten) == (2, START_MS + 50, 1)


def test_a_batch_that_reaches_beyond_the_end_is_not_looked_at_in_memory(log: Log) -> None:
    data = batch(0, count=3)
    assert log.offset_for_timestamp(START_MS + 1, 2, unwritten=[data]) is None
    for start in (0, 1):
        found = log.offset_for_timestamp(START_MS + 1, 3, start=start, unwritten=[data])
        assert found == (1, START_MS + 1, 1)


def test_what_is_about_to_be_deleted_is_not_found_in_memory_either(log: Log) -> None:
    appended(log, 50, 40)
    unwritten = log.unwritten()
    found = log.offset_for_timestamp(START_MS + 45, 2, start=1, unwritten=unwritten)
    assert found is None
    found = log.offset_of_max_timestamp(2, start=1, unwritten=unwritten)
    assert found == (1, START_MS + 40, 1)


def test_nothing_is_missing_that_is_written_while_it_is_looked_for(log: Log) -> None:
    append(log, batch(0, count=2), 0, 2)
    appended(log, 50)
    unwritten = log.unwritten()
    log.write(unwritten[0], 2, 3)
    assert log.offset_for_timestamp(START_MS + 45, 3, unwritten=unwritten) == (2, START_MS + 50, 1)
    assert log.offset_of_max_timestamp(3, unwritten=unwritten) == (2, START_MS + 50, 1)
    assert log.unwritten() == []


def test_a_time_that_changed_on_the_disk_is_damage_and_hides_no_record(tmp_path: Path) -> None:
    log = open_log(RealFileSystem(), tmp_path)
    append(log, batch(0, count=2), 0, 2)
    (file,) = tmp_path.glob("*.log")
    data = bytearray(file.read_bytes())
    data[35] ^= 0x80  # of the header's greatest timestamp: now it is before 1970
    file.write_bytes(data)
    with pytest.raises(DamagedLog):
        log.offset_for_timestamp(START_MS + 1, 2)


def closed_segment(directory: Path) -> Log:
    """Offsets 0 to 3 at 10, 20, 30 and 40 ms are a closed segment, offset 4 at 50 ms has the next one."""
    log = open_log(RealFileSystem(), directory, segment_bytes=4 * len(batch(0)))
    for offset in range(5):
        data = batch(offset, timestamp=START_MS + 10 * (offset + 1))
        append(log, data, offset, offset + 1)
    assert sorted(int(each.stem) for each in directory.glob("*.log")) == [0, 4]
    return log


def test_a_segment_that_begins_at_the_end_is_not_looked_at(tmp_path: Path) -> None:
    """What is damaged in there is nothing that is asked for."""
    log = closed_segment(tmp_path)
    file = max(tmp_path.glob("*.log"))
    data = bytearray(file.read_bytes())
    data[len(batch(4)) - 1] ^= 1
    file.write_bytes(data)
    assert log.offset_for_timestamp(START_MS + 45, 4) is None
    assert log.offset_of_max_timestamp(4) == (3, START_MS + 40, 1)
    with pytest.raises(DamagedLog):
        log.offset_for_timestamp(START_MS + 45, 5)


@pytest.mark.parametrize("entry", [(30, 2), (40, 3), (30, 4), (30, 5), (50, 3)])
def test_an_index_of_times_that_leads_out_of_its_segment_hides_no_record(
    tmp_path: Path, entry: tuple[int, int]
) -> None:
    log = closed_segment(tmp_path)
    (tmp_path / f"{0:020d}.timeindex").write_bytes(
        struct.pack(">qi", START_MS + entry[0], entry[1])
    )
    assert log.offset_for_timestamp(START_MS + 40, 5) == (3, START_MS + 40, 1)


@pytest.mark.parametrize("entries", [[(20, 1), (20, 3)], [(10, 3), (20, 3)]])
def test_an_index_of_times_that_does_not_ascend_hides_no_record(
    tmp_path: Path, entries: list[tuple[int, int]]
) -> None:
    log = closed_segment(tmp_path)
    (tmp_path / f"{0:020d}.timeindex").write_bytes(
        b"".join(struct.pack(">qi", START_MS + at_ms, offset) for at_ms, offset in entries)
    )
    assert log.offset_for_timestamp(START_MS + 30, 5) == (2, START_MS + 30, 1)
