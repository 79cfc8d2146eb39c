"""A snapshot that arrives in pieces is checked as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from errno import ENOSPC
from io import BytesIO

import pytest

from quorumd.client.spool import SnapshotSpool
from quorumd.raft.types import SnapshotId
from quorumd.wire.batch_header import LOG_OVERHEAD
from quorumd.wire.control_records import (
    ControlRecord,
    SnapshotFooter,
    SnapshotHeader,
    encode_control_batch,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch
from quorumd.wire.snapshot_records import SNAPSHOT_BATCH_BYTES_MAX
from tests.quorumd.snapshots import TIME_MS, snapshot_bytes

HEADER = SnapshotHeader(version=0, last_contained_log_timestamp=TIME_MS)
FOOTER = SnapshotFooter(version=0)


@pytest.fixture
def spool() -> Iterator[SnapshotSpool]:
    spool = SnapshotSpool(SnapshotId(5, 1))
    yield spool
    spool.close()


def control(*records: ControlRecord, base_offset: int = 0) -> bytes:
    return encode_control_batch(records, base_offset=base_offset, epoch=1, timestamp_ms=TIME_MS)


def data(*records: Record, base_offset: int = 1) -> bytes:
    return build_batch(records, base_offset=base_offset, epoch=1)


def test_a_snapshot_is_complete_with_its_last_byte(spool: SnapshotSpool) -> None:
    snapshot = snapshot_bytes({b"a": (b"1", 0), b"b": (b"2", 4)})
    assert (spool.position, spool.size_bytes, spool.is_complete) == (0, -1, False)
    spool.write(snapshot[:-1], len(snapshot))
    assert (spool.position, spool.is_complete) == (len(snapshot) - 1, False)
    spool.write(snapshot[-1:], len(snapshot))
    assert spool.is_complete
    assert spool.last_contained_log_timestamp == TIME_MS
    assert [(r.key, r.value, r.offset) for r in spool.records()] == [
        (b"a", b"1", 0),
        (b"b", b"2", 4),
    ]


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (control(FOOTER), "its header is not the first record"),
        (control(HEADER) + control(HEADER, base_offset=1), "its header is not the first record"),
        (data(Record(key=b"a"), base_offset=0), "it begins without a header"),
        (control(HEADER, FOOTER) + control(FOOTER, base_offset=2), "a batch behind the footer"),
        (
            control(HEADER) + data(Record(key=b"a"), base_offset=2),
            "a batch with offset 2 where 1 must follow",
        ),
        (control(HEADER) + data(Record(key=b"a"))[:50], "it ends without a footer"),
        (control(HEADER, FOOTER) + b"\0", "it ends without a footer"),
    ],
)
def test_what_is_no_snapshot_is_refused(spool: SnapshotSpool, snapshot: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason):
        spool.write(snapshot, len(snapshot))


def test_a_size_that_changes_is_refused(spool: SnapshotSpool) -> None:
    snapshot = snapshot_bytes({})
    spool.write(snapshot[:50], len(snapshot))
    with pytest.raises(CorruptBatch, match="its size was"):
        spool.write(snapshot[50:], len(snapshot) + 1)


def test_more_than_the_size_is_refused(spool: SnapshotSpool) -> None:
    snapshot = snapshot_bytes({})
    with pytest.raises(CorruptBatch, match="more than its 50 bytes"):
        spool.write(snapshot, 50)


def test_a_batch_may_be_as_large_as_those_that_nodes_write_and_no_larger(
    spool: SnapshotSpool,
) -> None:
    batch = bytearray(data(Record(key=b"a"), base_offset=0)[:BATCH_OVERHEAD])
    size_bytes = 2 * SNAPSHOT_BATCH_BYTES_MAX
    batch[8:12] = (SNAPSHOT_BATCH_BYTES_MAX - LOG_OVERHEAD).to_bytes(4, "big")
    spool.write(batch, size_bytes)
    other = SnapshotSpool(SnapshotId(5, 1))
    batch[8:12] = (SNAPSHOT_BATCH_BYTES_MAX - LOG_OVERHEAD + 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match=f"a batch of {SNAPSHOT_BATCH_BYTES_MAX + 1} bytes"):
        other.write(batch, size_bytes)
    other.close()


def test_whole_batches_without_a_footer_and_one_byte_too_many_are_refused() -> None:
    whole = control(HEADER) + data(Record(key=b"a", value=b"1"))
    ends = SnapshotSpool(SnapshotId(5, 1))
    with pytest.raises(CorruptBatch, match="it ends without a footer"):
        ends.write(whole, len(whole))
    ends.close()
    goes_on = SnapshotSpool(SnapshotId(5, 1))
    with pytest.raises(CorruptBatch, match=f"more than its {len(whole) - 1} bytes"):
        goes_on.write(whole, len(whole) - 1)
    goes_on.close()


@pytest.mark.parametrize(
    "value", [None, b"", b"x", b"-1", b"1" * 20, b"1" * 5000, "\u0663".encode()], ids=repr
)
def test_a_record_that_does_not_say_its_offset_has_none(
    spool: SnapshotSpool, value: bytes | None
) -> None:
    headers = (("quorumd.offset", value),)
    snapshot = control(HEADER) + data(Record(key=b"a", value=b"1", headers=headers))
    snapshot += control(FOOTER, base_offset=2)
    spool.write(snapshot, len(snapshot))
    (record,) = spool.records()
    assert (record.offset, record.headers) == (-1, headers)


def test_a_batch_that_does_not_unpack_is_an_error_when_it_is_read(spool: SnapshotSpool) -> None:
    from quorumd import QuorumError
    from tests.quorumd.test_client import _with_codec

    bad = _with_codec(data(Record(key=b"a", value=b"1")), 1)
    snapshot = control(HEADER) + bad + control(FOOTER, base_offset=2)
    spool.write(snapshot, len(snapshot))
    with pytest.raises(QuorumError, match="the snapshot 5-1 holds a batch that can't be read"):
        next(spool.records())


class FullDisk(BytesIO):
    """A file that takes nothing."""

    def write(self, data: object) -> int:
        raise OSError(ENOSPC, "No space left on device")


def test_a_file_that_was_given_fails_as_it_does_for_whoever_gave_it() -> None:
    snapshot = snapshot_bytes({})
    spool = SnapshotSpool(SnapshotId(5, 1), FullDisk())
    with pytest.raises(OSError, match="No space left"):
        spool.write(snapshot, len(snapshot))


def test_a_temporary_file_that_finds_no_room_is_explained(spool: SnapshotSpool) -> None:
    from quorumd import QuorumError

    snapshot = snapshot_bytes({})
    spool.close()
    spool._file = FullDisk()
    with pytest.raises(
        QuorumError, match="Make room there, or name another directory in the variable"
    ):
        spool.write(snapshot, len(snapshot))
