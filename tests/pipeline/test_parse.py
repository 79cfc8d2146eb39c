"""A chunk of the log to rows: every kind of record, ranges, compressed batches, large ones."""

from __future__ import annotations

import logging
from random import Random
from struct import pack as pack_numbers

import pyarrow as pa
import pytest
import snappy

from quorumd.pipeline.parse import ChunkOrigin, DamagedBatch, parse, payloads, rows
from quorumd.wire.compression import CompressionType
from quorumd.wire.records import Record, build_batch, read_header
from tests.pipeline.parsed import (
    ALL,
    NOW,
    ORIGIN,
    chunk_of,
    expected,
    numbered,
    parsed,
    patched,
    rows_of,
    short,
    table_of,
    with_crc,
)

CODECS = list(CompressionType)
PACKED = CODECS[1:]


def test_every_column_of_a_record_says_what_it_should() -> None:
    batch = numbered(2, 100, epoch=7)
    table = table_of("records", batch, origin=ORIGIN)
    assert table.slice(1).to_pylist() == [
        {
            "key": b"k101",
            "value": b"v101",
            "topic": "__cluster_metadata",
            "partition": 0,
            "offset": 101,
            "timestamp": pa.scalar(NOW + 1, pa.timestamp("ms", "UTC")).as_py(),
            "timestampType": 0,
            "headers": None,
            "epoch": 7,
            "batch_base_offset": 100,
            "control_type": None,
            "crc": read_header(batch).crc,
            "replica_id": 3,
            "storage_id": "storage",
        }
    ]
    (other,) = parse("records", batch, 0, ALL, ChunkOrigin())
    assert other["replica_id"].null_count == other["storage_id"].null_count == 2


def test_null_and_empty_keys_values_and_headers_are_told_apart() -> None:
    records = [
        Record(timestamp=NOW, key=None, value=None),
        Record(timestamp=NOW, key=b"", value=b"", headers=(("", b""), ("n", None))),
        Record(timestamp=NOW, key=None, value=b"x" * 20_000),
        Record(timestamp=NOW, key=b"y" * 70, value=None, headers=(("é", b"z" * 300),) * 2),
        Record(timestamp=NOW, key=b"last", value=b"end"),
    ]
    found = parsed(build_batch(records))
    assert [row[2:] for row in found] == [record[2:] for record in records]
    headers = table_of("records", build_batch(records))["headers"].to_pylist()
    assert headers[0] is None
    assert headers[4] is None


@pytest.mark.parametrize("count", [16, 17, 5000])
def test_records_with_many_headers_have_all_of_them(count: int) -> None:
    many = tuple((f"h{i}", b"%d" % i if i % 3 else None) for i in range(count))
    records = [Record(timestamp=NOW, headers=headers) for headers in (many, (), many[:2], many)]
    found = parsed(build_batch(records))
    assert [row.headers for row in found] == [many, (), many[:2], many]


def test_a_header_key_that_is_no_text_is_replaced_as_kafkas_readers_do() -> None:
    headers = ((b"\xff\xfe", b"1"), ("ok", b"2"))
    (row,) = parsed(build_batch([Record(timestamp=NOW, headers=headers)]))
    assert row.headers == (("��", b"1"), ("ok", b"2"))


def test_times_far_from_each_other_and_before_1970() -> None:
    times = [NOW, NOW - 5, -1, 0, NOW + (1 << 40), -(1 << 41)]
    found = parsed(build_batch([Record(timestamp=time) for time in times]))
    assert [row.timestamp for row in found] == times


def test_a_time_that_no_timestamp_can_hold_is_null() -> None:
    times = [NOW, (1 << 63) - 1, -(1 << 62), NOW]
    batch = build_batch([Record(timestamp=time) for time in times])
    assert [row.timestamp for row in parsed(batch)] == [NOW, None, None, NOW]
    assert table_of("batches", batch)["max_timestamp"].to_pylist() == [None]


