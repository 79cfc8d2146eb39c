"""What a compressed batch may unpack to, and what is unpacked to find it out."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from hashlib import sha256

import pytest
import zstandard

from quorumd.wire import compression
from quorumd.wire.compression import CompressionType
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch, read_header
from quorumd.wire.unpacked_size import BLOCK_BYTES_MAX, PAYLOAD_BYTES_MAX, check_unpacked_size


def steps_of(data: bytes) -> Iterator[None]:
    return check_unpacked_size(read_header(data), data)


def packed(codec: int, payload_bytes: int) -> bytes:
    """One record; `payload_bytes` is what the batch unpacks to."""
    value_bytes = payload_bytes - 100
    for _ in range(2):
        data = build_batch([Record(value=bytes(value_bytes))])
        value_bytes += payload_bytes - (len(data) - BATCH_OVERHEAD)
    return build_batch([Record(value=bytes(value_bytes))], codec=codec)


@pytest.mark.long
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_unpacks_to_too_much_is_refused_and_never_held(codec: int) -> None:
    most, more = packed(codec, PAYLOAD_BYTES_MAX), packed(codec, PAYLOAD_BYTES_MAX + 1)
    tracemalloc.start()
    try:
        # The blocks of zstd have just as much as is permitted, and tell.
        assert sum(1 for _ in steps_of(most)) > 500 or codec == CompressionType.ZSTD
        with pytest.raises(
            RefusedBatch, match=r"more than 67108864 bytes. Send smaller"
        ) as refused:
            list(steps_of(more))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.error is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.pure
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_shows_by_its_size_or_blocks_that_it_is_small_is_not_unpacked(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [sha256(b"%d" % number).digest() for number in range(1000)]
    batch = build_batch([Record(value=value) for value in values], codec=codec)
    assert len(batch) > 32_000
    monkeypatch.delattr(compression, "unpack_in_steps")
    assert list(steps_of(batch)) == []


def test_blocks_of_zstd_that_unpack_to_little_are_counted_by_what_they_unpack_to() -> None:
    """A client that flushes often makes many blocks."""
    stream = zstandard.ZstdCompressor().compressobj()
    payload = b"".join(
        stream.compress(b"x") + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for _ in range(600)
    )
    head = build_batch([Record()], codec=4)[:BATCH_OVERHEAD]
    data = _with_payload(head, payload + stream.flush())
    assert len(list(steps_of(data))) > 512


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_does_not_unpack_is_passed_on(codec: int) -> None:
    head = build_batch([Record()], codec=codec)[:BATCH_OVERHEAD]
    list(steps_of(_with_payload(head, b"\xff" * (4 << 20))))
    list(steps_of(_with_payload(head, b"")))


def test_a_snappy_block_that_takes_long_to_unpack_is_refused() -> None:
    head = build_batch([Record()], codec=2)[:BATCH_OVERHEAD]
    block = compression.pack(2, bytes(100))[16:]
    large = b"\x81\x80\x80\x02" + bytes(4 << 20)  # says that it unpacks to 4 MiB and a byte
    payload = b"".join(
        (
            compression.pack(2, b"")[:16],
            block,
            len(large).to_bytes(4, "big") + large,
        )
    )
    with pytest.raises(RefusedBatch, match=f"at most {BLOCK_BYTES_MAX} are taken here") as refused:
        list(steps_of(_with_payload(head, payload)))
    assert refused.value.error is ErrorCode.MESSAGE_TOO_LARGE


def _with_payload(head: bytes, payload: bytes) -> bytes:
    data = bytearray(head + payload)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return bytes(data)
