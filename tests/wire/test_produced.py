"""What a leader demands of a batch: every bound on both sides, every reason by its words, in their order."""

from __future__ import annotations

import random
import struct
import zlib

import lz4.frame
import pytest
import snappy
import zstandard
from crc32c import crc32c

from quorumd.wire.batch_header import BATCH_OVERHEAD, LOG_OVERHEAD, BatchHeader, read_header
from quorumd.wire.compression import CompressionType
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.packed_records import UNPACKED_BYTES_MAX
from quorumd.wire.produced import MAX_AHEAD_MS, check_produced, timestamp_deltas
from quorumd.wire.records import Record, build_batch

NOW = 1_700_000_000_000
LATEST = NOW + MAX_AHEAD_MS
# Places and formats of the header's fields.
BASE_OFFSET, LENGTH, MAGIC, ATTRIBUTES = (0, ">q"), (8, ">i"), (16, ">b"), (21, ">h")
LAST_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP = (23, ">i"), (27, ">q"), (35, ">q")
PRODUCER_ID, SEQUENCE, COUNT = (43, ">q"), (53, ">i"), (57, ">i")
Place = tuple[int, str]


def made(*changes: tuple[Place, int], records: int = 2, value: bytes = b"v") -> bytes:
    """A batch of two records, or so many, with other numbers in its header and the CRC for them."""
    data = bytearray(build_batch([Record(0, NOW, None, value) for _ in range(records)]))
    for (at, form), number in changes:
        struct.pack_into(form, data, at, number)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def check(data: bytes, version: int = 9, limit: int = 1 << 20) -> BatchHeader:
    checked, steps = check_produced(data, version, limit, NOW)
    for _ in steps or ():
        pass
    header = read_header(data)
    size, attributes, max_timestamp, producer_id, record_count = checked
    assert (size, attributes) == (header.size_bytes, header.attributes)
    assert (max_timestamp, producer_id) == (header.max_timestamp, header.producer_id)
    assert record_count == header.record_count
    return header


def refused(data: bytes, version: int = 9, limit: int = 1 << 20) -> tuple[ErrorCode, str]:
    with pytest.raises(RefusedBatch) as caught:
        check(data, version, limit)
    assert caught.value.message is not None
    return caught.value.error, caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ((PRODUCER_ID, 0), (SEQUENCE, 0)),
        ((PRODUCER_ID, 1), (SEQUENCE, 0)),
        ((PRODUCER_ID, 1), (SEQUENCE, 1)),
        ((PRODUCER_ID, 0), (SEQUENCE, 7)),
        ((PRODUCER_ID, -1), (SEQUENCE, -1)),
        ((PRODUCER_ID, -1), (SEQUENCE, 5)),
        ((MAX_TIMESTAMP, LATEST),),
        ((BASE_TIMESTAMP, LATEST),),
        ((BASE_TIMESTAMP, 0),),
        ((BASE_TIMESTAMP, -1),),
        ((ATTRIBUTES, 0x08),),
        ((ATTRIBUTES, 0x40),),
        ((ATTRIBUTES, 1),),
        ((ATTRIBUTES, 4),),
    ],
    ids=str,
)
@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_batch_within_all_bounds_may_be_appended(
    changes: tuple[tuple[Place, int], ...], records: int
) -> None:
    data = made(*changes, records=records)
    assert check(data, limit=len(data)).record_count == records


_CASES = [
    (made((BASE_OFFSET, 1)), ErrorCode.INVALID_RECORD, "The base offset is 1, not 0."),
    (made((BASE_OFFSET, -1)), ErrorCode.INVALID_RECORD, "The base offset is -1, not 0."),
    *(
        (
            made((COUNT, count), (LAST_DELTA, delta)),
            ErrorCode.INVALID_RECORD,
            f"{count} records do not end at offset delta {delta}.",
        )
        for count, delta in ((0, -1), (-1, -2), (2, 0), (2, 2), (2, 3), (3, 1), (1, 1))
    ),
    (made((ATTRIBUTES, 0x20)), ErrorCode.INVALID_RECORD, "must not write control batches."),
    *(
        (
            made((PRODUCER_ID, producer_id), (SEQUENCE, sequence)),
            ErrorCode.INVALID_RECORD,
            f"Producer id {producer_id} comes with the sequence {sequence}.",
        )
        for producer_id, sequence in ((0, -1), (1, -1), (7, -2))
    ),
    *(
        (
            made(change),
            ErrorCode.INVALID_TIMESTAMP,
            "The batch's timestamps are more than 3600000 ms ahead of the server's clock.",
        )
        for change in ((MAX_TIMESTAMP, LATEST + 1),)
    ),
    *(
        (
            made((ATTRIBUTES, codec)),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"There is no compression codec {codec}.",
        )
        for codec in (5, 6, 7)
    ),
    *(
        (
            made((ATTRIBUTES, 0x10 | codec)),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Transactions are not available here: unset transactional.id.",
        )
        for codec in (0, 1)
    ),
]


