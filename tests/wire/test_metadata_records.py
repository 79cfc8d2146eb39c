"""Kafka's metadata records: what is in them, and bytes that are none."""

from __future__ import annotations

import pytest

from quorumd.wire.metadata_records import MetadataRecord, NotMetadata, decode_metadata

UNFENCED = b"\1\x08\0" + b"\0\0\0\7" + b"\0\0\0\0\0\0\0\3"
"""UnfenceBrokerRecord, version 0, without its tagged fields."""


def test_a_record_has_its_fields_by_name() -> None:
    assert decode_metadata(UNFENCED + b"\0") == MetadataRecord(
        8, "UnfenceBrokerRecord", 0, {"id": 7, "epoch": 3}
    )


def test_a_type_or_version_that_is_not_known_has_no_fields() -> None:
    assert decode_metadata(b"\1\x7f\3what").fields is None
    assert decode_metadata(b"\1\x08\x7fever") == MetadataRecord(8, "UnfenceBrokerRecord", 127, None)


def test_a_tagged_field_that_is_not_known_is_passed_over() -> None:
    assert decode_metadata(UNFENCED + b"\1\x63\2ab").fields == {"id": 7, "epoch": 3}


@pytest.mark.parametrize("size", [3, 5])
def test_a_tagged_field_has_just_the_size_that_it_claims(size: int) -> None:
    # PartitionChangeRecord with the leader (tag 1) alone
    head = b"\1\5\0" + b"\0\0\0\0" + bytes(16)
    assert decode_metadata(head + b"\1\1\4\0\0\0\7").fields == {
        "partitionId": 0,
        "topicId": "AAAAAAAAAAAAAAAAAAAAAA",
        "leader": 7,
    }
    with pytest.raises(NotMetadata, match="the tagged field 1 has not the size"):
        decode_metadata(head + b"\1\1" + bytes([size]) + b"\0\0\0\7")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"\2" + UNFENCED[1:] + b"\0", "its first byte is 2 instead of 1"),
        (UNFENCED + b"\0x", "1 bytes more than a UnfenceBrokerRecord has"),
        (UNFENCED, "ends in the middle"),
        (UNFENCED[:-1], "ends in the middle"),
        (b"", "ends in the middle"),
    ],
)
def test_what_is_no_record_is_refused(value: bytes, problem: str) -> None:
    with pytest.raises(NotMetadata, match=problem):
        decode_metadata(value)
