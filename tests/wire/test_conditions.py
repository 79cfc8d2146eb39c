"""The condition of a batch, and its keys: read from bytes as clients send them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from quorumd.wire.conditions import (
    IF_UNCHANGED_SINCE,
    KEY_BYTES_MAX,
    KEYS_MAX,
    NAMED_KEY,
    NOTED_KEYS_MAX,
    Condition,
    KeyedBatch,
    ManyKeys,
    read_keyed,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.packed_records import HELD_BYTES_MAX, PAYLOAD_BYTES_MAX
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
    found = read(record, codec=codec, wants_keys=True)
    assert found == KeyedBatch([name], None)
    assert read(record, codec=0) is None


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
        read(*records, codec=codec, wants_keys=True)
    assert (refused.value.error, refused.value.record_index) == (ErrorCode.INVALID_RECORD, index)


@pytest.mark.long
@pytest.mark.parametrize("codec", [0, 4])
def test_so_many_keys_are_judged_and_no_more(codec: int) -> None:
    most = [Record(key=b"k")] * (KEYS_MAX - 2)
    first = conditional(b"k", SINCE, (NAMED_KEY, b"n"))
    assert read(first, *most, codec=codec) is not None
    with pytest.raises(RefusedBatch, match="more than 50000 keys"):
        read(first, *most, Record(key=None), codec=codec)


@pytest.mark.long
@pytest.mark.parametrize("codec", [0, 4])
def test_of_more_records_without_a_condition_the_last_place_of_each_key_is_told(codec: int) -> None:
    records = [Record(key=key) for key in (b"first", None, b"k" * 9)] + [
        Record(key=b"k")
    ] * KEYS_MAX
    places = {b"first": 0, None: 1, b"k" * 9: 2, b"k": KEYS_MAX + 2}
    assert read(*records, codec=codec) is None
    found = read(*records, codec=codec, wants_keys=True)
    assert found == KeyedBatch(None, None, ManyKeys(places, 4 * 9))
    too_many = [Record(key=b"k")] * (NOTED_KEYS_MAX + 1)
    assert read(*too_many, codec=codec, wants_keys=True) == KeyedBatch(None, None)


def test_keys_of_the_greatest_length_and_a_named_one_alone_are_permitted() -> None:
    longest = b"k" * KEY_BYTES_MAX
    found = read(conditional(None, SINCE, (NAMED_KEY, longest)), Record(key=longest))
    assert found == KeyedBatch([None, longest], Condition(7, (longest,)))
    assert read(conditional(None, SINCE, (NAMED_KEY, b"n"))) is not None


@pytest.mark.parametrize("wants_keys", [False, True])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_does_not_unpack_to_its_records_is_refused(codec: int, *, wants_keys: bool) -> None:
    data = build_batch([Record(key=b"k", value=bytes(range(256)))], codec=codec)[:-9] + b"\xff" * 9
    with pytest.raises(RefusedBatch) as refused:
        read(data=data, wants_keys=wants_keys)
    assert refused.value.error is ErrorCode.INVALID_RECORD


@pytest.mark.long
@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_batch_may_unpack_to_much_where_it_has_no_condition(codec: int) -> None:
    record = Record(key=b"k", value=bytes(PAYLOAD_BYTES_MAX - 100))
    assert read(record, codec=codec) is None
    assert read(Record(key=b"a"), record, codec=codec) is None
    assert read(record, codec=codec, wants_keys=True) == KeyedBatch(None, None)
    headers = (("trace", b"t" * 100),)
    far = Record(key=b"k", value=bytes(HELD_BYTES_MAX + 1), headers=headers)
    assert read(far, codec=codec) is None


@pytest.mark.long
@pytest.mark.parametrize("wants_keys", [False, True])
@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_condition_on_what_unpacks_to_too_much_is_refused(
    codec: int, *, wants_keys: bool
) -> None:
    for records in (
        [conditional()._replace(value=bytes(HELD_BYTES_MAX))],
        [conditional(), Record(key=b"b", value=bytes(HELD_BYTES_MAX))],
    ):
        with pytest.raises(RefusedBatch, match=r"^Record 0: .*unpacks to more than") as refused:
            read(*records, codec=codec, wants_keys=wants_keys)
        assert refused.value.error is ErrorCode.INVALID_RECORD
    far = conditional()._replace(value=bytes(PAYLOAD_BYTES_MAX))
    with pytest.raises(RefusedBatch, match="Send smaller batches") as refused:
        read(far, codec=codec, wants_keys=wants_keys)
    assert refused.value.error is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("wants_keys", [False, True])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_little_is_held_of_what_unpacks_to_much_and_only_mentions_the_header(
    codec: int, monkeypatch: pytest.MonkeyPatch, *, wants_keys: bool
) -> None:
    """The name of the header in a value means nothing, and must not get around a limit."""
    mentions = Record(key=b"k", value=IF_UNCHANGED_SINCE.encode())
    data = build_batch([mentions, *[Record(key=bytes(200_000))] * 300], codec=codec)
    unpacked = _count_unpacked(monkeypatch)
    steps = read_keyed(read_header(data), data, [] if wants_keys else None)
    found: list[KeyedBatch | None] = []

    def keep_result() -> Iterator[None]:
        found.append((yield from steps))

    most_in_a_step = 0
    tracemalloc.start()
    for _ in keep_result():
        most_in_a_step = max(most_in_a_step, unpacked())
    _, most_held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [KeyedBatch(None, None) if wants_keys else None]
    assert most_in_a_step <= 128 * 1024, "one chunk"
    assert most_held < 2 * HELD_BYTES_MAX


def test_many_headers_are_read_in_steps() -> None:
    many = ((IF_UNCHANGED_SINCE, b"7"), *[("h", None)] * 100_000)
    for records in ([conditional(b"k", *many)], [conditional(), Record(key=b"k", headers=many)]):
        data = build_batch(records)
        steps = read_keyed(read_header(data), data, None)
        count = 0
        with suppress(StopIteration, RefusedBatch):
            while True:
                next(steps)
                count += 1
        assert count >= 40


def _count_unpacked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes were unpacked since this was asked last."""
    from quorumd.wire import compression

    original = compression.unpack_in_steps
    sizes: list[int] = []

    def unpack(*args: Any, **options: Any) -> Iterator[bytes]:
        for chunk in original(*args, **options):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr(compression, "unpack_in_steps", unpack)

    def unpacked() -> int:
        size = sum(sizes)
        sizes.clear()
        return size

    return unpacked


