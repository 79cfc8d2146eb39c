"""Variable-length integers, bounded: 5 bytes for 32 bits, 10 for 64.

Readers take a buffer and a position and return the value and the position behind it. They raise
IndexError at the end of the buffer and ValueError for a varint that goes on for too long; their
callers turn both into an error that names the place. As in Kafka's reader, bits beyond the width
are dropped and a varint longer than it needs to be is accepted.
Source: Protocol Buffers encoding; KIP-482 (unsigned form), KIP-98 (zig-zag form in records).
"""

from __future__ import annotations

from typing import Final

_LAST: Final = [bytes((value,)) for value in range(128)]
_MORE: Final = [bytes((value | 0x80,)) for value in range(128)]
"""By its seven bits: the last byte of a varint, and one with others behind it."""


def encode_unsigned_varint(value: int) -> bytes:
    """`value` (0 or more) as an unsigned varint."""
    if value < 128:
        return _LAST[value]
    return _MORE[value & 0x7F] + encode_unsigned_varint(value >> 7)


def encode_varint(value: int) -> bytes:
    """`value` in zig-zag form; the same for 32 and 64 bits."""
    return encode_unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_unsigned_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """An unsigned 32-bit varint at `at`: the value, and the position behind it."""
    value = data[at]
    if value < 128:
        return value, at + 1
    return read_rest(data, at + 1, value)


def read_rest(data: bytes | bytearray | memoryview, at: int, first: int) -> tuple[int, int]:
    """The rest of a 32-bit varint whose first byte, already read, asks for more."""
    byte = data[at]
    at += 1
    value = first & 0x7F | (byte & 0x7F) << 7
    if byte < 128:
        return value, at
    for shift in (14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value & 0xFFFFFFFF, at
    raise ValueError("a varint of more than 5 bytes")


def read_rest_long(data: bytes | bytearray | memoryview, at: int, first: int) -> tuple[int, int]:
    """The rest of a 64-bit varint whose first byte, already read, asks for more."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28, 35, 42, 49, 56, 63):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a varlong of more than 10 bytes")


def read_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """A zig-zag 32-bit varint at `at`: the value, and the position behind it."""
    value = data[at]
    at += 1
    if value > 127:
        value, at = read_rest(data, at, value)
    return (value >> 1) ^ -(value & 1), at


def read_varlong(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """A zig-zag 64-bit varint at `at`: the value, and the position behind it."""
    value = data[at]
    at += 1
    if value > 127:
        value, at = read_rest_long(data, at, value)
    return (value >> 1) ^ -(value & 1), at