def test_log_append_time_is_the_same_for_all_records_of_its_batch() -> None:
    batch = numbered(3)
    stamped = patched(batch, 21, pack_numbers(">h", 8))
    table = table_of("records", batch + patched(numbered(3, 3), 21, pack_numbers(">h", 8)))
    assert table["timestampType"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert [row.timestamp for row in parsed(stamped)] == [NOW + 2] * 3


@pytest.mark.parametrize("counts", [(1,), (5, 1, 9), (3,) * 40, (1, 200) * 30])
def test_any_range_of_offsets_can_be_had(counts: tuple[int, ...]) -> None:
    chunk = chunk_of(*counts, base_offset=50)
    end = 50 + sum(counts)
    assert short(parsed(chunk)) == expected(50, end)
    random = Random(0)
    for _ in range(20):
        a, b = sorted(random.randrange(40, end + 10) for _ in range(2))
        assert short(parsed(chunk, a, b)) == expected(max(a, 50), min(b, end))


def test_nothing_comes_of_a_chunk_without_rows_in_range() -> None:
    chunk = chunk_of(5, 5, base_offset=10)
    for table in ("records", "batches", "control"):
        assert list(parse(table, chunk, 100, 200, ChunkOrigin())) == []
        assert list(parse(table, b"", 0, 200, ChunkOrigin())) == []
    assert parsed(chunk, 12, 12) == []


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(ValueError, match="no table 'rows'"):
        list(parse("rows", b"", 0, 1, ChunkOrigin()))


def test_batches_say_what_their_headers_do() -> None:
    settings = {"epoch": 4, "producer_id": 9, "producer_epoch": 2, "base_sequence": 7}
    first = numbered(3, 10, **settings)
    second = numbered(2, 13, epoch=5, codec=CompressionType.ZSTD)
    table = table_of("batches", first + second, origin=ORIGIN)
    rows = table.to_pylist()
    assert rows[0] == {
        "base_offset": 10,
        "last_offset": 12,
        "epoch": 4,
        "crc": read_header(first).crc,
        "crc_ok": True,
        "size_bytes": len(first),
        "records": 3,
        "codec": "none",
        "is_control": False,
        "max_timestamp": pa.scalar(NOW + 2, pa.timestamp("ms", "UTC")).as_py(),
        "producer_id": 9,
        "producer_epoch": 2,
        "base_sequence": 7,
        "replica_id": 3,
        "storage_id": "storage",
        "file": ORIGIN.file,
        "position": 4096,
    }
    assert rows[1]["codec"] == "zstd"
    assert rows[1]["position"] == 4096 + len(first)
    # A batch belongs to the range that its first offset is in, so to one only.
    for start, end, base_offsets in ((11, 14, [13]), (10, 13, [10]), (0, 10, []), (13, 14, [13])):
        found = table_of("batches", first + second, start, end)["base_offset"].to_pylist()
        assert found == base_offsets


def test_batches_are_rows_whatever_their_crc_and_their_place() -> None:
    batches = [numbered(3, 10, epoch=4), numbered(2, 50, epoch=3), numbered(1, 52, epoch=3)]
    batches[1] = batches[1][:-1] + b"\x01"
    table = table_of("batches", b"".join(batches))
    assert table["crc_ok"].to_pylist() == [True, False, True]
    assert table["base_offset"].to_pylist() == [10, 50, 52]


# --- compressed batches


@pytest.mark.parametrize("codec", PACKED)
def test_compressed_and_other_batches_stay_in_order(codec: CompressionType) -> None:
    parts = [
        numbered(3),
        numbered(400, 3, codec=codec),
        numbered(2, 403),
        numbered(1, 405, codec=codec),
    ]
    chunk = b"".join(parts)
    assert short(parsed(chunk)) == expected(0, 406)
    assert short(parsed(chunk, 100, 405)) == expected(100, 405)
    assert table_of("batches", chunk)["codec"].to_pylist()[1] == codec.name.lower()


def test_snappy_without_kafkas_framing_is_read_too() -> None:
    plain = numbered(50)
    raw = snappy.compress(plain[61:])
    batch = plain[:8] + (49 + len(raw)).to_bytes(4, "big") + plain[12:61] + raw
    assert short(parsed(patched(batch, 22, b"\x02"))) == expected(0, 50)


@pytest.mark.long
@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_batch_that_unpacks_to_very_much_is_refused(codec: CompressionType) -> None:
    record = Record(timestamp=NOW, value=bytes(payloads.UNPACKED_BYTES_MAX))
    bomb = build_batch([record], base_offset=7, codec=codec)
    assert len(bomb) < 1 << 20
    with pytest.raises(DamagedBatch, match=r"offset 7 .*unpacks to more than"):
        list(parse("records", bomb, 0, ALL, ChunkOrigin()))


@pytest.mark.parametrize("codec", PACKED)
def test_a_compressed_batch_that_is_no_records_has_no_rows_and_is_named(
    codec: CompressionType, caplog: pytest.LogCaptureFixture
) -> None:
    packed = numbered(3, 5, codec=codec)
    unpackable = patched(packed, len(packed) - 4, b"\xff\xff\xff\xff")
    too_few = patched(packed, 57, (4).to_bytes(4, "big"))
    malformed = build_batch([Record(timestamp=NOW, key=b"a")] * 3, base_offset=5, codec=codec)
    for bad in (unpackable, too_few, _with_malformed_record(malformed, codec)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert short(parsed(numbered(5) + bad + numbered(2, 8))) == [
                *expected(0, 5),
                *expected(8, 10),
            ]
        assert "the batch at offset 5 counts as empty" in caplog.text


def test_what_the_tables_are_made_of_has_a_row_for_a_batch_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = patched(numbered(4, 5), 22, b"\x01")
    chunk = numbered(5) + bad + numbered(2, 9)
    for start, end, first, last in ((0, ALL, 5, 8), (0, 7, 5, 6), (6, 8, 6, 7), (8, ALL, 8, 8)):
        (found,) = [
            row
            for rows in parse("log_records", chunk, start, end, ChunkOrigin())
            for row in rows.to_pylist()
            if row["topic"] is None
        ]
        assert (found["batch_base_offset"], found["offset"]) == (first, last)
        assert found["crc"] == int.from_bytes(bad[17:21], "big")
        assert found["key"] is found["value"] is found["timestamp"] is None
    sound = chunk_of(2, 3)
    for group_bytes in (payloads.GROUP_BYTES, 1):
        monkeypatch.setattr(payloads, "GROUP_BYTES", group_bytes)
        assert [*parse("log_records", sound, 0, ALL, ORIGIN)] == [
            *parse("records", sound, 0, ALL, ORIGIN)
        ]


def _with_malformed_record(batch: bytes, codec: CompressionType) -> bytes:
    from quorumd.wire.compression import pack, unpack

    payload = bytearray(b"".join(unpack(codec, batch[61:])))
    payload[-1] = 2  # a header, for which there is no room
    packed = pack(codec, bytes(payload))
    return with_crc(batch[:8] + (49 + len(packed)).to_bytes(4, "big") + batch[12:61] + packed)


def test_many_empty_batches_among_good_ones_are_read_in_a_few_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    walk = rows.walk_records
    monkeypatch.setattr(rows, "walk_records", lambda *args: looks.append(1) or walk(*args))
    parts = []
    for at in range(300):
        packed = numbered(3, at * 3, codec=CompressionType.GZIP)
        bad = (
            patched(packed, 57, (4).to_bytes(4, "big"))
            if at % 3 == 0
            else _with_malformed_record(
                build_batch([Record(timestamp=NOW)] * 3, base_offset=at * 3, codec=1),
                CompressionType.GZIP,
            )
        )
        parts.append(bad if at % 3 < 2 else packed)
    found = parsed(b"".join(parts))
    assert [row.offset for row in found] == [
        at * 3 + i for at in range(2, 300, 3) for i in range(3)
    ]
    assert len(looks) <= 3


@pytest.mark.parametrize("deltas", [(-1, 10, 2), (0, 0, 0), (2, 1, 0)])
def test_the_offset_of_a_compressed_record_is_its_place_whatever_it_claims(
    deltas: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = batch_claiming(deltas, 10, last_delta=2)
    keys = [b"0", b"1", b"2"]
    packed = batch_claiming(deltas, 10, last_delta=2, codec=CompressionType.GZIP)
    for rows_max in (rows.ROWS_MAX, 2):
        monkeypatch.setattr(rows, "ROWS_MAX", rows_max)
        found = parsed(numbered(10) + packed + packed_behind(packed, 13))
        assert [row.offset for row in found] == list(range(16))
        assert [row.key for row in found[10:]] == 2 * keys
        assert [row.key for row in parsed(numbered(10) + packed, 11, 12)] == [b"1"]
    with pytest.raises(DamagedBatch, match="do not ascend"):
        parsed(plain)


def test_a_compressed_record_of_fewer_than_offsets_that_claims_one_outside_is_moved_inside() -> (
    None
):
    packed = batch_claiming((-1, 10, 2), 10, last_delta=5, codec=CompressionType.GZIP)
    assert [row.offset for row in parsed(packed)] == [10, 15, 12]


def batch_claiming(
    deltas: tuple[int, ...], base_offset: int, *, last_delta: int, codec: int = 0
) -> bytes:
    """A batch whose records claim these offset deltas (of less than 64)."""
    from quorumd.wire.compression import pack

    records = [Record(timestamp=NOW, key=b"%d" % i) for i in range(len(deltas))]
    plain = build_batch(records, base_offset=base_offset)
    payload = bytearray(plain[61:])
    step = len(payload) // len(deltas)
    for i, delta in enumerate(deltas):
        payload[i * step + 3] = 2 * delta if delta >= 0 else -2 * delta - 1
    packed = pack(codec, bytes(payload)) if codec else bytes(payload)
    batch = plain[:8] + (49 + len(packed)).to_bytes(4, "big") + plain[12:61] + packed
    return patched(patched(batch, 22, bytes([codec])), 23, last_delta.to_bytes(4, "big"))


def packed_behind(batch: bytes, base_offset: int) -> bytes:
    """The batch at another offset, which its CRC does not cover."""
    return base_offset.to_bytes(8, "big") + batch[8:]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_damage(codec: int) -> None:
    with pytest.raises(DamagedBatch, match=f"no compression codec {codec}"):
        parsed(patched(numbered(2), 22, bytes([codec])))


# --- sizes


def test_an_empty_batch_has_no_rows_and_keeps_its_offsets() -> None:
    hole = patched(numbered(4, 5), 57, (0).to_bytes(4, "big"))[:61]
    hole = with_crc(hole[:8] + (49).to_bytes(4, "big") + hole[12:])
    chunk = numbered(5) + hole + numbered(2, 9)
    assert short(parsed(chunk)) == [*expected(0, 5), *expected(9, 11)]
    assert table_of("batches", chunk)["records"].to_pylist() == [5, 0, 2]
    assert parsed(hole) == []


def test_a_batch_may_have_holes_as_compaction_leaves_them() -> None:
    batch = numbered(5, 20)
    step = (len(batch) - 61) // 5
    kept = batch[:61] + batch[61 : 61 + step] + batch[61 + 3 * step : 61 + 4 * step]
    kept = kept[:8] + (len(kept) - 12).to_bytes(4, "big") + kept[12:]
    found = parsed(patched(kept, 57, (2).to_bytes(4, "big")))
    assert [row.offset for row in found] == [20, 23]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_a_batch_with_very_many_records_comes_in_parts(
    monkeypatch: pytest.MonkeyPatch, codec: CompressionType
) -> None:
    monkeypatch.setattr(rows, "ROWS_MAX", 1000)
    count = 2017
    batch = build_batch([Record(timestamp=NOW)] * count, base_offset=5, codec=codec)
    parts = list(parse("records", batch, 0, ALL, ChunkOrigin()))
    assert [part.num_rows for part in parts] == [1000, 1000, 17]
    offsets = pa.chunked_array([part["offset"] for part in parts]).to_numpy()
    assert (offsets == range(5, 5 + count)).all()


@pytest.mark.long
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_a_chunk_much_larger_than_what_is_read_together(codec: CompressionType) -> None:
    values = [Random(seed).randbytes(90_000) for seed in range(5)]
    parts = []
    for at in range(0, 600, 3):
        records = [
            Record(timestamp=NOW, key=b"%d" % i, value=values[i % 5]) for i in range(at, at + 3)
        ]
        parts.append(build_batch(records, base_offset=at, codec=codec if at % 2 else 0))
    found = list(parse("records", b"".join(parts), 0, ALL, ChunkOrigin()))
    assert len(found) > 3
    read = rows_of(pa.Table.from_batches(found))
    assert short(read) == [(i, b"%d" % i, values[i % 5]) for i in range(600)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    assert short(parsed(kind(chunk_of(3, 4)))) == expected(0, 7)
