"""`quorumd.storage.verify` on what Apache Kafka 4.3.1 has written."""

from __future__ import annotations

from pathlib import Path

from quorumd.raft.types import SnapshotId
from tests.storage.verifying import verified

KAFKAS = Path(__file__).parent / "golden/kafka-4.3.1/00000000000000000037-0000000001.checkpoint"


def test_a_snapshot_of_kafka_is_sound_and_noted() -> None:
    done = verified(KAFKAS)
    assert done.texts == []
    (facts,) = done.facts.snapshots
    assert (facts.id, facts.size_bytes, facts.kraft_version) == (SnapshotId(37, 1), 754, 1)
    (note,) = done.notes
    assert "is a snapshot of Apache Kafka" in note


def test_every_flipped_byte_of_a_snapshot_of_kafka_is_damage(tmp_path: Path) -> None:
    data = KAFKAS.read_bytes()
    for at in range(len(data)):
        path = tmp_path / KAFKAS.name
        path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        assert verified(path).findings, f"byte {at}"


def test_a_snapshot_of_kafka_that_is_cut_is_damage(tmp_path: Path) -> None:
    data = KAFKAS.read_bytes()
    for size in (0, 61, 166, 300, 679, 753):
        path = tmp_path / KAFKAS.name
        path.write_bytes(data[:size])
        assert verified(path).findings, f"cut at {size}"
