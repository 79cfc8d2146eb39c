"""The records of a compressed batch are checked as those of any other, and little is held of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence

import pytest
import snappy
import zstandard

from quorumd.wire import compression
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.packed_records import (
    BLOCK_BYTES_MAX,
    HELD_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    CheckedPart,
    PackedRecords,
)
from quorumd.wire.record_walk import ANY_DELTA
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch, read_header
from quorumd.wire.varints import encode_varint, read_varint

CODECS = pytest.mark.parametrize("codec", [1, 2, 3, 4])
LARGE = HELD_BYTES_MAX + 1000


def check(data: bytes, deltas: range = ANY_DELTA) -> tuple[list[CheckedPart], PackedRecords, int]:
    """The parts, where they come from, and the number of steps."""
    records = PackedRecords(read_header(data), data, deltas, [])
    found = list(records.parts())
    return [each for each in found if each is not None], records, found.count(None)


def refused(data: bytes, deltas: range = ANY_DELTA) -> tuple[ErrorCode, str]:
    with pytest.raises(RefusedBatch) as raised:
        check(data, deltas)
    return raised.value.error, raised.value.message


def with_payload(codec: int, count: int, payload: bytes, *, is_packed: bool = False) -> bytes:
    """A batch whose header counts so many records, and which unpacks to `payload`."""
    packed = payload if is_packed else compression.pack(codec, payload)
    data = bytearray(build_batch([Record()] * count, codec=codec)[:BATCH_OVERHEAD] + packed)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return bytes(data)


def encoded(*fields: bytes) -> bytes:
    """A record with these fields behind its length."""
    body = b"".join(fields)
    return encode_varint(len(body)) + body


def head(index: int = 0, timestamp: int = 0) -> bytes:
    return b"\0" + encode_varint(timestamp) + encode_varint(index)


def sized(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


def plain(records: Sequence[Record]) -> bytes:
    return build_batch(records)[BATCH_OVERHEAD:]


def plain_records(part: CheckedPart) -> bytes:
    """The bytes of its records alone: behind them may be some of the next one."""
    at = 0
    for _ in range(part.first, part.end):
        size, at = read_varint(part.data, at)
        at += size
    return part.data[:at]


def packed(codec: int, payload_bytes: int) -> bytes:
    """One record; `payload_bytes` is what the batch unpacks to."""
    value_bytes = payload_bytes - 100
    for _ in range(2):
        data = build_batch([Record(value=bytes(value_bytes))])
        value_bytes += payload_bytes - (len(data) - BATCH_OVERHEAD)
    return build_batch([Record(value=bytes(value_bytes))], codec=codec)


@CODECS
@pytest.mark.parametrize("count", [1, 2, 40, 511, 512, 513, 3000])
@pytest.mark.parametrize("size", [0, 90, 600])
def test_the_records_come_in_parts_that_are_whole(codec: int, count: int, size: int) -> None:
    records = [
        Record(key=b"k%d" % i, value=bytes(size + i % 5), headers=(("h", b"v"),) * (i % 3))
        for i in range(count)
    ]
    parts, checked, _ = check(build_batch(records, codec=codec))
    joined = b"".join(plain_records(part) for part in parts)
    assert joined == plain(records)
    assert [part.first for part in parts] == [0, *[part.end for part in parts][:-1]]
    assert parts[-1].end == count
    assert checked.is_held
    assert checked.keys == [record.key for record in records]


@CODECS
def test_records_of_any_size_come_through(codec: int) -> None:
    sizes = [
        0,
        65_400,
        65_600,
        1 << 20,
        3,
        BLOCK_BYTES_MAX,
        HELD_BYTES_MAX - 200,
        HELD_BYTES_MAX,
        7,
    ]
    records = [Record(key=b"key", value=bytes(size), headers=(("h", b"v"),)) for size in sizes]
    parts, checked, _ = check(build_batch(records, codec=codec))
    assert parts[-1].end == len(records)
    assert not checked.is_held
    large = [Record(value=bytes(HELD_BYTES_MAX - 100))]
    (part,) = check(build_batch(large, codec=codec))[0]
    assert plain_records(part) == plain(large)


@CODECS
@pytest.mark.parametrize("count", [1, 600])
def test_the_records_are_as_many_as_the_header_says(codec: int, count: int) -> None:
    payload = plain([Record(value=b"v")] * count)
    check(with_payload(codec, count, payload))
    more = refused(with_payload(codec, count, payload + b"\0"))
    assert more == (
        ErrorCode.INVALID_RECORD,
        f"The batch holds 1 bytes more than its {count} records.",
    )
    fewer = refused(with_payload(codec, count + 1, payload))
    runs_past = f"Record {count}: it runs past the end of the batch."
    assert fewer == (ErrorCode.INVALID_RECORD, runs_past)
    for cut in (1, 5):
        error, message = refused(with_payload(codec, count, payload[:-cut]))
        assert error is ErrorCode.INVALID_RECORD
        assert message == f"Record {count - 1}: its length does not fit the batch."


@CODECS
def test_bytes_behind_many_chunks_are_no_records(codec: int) -> None:
    payload = plain([Record(value=bytes(1000))] * 100)
    for more in (b"\0", bytes(200_000)):
        error, message = refused(with_payload(codec, 100, payload + more))
        assert error is ErrorCode.INVALID_RECORD
        assert message.startswith("The batch holds ")


@CODECS
def test_a_record_must_say_its_own_place(codec: int) -> None:
    """Apache Kafka's leader writes such a batch anew; its consumers would leave out records otherwise."""
    for index, claimed in ((0, 1), (1, 0), (1, 5), (600, 599), (600, -1)):
        records = [encoded(head(i), sized(b"k"), sized(b"v"), b"\0") for i in range(700)]
        check(with_payload(codec, 700, b"".join(records)))
        records[index] = encoded(head(claimed), sized(b"k"), sized(b"v"), b"\0")
        assert refused(with_payload(codec, 700, b"".join(records))) == (
            ErrorCode.INVALID_RECORD,
            f"Record {index}: its offset delta is not its place in the batch.",
        )


