"""Control records as rows and as JSON, and snapshots as tables."""

from __future__ import annotations

import json
from random import Random
from uuid import UUID

import pyarrow as pa
import pytest

from quorumd.pipeline.parse import ChunkOrigin, DamagedBatch, parse
from quorumd.raft.types import uuid_to_text
from quorumd.wire.control_records import (
    ControlRecord,
    ControlType,
    KRaftVersion,
    KRaftVersionFeature,
    KRaftVoter,
    KRaftVoterEndpoint,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    ProducerStates,
    ProducerStatesBatch,
    ProducerStatesProducer,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    encode_control_batch,
    encode_control_record,
    mask_voters,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import Record, build_batch, iter_records
from tests.pipeline.parsed import ALL, NOW, Row, parsed, patched, rows_of, table_of
from tests.server.snapshot_logs import Batches, expected_snapshot

A_UUID = UUID(int=(1 << 100) + 5)
LEADER = LeaderChange(
    leader_id=1,
    voters=(LeaderChangeVoter(voter_id=1), LeaderChangeVoter(voter_id=2)),
    granting_voters=(LeaderChangeVoter(voter_id=1),),
)
VOTERS = KRaftVoters(
    voters=(
        KRaftVoter(
            voter_id=1,
            voter_directory_id=A_UUID,
            endpoints=(KRaftVoterEndpoint(name="CONTROLLER", host="é", port=9093),),
            kraft_version_feature=KRaftVersionFeature(max_supported_version=1),
        ),
    ),
    cluster_id="a cluster",
    target_voters=(4, 5),
)
VOTERS_JSON = {
    "version": 0,
    "voters": [
        {
            "voter_id": 1,
            "voter_directory_id": uuid_to_text(A_UUID),
            "endpoints": [{"name": "CONTROLLER", "host": "é", "port": 9093}],
            "kraft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        }
    ],
    "cluster_id": "a cluster",
    "target_voters": [4, 5],
}


def control(*records: ControlRecord, base_offset: int = 0, epoch: int = 1) -> bytes:
    return encode_control_batch(records, base_offset=base_offset, epoch=epoch, timestamp_ms=NOW)


def decoded(chunk: bytes) -> list[tuple[int, str, object]]:
    rows = table_of("control", chunk).to_pylist()
    return [(row["type"], row["type_name"], json.loads(row["json"])) for row in rows]


def test_every_type_of_control_record_is_decoded() -> None:
    producers = ProducerStates(
        producers=(
            ProducerStatesProducer(
                producer_id=7, epoch=1, batches=(ProducerStatesBatch(last_offset=5),)
            ),
        )
    )
    chunk = control(
        LEADER,
        SnapshotHeader(last_contained_log_timestamp=NOW, end_offset=9),
        KRaftVersion(kraft_version=1),
        VOTERS,
        KRaftVoters(),
        producers,
        SnapshotFooter(),
        UnknownControl(ControlType.COMMIT, b"\0\0\0\0\0\1"),
        UnknownControl(-7, None),
    )
    batch = {"first_sequence": 0, "last_sequence": 0, "base_offset": 0, "last_offset": 5}
    assert decoded(chunk) == [
        (
            2,
            "LeaderChange",
            {
                "version": 0,
                "leader_id": 1,
                "voters": [
                    {"voter_id": 1, "voter_directory_id": "AAAAAAAAAAAAAAAAAAAAAA"},
                    {"voter_id": 2, "voter_directory_id": "AAAAAAAAAAAAAAAAAAAAAA"},
                ],
                "granting_voters": [
                    {"voter_id": 1, "voter_directory_id": "AAAAAAAAAAAAAAAAAAAAAA"}
                ],
            },
        ),
        (
            3,
            "SnapshotHeader",
            {"version": 0, "last_contained_log_timestamp": NOW, "end_offset": 9},
        ),
        (5, "KRaftVersion", {"version": 0, "kraft_version": 1}),
        (6, "KRaftVoters", VOTERS_JSON),
        (6, "KRaftVoters", {"version": 0, "voters": [], "cluster_id": None, "target_voters": None}),
        (
            1001,
            "ProducerStates",
            {"version": 0, "producers": [{"producer_id": 7, "epoch": 1, "batches": [batch]}]},
        ),
        (4, "SnapshotFooter", {"version": 0}),
        (1, "Commit", {"value_hex": "000000000001"}),
        (-7, "Unknown", {"value_hex": None}),
    ]


def test_what_a_restore_has_struck_out_is_decoded_under_its_new_name() -> None:
    struck = mask_voters(control(KRaftVersion(kraft_version=1), VOTERS))
    assert decoded(struck) == [
        (1005, "FormerKRaftVersion", {"version": 0, "kraft_version": 1}),
        (1006, "FormerKRaftVoters", VOTERS_JSON),
    ]


def test_a_control_row_has_place_time_epoch_version_and_replica() -> None:
    chunk = build_batch([Record(timestamp=NOW)] * 3, epoch=2) + control(
        KRaftVersion(version=3), UnknownControl(99, b""), base_offset=3, epoch=4
    )
    rows = table_of("control", chunk, origin=ChunkOrigin(5, "sid", "f", 0)).to_pylist()
    assert [(r["offset"], r["epoch"], r["version"]) for r in rows] == [(3, 4, 3), (4, 4, None)]
    assert {(r["replica_id"], r["storage_id"]) for r in rows} == {(5, "sid")}
    assert table_of("control", chunk)["timestamp"].cast(pa.int64()).to_pylist() == [NOW * 1000] * 2
    assert table_of("control", chunk, 4, 5)["type"].to_pylist() == [99]


def test_control_records_are_records_too_with_their_type_and_bytes_as_they_are() -> None:
    chunk = (
        control(LEADER, UnknownControl(-300, b"x"))
        + build_batch([Record(timestamp=NOW, key=b"\0\0\0\7")] * 2, base_offset=2, epoch=1)
        + control(SnapshotFooter(), base_offset=4)
    )
    table = table_of("records", chunk)
    assert table["control_type"].to_pylist() == [2, -300, None, None, 4]
    key, value = encode_control_record(LEADER)
    assert parsed(chunk)[0] == Row(0, NOW, key, value, ())


def test_a_control_record_that_is_not_what_its_type_says_is_damage() -> None:
    short = build_batch([Record(timestamp=NOW, key=b"\0\0\0")], base_offset=8, is_control=True)
    for table in ("records", "control"):
        with pytest.raises(DamagedBatch, match=r"offset 8 .*fewer than 4 bytes"):
            list(parse(table, short, 0, ALL, ChunkOrigin()))
    null = build_batch([Record(timestamp=NOW)], base_offset=8, is_control=True)
    with pytest.raises(DamagedBatch, match=r"fewer than 4 bytes"):
        list(parse("records", null, 0, ALL, ChunkOrigin()))
    cut = control(UnknownControl(ControlType.KRAFT_VOTERS, b"\0\0\7"), base_offset=8)
    with pytest.raises(DamagedBatch, match=r"offset 8 .*control record can't be read"):
        list(parse("control", cut, 0, ALL, ChunkOrigin()))
    assert len(parsed(cut)) == 1


def test_a_compressed_control_batch_is_never_taken_for_empty() -> None:
    batch = patched(control(LEADER), 22, b"\x21")
    with pytest.raises(DamagedBatch):
        list(parse("control", batch, 0, ALL, ChunkOrigin()))


def test_a_data_batch_that_is_damaged_is_named_even_where_only_control_records_are_wanted() -> None:
    """Which batches have control records says a byte that the CRC covers."""
    chunk = bytearray(
        control(LEADER) + build_batch([Record(timestamp=NOW)], base_offset=1, epoch=1)
    )
    chunk[22] ^= 0x20
    with pytest.raises(DamagedBatch, match="CRC"):
        list(parse("control", bytes(chunk), 0, ALL, ChunkOrigin()))


# --- snapshots


def log_of(seed: int) -> Batches:
    batches = Batches(Random(seed))
    batches.add_control(LEADER, VOTERS)
    for _ in range(20):
        batches.add_records(batches.random.choice((1, 2, 30)))
    return batches


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshots_records_are_those_of_the_log_at_their_own_offsets(seed: int) -> None:
    batches = log_of(seed)
    end = batches.ends[-1]
    _, data = expected_snapshot(batches, end)
    origin = ChunkOrigin(2, "sid", "snapshot", snapshot_end=end)
    table = table_of("records", data, origin=origin)
    newest: dict[bytes, Row] = {}
    for row, control_type in zip(
        parsed(b"".join(batches.data)),
        table_of("records", b"".join(batches.data))["control_type"].to_pylist(),
        strict=True,
    ):
        if control_type is None and row.key is not None:
            newest[row.key] = row
    state = [newest[key] for key in sorted(newest) if newest[key].value is not None]
    assert rows_of(table) == state
    assert table["control_type"].null_count == len(state)
    middle = end // 2
    some = table_of("records", data, middle, end, origin)
    assert rows_of(some) == [row for row in state if row.offset >= middle]


def test_a_snapshots_control_records_are_at_its_last_offset() -> None:
    batches = log_of(0)
    end = batches.ends[-1]
    _, data = expected_snapshot(batches, end)
    origin = ChunkOrigin(snapshot_end=end)
    found = table_of("control", data, origin=origin)
    assert found["type_name"].to_pylist()[0] == "SnapshotHeader"
    assert "KRaftVoters" in found["type_name"].to_pylist()
    assert set(found["offset"].to_pylist()) == {end - 1}
    assert table_of("control", data, 0, end - 1, origin).num_rows == 0
    # Batches are where they are in the file.
    positions = table_of("batches", data, 5, 6, origin)["base_offset"].to_pylist()
    assert positions[0] == 0
    assert len(positions) >= 3


def test_records_that_do_not_say_their_offset_are_at_the_snapshots_last_one() -> None:
    """As in a snapshot of Kafka's own controllers."""
    records = [Record(timestamp=NOW, value=b"a"), Record(timestamp=NOW, value=b"b")]
    origin = ChunkOrigin(snapshot_end=40)
    table = table_of("records", build_batch(records), origin=origin)
    assert table["offset"].to_pylist() == [39, 39]
    mixed = [Record(timestamp=NOW, headers=(("quorumd.offset", b"7"), ("last", b"8"))), *records]
    found = rows_of(table_of("records", build_batch(mixed), origin=origin))
    assert [row.offset for row in found] == [39, 39, 39]
    assert len(found[0].headers) == 2


@pytest.mark.parametrize(
    "value", [None, b"", b"-1", b"+1", b" 1", b"1x", b"40", b"9" * 19, b"9" * 30]
)
def test_an_offset_that_is_none_below_the_snapshots_end_is_damage(value: bytes | None) -> None:
    good = Record(timestamp=NOW, headers=(("quorumd.offset", b"39"),))
    batch = build_batch([good, good._replace(headers=(("quorumd.offset", value),))])
    with pytest.raises(DamagedBatch, match="no offset below the snapshot's end, 40"):
        list(parse("records", batch, 0, ALL, ChunkOrigin(snapshot_end=40)))


@pytest.mark.long
def test_random_logs_with_garbage_in_them_are_read_as_by_others() -> None:
    """Compressed garbage counts as empty; everything else is read or is damage."""
    for seed in range(15):
        batches = Batches(Random(seed))
        for _ in range(40):
            batches.add_any()
        for batch in batches.data:
            try:
                found = [row.offset for row in parsed(batch)]
            except DamagedBatch:
                with pytest.raises(CorruptBatch):
                    list(iter_records(batch))
                continue
            try:
                assert found == [record.offset for record in iter_records(batch)]
            except CorruptBatch:
                assert found == []
