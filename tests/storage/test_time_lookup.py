"""Searches for a timestamp in batches that claim a greater one than any of their records has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from quorumd.storage import segment_reads
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


def lying(offset: int, count: int, value: bytes = b"", codec: int = 4) -> bytes:
    """A batch whose header claims CLAIMED_MS."""
    records = [Record(offset + i, START_MS, None, value) for i in range(count)]
    data = bytearray(build_batch(records, base_offset=offset, epoch=1, codec=codec))
    data[35:43] = struct.pack(">q", CLAIMED_MS)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("count", "value"), [(SEARCH_EFFORT_MAX // 5, b""), (200, bytes(2_000_000))]
)
def test_a_search_looks_at_so_much_and_believes_the_header_then(
    log: Log, examined: Callable[[], list[RecordPlace]], count: int, value: bytes
) -> None:
    batches = 12
    for number in range(batches):
        data = lying(number * count, count, value)
        append(log, data, number * count, (number + 1) * count)
    end = batches * count
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
        append(log, lying(offset, 10), offset, offset + 10)
    append(log, batch(40, timestamp=CLAIMED_MS), 40, 41)
    assert log.offset_for_timestamp(CLAIMED_MS, 41) == (40, CLAIMED_MS, 1)


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
