"""Requests of a connection that wait for their turn, and bytes that hold more of them."""

from __future__ import annotations

from collections import deque

from quorumd.server.net.sockets import explained
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.request_limits import CUT_KEYS, frame_bytes_max


class Incoming:
    """Cuts a few requests at a time: a thousand small ones hold far more as objects than in one piece."""

    __slots__ = ("_buffer", "backlog", "error")

    def __init__(self, max_frame_bytes: int) -> None:
        self._buffer = FrameBuffer(max_frame_bytes, frame_bytes_max, CUT_KEYS)
        self.backlog: deque[bytes] = deque()
        """Empty only if no whole request has arrived."""
        self.error: MalformedMessage | None = None
        """The fault of the bytes behind the backlog."""

    @property
    def uncut_bytes(self) -> int:
        """Held beside the backlog: of a request that is not whole, or of whole ones."""
        return self._buffer.bytes_held

    def feed(self, data: bytes, *, is_tls: bool) -> list[bytes]:
        """Add the next bytes. Returns what is sent to a peer that speaks something else."""
        self._buffer.feed(data)
        hint: list[bytes] = []
        if not self.backlog:
            self.refill()
            if self.error is not None:
                self.error, hint = explained(self.error, data, is_tls=is_tls)
        return hint

    def refill(self) -> None:
        """The backlog is empty: cut the next requests for it."""
        try:
            self.backlog.extend(self._buffer.frames())
        except MalformedMessage as error:
            self.error = error

    def clear(self) -> None:
        """Drop everything; nothing is fed any more."""
        self.backlog.clear()
        self._buffer.clear()
