"""Control batches in which the voters of a former quorum are struck out."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.wire.control_records import (
    ControlRecord,
    ControlType,
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    LeaderChange,
    SnapshotHeader,
    UnknownControl,
    decode_control_batch,
    encode_control_batch,
    encode_control_record,
    mask_voters,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import Record, build_batch, crc_is_valid, read_header

VOTERS = KRaftVoters(
    voters=tuple(KRaftVoter(voter_id=n, voter_directory_id=UUID(int=n)) for n in (1, 2, 3)),
    cluster_id="former",
)
RECORDS = [
    VOTERS,
    KRaftVersion(kraft_version=1),
    LeaderChange(leader_id=3),
    SnapshotHeader(last_contained_log_timestamp=5),
    UnknownControl(77, b"x" * 200),
    UnknownControl(78, None),
]


def struck(record: ControlRecord) -> ControlRecord:
    _, value = encode_control_record(record)
    if isinstance(record, KRaftVoters):
        return UnknownControl(ControlType.FORMER_KRAFT_VOTERS, value)
    if isinstance(record, KRaftVersion):
        return UnknownControl(ControlType.FORMER_KRAFT_VERSION, value)
    return record


@given(
    records=st.lists(st.sampled_from(RECORDS), min_size=1, max_size=80),
    base_offset=st.integers(0, 1 << 60),
    epoch=st.integers(0, 1 << 30),
    timestamp_ms=st.integers(0, 1 << 45),
)
def test_voters_are_struck_out_and_nothing_else_changes(
    records: list[ControlRecord], base_offset: int, epoch: int, timestamp_ms: int
) -> None:
    batch = encode_control_batch(
        records, base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms
    )
    after = mask_voters(batch)
    header = read_header(after)
    assert header._replace(crc=0) == read_header(batch)._replace(crc=0)
    assert crc_is_valid(after, 0, header)
    assert len(after) == len(batch)
    offsets = range(base_offset, base_offset + len(records))
    assert decode_control_batch(after) == list(zip(offsets, map(struck, records), strict=True))
    assert mask_voters(after) == after


def test_what_names_no_voters_stays_byte_for_byte() -> None:
    batch = encode_control_batch(
        [LeaderChange(leader_id=1)], base_offset=9, epoch=2, timestamp_ms=3
    )
    assert mask_voters(batch) == batch


def test_other_batches_are_refused() -> None:
    records = [Record(key=b"\0\0\0\6", value=b"x")]
    with pytest.raises(CorruptBatch, match="not an uncompressed control batch"):
        mask_voters(build_batch(records))
    with pytest.raises(CorruptBatch, match="not an uncompressed control batch"):
        mask_voters(build_batch(records, codec=1, is_control=True))
    with pytest.raises(CorruptBatch):
        mask_voters(build_batch([Record(key=b"\0", value=b"x")], is_control=True))
