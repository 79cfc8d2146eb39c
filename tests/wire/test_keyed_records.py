"""Records by key: read as all readers read them, packed into a snapshot's batches and read from those."""

from __future__ import annotations

from itertools import chain

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quorumd.wire import snapshot_records
from quorumd.wire.batch_header import BATCH_OVERHEAD
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.keyed_records import COMPLETE, DELETED, PREFIX, take_records
from quorumd.wire.records import Record, build_batch, crc_is_valid, iter_records, read_header
from quorumd.wire.snapshot_records import RecordPacker, read_snapshot_records
from quorumd.wire.varints import encode_varint
from tests.wire.wire_values import examples

NOW = 1_700_000_000_000
SIZES = st.sampled_from([0, 1, 5, 63, 64, 200, 8191, 8192])
BYTES = st.binary(max_size=12) | SIZES.map(bytes)
TIMES = st.integers(NOW - 300, NOW + 300) | st.sampled_from([0, -1, NOW + 10**9, 2**62, -(2**62)])
HEADERS = st.lists(
    st.tuples(st.text(max_size=3) | st.just(b"\xff"), st.none() | BYTES), max_size=3
).map(tuple)
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp=TIMES,
        key=st.none() | BYTES,
        value=st.none() | BYTES,
        headers=st.just(()) | HEADERS,
    ),
    max_size=12,
)
REPEATED = st.builds(
    lambda shape, count, values: [
        shape._replace(timestamp=shape.timestamp + n % 90, value=values and values % n)
        for n in range(count)
    ],
    st.builds(Record, timestamp=TIMES, key=st.none() | BYTES, headers=st.just(()) | HEADERS),
    st.sampled_from([3, 5, 70, 200]),
    st.sampled_from([None, b"%06d"]),
)
"""Many records of one shape behind each other, which are read together."""
ALL_RECORDS = st.lists(RECORDS | REPEATED, min_size=1, max_size=3).map(
    lambda each: list(chain.from_iterable(each))
)


def taken(batch: bytes, step: int = 1 << 30) -> dict[bytes, bytes]:
    """What is held of an uncompressed batch, `step` records at a time."""
    header = read_header(batch)
    held: dict[bytes, bytes] = {}
    at, done = BATCH_OVERHEAD, 0
    while done < header.record_count:
        records, position, _ = take_records(
            header,
            batch,
            at,
            header.size_bytes,
            first=done,
            count=min(step, header.record_count - done),
            record_bytes_max=1 << 26,
            held=held,
        )
        if not records:
            raise CorruptBatch("a record is missing")
        at, done = position, done + records
    if at != header.size_bytes:
        raise CorruptBatch("too much")
    return held


def read_plainly(batch: bytes) -> dict[bytes, Record]:
    """The newest record of each key."""
    return {record.key: record for record in iter_records(batch) if record.key is not None}


def meaning(key: bytes, held: bytes) -> Record:
    """What is held of a record, by way of a batch that has it alone."""
    timestamp, offset = snapshot_records._READ_PREFIX.unpack_from(held)
    rest = held[16:] if offset == COMPLETE else held[16:] + b"\0"
    body = b"\0\0\0" + encode_varint(len(key)) + key + rest
    batch = build_batch([Record()])[:BATCH_OVERHEAD] + encode_varint(len(body)) + body
    sized = batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:]
    (record,) = iter_records(sized)
    if offset == COMPLETE:
        name, digits = record.headers[-1]
        assert (name, digits) == ("quorumd.offset", digits)
        assert digits is not None
        offset = int(digits)
        record = record._replace(headers=record.headers[:-1])
    return record._replace(timestamp=timestamp, offset=offset)


def with_crc(batch: bytes) -> bytes:
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


@pytest.mark.long
@given(records=ALL_RECORDS, step=st.sampled_from([1, 3, 100, 1 << 30]), append_time=st.booleans())
@examples(150)
def test_records_are_held_as_they_are_read_elsewhere(records, step, append_time):
    batch = build_batch(records, base_offset=1000)
    if append_time:
        batch = with_crc(batch[:22] + bytes((batch[22] | 8,)) + batch[23:])
    expected = read_plainly(batch)
    held = taken(batch, step)
    assert held.keys() == expected.keys()
    for key, record in expected.items():
        if record.value is None:
            assert held[key] == DELETED
        else:
            assert meaning(key, held[key]) == record


