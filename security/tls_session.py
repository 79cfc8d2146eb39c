"""The bytes of one connection whose TLS handshake is done: OpenSSL between those of the wire and the others.

What one request costs is in `decrypt` and `encrypt`: two calls of OpenSSL, and two of its buffers. Belongs to
the event loop's thread.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from quorumd.security.tls_records import (
    RECORD_BYTES,
    BytesLike,
    is_one_record,
    whole_records,
)

RECORDS_AT_ONCE: Final = 16
"""So many are decrypted before the time is looked at."""
FOR_EVER: Final = 1 << 62
_EMPTY: Final = b""


def _for_ever() -> int:
    return FOR_EVER


class TlsSession:
    """See the module's docstring."""

    __slots__ = (
        "_held",
        "_incoming",
        "_outgoing",
        "_read",
        "_tls",
        "error",
        "has_ended",
        "has_more",
        "is_told",
    )

    def __init__(
        self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self._tls = tls
        self._read = tls.read
        self._incoming = incoming
        self._outgoing = outgoing
        self._held = bytearray(incoming.read())
        """Bytes of the wire that OpenSSL has not been given: at first, what the handshake left."""
        self.has_ended = False
        """The other side has said that nothing more comes."""
        self.error: ssl.SSLError | None = None
        """The fault of the bytes that have come."""
        self.is_told = False
        """A read has left something to send, or found the end or an error."""
        self.has_more = False
        """Whole records are left, for which `decrypt` had no time."""

    def hold(self, data: BytesLike) -> None:
        """Keep what has come for the next `decrypt`."""
        self._held += data

    def decrypt(self, data: bytes, until: Callable[[], int] = _for_ever) -> bytes:
        """All that has come whole, with these bytes of the wire. See `is_told` afterwards.

        Of more than one record, as many as there is time for until then (`time.monotonic_ns`).
        """
        if self._held or not is_one_record(data):
            return self._decrypt_several(data, until())
        size = len(data)
        self._incoming.write(data)
        try:
            # Python takes memory for as much as it is asked to read.
            plain = self._read(size)
        except ssl.SSLError as error:
            self._stop(error)
            return _EMPTY
        if 0 < len(plain) < size and not self._incoming.pending:
            self.is_told = self._outgoing.pending > 0
            return plain
        pieces = [plain]
        if plain:
            self._read_all(pieces)
        else:
            self._stop(None)
        return _EMPTY.join(pieces)

    def _decrypt_several(self, data: bytes, until_ns: int) -> bytes:
        """One that changes keys costs as much as 100 KiB of data, and one read takes all of those."""
        self.is_told = False
        pieces: list[bytes] = []
        held = self._held
        is_behind = len(held) > 0
        if is_behind:
            held += data
        source: bytes | bytearray = held if is_behind else data
        at = 0
        with memoryview(source) as view:
            while monotonic_ns() < until_ns:
                end = whole_records(source, RECORDS_AT_ONCE, at)
                if end == at:
                    break
                self._incoming.write(view[at:end])
                self._read_all(pieces)
                at = end if self.error is None and not self.has_ended else len(source)
            if not is_behind:
                held += view[at:]
        if is_behind:
            del held[:at]
        self.has_more = whole_records(held, 1) > 0
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
