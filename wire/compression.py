"""The codecs of record batches: gzip, snappy, lz4 and zstd, streamed, each loaded when used.

`unpack` yields chunks of bounded size whatever the input claims, so that a small batch that unpacks
to gigabytes costs time but no memory. Nothing here knows what the bytes mean.
Source: Apache Kafka 4.3, org.apache.kafka.common.compress; KIP-57 (lz4 frame), KIP-110 (zstd).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from quorumd.wire.errors import CorruptBatch

CHUNK_BYTES_MAX = 64 * 1024
"""The most that one chunk holds; a snappy block, which has to be unpacked whole, may be larger."""
SNAPPY_BLOCK_BYTES_MAX = 64 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")


class CompressionType(IntEnum):
    """Attribute bits 0-2 of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def pack(codec: int, data: bytes) -> bytes:
    """`data` compressed as Kafka's clients do. Raises ValueError if there is no such codec."""
    match CompressionType(codec):
        case CompressionType.NONE:
            return data
        case CompressionType.GZIP:
            compressor = zlib.compressobj(wbits=31)
            return compressor.compress(data) + compressor.flush()
        case CompressionType.SNAPPY:
            return b"".join(_pack_snappy(data))
        case CompressionType.LZ4:
            import lz4.frame

            return bytes(lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX64KB))
        case CompressionType.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor().compress(data)


def unpack(
    codec: int, data: bytes | memoryview, *, first_bytes: int = CHUNK_BYTES_MAX
) -> Iterator[bytes]:
    """`data` unpacked, in chunks. Raises CorruptBatch if it is not valid for the codec.

    The first chunk holds `first_bytes` at the most, but for snappy: less work for who may need no other.
    """
    match codec:
        case CompressionType.NONE:
            chunks: Iterator[bytes] = iter((bytes(data),))
        case CompressionType.GZIP:
            chunks = _unpack_gzip(bytes(data), first_bytes)
        case CompressionType.SNAPPY:
            chunks = _unpack_snappy(bytes(data))
        case CompressionType.LZ4:
            chunks = _unpack_lz4(bytes(data), first_bytes)
        case CompressionType.ZSTD:
            chunks = _unpack_zstd(bytes(data), first_bytes)
        case _:
            raise CorruptBatch(f"there is no compression codec {codec}")
    return chunks


def _unpack_gzip(data: bytes, size: int) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    try:
        while data or not stream.eof:
            if stream.eof:
                # Members that follow each other are one stream (RFC 1952, 2.2).
                stream = zlib.decompressobj(wbits=31)
            chunk = stream.decompress(data, size)
            size = CHUNK_BYTES_MAX
            data = stream.unused_data if stream.eof else stream.unconsumed_tail
            if chunk:
                yield chunk
            elif not data and not stream.eof:
                raise CorruptBatch("the gzip stream is cut off")
    except zlib.error as error:
        raise CorruptBatch(f"gzip: {error}") from None


def _unpack_lz4(data: bytes, size: int) -> Iterator[bytes]:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        while not stream.eof:
            chunk = stream.decompress(data, size)
            data, size = b"", CHUNK_BYTES_MAX
            if chunk:
                yield chunk
            elif stream.needs_input:
                raise CorruptBatch("the lz4 frame is cut off")
    except RuntimeError as error:
        raise CorruptBatch(f"lz4: {error}") from None


def _unpack_zstd(data: bytes, size: int) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    try:
        while chunk := reader.read(size):
            size = CHUNK_BYTES_MAX
            yield chunk
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None


def _pack_snappy(data: bytes) -> Iterator[bytes]:
    import snappy

    yield _XERIAL_HEADER
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[at : at + _XERIAL_BLOCK_BYTES])
        yield _INT32.pack(len(block))
        yield block


def _unpack_snappy(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield _unpack_snappy_block(data)
        return
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if at + _INT32.size > len(data):
            raise CorruptBatch("the snappy stream is cut off")
        (size,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        if not 0 < size <= len(data) - at:
            raise CorruptBatch(f"a snappy block of {size} bytes where {len(data) - at} are left")
        yield _unpack_snappy_block(data[at : at + size])
        at += size


def _unpack_snappy_block(block: bytes) -> bytes:
    """One raw block; the unpacked size in front of it is checked before it is believed."""
    import snappy

    from quorumd.wire.varints import read_unsigned_varint

    try:
        size, _ = read_unsigned_varint(block, 0)
        if size > SNAPPY_BLOCK_BYTES_MAX:
            raise CorruptBatch(f"a snappy block that unpacks to {size} bytes")
        return bytes(snappy.uncompress(block))
    except CorruptBatch:
        raise
    except (IndexError, ValueError, snappy.UncompressError) as error:
        raise CorruptBatch(f"snappy: {error}") from None
