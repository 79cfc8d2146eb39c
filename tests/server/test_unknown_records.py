"""What a later Kafka writes is named, whatever it is; and what this one writes is not."""

from __future__ import annotations

import struct

import pytest

from quorumd.server.model.metrics import LABELS_MAX, Metrics
from quorumd.server.translate.fetched_batches import fetched_batches
from quorumd.server.translate.unknown_records import unknown_records
from quorumd.wire.control_records import (
    ControlRecord,
    ControlType,
    KRaftVersion,
    LeaderChange,
    UnknownControl,
    encode_control_batch,
)
from quorumd.wire.metadata_declarations import declarations
from quorumd.wire.records import Record, build_batch


def batch(*values: bytes | None) -> bytes:
    return build_batch([Record(timestamp=1, value=value) for value in values], epoch=1)


def control(*records: ControlRecord) -> bytes:
    return encode_control_batch(records, base_offset=0, epoch=1, timestamp_ms=1)


def test_all_that_kafka_4_4_writes_is_known() -> None:
    values = [
        bytes([1, number, version])
        for number, known in declarations().items()
        for version in range(6)
        if version in known.versions
    ]
    assert list(unknown_records(batch(*values))) == []
    assert list(unknown_records(control(LeaderChange(leader_id=1), KRaftVersion()))) == []


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"\x01\x63\x00more", "record: type 99"),
        (b"\x01\x02\x07more", "record: TopicRecord, version 7"),
        (b"\x02\x02\x00", "record: frame version 2"),
        (b"\x01", "record that is no metadata record"),
        (b"", "record that is no metadata record"),
        (None, "record that is no metadata record"),
        (b"\x01\x80\x80", "record that is no metadata record"),
    ],
)
def test_a_record_that_is_not_known_is_named(value: bytes | None, name: str) -> None:
    assert list(unknown_records(batch(b"\x01\x14\x00", value))) == [name]


OTHER_FORM = struct.pack(">h", 1) + b"\xff"
"""A value of version 1, with something in it that version 0 cannot have."""


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (UnknownControl(77, b"?"), "control record: type 77"),
        (LeaderChange(version=1, leader_id=1), "control record: LeaderChange, version 1"),
        (KRaftVersion(kraft_version=9), "control record: kraft.version 9"),
        (
            UnknownControl(int(ControlType.LEADER_CHANGE), OTHER_FORM),
            f"control record: type {int(ControlType.LEADER_CHANGE)}",
        ),
    ],
)
def test_a_control_record_that_is_not_known_is_named_and_its_bytes_are_kept(
    record: ControlRecord, name: str
) -> None:
    data = control(record)
    assert list(unknown_records(data)) == [name]
    fetched = fetched_batches(data, 10)
    assert fetched is not None
    assert bytes(fetched.chunk.data) == data


def test_names_that_others_choose_are_limited_in_number() -> None:
    metrics = Metrics()
    news = [metrics.count_unknown(f"record: type {number}") for number in range(2 * LABELS_MAX)]
    assert sum(news) <= LABELS_MAX
    assert len(metrics.unknown) <= LABELS_MAX + 1
