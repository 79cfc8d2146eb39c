"""The codecs of record batches: gzip, snappy, lz4 and zstd, streamed, each loaded when used.

`unpack` yields chunks of bounded size whatever the input claims, so that a small batch that unpacks
to gigabytes costs time but no memory beyond the codec's own: at most a window of 128 MiB, of which as much
is used as was unpacked. Nothing here knows what the bytes mean.
What is valid is what Kafka's own decompressors take: they pass over some of what the formats forbid, and
refuse some of what they permit. That is taken in no longer, and still read where it is in a log.
Source: Apache Kafka 4.3, org.apache.kafka.common.compress; KIP-57 (lz4 frame), KIP-110 (zstd); RFC 8878.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from quorumd.wire.errors import CorruptBatch, TooLargeBlock

CHUNK_BYTES_MAX = 64 * 1024
"""The most that one chunk holds. A block of zstd or snappy is unpacked whole: those of zstd have 128 KiB at
the most, those of snappy SNAPPY_BLOCK_BYTES_MAX."""
PIECE_BYTES = 16 * 1024
"""So much is given to gzip and lz4 at once: where it unpacks to nothing, that is little work."""
SNAPPY_BLOCK_BYTES_MAX = 64 * 1024 * 1024

_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(7)
_GZIP_HEADER_CRC, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 2, 4, 8, 16
_GZIP_NEXT_BYTES_MIN = 19
"""Fewer bytes behind a member are no further one to Java."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_DICTIONARY, _LZ4_CHECKSUM, _LZ4_SIZE, _LZ4_UNLINKED = 1, 4, 8, 32
_INT32 = Struct(">i")
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
(_XERIAL_HEAD,) = _INT32.unpack_from(_XERIAL_MAGIC)
_XERIAL_BLOCK_BYTES = 32 * 1024


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

            # Kafka's Java clients read no linked blocks.
            return bytes(
                lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False)
            )
        case CompressionType.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor().compress(data)


def unpack(codec: int, data: bytes | memoryview) -> Iterator[bytes]:
    """`data` of a log unpacked, in chunks. Raises CorruptBatch if it is not valid for the codec.

    Linked blocks of lz4 and what has no end in zstd are: earlier versions took them in.
    """
    return filter(None, _steps(codec, data, SNAPPY_BLOCK_BYTES_MAX, is_produced=False))


def unpack_in_steps(
    codec: int,
    data: bytes | memoryview,
    *,
    block_bytes_max: int = SNAPPY_BLOCK_BYTES_MAX,
) -> Iterator[bytes]:
    """`data` of a producer, unpacked. Each chunk is little work: those are empty for which some input
    unpacked to nothing.

    Raises CorruptBatch for what Kafka's Java clients do not unpack, and TooLargeBlock for a block of snappy
    that unpacks to more than `block_bytes_max`.
    """
    return _steps(codec, data, block_bytes_max, is_produced=True)


def _steps(
    codec: int, data: bytes | memoryview, block_bytes_max: int, *, is_produced: bool
) -> Iterator[bytes]:
    match codec:
        case CompressionType.NONE:
            chunks: Iterator[bytes] = iter((bytes(data),))
        case CompressionType.GZIP:
            chunks = _unpack_gzip(bytes(data))
        case CompressionType.SNAPPY:
            chunks = _unpack_snappy(bytes(data), block_bytes_max, is_produced=is_produced)
        case CompressionType.LZ4:
            chunks = _unpack_lz4(bytes(data), is_produced=is_produced)
        case CompressionType.ZSTD:
            chunks = _unpack_zstd(bytes(data), is_produced=is_produced)
        case _:
            raise CorruptBatch(f"there is no compression codec {codec}")
    return chunks


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


def _unpack_gzip(data: bytes) -> Iterator[bytes]:
    """Members that follow each other are one stream (RFC 1952, 2.2); what follows and is none is ignored."""
    at = _gzip_deflated_at(data, 0)
    if at < 0:
        raise CorruptBatch("gzip: there is no header")
    try:
        while at >= 0:
            stream = zlib.decompressobj(wbits=31)
            stream.decompress(_GZIP_HEADER)
            while not stream.eof:
                piece = data[at : at + PIECE_BYTES]
                chunk = stream.decompress(piece, CHUNK_BYTES_MAX)
                if not (piece or chunk or stream.eof):
                    raise CorruptBatch("the gzip stream is cut off")
                yield chunk
                at += len(piece) - len(stream.unconsumed_tail) - len(stream.unused_data)
            at = _gzip_deflated_at(data, at) if len(data) - at >= _GZIP_NEXT_BYTES_MIN else -1
    except zlib.error as error:
        raise CorruptBatch(f"gzip: {error}") from None


def _gzip_deflated_at(data: bytes, at: int) -> int:
    """Position of the deflated bytes of the member at `at`; -1 if its header is none.

    Reserved flags mean nothing, as to Java, whereas zlib knows no such header.
    """
    if data[at : at + 3] != _GZIP_HEADER[:3] or len(data) < at + len(_GZIP_HEADER):
        return -1
    flags = data[at + 3]
    end = at + len(_GZIP_HEADER)
    if flags & _GZIP_EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for text in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & text:
            end = data.find(b"\0", end) + 1
            if not end:
                return -1
    if flags & _GZIP_HEADER_CRC:
        crc = zlib.crc32(memoryview(data)[at:end]) & 0xFFFF
        if crc.to_bytes(2, "little") != data[end : end + 2]:
            return -1
        end += 2
    return end if end <= len(data) else -1