@pytest.mark.long
@given(records=ALL_RECORDS, where=st.integers(0, 2**32), what=st.integers(0, 255))
@examples(400)
def test_what_others_refuse_is_refused_and_nothing_else(records, where, what):
    batch = bytearray(build_batch([*records, Record()], base_offset=1000))
    batch[BATCH_OVERHEAD + where % (len(batch) - BATCH_OVERHEAD)] = what
    try:
        expected = read_plainly(bytes(batch))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            taken(bytes(batch))
        return
    assert taken(bytes(batch)).keys() == expected.keys()


def test_a_record_that_is_cut_says_how_much_it_lacks():
    batch = build_batch([Record(key=b"a", value=b"1"), Record(key=b"b", value=bytes(500))])
    header = read_header(batch)
    for end in range(BATCH_OVERHEAD, len(batch) + 1):
        held: dict[bytes, bytes] = {}
        records, position, lacking_bytes = take_records(
            header,
            batch[:end],
            BATCH_OVERHEAD,
            end,
            first=0,
            count=2,
            record_bytes_max=1000,
            held=held,
        )
        assert records == len(held)
        assert lacking_bytes <= len(batch) - end
        assert (lacking_bytes == 0) == (end == len(batch))
        if end > position + 1 and records == 1:
            assert lacking_bytes == len(batch) - end


def test_a_record_larger_than_allowed_is_refused_before_it_is_there():
    batch = build_batch([Record(key=b"a", value=bytes(500))])
    with pytest.raises(CorruptBatch, match="length of 508 bytes"):
        take_records(
            read_header(batch),
            batch[:70],
            BATCH_OVERHEAD,
            70,
            first=0,
            count=1,
            record_bytes_max=507,
            held={},
        )


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize(("delta", "offset"), [(-1, 1000), (5, 1000), (-(2**31), 1000)])
def test_an_offset_outside_the_batch_is_moved_inside(count, delta, offset):
    body = b"\0\0" + encode_varint(delta) + b"\x02k\x02v\0"
    payload = (encode_varint(len(body)) + body) * count
    empty = build_batch([Record()], base_offset=1000)[:BATCH_OVERHEAD]
    batch = bytearray(empty + payload)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    held = taken(bytes(batch))
    assert held == {b"k": PREFIX.pack(0, offset) + b"\x02v"}


def test_a_run_that_counts_beyond_its_batch_is_moved_inside_too():
    records = [Record(key=b"%03d" % n, value=b"v") for n in range(50)]
    batch = bytearray(build_batch(records, base_offset=1000))
    batch[23:27] = (9).to_bytes(4, "big")
    held = taken(bytes(batch))
    assert [snapshot_records._READ_PREFIX.unpack_from(one)[1] for one in held.values()] == [
        *range(1000, 1010),
        *[1009] * 40,
    ]


# Snapshots


def packed(newest: dict[bytes, bytes], base: int = NOW, step: int = 1 << 30) -> list[bytes]:
    packer = RecordPacker(base, lambda reference: newest[reference])
    keys = sorted(newest)
    batches, at, next_offset = [], 0, 5
    while at < len(keys):
        at = packer.add(keys, newest, at, step)
        if packer.is_full or (packer.count and at == len(keys)):
            count = packer.count
            batches.append(b"".join(packer.take(next_offset, 7)))
            next_offset += count
    if packer.count:
        batches.append(b"".join(packer.take(next_offset, 7)))
    return batches


@pytest.mark.long
@given(
    records=ALL_RECORDS,
    step=st.sampled_from([1, 3, 1 << 30]),
    limit=st.sampled_from([150, 1 << 20]),
)
@examples(150)
def test_what_is_packed_is_read_back_and_packed_the_same(records, step, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_records, "SNAPSHOT_BATCH_BYTES", limit)
        source = build_batch(records, base_offset=1000)
        held = taken(source)
        batches = packed(held, step=step)
        expected = {
            key: record for key, record in read_plainly(source).items() if record.value is not None
        }
        again: dict[bytes, bytes] = {}
        found = {}
        for batch in batches:
            header = read_header(batch)
            assert crc_is_valid(batch, 0, header)
            assert header.epoch == 7
            assert len(batch) <= limit or header.record_count == 1
            again |= dict(zip(*read_snapshot_records(header, batch, check=True), strict=True))
            for record in iter_records(batch):
                assert record.headers[-1] == (
                    "quorumd.offset",
                    b"%d" % expected[record.key].offset,
                )
                found[record.key] = record
        assert list(found) == sorted(expected)
        for key, record in expected.items():
            one = found[key]._replace(offset=record.offset, headers=found[key].headers[:-1])
            assert one == record
        assert packed(again) == packed(held)


