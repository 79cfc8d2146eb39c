"""The bytes of one connection whose TLS handshake is done: OpenSSL between those of the wire and the others.

What one request costs is in `decrypt` and `encrypt`: two calls of OpenSSL, and two of its buffers. Belongs to
the event loop's thread.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from quorumd.security.tls_records import PIECE_BYTES, RECORD_BYTES, BytesLike

_EMPTY: Final = b""


class TlsSession:
    """See the module's docstring."""

    __slots__ = ("_incoming", "_outgoing", "_read", "_tls", "error", "has_ended", "is_told")

    def __init__(
        self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self._tls = tls
        self._read = tls.read
        self._incoming = incoming
        self._outgoing = outgoing
        self.has_ended = False
        """The other side has said that nothing more comes."""
        self.error: ssl.SSLError | None = None
        """The fault of the bytes that have come."""
        self.is_told = False
        """A read has left something to send, or found the end or an error."""

    def hold(self, data: bytes) -> None:
        """Keep what has come for the next `decrypt`."""
        self._incoming.write(data)

    def decrypt(self, data: bytes) -> bytes:
        """All that has come whole, with these bytes of the wire. See `is_told` afterwards."""
        size = len(data)
        if not 0 < size <= RECORD_BYTES:
            return self._decrypt_pieces(data)
        self._incoming.write(data)
        try:
            # Python takes memory for as much as it is asked to read.
            plain = self._read(size)
        except ssl.SSLError as error:
            self._stop(error)
            return _EMPTY
        if 0 < len(plain) < size and not self._incoming.pending:
            # One record, as nearly all of them come.
            self.is_told = self._outgoing.pending > 0
            return plain
        pieces = [plain]
        if plain:
            self._read_all(pieces)
        else:
            self._stop(None)
        return _EMPTY.join(pieces)

    def _decrypt_pieces(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        view = memoryview(data)
        for at in range(0, len(data) or 1, PIECE_BYTES):
            self._incoming.write(view[at : at + PIECE_BYTES])
            self._read_all(pieces)
        return pieces[0] if len(pieces) == 1 else _EMPTY.join(pieces)

    def _read_all(self, pieces: list[bytes]) -> None:
        if self.has_ended or self.error is not None:
            self._incoming.read()  # what comes behind the end
            return
        read, incoming = self._read, self._incoming
        try:
            while plain := read(RECORD_BYTES):
                pieces.append(plain)
                if not incoming.pending:
                    self.is_told = self._outgoing.pending > 0
                    return
        except ssl.SSLError as error:
            self._stop(error)
        else:
            self._stop(None)

    def _stop(self, error: ssl.SSLError | None) -> None:
        """A read has given nothing."""
        if isinstance(error, ssl.SSLWantReadError):
            self.is_told = self._outgoing.pending > 0
            return
        self.is_told = True
        if error is None or isinstance(error, ssl.SSLZeroReturnError):
            self.has_ended = True
            self._incoming.read()
        else:
            self.error = error

    def encrypt(self, data: BytesLike) -> bytes:
        """Encrypted bytes to send for `data`, which has at most PIECE_BYTES. Raises ssl.SSLError."""
        sent = self._tls.write(data)
        while sent < len(data):
            sent += self._tls.write(memoryview(data)[sent:])
        return self._outgoing.read()

    def end(self) -> bytes:
        """Bytes not sent yet, and the closing alert, which says that no more follow."""
        # It writes the closing alert, and complains of what it has not read.
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()
