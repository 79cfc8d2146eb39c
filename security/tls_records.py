"""TLS records as far as bytes are cut by them: on their way in during a handshake, and on their way out.

Source: RFC 8446, 5.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

RECORD_BYTES: Final = 16 << 10
"""The most that one holds."""
PIECE_BYTES: Final = 32 << 10
"""Bytes that are handed to OpenSSL at once: its buffers keep the size that they had to have."""
ALERT: Final = 0x15
HANDSHAKE: Final = 0x16
UNEXPECTED_MESSAGE: Final = bytes((ALERT, 3, 3, 0, 2, 2, 10))
"""The alert, as a record that is not encrypted."""
TLS_ALERT: Final = bytes((ALERT, 3))
"""First bytes of an alert: a speaker of TLS may send one in response to plaintext."""
_HEADER_BYTES: Final = 5
_BODY_BYTES_MAX: Final = RECORD_BYTES + 2048

BytesLike = bytes | bytearray | memoryview


def whole_records(data: bytes | bytearray, count_max: int = -1, start: int = 0) -> int:
    """End of the whole TLS records that begin at `start`; that of `data`, if they are no records.

    With `count_max`: of so many records, and of no more than PIECE_BYTES if they are several.
    """
    end = start
    while len(data) >= end + _HEADER_BYTES and count_max:
        size = int.from_bytes(data[end + 3 : end + _HEADER_BYTES], "big")
        if size > _BODY_BYTES_MAX:
            return len(data)
        if len(data) < end + _HEADER_BYTES + size:
            break
        if end > start and count_max > 0 and end + _HEADER_BYTES + size - start > PIECE_BYTES:
            break
        end += _HEADER_BYTES + size
        count_max -= 1
    return end


def is_one_record(data: bytes) -> bool:
    """True for one record and nothing else, as nearly all of them come."""
    size = len(data) - _HEADER_BYTES
    return 0 < size <= _BODY_BYTES_MAX and int.from_bytes(data[3:_HEADER_BYTES], "big") == size


def pieces_of(buffers: Iterable[BytesLike]) -> Iterator[BytesLike]:
    """The same bytes in pieces of at most PIECE_BYTES: small buffers are joined, large ones cut."""
    small: list[BytesLike] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > RECORD_BYTES and small:
            yield b"".join(small)
            small, size = [], 0
        if len(buffer) <= RECORD_BYTES:
            small.append(buffer)
            size += len(buffer)
        else:
            view = memoryview(buffer)
            yield from (view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))
    if size:
        yield b"".join(small)
