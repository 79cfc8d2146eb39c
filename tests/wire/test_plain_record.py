"""The short look at a batch of one record says yes only where the walk through all records would."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumd.wire.errors import RefusedBatch
from quorumd.wire.record_walk import _keyless_start, check_records, is_plain_record
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch
from quorumd.wire.varints import encode_varint
from tests.wire.wire_values import examples

SIZES = (0, 1, 2, 57, 58, 63, 64, 65, 100, 1024, 8_183, 8_184, 2**20 + 2, 2**20 + 9)


def is_well_formed(data: bytes, at: int) -> bool:
    try:
        for _ in check_records(data, at, 1, range(1)):
            pass
    except RefusedBatch:
        return False
    return True


@pytest.mark.parametrize("key", [None, b"", b"key", bytes(63)])
@pytest.mark.parametrize("size", SIZES)
def test_a_record_with_a_value_and_nothing_else_is_plain(key: bytes | None, size: int) -> None:
    batch = build_batch([Record(timestamp=1, key=key, value=bytes(size))])
    record_bytes = len(batch) - BATCH_OVERHEAD
    assert is_plain_record(batch, BATCH_OVERHEAD) == (key is None or record_bytes < 8_194)
    for damaged in (batch[:-1], batch + b"\0", batch[:-1] + b"\1"):
        assert not is_plain_record(damaged, BATCH_OVERHEAD)


@pytest.mark.long
@given(
    data=st.data(),
    key=st.none() | st.binary(max_size=70),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=1),
)
@examples(200)
def test_what_is_plain_is_well_formed(
    data: st.DataObject, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    record = Record(timestamp=1, key=key, value=value, headers=tuple(headers))
    batch = bytearray(build_batch([record]))
    if value is None or headers:
        assert not is_plain_record(bytes(batch), BATCH_OVERHEAD)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(BATCH_OVERHEAD, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
    damaged = bytes(batch)
    if is_plain_record(damaged, BATCH_OVERHEAD):
        assert is_well_formed(damaged, BATCH_OVERHEAD)


@pytest.mark.long
@given(
    head=st.lists(st.sampled_from((0, 1, 2, 3, 127, 128, 129, 130, 255)), max_size=9).map(bytes),
    size=st.integers(0, 300) | st.integers(8_000, 17_000),
)
@example(head=b"\0\0\0\1" + encode_varint(9), size=10)
@example(head=b"\0\0\0\2k" + encode_varint(299), size=300)
@example(head=b"\0\0\0\0" + encode_varint(8_179), size=8_180)
@examples(300)
def test_hostile_lengths_are_not_plain_unless_well_formed(head: bytes, size: int) -> None:
    for length in range(max(0, size - 9), size + 10):
        varint = bytes((length * 2 & 0x7F | 0x80, length * 2 >> 7 & 0x7F | 0x80, length * 2 >> 14))
        for start in (varint, varint[:1] + bytes((varint[1] & 0x7F,)), b""):
            data = start + head + bytes(size)
            if is_plain_record(data, 0):
                assert is_well_formed(data, 0)


@pytest.mark.parametrize("record_bytes", [100, 5_000])
def test_the_start_of_a_record_of_a_size_is_found_once(record_bytes: int) -> None:
    data = build_batch([Record(value=bytes(record_bytes))])
    assert is_plain_record(data, BATCH_OVERHEAD)
    found = _keyless_start.cache_info().misses
    assert all(is_plain_record(data, BATCH_OVERHEAD) for _ in range(10))
    assert _keyless_start.cache_info().misses == found
