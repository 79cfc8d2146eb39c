"""A stream of bytes cut into frames: each is an int32 length and that many bytes.

Knows nothing of what a frame holds. Many small frames in one piece cost one slice each; a large
frame that arrives in many pieces is joined once, when it is whole. Nothing is allocated on the word
of a length: what is held is what was fed.
Source: Apache Kafka protocol guide, "Network".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from quorumd.wire.errors import MalformedMessage

_LENGTH = Struct(">i")
_LENGTH_BYTES = 4
_KEY = Struct(">ih")
_FROM_BYTES = 256 * 1024
"""Frames below are not looked into before they are whole."""
_CHUNKS_MAX = 1024


class FrameBuffer:
    """Bytes go in by `feed`, whole frames come out of `frames`.

    `max_frame_bytes` bounds a frame without its length, and `limit_of` one that is not whole yet, by the
    number that it begins with, a request's api key. After an error the buffer is of no use.
    """

    __slots__ = ("_bytes_held", "_bytes_wanted", "_chunks", "_limit_of", "_max_frame_bytes")

    def __init__(self, max_frame_bytes: int, limit_of: Callable[[int], int] | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._limit_of = limit_of
        self._chunks: list[bytes] = []
        self._bytes_held = 0
        self._bytes_wanted = _LENGTH_BYTES

    @property
    def bytes_held(self) -> int:
        """Bytes fed that no frame has been made of yet."""
        return self._bytes_held

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the stream; a buffer that the caller will reuse is copied."""
        self._chunks.append(data if type(data) is bytes else bytes(data))
        self._bytes_held += len(data)
        if len(self._chunks) > _CHUNKS_MAX and len(self._chunks) > self._bytes_held // 64:
            # A peer that sends single bytes must not cost an object for each of them.
            self._chunks = [b"".join(self._chunks)]

    def frames(self) -> list[bytes]:
        """The frames that are whole by now, without their lengths.

        Raises MalformedMessage for a length that is not 1 to `max_frame_bytes` or is beyond `limit_of`.
        Whole frames before it are returned first and the next call raises, so a caller goes on until
        nothing comes.
        """
        if self._bytes_held < self._bytes_wanted:
            return []
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        found: list[bytes] = []
        at = 0
        end = len(data)
        wanted = _LENGTH_BYTES
        while end - at >= _LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 < length <= self._max_frame_bytes:
                if not found:
                    raise MalformedMessage(
                        f"a frame of {length} bytes; 1 to {self._max_frame_bytes} are allowed"
                    )
                break
            frame_end = at + _LENGTH_BYTES + length
            if frame_end > end:
                wanted = self._wanted(data, at, length) if not found else _LENGTH_BYTES
                break
            found.append(data[at + _LENGTH_BYTES : frame_end])
            at = frame_end
        self._chunks = [data[at:]] if at < end else []
        self._bytes_held = end - at
        self._bytes_wanted = wanted
        return found

    def _wanted(self, data: bytes, at: int, length: int) -> int:
        """How many bytes are needed to go on with an unfinished frame. Raises MalformedMessage."""
        if self._limit_of is None or length <= _FROM_BYTES:
            return _LENGTH_BYTES + length
        if len(data) - at < _KEY.size:
            return _KEY.size
        (_, key) = _KEY.unpack_from(data, at)
        limit = self._limit_of(key)
        if length > limit:
            raise MalformedMessage(
                f"a request of {length} bytes with the api key {key}; {limit} are allowed"
            )
        return _LENGTH_BYTES + length
