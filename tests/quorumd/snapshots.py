"""Snapshots as bytes, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping

from quorumd.wire.control_records import SnapshotFooter, SnapshotHeader, encode_control_batch
from quorumd.wire.records import Record, build_batch, read_header

TIME_MS = 1_700_000_000_000


def snapshot_bytes(
    contents: Mapping[bytes, tuple[bytes, int]],
    *,
    epoch: int = 1,
    records_per_batch: int = 3,
    has_footer: bool = True,
) -> bytes:
    """A snapshot in which each key has this value, set at this offset of the log."""
    records = [
        Record(
            timestamp=TIME_MS - 1,
            key=key,
            value=value,
            headers=(("h", b"x"), ("quorumd.offset", b"%d" % offset)),
        )
        for key, (value, offset) in sorted(contents.items())
    ]
    data = encode_control_batch(
        [SnapshotHeader(version=0, last_contained_log_timestamp=TIME_MS)],
        base_offset=0,
        epoch=epoch,
        timestamp_ms=TIME_MS,
    )
    next_offset = read_header(data).next_offset
    for at in range(0, len(records), records_per_batch):
        some = records[at : at + records_per_batch]
        data += build_batch(some, base_offset=next_offset, epoch=epoch, base_timestamp=TIME_MS)
        next_offset += len(some)
    if has_footer:
        data += encode_control_batch(
            [SnapshotFooter(version=0)], base_offset=next_offset, epoch=epoch, timestamp_ms=TIME_MS
        )
    return data
