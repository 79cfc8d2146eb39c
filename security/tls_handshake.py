"""The handshake of one connection: a thread takes its steps while the event loop goes on.

Belongs to the event loop's thread, but for `_step`: from `begin_step` until its future is done nothing else
touches what OpenSSL works on.
"""

from __future__ import annotations

import ssl
from concurrent.futures import Executor, Future
from typing import Final

from quorumd.security.errors import CertificateProblem, HandshakeBroken
from quorumd.security.identity import Identity, TlsSide
from quorumd.security.tls_records import whole_records

HANDSHAKE_BYTES_MAX: Final = 128 << 10
"""Bytes that may come before the last step: longer chains than OpenSSL takes."""
STEPS_MAX: Final = 64
"""Two or three are needed, and as many more as records come one by one."""
HELD_BYTES_MAX: Final = 256 << 10
"""Bytes that are held during a step: the other side may be done, and send what it has to say."""
HELLO_BYTES_MAX: Final = 18 << 10
"""Bytes that a client sends before a server's first flight, which it has to wait for: one record."""
STOPPED: Final = "this process stops"


class TlsHandshake:
    """See the module's docstring."""

    __slots__ = (
        "_early_bytes",
        "_future",
        "_host",
        "_side",
        "_steps",
        "incoming",
        "outgoing",
        "received",
        "tls",
    )

    def __init__(self, side: TlsSide, host: str | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None
        self.received = bytearray()
        """Bytes that have come and were handed to no step."""
        self._side = side
        self._host = host
        self._steps = self._early_bytes = 0
        self._future: Future[Identity | None] | None = None

    @property
    def is_stepping(self) -> bool:
        """A thread works on it, or will."""
        return self._future is not None

    @property
    def is_full(self) -> bool:
        """So much has come during a step that no more should be read."""
        return len(self.received) > HELD_BYTES_MAX

    def begin_step(self, queue: Executor) -> Future[Identity | None] | None:
        """Hand the whole records that have come to a thread: bytes that come one by one cost it nothing.

        None if there are none. The future gives who is there as soon as the handshake is done. Call
        `end_step` when it is done. Raises CertificateProblem if this is no handshake any more.
        """
        size = whole_records(self.received)
        if not size and (self._steps or self._side.is_server):
            return None
        if self._steps >= STEPS_MAX or self._early_bytes > HANDSHAKE_BYTES_MAX:
            raise CertificateProblem("sent more than a TLS handshake takes")
        data = bytes(self.received[:size])
        del self.received[:size]
        self._steps += 1
        self._early_bytes += size
        try:
            self._future = queue.submit(self._step, data)
        except RuntimeError:
            raise HandshakeBroken(STOPPED) from None
        return self._future

    def end_step(self) -> None:
        self._future = None

    def cancel(self) -> None:
        """Forget what has come, and the step that is not begun."""
        self.received.clear()
        if self._future is not None:
            self._future.cancel()

    def _step(self, data: bytes) -> Identity | None:
        """On a thread. Raises ssl.SSLError, CertificateProblem."""
        self.incoming.write(data)
        if self.tls is None:
            self.tls = self._side.tls_object(self.incoming, self.outgoing, self._host)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        return self._side.identify(self.tls.getpeercert(True))