@CODECS
@pytest.mark.parametrize("size", [10, LARGE])
def test_the_timestamp_of_each_record_is_checked(codec: int, size: int) -> None:
    records = [Record(timestamp=500), Record(timestamp=700, value=bytes(size))]
    data = build_batch(records, codec=codec)
    check(data, range(201))
    error, message = refused(data, range(200))
    assert error is ErrorCode.INVALID_TIMESTAMP
    assert message.startswith("Record 1: its timestamp")


BAD_FIELDS = {
    "its key length is negative": (encode_varint(-2), sized(b"v"), b"\0"),
    "its value length is negative": (sized(b"k"), encode_varint(-2), b"\0"),
    "its header count is negative": (sized(b"k"), sized(b"v"), encode_varint(-1)),
    "a header key is null": (sized(b"k"), sized(b"v"), encode_varint(1), encode_varint(-1)),
    "it holds a varint of more than 5 bytes": (sized(b"k"), sized(b"v"), b"\xff" * 5),
}


@CODECS
@pytest.mark.parametrize("what", BAD_FIELDS)
def test_every_field_is_checked(codec: int, what: str) -> None:
    for index in (0, 3, 520):
        good = [encoded(head(i), sized(b"k"), sized(b"v"), b"\0") for i in range(index)]
        bad = encoded(head(index), *BAD_FIELDS[what])
        assert refused(with_payload(codec, index + 1, b"".join([*good, bad]))) == (
            ErrorCode.INVALID_RECORD,
            f"Record {index}: {what}.",
        )


@CODECS
@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ((sized(b"k"), sized(bytes(LARGE)), b"\0\0"), "its length is not that of its fields"),
        ((sized(b"k"), sized(bytes(LARGE)), encode_varint(-1)), "its header count is negative"),
        ((sized(bytes(LARGE)), encode_varint(-2), b"\0"), "its value length is negative"),
        ((encode_varint(-2), sized(bytes(LARGE)), b"\0"), "its key length is negative"),
        ((sized(b"k"), encode_varint(LARGE + 9) + bytes(LARGE)), "its length is not that of its"),
    ],
)
def test_every_field_of_a_record_that_is_not_held_is_checked(
    codec: int, fields: Iterable[bytes], what: str
) -> None:
    good = encoded(head(1), sized(b"k"), sized(bytes(LARGE)), b"\x02" + sized(b"h") + sized(b"v"))
    first = encoded(head(), sized(b"k"), sized(b"v"), b"\0")
    parts, checked, _ = check(with_payload(codec, 2, first + good))
    assert [part.first for part in parts] == [0, 1]
    assert parts[1].data == encoded(head(1), b"\1", b"\1", b"\x02" + sized(b"h") + sized(b"v"))
    assert not checked.is_held
    error, message = refused(with_payload(codec, 2, first + encoded(head(1), *fields)))
    assert error is ErrorCode.INVALID_RECORD
    assert message.startswith(f"Record 1: {what}")