def test_a_time_beyond_64_bits_from_the_last_one_comes_back():
    held = {b"k": PREFIX.pack((1 << 64) - (1 << 63), 3) + b"\x02v"}
    for base in (NOW, 2**63 - 1, -(2**63)):
        (batch,) = packed(held, base)
        keys, again = read_snapshot_records(read_header(batch), batch, check=True)
        assert keys == [b"k"]
        assert snapshot_records._READ_PREFIX.unpack_from(again[0]) == (-(2**63), COMPLETE)


def test_a_reference_is_loaded_and_the_deleted_left_out():
    value = PREFIX.pack(NOW, 3) + b"\x02v"
    newest = {b"a": b"r" * 16, b"b": DELETED, b"r" * 16: value, b"s": DELETED}
    (batch,) = packed(newest)
    assert [record.key for record in iter_records(batch)] == [b"a", b"r" * 16]


def snapshot_batch(*records: Record, **fields) -> bytes:
    return build_batch(records, base_timestamp=NOW, **fields)


MARK = ("quorumd.offset", b"12")


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (snapshot_batch(Record(key=None, value=b"v", headers=(MARK,))), "no key"),
        (snapshot_batch(Record(key=b"k", value=None, headers=(MARK,))), "no value"),
        (snapshot_batch(Record(key=b"k", value=b"v")), "0 headers"),
        (snapshot_batch(Record(key=b"k", value=b"v", headers=(MARK, ("h", b"1")))), "last header"),
        (
            snapshot_batch(Record(key=b"k", value=b"v", headers=((*MARK[:1], b"1x"),))),
            "which offset",
        ),
        (snapshot_batch(Record(key=b"k", value=b"v", headers=((*MARK[:1], b""),))), "which offset"),
        (
            snapshot_batch(Record(key=b"k", value=b"v", headers=((*MARK[:1], None),))),
            "which offset",
        ),
        (snapshot_batch(Record(key=b"k", value=b"v", headers=(MARK,)), codec=1), "attributes"),
        (snapshot_batch(), "0 records"),
        (
            snapshot_batch(
                Record(key=b"b", value=b"v", headers=(MARK,)),
                Record(key=b"a", value=b"v", headers=(MARK,)),
            ),
            "not ascend",
        ),
        (
            snapshot_batch(
                Record(key=b"a", value=b"v", headers=(MARK,)),
                Record(key=b"a", value=b"v", headers=(MARK,)),
            ),
            "not ascend",
        ),
    ],
)
def test_what_no_snapshot_holds_is_refused(batch, problem):
    with pytest.raises(CorruptBatch, match=problem):
        read_snapshot_records(read_header(batch), batch, check=True)


@pytest.mark.parametrize("check", [True, False])
def test_any_bytes_are_records_or_refused(check):
    batch = snapshot_batch(
        Record(timestamp=NOW - 7, key=b"a", value=b"v", headers=(("h", None), MARK)),
        Record(timestamp=NOW, key=b"b" * 70, value=b"", headers=(MARK,)),
    )
    read_snapshot_records(read_header(batch), batch, check=check)
    refused = 0
    for at in range(BATCH_OVERHEAD, len(batch)):
        for value in range(256):
            changed = batch[:at] + bytes((value,)) + batch[at + 1 :]
            try:
                read_snapshot_records(read_header(changed), changed, check=check)
            except CorruptBatch:
                refused += 1
    assert refused > 1000
    for end in range(BATCH_OVERHEAD, len(batch)):
        cut = batch[:8] + (end - 12).to_bytes(4, "big") + batch[12:end]
        with pytest.raises(CorruptBatch):
            read_snapshot_records(read_header(cut), cut, check=check)