@pytest.mark.parametrize(("data", "error", "message"), _CASES)
def test_a_batch_beyond_a_bound_is_refused_with_its_reason(
    data: bytes, error: ErrorCode, message: str
) -> None:
    found, said = refused(data)
    assert (found, said.endswith(message)) == (error, True), said


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_packed_batch_has_no_more_records_than_so_many_bytes_can_unpack_to(codec: int) -> None:
    sizes = ((size, len(made(value=bytes(size))) - BATCH_OVERHEAD) for size in range(20))
    value_bytes, packed_bytes = next(each for each in sizes if not each[1] % 7)
    most = packed_bytes * UNPACKED_BYTES_MAX[codec] // 7

    def counting(count: int) -> bytes:
        changes = ((ATTRIBUTES, codec), (COUNT, count), (LAST_DELTA, count - 1))
        return made(*changes, value=bytes(value_bytes))

    for count in (1, most):
        assert check(counting(count)).record_count == count
    for count in (most + 1, 2**31 - 1):
        error, said = refused(counting(count))
        assert (error, said) == (
            ErrorCode.INVALID_RECORD,
            f"{count} records cannot be packed into {packed_bytes} bytes.",
        )


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_packed_batch_has_no_more_records_than_one_that_is_not(codec: int) -> None:
    def packed(count: int) -> bytes:
        changes = ((ATTRIBUTES, codec), (COUNT, count), (LAST_DELTA, count - 1))
        return made(*changes, value=bytes(100))

    assert check(packed(100), limit=700).record_count == 100
    error, said = refused(packed(101), limit=700)
    assert error is ErrorCode.MESSAGE_TOO_LARGE
    assert "at most 100 are taken here (log.max.batch.bytes)" in said


@pytest.mark.long
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_no_codec_packs_records_more_tightly(codec: int) -> None:
    """Nothing is packed more tightly than zeros; the smallest record has seven bytes."""
    zeros = bytes(32 << 20)
    if codec == CompressionType.LZ4:
        packed = lz4.frame.compress(zeros)
    elif codec == CompressionType.ZSTD:
        packed = zstandard.ZstdCompressor().compress(zeros)
    elif codec == CompressionType.GZIP:
        packed = zlib.compress(zeros, level=9)
    else:
        packed = snappy.compress(zeros)
    ratio = len(zeros) / len(packed)
    assert UNPACKED_BYTES_MAX[codec] * 0.9 < ratio <= UNPACKED_BYTES_MAX[codec]
    assert len(build_batch([Record(0, 0, None, None)])) == BATCH_OVERHEAD + 7


def test_the_first_rule_that_is_broken_is_the_one_that_is_named() -> None:
    broken: list[tuple[str, tuple[Place, int]]] = [
        ("zstd needs Produce version 7 or later, not 6.", (ATTRIBUTES, 0x34)),
        ("The base offset is 9, not 0.", (BASE_OFFSET, 9)),
        ("at most 70 are taken here", (BASE_OFFSET, 0)),
        ("The CRC does not match the batch's contents.", (BASE_OFFSET, 0)),
        ("2 records do not end at offset delta 7.", (LAST_DELTA, 7)),
        ("Clients must not write control batches.", (ATTRIBUTES, 0x37)),
        ("Producer id 3 comes with the sequence -1.", (PRODUCER_ID, 3)),
        ("timestamps are more than", (MAX_TIMESTAMP, LATEST + 1)),
        ("There is no compression codec 7.", (ATTRIBUTES, 0x17)),
        ("Transactions are not available here", (ATTRIBUTES, 0x10)),
    ]
    for at, (said, _) in enumerate(broken):
        # A later change of the same field counts less than an earlier one.
        data = made(*(change for _, change in reversed(broken[at:])))
        if at < 4:
            data = data[:17] + b"\0\0\0\0" + data[21:]
        limit = 70 if at < 3 else 1 << 20
        assert said in refused(data, 6, limit)[1]


@pytest.mark.parametrize(("version", "is_taken"), [(3, False), (6, False), (7, True), (8, True)])
def test_zstd_is_taken_from_version_7_on(version: int, is_taken: bool) -> None:
    packed = made((ATTRIBUTES, 4))
    if is_taken:
        assert check(packed, version).codec == 4
    else:
        assert refused(packed, version)[0] is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert check(made((ATTRIBUTES, 3)), version).codec == 3


