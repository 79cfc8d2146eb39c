"""Record batches: against kafka-python's own code, what a leader refuses, and damaged bytes."""

from __future__ import annotations

import struct
import time
import tracemalloc
import warnings
from contextlib import suppress

import pytest
from construct import Bytes, Int8sb, Int16sb, Int32sb, Int32ub, Int64sb, Struct
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from quorumd.wire.compression import CompressionType, pack, unpack
from quorumd.wire.control_records import (
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    UnknownControl,
    decode_control_batch,
    encode_control_batch,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import CorruptBatch, RefusedBatch
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    Record,
    build_batch,
    check_produced,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
    scan,
    stamp,
)
from quorumd.wire.varints import encode_varint
from tests.wire.wire_values import examples

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

NOW = 1_700_000_000_000
CODECS = list(CompressionType)
PACKED = CODECS[1:]

BYTES = st.binary(max_size=40) | st.integers(60, 200).map(bytes)
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(NOW - 10_000, NOW + 10_000),
        key=st.none() | BYTES,
        value=st.none() | BYTES,
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | BYTES), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


def check(data, *, version=9, limit=1024 * 1024, now_ms=NOW):
    _, steps = check_produced(data, produce_version=version, max_batch_bytes=limit, now_ms=now_ms)
    for _ in steps or ():
        pass
    return read_header(data)


def at_offsets(records, base_offset=0):
    return [record._replace(offset=base_offset + i) for i, record in enumerate(records)]


def with_crc(batch: bytes) -> bytes:
    """The batch with the CRC that its bytes have now."""
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def patched(batch: bytes, at: int, raw: bytes) -> bytes:
    return with_crc(batch[:at] + raw + batch[at + len(raw) :])


def batch_of(payload: bytes, count: int, **fields) -> bytes:
    """A batch whose records are these bytes, whatever they are."""
    empty = build_batch([Record(timestamp=NOW)] * count, **fields)[:BATCH_OVERHEAD]
    length = (BATCH_OVERHEAD + len(payload) - 12).to_bytes(4, "big")
    return with_crc(empty[:8] + length + empty[12:] + payload)


def record_bytes(offset_delta=0, body=b"\1\1\0", attributes=b"\0", timestamp=b"\0"):
    whole = attributes + timestamp + encode_varint(offset_delta) + body
    return encode_varint(len(whole)) + whole


def refusal(data, **kwargs) -> RefusedBatch:
    with pytest.raises(RefusedBatch) as caught:
        check(data, **kwargs)
    return caught.value


def refusal_text(data) -> str:
    """Why the batch is refused; empty if it is not."""
    try:
        check(data)
    except RefusedBatch as refused:
        return refused.message
    return ""


# Building and reading


@given(records=RECORDS, codec=st.sampled_from(CODECS))
@examples(60)
def test_batches_are_read_by_kafka_python_as_they_were_written(records, codec):
    batch = build_batch(records, base_offset=70, epoch=3, codec=codec, producer_id=5)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert theirs.base_offset == 70
    assert theirs.leader_epoch == 3
    assert theirs.producer_id == 5
    assert theirs.max_timestamp == max(record.timestamp for record in records)
    found = [
        Record(found.offset, found.timestamp, found.key, found.value, tuple(found.headers))
        for found in theirs
    ]
    assert found == at_offsets(records, 70)


@pytest.mark.long
@given(records=RECORDS, codec=st.sampled_from(CODECS))
@examples(60)
def test_batches_of_kafka_python_are_accepted_and_read(records, codec):
    builder = DefaultRecordBatchBuilder(2, int(codec), False, 9, 0, 7, 1 << 20)
    for offset, (_, timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, list(headers))
    batch = bytes(builder.build())

    header = check(batch)

    assert header.size_bytes == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 0, 7)
    assert list(iter_records(batch)) == at_offsets(records)
    if codec is CompressionType.NONE:
        ours = build_batch(records, producer_id=9, producer_epoch=0, base_sequence=7)
        assert stamp(ours, 0, read_header(batch).epoch) == batch


