"""Codecs: nothing that a batch unpacks to, or does not, is much work or memory at once."""

from __future__ import annotations

import gzip
import random
from contextlib import suppress

import lz4.frame
import pytest
import zstandard

from quorumd.wire.compression import PIECE_BYTES, CompressionType, pack, unpack, unpack_in_steps
from quorumd.wire.errors import CorruptBatch

EMPTY_ZSTD_FRAMES = [
    b"\x28\xb5\x2f\xfd\x00\x50" + b"\x01\0\0",  # a window
    b"\x28\xb5\x2f\xfd\x20\x00" + b"\0\0\0" * 5 + b"\x01\0\0",  # one segment, more blocks
    b"\x50\x2a\x4d\x18\x05\0\0\0abcde",  # to be skipped
]


@pytest.mark.parametrize(
    ("codec", "nothing"),
    [
        # The time would be in the name of the test, which each process of a run has to find alike.
        (CompressionType.GZIP, gzip.compress(b"", mtime=0)),
        *((CompressionType.ZSTD, frame) for frame in EMPTY_ZSTD_FRAMES),
    ],
)
def test_what_unpacks_to_nothing_again_and_again_is_unpacked_in_steps(
    codec: CompressionType, nothing: bytes
) -> None:
    data = nothing * 5_000 + pack(codec, b"something")
    steps = list(unpack_in_steps(codec, data))
    assert b"".join(steps) == b"something"
    assert len(steps) > 5_000
    assert list(unpack(codec, data)) == [b"something"]


def test_blocks_of_lz4_that_unpack_to_nothing_are_unpacked_in_steps() -> None:
    frame = lz4.frame.compress(b"something", store_size=False)
    data = frame[:7] + b"\x01\0\0\0\0" * 50_000 + frame[7:]
    steps = list(unpack_in_steps(CompressionType.LZ4, data))
    assert (b"".join(steps), len(steps)) == (b"something", 1 + len(data) // PIECE_BYTES)


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 300_000, 5_000_000])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("says_size", [False, True])
def test_every_kind_of_zstd_frame_is_unpacked(
    size: int, *, checksum: bool, says_size: bool
) -> None:
    for text in (bytes(size), random.Random(size).randbytes(size)):
        packed = b""
        for level in (1, 19):
            made = zstandard.ZstdCompressor(
                level, write_checksum=checksum, write_content_size=says_size
            )
            packed += made.compress(text)
        assert b"".join(unpack(CompressionType.ZSTD, packed)) == 2 * text
        assert max(map(len, unpack_in_steps(CompressionType.ZSTD, packed))) <= 128 * 1024
        for cut in (3, 7, len(packed) // 3, len(packed) - 1):
            with suppress(CorruptBatch):
                found = b"".join(unpack(CompressionType.ZSTD, packed[:cut]))
                assert (2 * text).startswith(found)


@pytest.mark.long
def test_the_window_of_kafkas_highest_level_is_taken() -> None:
    """Its clients do not know how much will come: the frame claims a window of 128 MiB."""
    parameters = zstandard.ZstdCompressionParameters.from_level(22, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(b"little") + stream.flush()
    assert zstandard.get_frame_parameters(packed).window_size == 128 << 20
    assert list(unpack(CompressionType.ZSTD, packed)) == [b"little"]
