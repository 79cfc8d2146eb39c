"""Codecs: nothing that a batch unpacks to, or does not, is much work or memory at once."""

from __future__ import annotations

import gzip
import random
import zlib
from contextlib import suppress

import lz4.frame
import pytest
import snappy
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


# What Kafka 4.3's own decompressors do with each of these was observed.

TEXT = random.Random(1).randbytes(3_000) + bytes(40_000)
MEMBER = gzip.compress(TEXT, mtime=0)
PLAIN = bytes(6)  # of a header: time, level and system
XERIAL = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2


def gzip_header(flags: int, fields: bytes = b"", *, checksum: bool = False) -> bytes:
    header = b"\x1f\x8b\x08" + bytes([flags]) + PLAIN + fields
    return header + zlib.crc32(header).to_bytes(4, "little")[:2] * checksum


def gzip_member(header: bytes) -> bytes:
    return header + MEMBER[10:]


def snappy_block(text: bytes) -> bytes:
    block: bytes = snappy.compress(text)
    return len(block).to_bytes(4, "big") + block


BLOCKS = snappy_block(TEXT[:3_100]) + snappy_block(TEXT[3_100:])
LZ4 = lz4.frame.compress(TEXT, content_checksum=True)
LZ4_BLOCKS = lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True, store_size=False)
LZ4_OF_ANOTHER_SIZE = lz4.frame.compress_begin(
    lz4.frame.create_compression_context(),
    source_size=len(TEXT) - 1,
    block_linked=False,
    content_checksum=True,
)
WRONG = b"\1\2\3\4"
ALL_FIELDS = b"\3\0abc" + b"name\0" + b"comment\0"
CHECKED_MEMBER = gzip_member(gzip_header(0xFF, ALL_FIELDS, checksum=True))


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (CompressionType.GZIP, CHECKED_MEMBER),
        (CompressionType.GZIP, gzip_member(gzip_header(0xE0))),
        (CompressionType.GZIP, MEMBER + bytes(64)),
        (CompressionType.GZIP, MEMBER + b"garbage garbage garbage"),
        (CompressionType.GZIP, MEMBER + b"\x1f"),
        (CompressionType.GZIP, MEMBER + gzip_header(0) + b"\xff" * 8),
        (CompressionType.GZIP, MEMBER + gzip_header(4, b"\xff\xff") + bytes(30)),
        (CompressionType.GZIP, MEMBER + gzip_header(8) + b"\xff" * 30),
        (CompressionType.GZIP, MEMBER + gzip_member(gzip_header(2) + b"no")),
        (CompressionType.GZIP, MEMBER + gzip.compress(b"", mtime=0)),
        (CompressionType.GZIP, gzip.compress(b"", mtime=0) + CHECKED_MEMBER),
        (CompressionType.SNAPPY, snappy.compress(TEXT)),
        (CompressionType.SNAPPY, XERIAL[:8] + bytes(8) + BLOCKS),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + b"\1"),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + b"\1\2\3"),
        (CompressionType.SNAPPY, XERIAL + XERIAL + BLOCKS + XERIAL),
        (
            CompressionType.SNAPPY,
            XERIAL + snappy_block(TEXT[:9]) + XERIAL + snappy_block(TEXT[9:]),
        ),
        (CompressionType.LZ4, LZ4 + b"garbage"),
        (CompressionType.LZ4, LZ4[:-4] + WRONG),
        (CompressionType.LZ4, LZ4_BLOCKS[:-4] + WRONG + b"garbage"),
        (CompressionType.LZ4, LZ4_OF_ANOTHER_SIZE + LZ4[len(LZ4_OF_ANOTHER_SIZE) :]),
    ],
)
def test_what_kafkas_consumer_reads_is_unpacked(codec: CompressionType, data: bytes) -> None:
    assert b"".join(unpack(codec, data)) == TEXT
    assert b"".join(unpack_in_steps(codec, data)) == TEXT


LONG = TEXT * 3
ZSTD_STREAM = zstandard.ZstdCompressor(write_checksum=True).compressobj()
NOT_ENDED = ZSTD_STREAM.compress(LONG) + ZSTD_STREAM.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
WITH_CHECKSUM = zstandard.ZstdCompressor(write_checksum=True).compress(LONG)
LZ4_LINKED = lz4.frame.compress(LONG, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=True)
# Flags, size of blocks, number of the dictionary and a check of these.
LZ4_DICTIONARY = b"\x04\x22\x4d\x18\x61\x40abcd\x8a"
LZ4_BARE = lz4.frame.compress(TEXT, store_size=False)


@pytest.mark.parametrize(
    ("codec", "data", "text"),
    [
        (CompressionType.LZ4, LZ4_LINKED, LONG),
        (CompressionType.LZ4, LZ4_DICTIONARY + LZ4_BARE[7:], TEXT),
        (CompressionType.ZSTD, NOT_ENDED, LONG),
        (CompressionType.ZSTD, WITH_CHECKSUM[:-1], LONG),
        (CompressionType.ZSTD, WITH_CHECKSUM[:-4], LONG),
        (CompressionType.ZSTD, WITH_CHECKSUM + NOT_ENDED, LONG * 2),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + b"\x82SNA" + bytes(12) + BLOCKS, TEXT),
    ],
)
def test_what_kafkas_consumer_cannot_read_is_read_from_a_log_and_not_taken_in(
    codec: CompressionType, data: bytes, text: bytes
) -> None:
    assert b"".join(unpack(codec, data)) == text
    with pytest.raises(CorruptBatch):
        list(unpack_in_steps(codec, data))


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_what_is_packed_here_is_taken_in(codec: CompressionType) -> None:
    assert b"".join(unpack_in_steps(codec, pack(codec, LONG))) == LONG


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (CompressionType.GZIP, b""),
        (CompressionType.GZIP, zlib.compress(TEXT)),
        (CompressionType.GZIP, gzip_header(0)),
        (CompressionType.GZIP, gzip_member(gzip_header(2) + b"no")),
        (CompressionType.GZIP, MEMBER[:-1]),
        (CompressionType.GZIP, MEMBER[:-4] + WRONG),
        (CompressionType.GZIP, MEMBER[:-8] + WRONG + MEMBER[-4:]),
        (CompressionType.GZIP, MEMBER + MEMBER[:-1]),
        (CompressionType.GZIP, MEMBER + gzip_header(0) + b"\xff" * 9),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + bytes(4)),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + b"\xff" * 4),
        (CompressionType.SNAPPY, XERIAL + BLOCKS[:-1]),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + XERIAL[:15]),
        (CompressionType.SNAPPY, XERIAL + BLOCKS + XERIAL[:8] + bytes(8)),
        (CompressionType.LZ4, LZ4[:-1]),
        (CompressionType.LZ4, LZ4[:-4]),
        (CompressionType.LZ4, LZ4[:6] + bytes([LZ4[6] ^ 1]) + LZ4[7:]),
        (CompressionType.LZ4, LZ4_BLOCKS[:-9] + bytes([LZ4_BLOCKS[-9] ^ 1]) + LZ4_BLOCKS[-8:]),
    ],
)
def test_what_kafkas_consumer_cannot_read_is_not_unpacked(
    codec: CompressionType, data: bytes
) -> None:
    for read in (unpack, unpack_in_steps):
        with pytest.raises(CorruptBatch):
            list(read(codec, data))
