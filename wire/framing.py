"""A stream of bytes cut into frames: each is an int32 length and that many bytes.

Knows nothing of what a frame holds. Many small frames in one piece cost one slice each; a large
frame that arrives in many pieces is joined once, when it is whole. Nothing is allocated on the word
of a length: what is held is what was fed.
Source: Apache Kafka protocol guide, "Network".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from quorumd.wire.errors import MalformedMessage

_LENGTH: Final = Struct(">i")
_LENGTH_BYTES: Final = 4
_KEY: Final = Struct(">ih")
_LARGE_FRAME_BYTES: Final = 256 * 1024
"""Smaller frames are not parsed before they are whole."""
_CHUNKS_MAX: Final = 1024
FRAMES_MAX: Final = 256
"""Cut at once: as objects, frames of two bytes hold nine times as much as in one piece."""
HEAD_BYTES: Final = 4096
"""Bytes that are kept of a frame that is thrown away."""


class FrameBuffer:
    """Bytes go in by `feed`, whole frames come out of `frames`.

    `max_frame_bytes` bounds a frame without its length, and `limit_of` one that is not whole yet, by the
    number that it begins with, a request's api key. What is beyond it is an error, or its first HEAD_BYTES
    come out once all of it was fed: those of the api keys `cut`. After an error the buffer is of no use.
    """

    __slots__ = (
        "_bytes_held",
        "_bytes_left",
        "_bytes_wanted",
        "_chunks",
        "_cut",
        "_head",
        "_limit_of",
        "_max_frame_bytes",
    )

    def __init__(
        self,
        max_frame_bytes: int,
        limit_of: Callable[[int], int] | None = None,
        cut: frozenset[int] = frozenset(),
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._limit_of = limit_of
        self._cut = cut
        self._head = b""
        """Of the frame that is being thrown away; `_bytes_left` of it are still to come."""
        self._bytes_left = 0
        self._chunks: list[bytes] = []
        self._bytes_held = 0
        self._bytes_wanted = _LENGTH_BYTES

    @property
    def bytes_held(self) -> int:
        """Bytes fed that no frame has been made of yet, without those that were thrown away."""
        return self._bytes_held + len(self._head)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the stream; a buffer that the caller will reuse is copied."""
        if self._bytes_left:
            left = self._bytes_left
            self._bytes_left = max(0, left - len(data))
            data = data[left:]
            if not data:
                return
        self._chunks.append(data if type(data) is bytes else bytes(data))
        self._bytes_held += len(data)
        if len(self._chunks) > _CHUNKS_MAX and len(self._chunks) > self._bytes_held // 64:
            # A peer that sends single bytes must not cost an object for each of them.
            self._chunks = [b"".join(self._chunks)]

    def clear(self) -> None:
        """Drop what is held; nothing is fed any more."""
        self._chunks.clear()
        self._head = b""
        self._bytes_held = 0

    def frames(self) -> list[bytes]:
        """The frames that are whole by now, without their lengths, FRAMES_MAX of them at the most.

        Raises MalformedMessage for a length that is not 1 to `max_frame_bytes` or is beyond `limit_of`.
        Whole frames before it are returned first and the next call raises, so a caller goes on until
        nothing comes.
        """
        if self._head:
            if self._bytes_left:
                return []
            head, self._head = self._head, b""
            return [head]
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
                if self._head:
                    at = end
                break
            found.append(data[at + _LENGTH_BYTES : frame_end])
            at = frame_end
            if len(found) == FRAMES_MAX:
                break
        self._chunks = [data[at:]] if at < end else []
        self._bytes_held = end - at
        self._bytes_wanted = wanted
        return found

    def _wanted(self, data: bytes, at: int, length: int) -> int:
        """Number of bytes that are needed to go on with an unfinished frame. Raises MalformedMessage."""
        if self._limit_of is None or length <= _LARGE_FRAME_BYTES:
            return _LENGTH_BYTES + length
        if len(data) - at < _KEY.size:
            return _KEY.size
        (_, key) = _KEY.unpack_from(data, at)
        limit = self._limit_of(key)
        if length <= limit:
            return _LENGTH_BYTES + length
        if key not in self._cut:
            raise MalformedMessage(
                f"a request of {length} bytes with the api key {key}; {limit} are allowed"
            )
        begins = at + _LENGTH_BYTES
        fed = len(data) - begins
        if fed < HEAD_BYTES:
            return _LENGTH_BYTES + HEAD_BYTES
        self._head = data[begins : begins + HEAD_BYTES]
        self._bytes_left = length - fed
        return _LENGTH_BYTES