@CODECS
def test_a_record_that_is_not_held_must_be_there(codec: int) -> None:
    whole = encoded(head(), sized(b"k"), sized(bytes(LARGE)), b"\0")
    for cut in (1, 2, LARGE // 2, LARGE - 100_000):
        assert refused(with_payload(codec, 1, whole[:-cut])) == (
            ErrorCode.INVALID_RECORD,
            "Record 0: it runs past the end of the batch.",
        )
    assert refused(with_payload(codec, 1, whole[:100])) == (
        ErrorCode.INVALID_RECORD,
        "Record 0: its length does not fit the batch.",
    )
    assert refused(with_payload(codec, 1, encode_varint(-LARGE) + bytes(100)))[1].startswith(
        "Record 0: its length does not fit"
    )


def test_headers_that_are_too_large_to_be_held_are_refused() -> None:
    large = Record(value=b"v", headers=(("h", bytes(HELD_BYTES_MAX)),))
    error, message = refused(build_batch([large], codec=4))
    assert error is ErrorCode.MESSAGE_TOO_LARGE
    assert message.startswith("Record 0: headers of 83886")


@pytest.mark.long
@CODECS
def test_a_batch_that_unpacks_to_too_much_is_refused_and_never_held(codec: int) -> None:
    most, more = packed(codec, PAYLOAD_BYTES_MAX), packed(codec, PAYLOAD_BYTES_MAX + 1)
    tracemalloc.start()
    try:
        assert check(most)[2] > 500
        error, message = refused(more)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert error is ErrorCode.MESSAGE_TOO_LARGE
    assert "more than 67108864 bytes. Send smaller" in message


@CODECS
def test_each_step_is_little_work(codec: int) -> None:
    """Small records of one large chunk, too: snappy can have a block of four megabytes."""
    count = 40_000
    payload = plain([Record(value=b"v" * (i % 2)) for i in range(count)])
    data = with_payload(codec, count, payload)
    if codec == 2:
        data = with_payload(codec, count, bytes(snappy.compress(payload)), is_packed=True)
    assert check(data)[2] >= count // 512


@CODECS
def test_what_does_not_unpack_is_refused(codec: int) -> None:
    for junk in (b"\xff" * (4 << 20), b"\xff" * 50):
        error, message = refused(with_payload(codec, 1, junk, is_packed=True))
        assert error is ErrorCode.INVALID_RECORD
        assert message.startswith("The records do not unpack: ")
    error, message = refused(with_payload(codec, 1, b"", is_packed=True))
    assert error is ErrorCode.INVALID_RECORD
    whole = build_batch([Record(value=bytes(range(256)) * 900)], codec=codec)
    for cut in (whole[:-9], whole[:-9] + b"\xff" * 9):
        sizeable = with_payload(codec, 1, cut[BATCH_OVERHEAD:], is_packed=True)
        assert refused(sizeable)[0] is ErrorCode.INVALID_RECORD


def test_blocks_of_zstd_that_unpack_to_little_are_taken() -> None:
    """A client that flushes often makes many blocks."""
    stream = zstandard.ZstdCompressor().compressobj()
    record = Record(value=b"x" * 600)
    payload = b"".join(
        stream.compress(bytes((byte,))) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for byte in plain([record])
    )
    data = with_payload(4, 1, payload + stream.flush(), is_packed=True)
    assert check(data)[2] > 512


def test_a_snappy_block_that_takes_long_to_unpack_is_refused() -> None:
    block = compression.pack(2, bytes(100))[16:]
    large = b"\x81\x80\x80\x02" + bytes(4 << 20)  # says that it unpacks to 4 MiB and a byte
    payload = b"".join(
        (
            compression.pack(2, b"")[:16],
            block,
            len(large).to_bytes(4, "big") + large,
        )
    )
    assert refused(with_payload(2, 1, payload, is_packed=True))[0] is ErrorCode.MESSAGE_TOO_LARGE
    raw = bytes(snappy.compress(plain([Record(value=bytes(BLOCK_BYTES_MAX - 100))])))
    check(with_payload(2, 1, raw, is_packed=True))
    raw = bytes(snappy.compress(plain([Record(value=bytes(BLOCK_BYTES_MAX))])))
    error, message = refused(with_payload(2, 1, raw, is_packed=True))
    assert error is ErrorCode.MESSAGE_TOO_LARGE
    assert f"at most {BLOCK_BYTES_MAX} are taken here" in message
