"""Batches whose records claim other offsets than their places, as logs of earlier versions may hold."""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from quorumd.wire.batch_header import BATCH_OVERHEAD
from quorumd.wire.compression import CompressionType, pack
from quorumd.wire.records import Record, build_batch
from quorumd.wire.varints import encode_varint

NOW_MS = 1_700_000_000_000


def payload_claiming(deltas: Sequence[int]) -> bytes:
    """A record with the key `0`, `1` and so on for each offset delta; the value is the key."""
    parts = []
    for place, delta in enumerate(deltas):
        text = b"%d" % place
        size = encode_varint(len(text))
        body = b"\0\0" + encode_varint(delta) + (size + text) * 2 + b"\0"
        parts += [encode_varint(len(body)), body]
    return b"".join(parts)


def with_payload(
    payload: bytes,
    count: int,
    *,
    codec: int = 0,
    base_offset: int = 0,
    epoch: int = 1,
    last_delta: int | None = None,
) -> bytes:
    """A batch with `count` records, which are these bytes once they are unpacked."""
    header = build_batch([Record(timestamp=NOW_MS)] * count, base_offset=base_offset, epoch=epoch)[
        :BATCH_OVERHEAD
    ]
    last = count - 1 if last_delta is None else last_delta
    covered = codec.to_bytes(2, "big") + last.to_bytes(4, "big") + header[27:] + payload
    length = (BATCH_OVERHEAD - 12 + len(payload)).to_bytes(4, "big")
    start = header[:8] + length + header[12:17]
    return start + crc32c(covered).to_bytes(4, "big") + covered


def gzip_claiming(deltas: Sequence[int], *, base_offset: int = 0, epoch: int = 1) -> bytes:
    """A compressed batch."""
    payload = pack(CompressionType.GZIP, payload_claiming(deltas))
    return with_payload(
        payload, len(deltas), codec=CompressionType.GZIP, base_offset=base_offset, epoch=epoch
    )