@given(records=RECORDS, codec=st.sampled_from(CODECS))
@examples(60)
def test_what_is_built_is_read_back(records, codec):
    batch = build_batch(records, base_offset=2**40, epoch=7, codec=codec)
    assert list(iter_records(batch + b"behind")) == at_offsets(records, 2**40)
    assert list(iter_records(memoryview(batch))) == at_offsets(records, 2**40)
    assert scan(batch) == [(0, read_header(batch))]


def test_append_time_is_every_records_time():
    batch = build_batch([Record(timestamp=NOW), Record(timestamp=NOW + 5)])
    stamped = patched(batch, 21, b"\0\x08")
    assert [record.timestamp for record in iter_records(stamped)] == [NOW + 5, NOW + 5]


def test_header_keys_that_are_no_text_stay_bytes():
    (record,) = iter_records(build_batch([Record(headers=((b"\xff", b"1"), ("é", None)))]))
    assert record.headers == ((b"\xff", b"1"), ("é", None))


def test_the_header_read_by_struct_is_the_declared_layout():
    declared = Struct(
        "base_offset" / Int64sb,
        "length" / Int32sb,
        "epoch" / Int32sb,
        "magic" / Int8sb,
        "crc" / Int32ub,
        "attributes" / Int16sb,
        "last_offset_delta" / Int32sb,
        "base_timestamp" / Int64sb,
        "max_timestamp" / Int64sb,
        "producer_id" / Int64sb,
        "producer_epoch" / Int16sb,
        "base_sequence" / Int32sb,
        "record_count" / Int32sb,
        "records" / Bytes(9),
    )
    raw = bytearray(range(100, 170))
    raw[8:12] = (58).to_bytes(4, "big")
    raw[16] = 2
    header = read_header(bytes(raw))
    parsed = declared.parse(bytes(raw))
    assert header.size_bytes == parsed.length + 12
    for name in BatchHeader._fields:
        if name != "size_bytes":
            assert getattr(header, name) == parsed[name]


def test_header_properties():
    batch = build_batch([Record()] * 3, base_offset=10, codec=2, is_control=True)
    header = read_header(batch)
    assert (header.last_offset, header.next_offset, header.codec) == (12, 13, 2)
    assert header.is_control
    assert not header.is_transactional


# Scanning and stamping


def three_batches() -> tuple[bytes, list[int]]:
    batches = [build_batch([Record(value=b"x" * i)], base_offset=i, epoch=1) for i in range(3)]
    positions = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    return b"".join(batches), positions


def test_scan_finds_whole_batches_and_leaves_out_a_cut_one_wherever_it_is_cut():
    data, positions = three_batches()
    assert [position for position, _ in scan(data)] == positions
    for size in range(len(data)):
        whole = [position for position in [*positions[1:], len(data)] if position <= size]
        assert len(scan(data[:size])) == len(whole)
        assert len(list(iter_headers(data[:size]))) == len(whole)
    assert list(iter_headers(data, positions[1], positions[2])) == [scan(data)[1]]


def test_scan_names_the_position_of_a_damaged_batch():
    data, positions = three_batches()
    for place in range(positions[1] + 16, positions[2]):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptBatch) as caught:
            scan(bytes(damaged))
        assert caught.value.position == positions[1]


@pytest.mark.parametrize("data", [b"", b"x" * 60, b"\0" * 100])
def test_a_header_that_is_none_is_corrupt(data):
    with pytest.raises(CorruptBatch):
        read_header(data)


def test_headers_of_a_view_are_read_in_place_and_faults_have_theirs():
    batch = build_batch([Record(value=bytes(4 << 20))])
    data = memoryview(batch + batch[:16] + b"\1" + batch[17:])
    tracemalloc.start()
    try:
        headers = iter_headers(data)
        assert next(headers) == (0, read_header(batch))
        with pytest.raises(CorruptBatch) as caught:
            next(headers)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.position == len(batch)


