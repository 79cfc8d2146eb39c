"""The condition of a batch, and its keys: read from bytes as clients send them."""

from __future__ import annotations

import pytest

from quorumd.wire.conditions import (
    IF_UNCHANGED_SINCE,
    KEY_BYTES_MAX,
    KEYS_MAX,
    NAMED_KEY,
    UNPACKED_BYTES_MAX,
    Condition,
    KeyedBatch,
    read_keyed,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.record_walk import is_plain_record, plain_record_key
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch, read_header

CODECS = range(5)
SINCE = (IF_UNCHANGED_SINCE, b"7")


def read(
    *records: Record, codec: int = 0, wants_keys: bool = False, data: bytes = b""
) -> KeyedBatch | None:
    data = data or build_batch(records, codec=codec)
    steps = read_keyed(read_header(data), data, [] if wants_keys else None)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def conditional(key: bytes | None = b"k", *headers: tuple[str, bytes | None]) -> Record:
    return Record(timestamp=1, key=key, value=b"v", headers=headers or (SINCE,))


@pytest.mark.parametrize("codec", CODECS)
def test_a_condition_is_read_with_all_keys_compressed_or_not(codec: int) -> None:
    first = conditional(b"a", ("x", None), SINCE, (NAMED_KEY, b"n"), (NAMED_KEY, b""))
    found = read(first, Record(key=None), Record(key=b"b"), codec=codec)
    assert found == KeyedBatch([b"a", None, b"b"], Condition(7, (b"n", b"")))


@pytest.mark.parametrize("codec", CODECS)
def test_without_a_condition_keys_are_read_only_if_they_are_wanted(codec: int) -> None:
    keys = [None, b"", b"k" * 200, *(b"%d" % i for i in range(2000))]
    records = [
        Record(timestamp=i << 20, key=key, value=b"v" * 70, headers=(("h", b"x"),) * (i % 3))
        for i, key in enumerate(keys)
    ]
    assert read(*records, codec=codec) is None
    assert read(*records, codec=codec, wants_keys=True) == KeyedBatch(keys, None)


@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * 63])
@pytest.mark.parametrize("size", [0, 10, 50, 60, 5_000, 8_200, 1 << 20])
def test_the_key_of_a_plain_record_is_read_at_once(key: bytes | None, size: int) -> None:
    data = build_batch([Record(timestamp=1, key=key, value=bytes(size))])
    if is_plain_record(data, BATCH_OVERHEAD):
        assert plain_record_key(data, BATCH_OVERHEAD) == key
    else:
        assert key is not None
        assert size > 8_000


