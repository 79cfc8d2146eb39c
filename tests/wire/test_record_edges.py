"""Records at the edges of what is permitted: the last byte that counts, and the first one too many."""

from __future__ import annotations

import pytest
import snappy

from quorumd.wire.batch_header import read_header, stamp
from quorumd.wire.compression import CompressionType, pack, unpack, unpack_in_steps
from quorumd.wire.control_records import (
    KRaftVersion,
    LeaderChange,
    UnknownControl,
    decode_control_record,
    encode_control_record,
)
from quorumd.wire.errors import CorruptBatch, MalformedMessage, RefusedBatch, TooLargeBlock
from quorumd.wire.keyed_records import COMPLETE, DELETED, PREFIX, take_records
from quorumd.wire.record_walk import ANY_DELTA, check_records, is_plain_record
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch, iter_places, iter_records
from quorumd.wire.sequence_check import offset_problem
from quorumd.wire.snapshot_records import RecordPacker, read_snapshot_records
from quorumd.wire.varints import encode_varint, read_unsigned_varint, read_varlong

NOW = 1_700_000_000_000
GZIP = CompressionType.GZIP


def with_payload(payload: bytes, count: int, codec: int = 0) -> bytes:
    """A batch whose header counts so many records, in front of these bytes; its CRC is wrong."""
    data = bytearray(build_batch([Record()], codec=codec)[:BATCH_OVERHEAD] + payload)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[23:27] = (count - 1).to_bytes(4, "big", signed=True)
    data[57:61] = count.to_bytes(4, "big", signed=True)
    return bytes(data)


def sized(*fields: bytes) -> bytes:
    """A record with these fields behind its length."""
    body = b"".join(fields)
    return encode_varint(len(body)) + body


def record(index: int, delta: bytes | None = None, end: bytes = b"\1\2v\0") -> bytes:
    """Record `index`, with these bytes for its offset delta, and then key, value and headers."""
    return sized(b"\0\0", encode_varint(index) if delta is None else delta, end)


def check(payload: bytes, count: int, timestamp_deltas: range = ANY_DELTA) -> None:
    for _ in check_records(payload, 0, count, timestamp_deltas):
        pass


def take(batch: bytes, end: int | None = None, size_max: int = 1 << 20) -> dict[bytes, bytes]:
    """What is held of the records of a batch."""
    header, held = read_header(batch), dict[bytes, bytes]()
    end = len(batch) if end is None else end
    count = header.record_count
    found, at, _ = take_records(
        header,
        batch,
        BATCH_OVERHEAD,
        end,
        first=0,
        count=count,
        record_bytes_max=size_max,
        held=held,
    )
    assert (found, at) == (count, end)
    return held


# -- reading


def test_a_batch_that_counts_less_than_no_record_is_corrupt() -> None:
    assert list(iter_records(with_payload(b"", 0))) == []
    with pytest.raises(CorruptBatch, match="a record count of -1"):
        list(iter_records(with_payload(b"", -1)))


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("size", range(6))
def test_a_record_has_room_for_all_of_its_fields(size: int, codec: int) -> None:
    """Also where none of them is looked at."""
    payload = pack(codec, sized(bytes(size)))
    for read in (iter_records, iter_places):
        with pytest.raises(CorruptBatch, match=f"a record of {size} bytes"):
            list(read(with_payload(payload, 1, codec)))


def test_a_batch_has_room_for_its_header() -> None:
    data = bytearray(with_payload(b"", 0))
    assert read_header(bytes(data)).size_bytes == BATCH_OVERHEAD
    data[8:12] = (BATCH_OVERHEAD - 13).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="a batch length of 48 is too small"):
        read_header(bytes(data))


def test_a_record_of_just_the_largest_size_is_unpacked() -> None:
    batch = build_batch([Record(key=b"k", value=bytes(100))], codec=1)
    (place,) = iter_places(batch)
    assert place.size_bytes == 108
    assert len(list(iter_records(batch, record_bytes_max=108))) == 1
    with pytest.raises(CorruptBatch, match="a record of 108 bytes, 107 are allowed"):
        list(iter_records(batch, record_bytes_max=107))


