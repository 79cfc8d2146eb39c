"""The parser against other decoders: on batches of every shape, and on damaged bytes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorumd.pipeline.parse import DamagedBatch
from quorumd.wire.compression import CompressionType, pack
from quorumd.wire.records import Record, build_batch, read_header
from quorumd.wire.varints import encode_varint
from tests.pipeline.parsed import (
    ALL,
    Row,
    by_aiokafka,
    by_wire,
    parsed,
    table_of,
    with_crc,
)

pytestmark = pytest.mark.sim

NOW = 1_700_000_000_000

BYTES = (
    st.none()
    | st.binary(max_size=12)
    | st.sampled_from([60, 64, 127, 200, 8_192, 20_000]).map(bytes)
)
DELTAS = st.integers(-70, 70) | st.sampled_from([8_191, 8_192, -(1 << 20), 1 << 33, -(1 << 41)])
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp=DELTAS.map(lambda delta: NOW + delta),
        key=BYTES,
        value=BYTES,
        headers=st.lists(st.tuples(st.text(max_size=4), BYTES), max_size=3).map(tuple)
        | st.just((("h", b"v"),) * 20),
    ),
    min_size=1,
    max_size=9,
)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches one behind the other; often so many that they are read together."""
    shapes = draw(
        st.lists(st.tuples(RECORDS, st.sampled_from(list(CompressionType))), min_size=1, max_size=6)
    )
    repeats = draw(st.sampled_from([1, 1, 3, 12]))
    offset = draw(st.sampled_from([0, 1, 1 << 40]))
    epoch = draw(st.integers(0, 5))
    batches = []
    for records, codec in shapes * repeats:
        batches.append(build_batch(records, base_offset=offset, epoch=epoch, codec=codec))
        offset += len(records)
    return batches


@given(logs())
@settings(max_examples=100)
def test_aiokafka_reads_the_same(batches: list[bytes]) -> None:
    assert parsed(b"".join(batches)) == by_aiokafka(batches)


@given(logs(), st.data())
@settings(max_examples=100)
def test_a_range_has_the_rows_that_are_in_it(batches: list[bytes], data: st.DataObject) -> None:
    rows = by_aiokafka(batches)
    first, last = rows[0].offset, rows[-1].offset
    start = data.draw(st.integers(max(0, first - 2), last + 2))
    end = data.draw(st.integers(max(0, first - 2), last + 2))
    expected = [row for row in rows if start <= row.offset < end]
    assert parsed(b"".join(batches), start, end) == expected


def framing(offset: int, epoch: int) -> list[bytes]:
    """Sound batches of one record, enough for all to be read together."""
    return [
        build_batch([Record(timestamp=NOW, key=b"%d" % i)], base_offset=offset + i, epoch=epoch)
        for i in range(30)
    ]


@given(logs(), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_a_flipped_bit_is_damage_or_changes_nothing(batches: list[bytes], random: Random) -> None:
    """No CRC covers the offset of a batch; the batch before or behind it gives a wrong one away."""
    chunk = bytearray(b"".join(batches))
    before = parsed(bytes(chunk))
    at = random.randrange(8 if len(batches) == 1 else 0, len(chunk))
    chunk[at] ^= 1 << random.randrange(8)
    found = verdict(bytes(chunk))
    assert found in (None, before)


@given(logs(), st.randoms(use_true_random=False), st.integers(1, 40))
@settings(max_examples=100)
def test_any_bytes_at_all_are_rows_or_damage(
    batches: list[bytes], random: Random, count: int
) -> None:
    chunk = bytearray(b"".join(batches))
    for _ in range(count):
        at = random.randrange(len(chunk))
        kind = random.randrange(3)
        if kind == 0:
            chunk[at] = random.randrange(256)
        elif kind == 1:
            del chunk[at : at + random.randrange(1, 200)]
        else:
            chunk[at:at] = random.randbytes(random.randrange(1, 9))
        if not chunk:
            break
    for table in ("records", "batches", "control"):
        try:
            table_of(table, bytes(chunk))
        except DamagedBatch:
            continue


@st.composite
def hostile_batches(draw: st.DrawFn) -> bytes:
    """An uncompressed batch with changed contents and the CRC that goes with them."""
    records = draw(RECORDS)
    batch = bytearray(build_batch(records, base_offset=draw(st.integers(0, 9)) * 1000, epoch=3))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(61, len(batch) - 1) | st.integers(61, min(len(batch), 75) - 1))
        raw = draw(
            st.binary(min_size=1, max_size=2)
            | st.sampled_from([-1, -2, 0, 63, 64, 1 << 13, (1 << 31) - 1, -(1 << 31)]).map(
                encode_varint
            )
            | st.just(b"\xff" * 5)
            | st.just(b"\x80" * 10 + b"\0")
        )
        batch[at : at + len(raw)] = raw
    count = draw(
        st.sampled_from([len(records), len(records), 0, 1, len(records) + 1, (1 << 31) - 1])
    )
    batch[57:61] = count.to_bytes(4, "big")
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return with_crc(bytes(batch))


def verdict(chunk: bytes | memoryview, start: int = 0, end: int = ALL) -> list[Row] | None:
    try:
        return parsed(chunk, start, end)
    except DamagedBatch:
        return None


@given(hostile_batches())
@example(build_batch([Record(timestamp=NOW)]))
@settings(max_examples=400)
def test_hostile_contents_get_the_same_verdict_as_from_the_wire_reader(batch: bytes) -> None:
    assert verdict(batch) == by_wire(batch)


@given(hostile_batches(), st.binary(max_size=20))
@settings(max_examples=150)
def test_what_is_behind_a_batch_does_not_change_its_verdict(batch: bytes, behind: bytes) -> None:
    """Alone, at the end of a buffer with anything behind it, and among others read together."""
    expected = by_wire(batch)
    inside = memoryview(batch + behind)[: len(batch)]
    assert verdict(inside) == expected
    header = read_header(batch)
    chunk = batch + b"".join(framing(header.next_offset, 3))
    found = verdict(chunk)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found[: len(expected)] == expected
        assert len(found) == len(expected) + 30


@given(
    hostile_batches(),
    st.sampled_from(
        [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
    ),
)
@settings(max_examples=100)
def test_hostile_contents_that_are_compressed_are_rows_or_none(
    batch: bytes, codec: CompressionType
) -> None:
    packed = pack(codec, batch[61:])
    header = bytearray(batch[:61])
    header[22] = codec
    header[8:12] = (49 + len(packed)).to_bytes(4, "big")
    found = verdict(with_crc(bytes(header) + packed))
    assert found is not None
    expected = by_wire(batch)
    if expected is not None:
        assert found == expected


@given(st.binary(min_size=61, max_size=400))
@settings(max_examples=100)
def test_garbage_that_claims_to_be_compressed_has_no_rows(payload: bytes) -> None:
    for codec in (
        CompressionType.GZIP,
        CompressionType.SNAPPY,
        CompressionType.LZ4,
        CompressionType.ZSTD,
    ):
        batch = bytearray(build_batch([Record(timestamp=NOW)] * 2)[:61] + payload)
        batch[22] = codec
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        assert verdict(with_crc(bytes(batch))) == []


@pytest.mark.parametrize("count", [1, 30])
def test_each_cut_of_a_chunk_is_whole_batches_or_damage(count: int) -> None:
    batches = framing(0, 1)[:count]
    chunk = b"".join(batches)
    ends = {sum(map(len, batches[:i])) for i in range(count + 1)}
    for size in range(len(chunk) + 1):
        found = verdict(memoryview(chunk)[:size])
        assert (found is not None) == (size in ends)