@pytest.mark.long
def test_a_mark_that_two_chunks_share_is_found() -> None:
    for size in range(64 * 1024 - 60, 64 * 1024 + 520):
        record = Record(key=b"k", value=bytes(size), headers=(SINCE,))
        found = read(record, codec=1)
        assert found is not None
        assert found.condition == Condition(7, ()), size


@pytest.mark.parametrize("wants_keys", [False, True])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("place", [1, 700])
def test_a_condition_behind_the_first_record_is_refused(
    place: int, codec: int, *, wants_keys: bool
) -> None:
    records = [*[Record(key=b"a")] * place, conditional()]
    with pytest.raises(RefusedBatch, match=rf"^Record {place}: .*first record of a batch"):
        read(*records, codec=codec, wants_keys=wants_keys)


@pytest.mark.parametrize("codec", CODECS)
def test_a_key_is_named_beside_the_condition_alone_wherever_a_part_begins(codec: int) -> None:
    others = [Record(key=b"a", value=NAMED_KEY.encode())] * 700
    named = Record(key=b"a", headers=((NAMED_KEY, b"n"),))
    assert read(Record(key=b"a"), *others, named, codec=codec) is None
    assert read(conditional(), *others, codec=codec) is not None
    with pytest.raises(RefusedBatch, match=r"^Record 701: .*quorumd.key belongs to the first"):
        read(conditional(), *others, named, codec=codec)