def test_what_follows_the_records_is_seen_though_it_comes_in_a_chunk_of_its_own() -> None:
    payload = build_batch([Record(value=bytes(65_525))])[BATCH_OVERHEAD:]
    assert len(payload) == 65_536
    assert len(list(iter_records(with_payload(pack(GZIP, payload), 1, GZIP)))) == 1
    with pytest.raises(CorruptBatch, match="more than the 1 records"):
        list(iter_records(with_payload(pack(GZIP, payload + bytes(9)), 1, GZIP)))


def test_a_record_that_is_longer_than_its_fields_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="not that of its fields"):
        list(iter_records(with_payload(record(0, end=b"\1\2v\0\0"), 1)))


def test_any_negative_length_of_a_key_is_that_of_none() -> None:
    (found,) = iter_records(with_payload(record(0, end=b"\3\2v\0"), 1))
    assert (found.key, found.value) == (None, b"v")


def test_the_greatest_timestamp_of_a_batch_is_that_of_any_record() -> None:
    times = [NOW, NOW + 9, NOW + 3]
    batch = build_batch([Record(timestamp=each) for each in times])
    assert read_header(batch).max_timestamp == NOW + 9


def test_a_batch_that_ends_before_it_begins_is_out_of_order() -> None:
    header = read_header(build_batch([Record()], base_offset=5))
    assert offset_problem(header, 5) == ""
    assert "-1 from its first" in offset_problem(header._replace(last_offset_delta=-1), 5)


def test_bits_beyond_the_width_of_a_number_are_dropped() -> None:
    assert read_unsigned_varint(b"\xff\xff\xff\xff\x7f", 0) == ((1 << 32) - 1, 5)
    assert read_varlong(b"\xfe" + b"\xff" * 8 + b"\x7f", 0) == ((1 << 63) - 1, 10)


# -- what a leader takes


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (record(1), "an offset delta"),
        (record(1, end=b"\2k\2v\0"), "an offset delta"),
        (record(0, end=b"\3k\2v\0"), "a key length below -1"),
        (record(0, end=b"\1\2vw\0"), "a byte behind the value"),
        (record(0, end=b"\2k\2vw\0"), "a byte behind the value"),
        (record(0, end=b"\1\2v\2"), "a header that is not there"),
    ],
)
def test_a_record_that_is_nearly_plain_is_not(data: bytes, why: str) -> None:
    for plain in (record(0), record(0, end=b"\2k\2v\0")):
        assert is_plain_record(plain, 0)
    assert not is_plain_record(data, 0), why


@pytest.mark.parametrize("other", [8189, 8190])
def test_a_run_of_records_is_not_taken_for_one_that_repeats_the_offsets_of_the_last_block(
    other: int,
) -> None:
    """Behind 8191, which has two bytes, come deltas that have two bytes, too, and begin again at 0.

    The `other` one has another size, so that the run before it has ended: behind 8190 a new one is looked
    for behind 8191.
    """
    good = b"".join(record(n, end=b"\1\4vv\0" if n == other else b"\1\2v\0") for n in range(8192))
    check(good, 8192)
    odd = b"".join(record(8192 + n, bytes((n << 1 | 0x80, 0))) for n in range(60))
    with pytest.raises(RefusedBatch, match="Record 8192: its offset delta is not its place"):
        check(good + odd, 8252)


@pytest.mark.parametrize("place", [5, 20, 39])
@pytest.mark.parametrize("end", [b"\1\2v\2", b"\1\2v\1", b"\3\2v\0", b"\1\3v\0", b"\1\4v\0"])
def test_each_record_of_a_run_has_the_shape_of_the_others(place: int, end: bytes) -> None:
    check(b"".join(map(record, range(40))), 40)
    payload = b"".join(record(n, end=end if n == place else b"\1\2v\0") for n in range(40))
    with pytest.raises(RefusedBatch, match=f"Record {place}: "):
        check(payload, 40)