@pytest.mark.parametrize("codec", CODECS)
def test_the_words_in_a_key_or_value_are_no_condition(codec: int) -> None:
    name = IF_UNCHANGED_SINCE.encode()
    record = Record(key=name, value=name, headers=(("x", name),))
    found = read(record, codec=codec)
    assert found == KeyedBatch([name], None)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("records", "index", "permitted"),
    [
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b"soon"))], 0, "'soon'.*offset from 0 on in dec"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b"-1"))], 0, "'-1'.*decimal digits"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b"+1"))], 0, "decimal digits"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b" 1"))], 0, "decimal digits"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b"1\n"))], 0, "decimal digits"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b""))], 0, "decimal digits"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, None))], 0, "null"),
        ([conditional(b"k", (IF_UNCHANGED_SINCE, b"9" * 20))], 0, "decimal digits"),
        ([conditional(b"k", SINCE, (IF_UNCHANGED_SINCE, b"8"))], 0, "may have one"),
        ([Record(key=b"a"), conditional()], 1, "first record of a batch"),
        ([conditional(), conditional()], 1, "first record of a batch"),
        ([conditional(), conditional(b"k", (NAMED_KEY, b"n"))], 1, "first record of a batch"),
        ([conditional(None), Record(key=None)], 0, "without any key.*quorumd.key"),
        ([conditional(b"k" * (KEY_BYTES_MAX + 1))], 0, "65536 at the most"),
        ([conditional(), Record(key=b"k" * (KEY_BYTES_MAX + 1))], 1, "65536 at the most"),
        ([conditional(b"k", SINCE, (NAMED_KEY, b"k" * 65537))], 0, "65536 at the most"),
        ([conditional(b"k", SINCE, (NAMED_KEY, None))], 0, "must be a key"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_what_is_permitted(
    records: list[Record], index: int, permitted: str, codec: int
) -> None:
    with pytest.raises(RefusedBatch, match=f"^Record {index}: .*{permitted}") as refused:
        read(*records, codec=codec)
    assert (refused.value.error, refused.value.record_index) == (ErrorCode.INVALID_RECORD, index)


@pytest.mark.parametrize("codec", [0, 4])
def test_so_many_keys_are_judged_and_no_more(codec: int) -> None:
    most = [Record(key=b"k")] * (KEYS_MAX - 2)
    first = conditional(b"k", SINCE, (NAMED_KEY, b"n"))
    assert read(first, *most, codec=codec) is not None
    with pytest.raises(RefusedBatch, match="more than 50000 keys"):
        read(first, *most, Record(key=None), codec=codec)
    assert read(*most, *[Record(key=b"k")] * 3, codec=codec, wants_keys=True) == KeyedBatch(
        None, None
    )


def test_keys_of_the_greatest_length_and_a_named_one_alone_are_permitted() -> None:
    longest = b"k" * KEY_BYTES_MAX
    found = read(conditional(None, SINCE, (NAMED_KEY, longest)), Record(key=longest))
    assert found == KeyedBatch([None, longest], Condition(7, (longest,)))
    assert read(conditional(None, SINCE, (NAMED_KEY, b"n"))) is not None


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_does_not_unpack_has_no_condition_and_no_known_keys(codec: int) -> None:
    data = build_batch([Record(key=b"k", value=bytes(range(256)))], codec=codec)[:-9] + b"\xff" * 9
    assert read(data=data) is None
    assert read(data=data, wants_keys=True) == KeyedBatch(None, None)


def test_a_condition_that_is_seen_but_cannot_be_read_is_refused() -> None:
    data = bytearray(build_batch([conditional(), Record(key=b"b")]))
    data[57:61] = (3).to_bytes(4, "big")  # the count of records
    with pytest.raises(RefusedBatch, match="condition cannot be read"):
        read(data=bytes(data))


def test_a_compressed_record_that_claims_another_place_is_not_trusted() -> None:
    from quorumd.wire.compression import pack

    data = build_batch([Record(key=b"a"), Record(key=b"b")])
    payload = bytearray(data[61:])
    payload[3] = 2  # the first record's offset delta is 1
    moved = bytearray(data[:61])
    moved[22] = 1
    assert read(data=_sized(moved, pack(1, bytes(payload))), wants_keys=True) == KeyedBatch(
        None, None
    )


def _sized(head: bytearray, payload: bytes) -> bytes:
    head[8:12] = (61 - 12 + len(payload)).to_bytes(4, "big")
    return bytes(head) + payload


@pytest.mark.parametrize("codec", [1, 4])
def test_a_small_batch_that_unpacks_to_too_much_is_refused_in_steps(codec: int) -> None:
    record = Record(key=b"k", value=bytes(UNPACKED_BYTES_MAX))
    data = build_batch([record], codec=codec)
    steps = read_keyed(read_header(data), data, None)
    for _ in range(UNPACKED_BYTES_MAX // (64 * 1024) - 1):
        next(steps)
    with pytest.raises(RefusedBatch, match="unpacks to more than") as refused:
        list(steps)
    assert refused.value.error is ErrorCode.MESSAGE_TOO_LARGE


def test_a_mark_that_two_chunks_share_is_found() -> None:
    for size in range(64 * 1024 - 60, 64 * 1024 + 5):
        record = Record(key=b"k", value=bytes(size), headers=(SINCE,))
        found = read(record, codec=1)
        assert found is not None
        assert found.condition == Condition(7, ()), size


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_keys_are_read_of_batches_that_unpack_to_more_than_is_held(codec: int) -> None:
    keys = [b"%d" % i for i in range(300)]
    records = [Record(key=key, value=bytes(30_000)) for key in keys]
    assert read(*records, codec=codec, wants_keys=True) == KeyedBatch(list(keys), None)
