"""Damaged batches: named with offset, file and position, whatever their CRC says."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest

from quorumd.pipeline.parse import ChunkOrigin, DamagedBatch, parse
from quorumd.pipeline.parse.walk import walk_records
from quorumd.wire.records import Record, build_batch
from quorumd.wire.varints import encode_varint
from tests.pipeline.parsed import (
    ALL,
    NOW,
    ORIGIN,
    by_wire,
    chunk_of,
    expected,
    numbered,
    parsed,
    patched,
    short,
    with_crc,
)


def test_damage_names_offset_file_and_position_and_can_be_pickled() -> None:
    chunk = bytearray(chunk_of(3, 3, 3, base_offset=100))
    size = len(numbered(3, 100))
    chunk[size + 70] ^= 1
    with pytest.raises(DamagedBatch) as caught:
        list(parse("records", bytes(chunk), 0, ALL, ORIGIN))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.offset, error.position, error.file) == (103, 4096 + size, ORIGIN.file)
    assert error.what == "the CRC does not match the contents"
    assert str(error) == (
        f"the batch at offset 103 ({ORIGIN.file}, byte {4096 + size}) is damaged:"
        " the CRC does not match the contents"
    )
    # Whoever does not ask for it is not disturbed.
    assert short(parsed(bytes(chunk), 106, 200)) == expected(106, 109)


def test_crcs_that_were_checked_are_not_checked_again_but_all_else_is() -> None:
    chunk = bytearray(chunk_of(3, 3))
    chunk[-1] ^= 1
    (rows,) = parse("batches", bytes(chunk), 0, ALL, ORIGIN)
    assert rows["crc_ok"].to_pylist() == [True, False]
    (rows,) = parse("batches", bytes(chunk), 0, ALL, ORIGIN, crc_is_checked=True)
    assert rows["crc_ok"].to_pylist() == [True, True]
    with pytest.raises(DamagedBatch, match="the batch before it ends at offset 3"):
        list(parse("records", numbered(3) + numbered(2, 5), 0, ALL, ORIGIN, crc_is_checked=True))


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (numbered(2, 5, epoch=3), "the batch before it ends at offset 3"),
        (numbered(2, 2, epoch=3), "the batch before it ends at offset 3"),
        (numbered(2, 3, epoch=2), "its epoch 2 comes after epoch 3"),
    ],
)
def test_a_batch_that_does_not_follow_the_one_before_is_damage(second: bytes, what: str) -> None:
    with pytest.raises(DamagedBatch, match=what):
        parsed(numbered(3, epoch=3) + second)


def test_the_first_damaged_batch_is_named_where_a_wrong_size_leads_astray() -> None:
    chunk = bytearray(chunk_of(3, 3, 3))
    size = len(numbered(3))
    chunk[size + 8 : size + 12] = (size - 12 + 40).to_bytes(4, "big")
    for start in (0, 6):
        with pytest.raises(DamagedBatch) as caught:
            parsed(bytes(chunk), start)
        assert (caught.value.offset, caught.value.position) == (3, size)


def test_of_several_damaged_batches_the_first_is_named() -> None:
    late = bytearray(numbered(3) + numbered(3, 6) + numbered(2, 9))
    late[-1] ^= 1
    with pytest.raises(DamagedBatch, match=r"offset 6 .*ends at offset 3"):
        parsed(bytes(late))
    early = bytearray(chunk_of(3, 3))
    early[-1] ^= 1
    with pytest.raises(DamagedBatch, match=r"offset 3 .*CRC"):
        parsed(bytes(early) + numbered(2, 19))


@pytest.mark.parametrize("cut", [1, 30, 60, 70, -1, -12])
def test_a_chunk_that_ends_within_a_batch_is_damage(cut: int) -> None:
    first = numbered(3)
    for table in ("records", "batches", "control"):
        with pytest.raises(DamagedBatch) as caught:
            list(parse(table, first + numbered(3, 3)[:cut], 0, ALL, ChunkOrigin()))
        assert (caught.value.offset, caught.value.position) == (3, len(first))


@pytest.mark.parametrize(
    ("at", "raw"),
    [
        (0, (-5).to_bytes(8, "big", signed=True)),
        (0, b"\x7f" + b"\xff" * 7),
        (23, (-1).to_bytes(4, "big", signed=True)),
        (23, (1).to_bytes(4, "big")),
        (57, (-1).to_bytes(4, "big", signed=True)),
        (57, (1 << 30).to_bytes(4, "big")),
        (57, (2).to_bytes(4, "big")),
    ],
)
def test_impossible_numbers_in_a_header_are_damage(at: int, raw: bytes) -> None:
    with pytest.raises(DamagedBatch):
        parsed(patched(numbered(3), at, raw))


def test_a_record_cannot_reach_into_the_next_batch() -> None:
    """Its length says so, and both CRCs are right."""
    first, second = numbered(1), numbered(1, 1)
    longer = patched(first, 61, bytes([first[61] + 2 * 61]))
    with pytest.raises(DamagedBatch, match="offset 0 "):
        parsed(longer + second)
    for count in (1, 40):
        chunk = longer + chunk_of(*[1] * count, base_offset=1)
        with pytest.raises(DamagedBatch, match="offset 0 "):
            parsed(chunk)


def with_headers(raw: bytes, records: int = 1) -> bytes:
    """A batch of records with these bytes from the count of headers on."""
    body = b"\0\0\0\1\1" + raw
    payload = (encode_varint(len(body)) + body) * records
    batch = build_batch([Record(timestamp=NOW)])[:61] + payload
    batch = batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:]
    return with_crc(batch)


@pytest.mark.parametrize("count", [2, 3, 40])
def test_headers_that_are_malformed_are_damage(count: int) -> None:
    good = encode_varint(count) + b"\2k\2v" * count
    assert parsed(with_headers(good))[0].headers == (("k", b"v"),) * count
    rest = b"\2k\2v" * (count - 1)
    null_value = encode_varint(count) + rest + b"\2k\1"
    assert parsed(with_headers(null_value))[0].headers[-1] == ("k", None)
    for bad in (
        encode_varint(count) + b"\1\2v" + rest,  # a null key
        encode_varint(count) + rest + b"\1\2v",
        good + b"\0",
        good[:-1],
        encode_varint(count) + b"\x80\x80\x80\x80\x80\0\2v" + rest,
        encode_varint(count) + rest + b"\2k\x80\x80\x80\x80\x80\0",
        encode_varint(count) + rest + b"\x80\x80\x80\x80\x80\0",
        encode_varint(count) + b"\1" * (count // 2) + b"\2k\2v" * (count - count // 2),
        encode_varint(count) + b"\1" * count + b"\0" * count,
        encode_varint(-1),
        encode_varint(count + 1) + b"\2k\2v" * count,
    ):
        with pytest.raises(DamagedBatch, match="not that of its fields"):
            parsed(with_headers(bad))


def test_bits_of_a_length_beyond_32_are_dropped_as_kafkas_readers_do() -> None:
    wide = b"\x82\x80\x80\x80\x70"
    for count in (1, 40):
        batch = with_headers(encode_varint(count) + (wide + b"k" + wide + b"v") * count)
        assert parsed(batch)[0].headers == (("k", b"v"),) * count
        assert parsed(batch) == by_wire(batch)


@pytest.mark.parametrize("deltas", [(0, 0, 2), (1, 0, 2), (0, 2, 1), (0, 1, 3)])
def test_offsets_within_a_batch_have_to_ascend(deltas: tuple[int, ...]) -> None:
    payload = b"".join(b"\x0c\0\0" + encode_varint(delta) + b"\1\1\0" for delta in deltas)
    batch = numbered(3)[:61] + payload
    batch = with_crc(batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:])
    assert by_wire(batch) is None
    with pytest.raises(DamagedBatch, match="do not ascend within the batch"):
        parsed(batch)


def test_no_memory_is_taken_because_a_batch_claims_very_much() -> None:
    most = (1 << 31) - 1
    claims = [
        with_headers(encode_varint(most)),
        with_headers(encode_varint(1) + encode_varint(most)),
        patched(numbered(3), 57, most.to_bytes(4, "big")),
        patched(numbered(3), 61, encode_varint(most)),
    ]
    parsed(numbered(3))
    tracemalloc.start()
    try:
        for batch in claims:
            with pytest.raises(DamagedBatch):
                parsed(batch)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def walked(payloads: list[bytes], counts: list[int]) -> dict[int, str]:
    """Which of the batches with these payloads are bad, and why."""
    sizes = np.array([len(each) for each in payloads], np.int64)
    ends = np.cumsum(sizes)
    data = np.frombuffer(b"".join(payloads), np.uint8)
    return walk_records(data, ends - sizes, ends, np.array(counts, np.int64)).bad


@pytest.mark.parametrize("others", [0, 30])
def test_records_that_are_too_short_or_too_few_for_their_batch_are_no_records(others: int) -> None:
    """Among few batches and among many, which are walked through in another way."""
    sound = encode_varint(10) + bytes(10)
    short_one = encode_varint(3) + bytes(3) + encode_varint(9) + bytes(9)
    two_in_place_of_three = encode_varint(10) + bytes(10) + encode_varint(21) + bytes(21)
    wrong = [short_one, two_in_place_of_three]
    bad = walked([sound * 3] * others + wrong, [3] * others + [2, 3])
    assert list(bad) == [others, others + 1]
    assert bad[others].startswith("a record of 3 bytes")
    assert bad[others + 1] == "a record runs past its end"
