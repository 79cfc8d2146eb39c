"""Reading and writing Kafka's variable-length primitives on a byte stream, bounded.

Both kinds of parser, compiled and plain, call these. A count is compared with the bytes left before
anything is allocated, and all arrays and tags of one message share a budget of elements, so that a
frame of many megabytes can't keep the reader busy for long. Readers raise MalformedMessage.
Tolerances of Kafka's Java reader are kept: any negative length is null, bytes that are no UTF-8 are
replaced, varints may be longer than needed.
Source: KIP-482; Apache Kafka 4.3, ByteBufferAccessor and the generated readers.
"""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import Final, TypeVar
from uuid import UUID

from quorumd.wire.errors import LimitExceeded, MalformedMessage, UnsupportedVersion
from quorumd.wire.request_limits import RESPONSE_ELEMENTS_MAX
from quorumd.wire.varints import encode_unsigned_varint

STRING_BYTES_MAX: Final = 32767
_INT32_SIGN: Final = 1 << 31
_TWO_32: Final = 1 << 32

T = TypeVar("T")


class Source(BytesIO):
    """A message being read: the stream, its size, and what is left of its budget of elements."""

    __slots__ = ("elements_left", "elements_max", "size")

    def __init__(
        self, data: bytes | bytearray | memoryview, elements_max: int = RESPONSE_ELEMENTS_MAX
    ) -> None:
        super().__init__(data)
        self.size = len(data)
        self.elements_left = self.elements_max = elements_max


def check_count(io: Source, count: int, element_bytes_min: int) -> None:
    """Refuse `count` elements that can't be in the bytes left or that exceed the budget."""
    if count * element_bytes_min > io.size - io.tell():
        raise MalformedMessage(f"{count} elements in the {io.size - io.tell()} bytes left")
    io.elements_left -= count
    if io.elements_left < 0:
        raise LimitExceeded(f"more than {io.elements_max} elements in one message")


@lru_cache(maxsize=1024)
def uuid_of(raw: bytes) -> UUID:
    """The uuid of 16 bytes. Those of few replicas come again and again, and one object is equal to itself
    at once. Raises ValueError if they are fewer."""
    return UUID(bytes=raw)


def read_unsigned_varint(io: Source) -> int:
    """An unsigned 32-bit varint of at most 5 bytes; bits above 32 are dropped."""
    byte = io.read(1)
    if not byte:
        raise MalformedMessage("the message ends inside a varint")
    value = byte[0]
    if value < 128:
        return value
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = io.read(1)
        if not byte:
            raise MalformedMessage("the message ends inside a varint")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 128:
            return value & 0xFFFFFFFF
    raise MalformedMessage("a varint of more than 5 bytes")


def read_compact_length(io: Source) -> int:
    """A length or count in flexible form; negative means null."""
    length = read_unsigned_varint(io) - 1
    return length if length < _INT32_SIGN else length - _TWO_32


def read_int16_length(io: Source) -> int:
    """The length of an old string; negative means null."""
    return int.from_bytes(_exactly(io, 2), "big", signed=True)


def read_int32_length(io: Source) -> int:
    """The length of old bytes, or the count of an old array; negative means null."""
    return int.from_bytes(_exactly(io, 4), "big", signed=True)


def read_string(io: Source) -> str | None:
    """A string in the old form."""
    return _text(io, read_int16_length(io))


def read_compact_string(io: Source) -> str | None:
    """A string in the flexible form."""
    return _text(io, read_compact_length(io))


def read_bytes(io: Source) -> bytes | None:
    """Bytes or records in the old form."""
    length = read_int32_length(io)
    return None if length < 0 else _exactly(io, length)


def read_compact_bytes(io: Source) -> bytes | None:
    """Bytes or records in the flexible form."""
    length = read_compact_length(io)
    return None if length < 0 else _exactly(io, length)


def not_null(value: T | None) -> T:
    """`value`, unless it is a null where the field must not be null."""
    if value is None:
        raise MalformedMessage("a null where none is allowed")
    return value


def read_tag_count(io: Source) -> int:
    """Number of tags that follow."""
    count = read_unsigned_varint(io)
    if count == 0 or count >= _INT32_SIGN:
        return 0
    check_count(io, count, 2)
    return count


def read_tag(io: Source) -> tuple[int, int]:
    """A tag's number, and the position where its data ends."""
    tag = read_unsigned_varint(io)
    size = read_unsigned_varint(io)
    end = io.tell() + size
    if end > io.size:
        raise MalformedMessage(f"a tag of {size} bytes in the {io.size - io.tell()} bytes left")
    return tag, end


def end_tag(io: Source, end: int) -> None:
    """Check that a known tag took exactly the bytes that it announced."""
    if io.tell() != end:
        raise MalformedMessage("the size of a tag is not that of its data")


def skip_tags(io: Source) -> None:
    """Read over a tag section of which no tag is known."""
    for _ in range(read_tag_count(io)):
        _, end = read_tag(io)
        io.seek(end)


def write_string(value: str, io: BytesIO) -> None:
    """A string in the old form."""
    raw = _utf8(value)
    io.write(len(raw).to_bytes(2, "big") + raw)


def write_compact_string(value: str, io: BytesIO) -> None:
    """A string in the flexible form."""
    raw = _utf8(value)
    io.write(encode_unsigned_varint(len(raw) + 1) + raw)


def write_nullable_string(value: str | None, io: BytesIO) -> None:
    """A string or null in the old form."""
    if value is None:
        io.write(b"\xff\xff")
    else:
        write_string(value, io)


def write_compact_nullable_string(value: str | None, io: BytesIO) -> None:
    """A string or null in the flexible form."""
    if value is None:
        io.write(b"\0")
    else:
        write_compact_string(value, io)


def write_length(length: int, io: BytesIO) -> None:
    """The length of old bytes or the count of an old array, -1 for null."""
    io.write(length.to_bytes(4, "big", signed=True))


def write_compact_length(length: int, io: BytesIO) -> None:
    """A length or count in flexible form, -1 for null."""
    io.write(encode_unsigned_varint(length + 1))


def write_bytes(value: bytes | memoryview | None, io: BytesIO) -> None:
    """Bytes, records or null in the old form."""
    if value is None:
        write_length(-1, io)
    else:
        write_length(len(value), io)
        io.write(value)


def write_compact_bytes(value: bytes | memoryview | None, io: BytesIO) -> None:
    """Bytes, records or null in the flexible form."""
    if value is None:
        io.write(b"\0")
    else:
        write_compact_length(len(value), io)
        io.write(value)


def require(value: T | None) -> T:
    """`value`, unless it is a null that the version being written has no form for."""
    if value is None:
        raise UnsupportedVersion("null can't be written here in this version")
    return value


def _exactly(io: Source, size: int) -> bytes:
    data = io.read(size)
    if len(data) != size:
        raise MalformedMessage(f"{size} bytes wanted where {len(data)} are left")
    return data


def _text(io: Source, length: int) -> str | None:
    if length < 0:
        return None
    if length > STRING_BYTES_MAX:
        raise MalformedMessage(f"a string of {length} bytes")
    return _exactly(io, length).decode(errors="replace")


def _utf8(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise MalformedMessage(f"a string of {len(raw)} bytes, {STRING_BYTES_MAX} are allowed")
    return raw