def test_a_batch_may_be_as_large_as_is_configured_and_no_larger() -> None:
    data = made()
    assert check(data, limit=len(data)).size_bytes == len(data)
    assert check(data, limit=len(data) + 1).size_bytes == len(data)
    error, said = refused(data, limit=len(data) - 1)
    assert error is ErrorCode.MESSAGE_TOO_LARGE
    assert f"has {len(data)} bytes; at most {len(data) - 1} are taken here" in said


@pytest.mark.parametrize("value_bytes", [1, 4096 - 69, 4096 - 68, 4096 - 67, 9_000])
def test_the_crc_of_every_batch_is_verified(value_bytes: int) -> None:
    data = made(value=bytes(value_bytes), records=1)
    check(data)
    for at in (21, len(data) - 1):
        harmed = bytearray(data)
        harmed[at] ^= 0x40
        assert refused(bytes(harmed))[0] is ErrorCode.CORRUPT_MESSAGE


# --- what is no batch

NOTHING = "There is no record batch in the request."


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", ErrorCode.INVALID_RECORD, NOTHING),
        (made()[:16], ErrorCode.INVALID_RECORD, NOTHING),
        (made()[:17], ErrorCode.INVALID_RECORD, "should have 77 bytes but only 17 are there."),
        (made()[:18], ErrorCode.INVALID_RECORD, "should have 77 bytes but only 18 are there."),
        (made()[:60], ErrorCode.INVALID_RECORD, "should have 77 bytes but only 60 are there."),
        (made()[:61], ErrorCode.INVALID_RECORD, "should have 77 bytes but only 61 are there."),
        (made()[:76], ErrorCode.INVALID_RECORD, "should have 77 bytes but only 76 are there."),
        *(
            (made((MAGIC, magic))[:size], ErrorCode.INVALID_RECORD, f"old format {magic} are not")
            for magic in (0, 1)
            for size in (17, 18, 77)
        ),
        *(
            (
                made((MAGIC, magic))[:size],
                ErrorCode.CORRUPT_MESSAGE,
                f"There is no record format {magic}.",
            )
            for magic in (3, 127, -1)
            for size in (17, 77)
        ),
        *(
            (
                made((LENGTH, length))[:size],
                ErrorCode.CORRUPT_MESSAGE,
                f"A batch length of {length} is too small for a header.",
            )
            for length in (0, 1, BATCH_OVERHEAD - LOG_OVERHEAD - 1, -1, -(2**31))
            for size in (17, 77)
        ),
        *(
            (
                made((LENGTH, length))[:size],
                ErrorCode.INVALID_RECORD,
                f"should have {length + LOG_OVERHEAD} bytes but only {size} are there.",
            )
            for length in (BATCH_OVERHEAD - LOG_OVERHEAD, 256, 2**31 - 1 - LOG_OVERHEAD)
            for size in (17, 30, 60)
        ),
    ],
)
def test_what_is_no_whole_batch_is_refused_with_what_it_seems_to_be(
    data: bytes, error: ErrorCode, message: str
) -> None:
    found, said = refused(data)
    assert found is error
    assert message in said


def test_a_header_without_records_is_a_batch_of_none() -> None:
    data = made((LENGTH, BATCH_OVERHEAD - LOG_OVERHEAD), (COUNT, 0))[:BATCH_OVERHEAD]
    data = data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]
    assert refused(data)[1] == "0 records do not end at offset delta 1."


def header_of(length: int, size: int) -> bytes:
    """What could be a batch of any format, of which so many bytes are there."""
    return (bytes(8) + length.to_bytes(4, "big", signed=True) + b"\2\2\2\2").ljust(size, b"\2")


@pytest.mark.parametrize(
    ("rest", "is_second"),
    [
        (header_of(14, 26), True),
        (header_of(14, 27), True),
        (header_of(15, 27), True),
        (header_of(80, 92), True),
        (header_of(14, 25), False),
        (header_of(13, 30), False),
        (header_of(5, 17), False),
        (header_of(4, 16), False),
        (header_of(0, 100), False),
        (header_of(-1, 100), False),
        (header_of(14, 17), False),
        (header_of(257, 100), False),
        (header_of(3, 30), False),
        (b"", False),
        (b"x", False),
        (made(), True),
        (made((MAGIC, 0)), True),
        (made((BASE_OFFSET, 1)), True),
        (header_of((1 << 24) + 14, 26), False),
        (made()[:-1], False),
    ],
    ids=str,
)
def test_a_second_whole_batch_is_refused_and_any_other_rest_ignored(
    rest: bytes, is_second: bool
) -> None:
    data = made()
    if is_second:
        assert refused(data + rest) == (
            ErrorCode.INVALID_RECORD,
            "A request must hold exactly one batch per partition.",
        )
    else:
        assert check(data + rest) == check(data)


