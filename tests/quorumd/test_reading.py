"""The batches of one Fetch response: which are read, and how many at a time, while other tasks go on."""

from __future__ import annotations

import asyncio

import pytest

from quorumd.client.errors import ConnectionFailed
from quorumd.client.reading import (
    RECORDS_AT_A_TIME,
    UNPACKED_BYTES_MAX,
    batches_from,
    fetched_from,
    raw_batches_from,
)
from quorumd.wire.messages.fetch import FetchResponsePartition
from quorumd.wire.records import Record, build_batch
from tests.support.claimed_offsets import gzip_claiming


def in_parts(data: bytes) -> list[list[int]]:
    """The base offsets of the batches of each part, as a reader gets them that goes on behind it."""

    async def run() -> list[list[int]]:
        parts, offset, end = [], 0, -1
        while offset != end:
            end = offset
            batches, offset = await batches_from(data, offset)
            if batches:
                parts.append([batch.header.base_offset for batch in batches])
        return parts

    return asyncio.run(run())


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_small_batches_unpack_to_is_held_in_parts(codec: int) -> None:
    record = Record(value=bytes(UNPACKED_BYTES_MAX // 3))
    data = b"".join(build_batch([record], base_offset=at, codec=codec) for at in range(7))
    assert len(data) < UNPACKED_BYTES_MAX // 8
    assert in_parts(data) == [[0, 1, 2], [3, 4, 5], [6]]


def test_small_records_count_with_what_they_cost() -> None:
    records = [Record()] * 100_000
    data = b"".join(
        build_batch(records, base_offset=at, codec=4) for at in range(0, 400_000, 100_000)
    )
    assert in_parts(data) == [[0, 100_000, 200_000], [300_000]]


def test_what_is_not_compressed_is_as_large_as_it_was_sent() -> None:
    record = Record(value=bytes(UNPACKED_BYTES_MAX // 3))
    data = b"".join(build_batch([record], base_offset=at) for at in range(7))
    assert in_parts(data) == [list(range(7))]


def test_compressed_records_that_claim_other_offsets_are_read_once_each() -> None:
    data = gzip_claiming((0, 100_000, 1, -7), base_offset=70)
    for offset in range(70, 74):
        batches, end = asyncio.run(batches_from(data, offset))
        (batch,) = batches
        assert [record.offset for record in batch.records] == list(range(offset, 74))
        assert end == 74


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("in_a_batch", [10, 20 * RECORDS_AT_A_TIME])
def test_other_tasks_have_turns_while_many_small_records_are_read(
    codec: int, in_a_batch: int
) -> None:
    count = 20 * RECORDS_AT_A_TIME
    records = [Record()] * in_a_batch
    data = b"".join(
        build_batch(records, base_offset=at, codec=codec) for at in range(0, count, in_a_batch)
    )

    async def run() -> int:
        reading = asyncio.create_task(batches_from(data, 0))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert reading.result()[1] == count
        return turns

    assert asyncio.run(run()) >= count // RECORDS_AT_A_TIME


def test_batches_begin_with_the_one_that_has_the_offset() -> None:
    data = b"".join(build_batch([Record()] * 3, base_offset=at) for at in (0, 3))
    for offset, first in ((0, 0), (2, 0), (3, 3), (5, 3)):
        assert raw_batches_from(data, offset).batches[0][1].base_offset == first
        batches, _ = asyncio.run(batches_from(data, offset))
        assert batches[0].header.base_offset == first
        assert batches[0].records[0].offset == offset


def test_bytes_that_bring_no_reader_on_are_damage_and_not_an_answer_without_records() -> None:
    """Else it would ask for the same again, for ever and without a pause."""
    for data in (build_batch([Record()], base_offset=4), build_batch([Record()])[:-1]):
        with pytest.raises(ConnectionFailed, match="no whole batch at offset 5"):
            asyncio.run(fetched_from(FetchResponsePartition(records=data), 5))
    nothing = asyncio.run(fetched_from(FetchResponsePartition(records=b""), 5))
    assert nothing.next_offset == 5