def test_a_timestamp_too_far_ahead_is_found_where_a_byte_could_hold_it() -> None:
    """A run of records whose timestamps have one byte: up to 50 ms are permitted, and one is at 60."""
    deltas = [0] * 20 + [60] + [0] * 20
    payload = b"".join(
        sized(b"\0", encode_varint(delta), encode_varint(n), b"\1\2v\0")
        for n, delta in enumerate(deltas)
    )
    check(payload, len(deltas), range(-60, 61))
    with pytest.raises(RefusedBatch, match="Record 20: its timestamp"):
        check(payload, len(deltas), range(-50, 51))


def test_thousands_of_headers_are_taken_and_each_is_looked_at() -> None:
    for at in (None, 0, 2047, 2048, 4095, 4096, 4999):
        headers = [b"\2h\2v"] * 5000
        if at is not None:
            headers[at] = b"\1\2vvvv"
        payload = record(0, end=b"\1\2v" + encode_varint(5000) + b"".join(headers))
        if at is None:
            check(payload, 1)
            continue
        with pytest.raises(RefusedBatch, match="a header key is null"):
            check(payload, 1)


# -- unpacking


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000, 1 << 20])
def test_gzip_gives_all_of_what_was_packed_however_little_it_packs_to(size: int) -> None:
    assert b"".join(unpack(GZIP, pack(GZIP, bytes(size)))) == bytes(size)


def test_a_block_of_snappy_of_just_the_largest_size_is_unpacked() -> None:
    block = snappy.compress(bytes(100))
    snappy_type = CompressionType.SNAPPY
    assert list(unpack_in_steps(snappy_type, block, block_bytes_max=100)) == [bytes(100)]
    with pytest.raises(TooLargeBlock, match="unpacks to 100 bytes"):
        list(unpack_in_steps(snappy_type, block, block_bytes_max=99))


# -- control records


def test_a_key_of_a_later_version_may_be_longer() -> None:
    _, value = encode_control_record(KRaftVersion(kraft_version=1))
    for key in (b"\0\0\0\5", b"\0\1\0\5", b"\0\1\0\5more"):
        assert decode_control_record(key, value) == KRaftVersion(kraft_version=1)
    for key in (b"\xff\xff\0\5", b"\0\0\5"):
        with pytest.raises(MalformedMessage, match="a control record's key has"):
            decode_control_record(key, value)


def test_only_who_leads_may_be_said_in_a_form_that_is_not_known() -> None:
    for cls, number in ((LeaderChange, 2), (KRaftVersion, 5)):
        key, _ = encode_control_record(cls())
        value = b"\0\1"
        if cls is LeaderChange:
            assert decode_control_record(key, value) == UnknownControl(number, value)
        else:
            with pytest.raises(MalformedMessage):
                decode_control_record(key, value)
        with pytest.raises(MalformedMessage):
            decode_control_record(key, b"\0\0")


# -- records by key


@pytest.mark.parametrize("count", [1, 20])
def test_the_time_of_the_append_counts_where_the_batch_says_so(count: int) -> None:
    records = [Record(timestamp=NOW + n, key=b"%02d" % n, value=b"v") for n in range(count)]
    batch = bytearray(build_batch([*records, Record(timestamp=NOW + 99)]))
    batch[22] |= 8
    held = take(bytes(batch))
    assert held == {b"%02d" % n: PREFIX.pack(NOW + 99, n) + b"\x02v" for n in range(count)}


def test_the_last_record_of_a_key_counts_even_if_it_deletes() -> None:
    records = [Record(key=key, value=value) for key, value in ((b"a", b"1"), (b"b", None))]
    assert take(build_batch([*records, Record(key=b"a")])) == {b"a": DELETED, b"b": DELETED}