# --- records


def test_only_several_records_or_one_that_is_not_plain_take_a_further_step() -> None:
    assert check_produced(made(records=1), 9, 1 << 20, NOW)[1] is None
    assert check_produced(made(records=2), 9, 1 << 20, NOW)[1] is not None


def test_records_are_checked_unless_they_are_packed() -> None:
    """Deltas of timestamps count from the batch's own; the bound is for their sum."""
    for records in (1, 2, 40):
        data = bytearray(made(records=records))
        data[BATCH_OVERHEAD] ^= 0x40  # a length that does not fit
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        assert refused(bytes(data))[0] is ErrorCode.INVALID_RECORD
        data[22] |= 1
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        assert check(bytes(data)).codec == 1


@pytest.mark.parametrize(("records", "said"), [(1, 2), (1, 3), (2, 1), (3, 1), (3, 2), (2, 3)])
def test_there_are_as_many_records_as_the_header_says(records: int, said: int) -> None:
    data = made((COUNT, said), (LAST_DELTA, said - 1), records=records)
    assert refused(data)[0] is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("excess", [0, 1])
def test_a_record_may_be_as_far_ahead_as_a_batch(excess: int) -> None:
    times = [NOW, LATEST - 500, LATEST + excess]
    data = bytearray(build_batch([Record(0, time, None, b"v") for time in times]))
    struct.pack_into(">q", data, 35, NOW)  # the header hides it
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    if excess:
        assert refused(bytes(data))[0] is ErrorCode.INVALID_TIMESTAMP
    else:
        assert check(bytes(data)).record_count == 3


EARLIEST = NOW - (2**63 - 1)


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize(
    ("base", "delta", "is_taken"),
    [
        (LATEST + 500, -500, True),
        (LATEST + 500, -499, False),
        (LATEST + 1, 0, False),
        (2**63 - 1, -(2**63 - 1), True),
        (EARLIEST, 0, True),
        (EARLIEST - 1, 0, False),
        (EARLIEST + 5, -5, True),
        (EARLIEST + 5, -6, False),
        (-(2**63), 2**63 - 1, True),
        (-2, -(2**63), False),
        (-(2**63), 0, False),
        (0, -(2**63) + NOW + 1, True),
        (NOW, -(2**63) + 1, True),
        (NOW, -(2**63), False),
    ],
)
def test_what_counts_are_the_timestamps_of_records(
    base: int, delta: int, is_taken: bool, count: int
) -> None:
    """That of the batch is what theirs count from. The least is Kafka's: what 64 bits may be behind now."""
    data = bytearray(build_batch([Record(0, delta, None, b"v")] * count, base_timestamp=0))
    struct.pack_into(">qq", data, 27, base, NOW)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    if is_taken:
        assert check(bytes(data)).record_count == count
    else:
        assert refused(bytes(data))[0] is ErrorCode.INVALID_TIMESTAMP


def test_timestamps_of_packed_records_are_checked_where_they_are_unpacked() -> None:
    for base in (LATEST, LATEST + 1):
        header = check(made((ATTRIBUTES, 1), (BASE_TIMESTAMP, base)))
        deltas = timestamp_deltas(header.base_timestamp, NOW)
        assert (LATEST - base in deltas, LATEST + 1 - base in deltas) == (True, False)
        assert (EARLIEST - base in deltas, EARLIEST - 1 - base in deltas) == (True, False)


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_told_by_the_check_of_records_of_whatever_shapes(seed: int) -> None:
    """Runs of records of one shape, which are checked together, and single ones."""
    drawn = random.Random(seed)
    records: list[Record] = []
    while len(records) < 300:
        size = drawn.choice([None, 0, 1, 9, 63, 64, 200])
        value, headers = b"v" * drawn.choice([1, 50, 100]), drawn.choice([(), (("h", b"x"),)])
        for _ in range(drawn.choice([1, 2, 5, 40, 100])):
            key = None if size is None else drawn.randbytes(size)
            records.append(Record(0, NOW + drawn.choice([0, 1]), key, value, headers))
    for some in (records, records[:1]):
        keys: list[bytes | None] = []
        _, steps = check_produced(build_batch(some), 9, 1 << 20, NOW, keys=keys)
        for _ in steps or ():
            pass
        assert keys == [record.key for record in some]