def test_stamping_keeps_the_crc_valid_and_drops_what_follows():
    batch = build_batch([Record(value=b"hello")])
    stamped = stamp(memoryview(batch + b"behind"), 2**33, 12)
    header = read_header(stamped)
    assert (header.base_offset, header.epoch) == (2**33, 12)
    assert crc_is_valid(stamped, 0, header)
    assert len(stamped) == len(batch)
    assert not crc_is_valid(stamped[:-1], 0, header)


# What a leader refuses


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (build_batch([Record(timestamp=NOW)])[:-1], ErrorCode.INVALID_RECORD),
        (build_batch([Record(timestamp=NOW)])[:30], ErrorCode.INVALID_RECORD),
        (build_batch([Record(timestamp=NOW)]) * 2, ErrorCode.INVALID_RECORD),
        (patched(build_batch([Record()]), 16, b"\0"), ErrorCode.INVALID_RECORD),
        (patched(build_batch([Record()]), 16, b"\1"), ErrorCode.INVALID_RECORD),
        (patched(build_batch([Record()]), 16, b"\3"), ErrorCode.CORRUPT_MESSAGE),
        (patched(build_batch([Record()]), 16, b"\xff"), ErrorCode.CORRUPT_MESSAGE),
        (patched(build_batch([Record()]), 8, struct.pack(">i", 40)), ErrorCode.CORRUPT_MESSAGE),
        (patched(build_batch([Record()]), 8, struct.pack(">i", -1)), ErrorCode.CORRUPT_MESSAGE),
        (patched(build_batch([Record()]), 8, b"\x7f\xff\xff\xff"), ErrorCode.INVALID_RECORD),
        (build_batch([Record()], base_offset=1), ErrorCode.INVALID_RECORD),
        (build_batch([Record()])[:-1] + b"\1", ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"", 0), ErrorCode.INVALID_RECORD),
        (patched(build_batch([Record()]), 23, struct.pack(">i", 5)), ErrorCode.INVALID_RECORD),
        (patched(build_batch([Record()]), 57, struct.pack(">i", -1)), ErrorCode.INVALID_RECORD),
        (build_batch([Record()], is_control=True), ErrorCode.INVALID_RECORD),
        (build_batch([Record()], producer_id=1), ErrorCode.INVALID_RECORD),
        (build_batch([Record(timestamp=NOW + 3_600_001)]), ErrorCode.INVALID_TIMESTAMP),
        (patched(build_batch([Record()]), 22, b"\5"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (
            build_batch([Record()], is_transactional=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
)
def test_a_batch_that_must_not_be_appended_is_refused_with_kafkas_code(data, error):
    refused = refusal(data)
    assert refused.error is error
    assert refused.message.endswith(".")
    assert refused.record_index is None


def test_zstd_needs_version_7_and_size_is_checked_before_the_crc():
    packed = build_batch([Record(timestamp=NOW)], codec=CompressionType.ZSTD)
    assert refusal(packed, version=6).error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert check(packed, version=7).codec == CompressionType.ZSTD
    batch = build_batch([Record(timestamp=NOW)])
    assert check(batch, limit=len(batch)).size_bytes == len(batch)
    damaged = batch[:-1] + b"\1"
    assert refusal(damaged, limit=len(batch) - 1).error is ErrorCode.MESSAGE_TOO_LARGE


def test_bytes_behind_the_batch_that_are_no_batch_are_ignored():
    batch = build_batch([Record(timestamp=NOW, value=b"v")])
    for rest in (b"x", b"\0" * 11, b"\0" * 80, batch[:-1], b"\xff" * 100):
        assert check(batch + rest).size_bytes == len(batch)


@pytest.mark.parametrize("timestamp", [-2, -1, 0, NOW + 3_600_000])
def test_old_special_and_slightly_early_timestamps_are_accepted(timestamp):
    check(build_batch([Record(timestamp=timestamp)]))


def test_a_record_ahead_of_the_clock_is_named_though_the_header_hides_it():
    batch = build_batch([Record(timestamp=NOW), Record(timestamp=NOW + 3_600_001)])
    hidden = patched(batch, 35, struct.pack(">q", NOW))
    refused = refusal(hidden)
    assert (refused.error, refused.record_index) == (ErrorCode.INVALID_TIMESTAMP, 1)


def test_unused_attribute_bits_and_a_wrong_max_timestamp_are_accepted():
    batch = build_batch([Record(timestamp=NOW)])
    check(patched(batch, 21, b"\xff\x88"))
    check(patched(batch, 35, struct.pack(">q", 5)))
    check(batch_of(record_bytes(attributes=b"\x7f"), 1))
    check(batch_of(record_bytes(body=b"\1\1\2\4\xc3\x28\1"), 1))  # header key that is no UTF-8


@pytest.mark.parametrize(
    ("payload", "count", "index"),
    [
        (record_bytes(1), 1, 0),
        (record_bytes() + record_bytes(0), 2, 1),
        (record_bytes() + record_bytes(2), 2, 1),
        (record_bytes() + record_bytes(-1), 2, 1),
        (record_bytes(), 2, 1),
        (record_bytes() + record_bytes(1), 1, None),
        (record_bytes() + b"\0", 1, None),
        (b"\1", 1, 0),
        (b"\0", 1, 0),
        (encode_varint(100) + record_bytes()[1:], 1, 0),
        (encode_varint(5) + record_bytes()[1:], 1, 0),
        (record_bytes(body=b"\3\1\0"), 1, 0),  # key length -2
        (record_bytes(body=b"\1\3\0"), 1, 0),  # value length -2
        (record_bytes(body=b"\1\1\1"), 1, 0),  # header count -1
        (record_bytes(body=b"\1\1\2\1\1"), 1, 0),  # header key null
        (record_bytes(body=b"\1\1\2\0\3"), 1, 0),  # header value length -2
        (record_bytes(body=b"\1\1" + encode_varint(2**31 - 1)), 1, 0),
        (record_bytes(body=encode_varint(2**31 - 1) + b"\1\0"), 1, 0),
        (b"\xff\xff\xff\xff\xff\1" + record_bytes()[1:], 1, 0),  # a varint of six bytes
        (record_bytes(timestamp=b"\xff" * 10 + b"\1"), 1, 0),
    ],
)
def test_records_that_a_reader_would_choke_on_are_refused(payload, count, index):
    refused = refusal(batch_of(payload, count))
    assert refused.error is ErrorCode.INVALID_RECORD
    assert refused.record_index == index


@given(data=st.data())
@examples(60)
def test_compressed_payloads_are_not_looked_at(data):
    junk = data.draw(st.binary(min_size=1, max_size=50))
    codec = data.draw(st.sampled_from(PACKED))
    batch = patched(batch_of(junk, 3), 21, struct.pack(">h", codec))
    assert check(batch).record_count == 3


# Runs of equal records


@pytest.mark.parametrize("value_bytes", [0, 1, 50, 63, 64, 100, 1000, 9000])
@pytest.mark.parametrize("count", [1, 2, 5, 63, 64, 65, 66, 128, 200])
def test_runs_of_equal_records_are_accepted(value_bytes, count):
    records = [Record(timestamp=NOW + i, value=b"v" * value_bytes) for i in range(count)]
    assert check(build_batch(records), limit=1 << 24).record_count == count


def test_runs_go_on_through_every_length_of_an_offset_delta():
    batch = build_batch([Record(timestamp=NOW, value=b"")] * 20_000)
    assert check(batch).record_count == 20_000


def is_read_as_consecutive(batch: bytes) -> bool:
    """True if a reader gets every record at its place, and none ahead of the clock."""
    try:
        found = list(iter_records(batch))
    except CorruptBatch:
        return False
    return [record.offset for record in found] == list(range(len(found))) and all(
        record.timestamp <= NOW + 3_600_000 for record in found
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value", "step_ms", "count"),
    [
        (None, b"", 0, 8),
        (b"k", b"\2\0v\1", 1, 8),
        (b"k" * 70, b"v" * 70, 64, 8),
        (None, b"vvvv", 0, 72),
        (b"", b"\0" * 6, 9000, 8),
    ],
)
def test_each_byte_of_a_run_is_judged_as_a_reader_judges_it(key, value, step_ms, count):
    records = [
        Record(timestamp=NOW + step_ms * (index > 0), key=key, value=value)
        for index in range(count)
    ]
    batch = build_batch(records)
    assert check(batch).record_count == count
    for place in range(len(batch) - 3 * (len(batch) - BATCH_OVERHEAD) // 4, len(batch)):
        for raw in (0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, batch[place] ^ 1, batch[place] ^ 2):
            damaged = patched(batch, place, bytes((raw,)))
            verdict = refusal_text(damaged)
            # Stricter than a reader in one point: the only negative length is -1.
            assert (verdict == "") == is_read_as_consecutive(damaged) or "negative" in verdict


def test_a_record_ahead_of_the_clock_inside_a_run_is_named():
    early, late = (Record(timestamp=NOW + ahead) for ahead in (2_000_000, 3_600_001))
    batch = build_batch([early] * 7 + [late] + [early] * 4, base_timestamp=NOW)
    refused = refusal(patched(batch, 35, struct.pack(">q", NOW)))
    assert (refused.error, refused.record_index) == (ErrorCode.INVALID_TIMESTAMP, 7)


EQUAL_RECORDS = [Record(timestamp=NOW + i % 3, key=b"k", value=b"\2\0v\1") for i in range(17_000)]


@pytest.mark.long
@given(count=st.sampled_from([20, 100, 300] * 6 + [9000, 17_000]), data=st.data())
@examples(60)
def test_one_damaged_byte_in_a_run_is_judged_as_a_reader_judges_it(count, data):
    batch = bytearray(build_batch(EQUAL_RECORDS[:count]))
    place = data.draw(st.integers(BATCH_OVERHEAD, len(batch) - 1))
    batch[place] ^= data.draw(st.integers(1, 255))
    damaged = with_crc(bytes(batch))
    verdict = refusal_text(damaged)
    # Stricter than a reader in one point: the only negative length is -1.
    assert (verdict == "") == is_read_as_consecutive(damaged) or "negative" in verdict


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=300),
    steps=st.lists(st.sampled_from([0, 1, 63, 64, 70, 9000]), min_size=1, max_size=4),
)
@examples(100)
def test_batches_of_changing_shape_are_accepted(sizes, steps):
    records = [
        Record(
            timestamp=NOW + steps[i % len(steps)], key=b"k" * key, value=b"v" * (value * value * 9)
        )
        for i, (key, value) in enumerate(sizes)
    ]
    assert check(build_batch(records)).record_count == len(records)


@given(payload=st.binary(max_size=120), count=st.integers(1, 6))
@example(payload=record_bytes(0) + record_bytes(1), count=2)
@examples(300)
def test_random_records_are_refused_or_read(payload, count):
    batch = batch_of(payload, count)
    with suppress(RefusedBatch):
        check(batch, now_ms=2**62)
        assert [record.offset for record in iter_records(batch)] == list(range(count))


@pytest.mark.long
def test_a_large_batch_of_tiny_records_is_checked_in_bounded_time():
    records = [Record(timestamp=NOW, value=b"a" * (i % 3)) for i in range(100_000)]
    batch = build_batch(records)
    began = time.process_time()
    check(batch)
    assert time.process_time() - began < 1


# Damaged batches, and compressed ones


@given(data=st.binary(max_size=200))
@examples(200)
def test_random_bytes_are_no_batch(data):
    for attempt in (lambda: scan(data), lambda: list(iter_records(data))):
        try:
            attempt()
        except CorruptBatch:
            continue
    refusal_text(data)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
@examples(15)
def test_a_damaged_payload_is_corrupt_or_read_and_nothing_else(codec, data):
    records = data.draw(RECORDS)
    batch = bytearray(build_batch(records, codec=codec))
    for _ in range(4):
        place = data.draw(st.integers(BATCH_OVERHEAD, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
        try:
            found = list(iter_records(bytes(batch)))
        except CorruptBatch:
            continue
        assert len(found) == len(records)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_holds_more_or_fewer_records_than_it_says_is_corrupt(codec):
    batch = build_batch([Record(timestamp=NOW, value=b"v" * 50)] * 3, codec=codec)
    for count in (2, 4):
        wrong = patched(batch, 57, struct.pack(">i", count))
        with pytest.raises(CorruptBatch):
            list(iter_records(wrong))


@pytest.mark.parametrize("codec", PACKED)
def test_a_payload_that_unpacks_to_gigabytes_is_refused_without_holding_them(codec):
    zeros = pack(codec, bytes(64 * 1024 * 1024))
    batch = patched(batch_of(zeros, 1), 21, struct.pack(">h", codec))
    with pytest.raises(CorruptBatch):
        list(iter_records(batch))


@pytest.mark.parametrize("codec", PACKED)
def test_a_record_larger_than_the_limit_is_refused_before_it_is_unpacked(codec):
    batch = build_batch([Record(value=bytes(5_000_000))], codec=codec)
    assert len(next(iter_records(batch)).value) == 5_000_000
    with pytest.raises(CorruptBatch, match="a record of 50000"):
        list(iter_records(batch, record_bytes_max=1_000_000))


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_unpacking_yields_small_chunks(codec):
    chunks = list(unpack(codec, pack(codec, bytes(1_000_000))))
    assert sum(map(len, chunks)) == 1_000_000
    assert max(map(len, chunks)) <= 128 * 1024


def test_a_bare_snappy_block_is_read_too_and_its_claimed_size_is_checked():
    import snappy

    assert b"".join(unpack(CompressionType.SNAPPY, snappy.compress(b"abc" * 100))) == b"abc" * 100
    with pytest.raises(CorruptBatch, match="unpacks to 268435455 bytes"):
        list(unpack(CompressionType.SNAPPY, bytes.fromhex("ffffff7f") + b"\0abc"))


def test_gzip_members_that_follow_each_other_are_one_stream():
    data = pack(CompressionType.GZIP, b"one") + pack(CompressionType.GZIP, b"two")
    assert b"".join(unpack(CompressionType.GZIP, data)) == b"onetwo"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_corrupt(codec):
    with pytest.raises(CorruptBatch, match=f"no compression codec {codec}"):
        unpack(codec, b"")


# Control batches


def test_tags_of_our_own_in_a_voters_record_are_read_back():
    voters = KRaftVoters(
        voters=(KRaftVoter(voter_id=1),), cluster_id="cluster", target_voters=(4, 5, 6)
    )
    batch = encode_control_batch([voters], base_offset=9, epoch=2, timestamp_ms=NOW)
    assert read_header(batch).is_control
    assert decode_control_batch(batch) == [(9, voters)]


def test_a_control_record_of_an_unknown_type_is_kept_as_it_is():
    records = [UnknownControl(1002, b"state"), KRaftVersion(kraft_version=1)]
    batch = encode_control_batch(records, base_offset=0, epoch=1, timestamp_ms=NOW)
    assert decode_control_batch(batch) == list(enumerate(records))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0\0\0", b""),
        (b"\xff\xff\0\2", b""),
        (b"\0\0\0\2", None),
        (b"\0\0\0\2", b""),
    ],
)
def test_a_damaged_control_record_is_corrupt(key, value):
    batch = build_batch([Record(key=key, value=value)], is_control=True)
    with pytest.raises(CorruptBatch):
        decode_control_batch(batch)


def test_a_data_batch_is_no_control_batch():
    with pytest.raises(CorruptBatch, match="not a control batch"):
        decode_control_batch(build_batch([Record(value=b"v")]))