def _unpack_lz4(data: bytes, *, is_produced: bool) -> Iterator[bytes]:
    import lz4.frame

    if is_produced and data[:4] == _LZ4_MAGIC and len(data) > 4:
        if not data[4] & _LZ4_UNLINKED:
            raise CorruptBatch("lz4: its blocks are linked, and Kafka's clients do not read such")
        if data[4] & _LZ4_DICTIONARY:
            raise CorruptBatch("lz4: it names a dictionary, and Kafka's clients know none")
    try:
        data, checksum_bytes = _unverified_lz4(data)
        stream = lz4.frame.LZ4FrameDecompressor()
        left = len(data)
        for piece in _pieces(data):
            left -= len(piece)
            yield stream.decompress(piece, CHUNK_BYTES_MAX)
            while not (stream.eof or stream.needs_input):
                yield stream.decompress(b"", CHUNK_BYTES_MAX)
            if stream.eof:
                break
        while not stream.eof:
            if not (chunk := stream.decompress(b"", CHUNK_BYTES_MAX)):
                raise CorruptBatch("the lz4 frame is cut off")
            yield chunk
        if left + len(stream.unused_data or b"") < checksum_bytes:
            raise CorruptBatch("the lz4 frame is cut off")
    except RuntimeError as error:
        raise CorruptBatch(f"lz4: {error}") from None


def _unverified_lz4(data: bytes) -> tuple[bytes, int]:
    """The frame without size and checksum of its content, and the bytes of that checksum, which is behind it.

    Kafka's clients verify neither, and the library does. Clients in Java or with librdkafka send neither.
    """
    import lz4.frame

    flags = data[4] if len(data) > 4 and data.startswith(_LZ4_MAGIC) else 0
    if not flags & (_LZ4_SIZE | _LZ4_CHECKSUM):
        return data, 0
    info = lz4.frame.get_frame_info(data)
    header = lz4.frame.compress_begin(
        lz4.frame.create_compression_context(),
        block_size=info["block_size_id"],
        block_linked=info["block_linked"],
        block_checksum=info["block_checksum"],
    )
    at = len(header) + (8 if flags & _LZ4_SIZE else 0)
    return header + data[at:], 4 if flags & _LZ4_CHECKSUM else 0


def _unpack_zstd(data: bytes, *, is_produced: bool) -> Iterator[bytes]:
    import zstandard

    # The window may have 128 MiB, which is the library's own limit: Kafka's clients say so at level 22,
    # however little they send.
    stream = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    try:
        is_end = False
        for piece, is_last in _zstd_blocks(data):
            yield stream.decompress(piece)
            is_end = is_last
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    if is_produced and not is_end:
        raise CorruptBatch("the zstd frame is cut off")


def _zstd_blocks(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """`data`, cut behind each block, for the library has no limit for what one call unpacks.

    With each piece: whether it is the end of a frame. What is no zstd is cut anywhere.
    """
    at = 0
    while at < len(data):
        start = at
        if data[at + 1 : at + 4] == b"\x2a\x4d\x18":  # a frame to be skipped
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            yield data[start:at], at <= len(data)
            continue
        descriptor = data[at + 4] if at + 4 < len(data) else 0
        has_window = not descriptor & 0x20
        size_bytes = (0 if has_window else 1, 2, 4, 8)[descriptor >> 6]
        at += 5 + has_window + (0, 1, 2, 4)[descriptor & 3] + size_bytes
        is_last = False
        while not is_last and start < len(data):
            block = int.from_bytes(data[at : at + 3], "little")
            is_last = bool(block & 1)
            is_one_byte = block >> 1 & 3 == 1
            at += 3 + (1 if is_one_byte else block >> 3)
            if is_last and descriptor & 4:
                at += 4  # a checksum
            yield data[start:at], is_last and at <= len(data)
            start = at


def _pack_snappy(data: bytes) -> Iterator[bytes]:
    import snappy

    yield _XERIAL_HEADER
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[at : at + _XERIAL_BLOCK_BYTES])
        yield _INT32.pack(len(block))
        yield block


def _unpack_snappy(data: bytes, block_bytes_max: int, *, is_produced: bool) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield _unpack_snappy_block(data, block_bytes_max)
        return
    at = len(_XERIAL_HEADER)
    while len(data) - at >= _INT32.size:  # fewer bytes at the end are ignored
        (size,) = _INT32.unpack_from(data, at)
        if size == _XERIAL_HEAD:
            # Streams that follow each other are one stream.
            head = data[at : at + len(_XERIAL_HEADER)]
            if len(head) == len(_XERIAL_HEADER) and not head.startswith(_XERIAL_MAGIC):
                if is_produced:
                    raise CorruptBatch("what follows a snappy stream is none")
                return
            if len(head) < len(_XERIAL_HEADER) or _INT32.unpack_from(head, 8)[0] < 1:
                raise CorruptBatch("the header of a further snappy stream is malformed")
            at += len(head)
            yield b""
            continue
        at += _INT32.size
        if not 0 < size <= len(data) - at:
            raise CorruptBatch(f"a snappy block of {size} bytes where {len(data) - at} are left")
        yield _unpack_snappy_block(data[at : at + size], block_bytes_max)
        at += size


def _unpack_snappy_block(block: bytes, bytes_max: int) -> bytes:
    """One raw block; the unpacked size in front of it is checked before it is believed."""
    import snappy

    from quorumd.wire.varints import read_unsigned_varint

    try:
        size, _ = read_unsigned_varint(block, 0)
        if size > bytes_max:
            raise TooLargeBlock(f"a snappy block that unpacks to {size} bytes")
        return bytes(snappy.uncompress(block))
    except CorruptBatch:
        raise
    except (IndexError, ValueError, snappy.UncompressError) as error:
        raise CorruptBatch(f"snappy: {error}") from None