@pytest.mark.parametrize(("claimed", "offset"), [(-1, 5), (-9, 5), (0, 5), (1, 6), (2, 6), (9, 6)])
def test_an_offset_outside_its_batch_is_moved_to_the_nearest_inside(
    claimed: int, offset: int
) -> None:
    payload = record(0, encode_varint(claimed), b"\2k\2v\0") + record(1)
    batch = stamp(with_payload(payload, 2), 5, 1)
    ((key, held),) = take(batch).items()
    assert (key, PREFIX.unpack_from(held)[1]) == (b"k", offset)


def test_a_keyed_record_of_just_the_largest_size_is_read() -> None:
    batch = build_batch([Record(key=b"a", value=bytes(500))])
    assert len(take(batch, size_max=508)) == 1


@pytest.mark.parametrize("fields", [b"\2k\2v\xff", b"\2k\x7f", b"\2k\2v\x7f\0\0\0\0"])
def test_a_whole_record_whose_fields_run_past_it_is_corrupt_and_not_cut(fields: bytes) -> None:
    batch = with_payload(record(0, end=fields), 1)
    with pytest.raises(CorruptBatch):
        take(batch)


# -- snapshots


def of_snapshot(*fields: bytes) -> bytes:
    return with_payload(sized(b"\0\0\0", *fields), 1)


def test_behind_a_key_of_a_snapshot_is_a_value() -> None:
    for behind, is_well in ((b"", False), (b"\2v\0", True)):
        batch = of_snapshot(b"\2k", behind)
        if is_well:
            read_snapshot_records(read_header(batch), batch, check=False)
            continue
        with pytest.raises(CorruptBatch, match="no key, or nothing behind it"):
            read_snapshot_records(read_header(batch), batch, check=False)


def test_the_offset_of_a_snapshots_record_has_the_length_that_it_says() -> None:
    mark = b"\x02" + encode_varint(14) + b"quorumd.offset"
    for length, is_well in ((2, True), (1, False), (3, False)):
        batch = of_snapshot(b"\2k\2v", mark, encode_varint(length), b"12")
        if is_well:
            read_snapshot_records(read_header(batch), batch, check=True)
            continue
        with pytest.raises(CorruptBatch, match="does not say which offset it had"):
            read_snapshot_records(read_header(batch), batch, check=True)


@pytest.mark.parametrize("bits", [0, 7, 13, 14, 27, 28, 41, 42, 43, 50, 62])
def test_any_difference_of_times_is_packed_and_read_back(bits: int) -> None:
    for delta in ((1 << bits) - 1, 1 << bits, -(1 << bits), -(1 << bits) - 1):
        packer = RecordPacker(0, lambda reference: reference)
        held = {b"k": PREFIX.pack(delta & (1 << 64) - 1, 3) + b"\2v"}
        assert packer.add([b"k"], held, 0, 1) == 1
        header, payload = packer.take(0, 1)
        found = read_snapshot_records(read_header(header), header + payload, check=True)
        assert found.keys == [b"k"]
        assert found.held[0].startswith(PREFIX.pack(delta & (1 << 64) - 1, COMPLETE))


# -- a pass over records that are cut off, or alike


def where_it_ends(payload: bytes, count: int) -> tuple[int, int]:
    """The index and the place of the first record that is not whole."""
    steps = check_records(payload, 0, count, is_cut=True)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: tuple[int, int] = end.value
            return found


def test_a_length_may_be_cut_off_wherever_it_is_and_one_below_zero_is_refused_at_once() -> None:
    length_bytes = b"\xff\xff\xff\xff\x0f"
    for kept in range(5):
        assert where_it_ends(record(0) + length_bytes[:kept], 2) == (1, len(record(0)))
    with pytest.raises(RefusedBatch, match="Record 1: its length does not fit the batch"):
        where_it_ends(record(0) + length_bytes + bytes(4), 2)
