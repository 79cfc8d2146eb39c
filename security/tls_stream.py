"""TLS between a socket's transport and a protocol: neither of them knows of it.

To the event loop it is a protocol, to the protocol above a transport, from the moment in which the socket is
connected: connections are counted, limited and closed during the handshake, too. What the protocol writes
before the handshake is done is kept until then. `uvloop` and `asyncio` have a TLS of their own, which closes
without the alert that says why, reports connections only after their handshake, cannot close one direction
alone and makes handshakes on the event loop: 200 at once stop it for a sixth of a second. Here a thread makes
them.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from enum import Enum
from typing import Any, Final, Protocol, cast

from quorumd.security.errors import (
    CertificateProblem,
    HandshakeBroken,
    HandshakeOutcome,
    PeerSpeaksPlaintext,
)
from quorumd.security.handshakes import HELD_BYTES_MAX, Handshakes
from quorumd.security.identity import Identity, TlsSide
from quorumd.security.tls_handshake import HELLO_BYTES_MAX, STOPPED, TlsHandshake
from quorumd.security.tls_protocols import Upper
from quorumd.security.tls_records import (
    ALERT,
    HANDSHAKE,
    PIECE_BYTES,
    UNEXPECTED_MESSAGE,
    BytesLike,
    pieces_of,
)
from quorumd.security.tls_session import TlsSession

HANDSHAKE_S: Final = 10.0
"""Time that a handshake may take, whatever it waits for."""
LINGER_S: Final = 1.0
_LOST: Final = "the connection ended during the TLS handshake"
_MUTE: Final = "closed the connection at once, without a TLS response: it may be plaintext there"
_TOO_MUCH: Final = "sent more than a TLS handshake takes before it was its turn"
_ASKED_PLAIN: Final = "sent plaintext on a listener that is TLS here"
_SAID_PLAIN: Final = "responded in plaintext: the listener there has no TLS"
_TOO_LONG: Final = f"the TLS handshake took longer than {HANDSHAKE_S:.0f} s"


class TlsWatcher(Protocol):
    """The observer of handshakes: counts them, and writes the log lines."""

    def on_secured(self, stream: TlsStream, identity: Identity) -> None:
        """The handshake is done. What raises CertificateProblem here ends the connection."""

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        """The handshake has failed, or a connection was ended by what came in its place."""


class _State(Enum):
    NEW = "new"
    SHAKING = "shaking"
    """The handshake is not done."""
    SECURED = "secured"
    ENDED = "ended"
    """Nothing more is passed on in either direction."""


# Access to a member of an enum costs as much as several calls.
_SHAKING: Final = _State.SHAKING
_SECURED: Final = _State.SECURED
_ENDED: Final = _State.ENDED
_NOBODY: Final = asyncio.Protocol()
"""Above a stream that is gone, so that it keeps nothing alive."""


class TlsStream:
    """See the module's docstring. One for each connection."""

    __slots__ = (
        "_above",
        "_handshake",
        "_handshakes",
        "_has_ended",
        "_has_responded",
        "_held_bytes",
        "_is_eof",
        "_is_full",
        "_is_lost",
        "_is_paused",
        "_is_queued",
        "_is_waiting",
        "_loop",
        "_problem",
        "_raw",
        "_session",
        "_side",
        "_state",
        "_timer",
        "_unsent",
        "_watcher",
        "has_spoken",
        "host",
        "identity",
    )

    def __init__(
        self,
        above: Upper,
        side: TlsSide,
        handshakes: Handshakes,
        watcher: TlsWatcher,
        host: str | None = None,
    ) -> None:
        """`host` is what was dialled, of a client's side."""
        self.host = host
        self.identity: Identity | None = None
        """The peer; None during the handshake."""
        self._above = above
        self._side = side
        self._handshakes = handshakes
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._handshake = TlsHandshake(side, host)
        self._session: TlsSession
        self._raw: asyncio.Transport
        self._state = _State.NEW
        self.has_spoken = False
        """Something has come."""
        self._has_responded = False
        """The first bytes of the handshake have left."""
        self._held_bytes = 0
        """Bytes that have come of a client's handshake; `Handshakes.held_bytes` has the sum."""
        self._unsent: list[bytes] = []
        """Bytes that the protocol has written before the handshake was done."""
        self._is_paused = self._is_waiting = self._is_queued = False
        """The protocol takes no data for now; there is data for it, and its turn will come."""
        self._is_full = False
        """Too much has come during a step to read on."""
        self._has_ended = self._is_eof = False
        """Nothing more comes, and the protocol knows."""
        self._is_lost = False
        """The connection is gone, and what came last is with a step."""
        self._problem: CertificateProblem | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Ends the handshake; later on, what is left of a connection that has failed."""

    @property
    def is_shaking(self) -> bool:
        """Something has come, and the handshake goes on."""
        return self.has_spoken and self._state is _SHAKING

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._raw = cast(asyncio.Transport, transport)
        self._state = _SHAKING
        self._timer = self._loop.call_later(HANDSHAKE_S, self._give_up)
        self._above.connection_made(cast(asyncio.BaseTransport, self))
        if self._state is _SHAKING and not self._side.is_server:
            self._begin_step()

    def data_received(self, data: bytes) -> None:
        if self._state is _SECURED:
            if self._is_paused or self._is_waiting:
                self._session.hold(data)
                self._is_waiting = True
            else:
                self._decrypt(data, self._handshakes.share)
        elif self._state is _SHAKING:
            self._shake(data)

    def eof_received(self) -> bool:
        if self._state is _SECURED:
            self._pass_eof()
            return True
        if self._state is _SHAKING:
            if self._handshake.is_stepping:
                # The other side may have been done before this one, and have had something to say.
                self._has_ended = True
                return True
            is_mute = not (self.has_spoken or self._side.is_server)
            self._fail(HandshakeBroken(_MUTE if is_mute else _LOST))
        return False

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is _SHAKING and self._has_responded and self._handshake.is_stepping:
            # A client that refuses the certificate closes with bytes unread, which is a reset: what came
            # before it may be the alert that says why.
            self._is_lost = True
            return
        if self._state is _SHAKING:
            self._problem = HandshakeBroken(_LOST)
            self._watcher.on_failed(self, self._problem)
        self._end()
        problem, self._problem = self._problem, None
        above, self._above = self._above, _NOBODY
        above.connection_lost(problem or exc)

    # -- the handshake

    def _shake(self, data: bytes) -> None:
        if not self.has_spoken:
            self.has_spoken = True
            if data[0] not in (HANDSHAKE, ALERT):
                text = _ASKED_PLAIN if self._side.is_server else _SAID_PLAIN
                self._fail(PeerSpeaksPlaintext(text))
                return
        self._handshake.received += data
        if self._side.is_server:
            self._held_bytes += len(data)
            self._handshakes.held_bytes += len(data)
            is_crowded = self._handshakes.held_bytes > HELD_BYTES_MAX
            if self._held_bytes > HELLO_BYTES_MAX and (is_crowded or not self._has_responded):
                self._fail(CertificateProblem(_TOO_MUCH))
                return
        if not self._handshake.is_stepping:
            self._begin_step()
        elif self._handshake.is_full and not self._is_full:
            self._is_full = True
            self._raw.pause_reading()

    def _begin_step(self) -> None:
        """Have a thread take the next step; one is under way at a time."""
        try:
            step = self._handshake.begin_step(_queue(self._side, self._handshakes, self._raw))
        except CertificateProblem as problem:
            self._fail(problem)
            return
        if step is not None:
            asyncio.wrap_future(step, loop=self._loop).add_done_callback(self._on_step)

    def _on_step(self, step: asyncio.Future[Identity | None]) -> None:
        self._handshake.end_step()
        self._take(step)
        if self._is_lost and not self._handshake.is_stepping:
            self._is_lost = False
            self.connection_lost(None)

    def _take(self, step: asyncio.Future[Identity | None]) -> None:
        error = None if step.cancelled() else step.exception()
        if self._state is not _SHAKING:
            return
        if self._is_full:
            self._is_full = False
            if not (self._is_paused or self._raw.is_closing()):
                self._raw.resume_reading()
        if step.cancelled():
            self._fail(HandshakeBroken(STOPPED))
        elif isinstance(error, CertificateProblem):
            self._refuse(error)
        elif isinstance(error, Exception):
            self._fail(self._explain(error))
        elif self._is_lost:
            self._begin_step()
        elif (identity := step.result()) is not None:
            self._secure(identity)
        else:
            self._has_responded |= self._handshake.outgoing.pending > 0
            self._send_encrypted()
            self._begin_step()
            if self._has_ended and self.is_shaking and not self._handshake.is_stepping:
                self._fail(HandshakeBroken(_LOST))

    def _secure(self, identity: Identity) -> None:
        handshake = self._handshake
        assert handshake.tls is not None
        self._session = TlsSession(handshake.tls, handshake.incoming, handshake.outgoing)
        self.identity = identity
        try:
            self._watcher.on_secured(self, identity)
        except CertificateProblem as problem:
            self._refuse(problem)
            return
        if self._state is not _SHAKING:
            return
        self._state = _SECURED
        self._release()
        self._send_encrypted()
        unsent, self._unsent = self._unsent, []
        self.writelines(unsent)
        self._session.hold(handshake.received)
        handshake.received.clear()
        self.data_received(b"")
        if self._state is _SECURED and self._has_ended:
            self._pass_eof()

    def _explain(self, error: Exception) -> CertificateProblem:
        return self._side.explain(error, self.host, self._handshake.tls)

    def _give_up(self) -> None:
        self._fail(HandshakeBroken(_TOO_LONG, HandshakeOutcome.TIMEOUT))

    def _refuse(self, problem: CertificateProblem) -> None:
        """End a connection whose handshake is done: there is no alert any more that could say why."""
        if self._handshake.tls is not None:
            with contextlib.suppress(ssl.SSLError):
                self._handshake.tls.unwrap()
        self._fail(problem)

    def _fail(self, problem: CertificateProblem) -> None:
        """End the connection; the other side gets the alert that says why."""
        is_new = self._state is _SHAKING
        self._end()
        # A traceback would keep the stream, which keeps the problem.
        self._problem = problem.with_traceback(None)
        if is_new:
            self._watcher.on_failed(self, problem)
        if self._raw.is_closing():
            return
        if isinstance(problem, PeerSpeaksPlaintext) and self._side.is_server:
            # A client that began in plaintext learns by it that TLS is spoken here.
            self._raw.write(UNEXPECTED_MESSAGE)
        elif not self._handshake.is_stepping:
            self._send_encrypted()
        # Closing with bytes unread would reset the connection, and destroy the alert on its way.
        with contextlib.suppress(OSError):
            self._raw.write_eof()
        self._raw.resume_reading()
        self._timer = self._loop.call_later(LINGER_S, self._raw.abort)

    def _release(self) -> None:
        """Nothing is held any more for its handshake, and no time bounds it."""
        self._handshakes.held_bytes -= self._held_bytes
        self._held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._state = _ENDED
        self._release()
        self._handshake.cancel()
        self._unsent.clear()

    # -- bytes in

    def _decrypt(self, data: bytes, until: Callable[[], int]) -> None:
        """Pass on what has come whole, as far as there is time."""
        session = self._session
        if plain := session.decrypt(data, until):
            self._above.data_received(plain)
        if session.is_told and self._state is _SECURED:
            self._send_encrypted()
            if session.error is not None:
                self._fail(self._explain(session.error))
            elif session.has_ended:
                self._pass_eof()
        if session.has_more and self._state is _SECURED:
            self._is_waiting = True
            if not self._is_paused:
                self._raw.pause_reading()
                self._go_on_later()

    def _go_on_later(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._handshakes.later(self, goes_first=not self._side.is_server)

    def go_on(self, until_ns: int) -> None:
        """Go on with what waits, until then: it is this connection's turn."""
        self._is_queued = False
        if self._is_waiting and self._state is _SECURED and not self._is_paused:
            self._is_waiting = False
            self._decrypt(b"", lambda: until_ns)
            if self._is_waiting or self._state is not _SECURED:
                return
            if not (self._is_paused or self._raw.is_closing()):
                self._raw.resume_reading()
            if self._has_ended:
                self._pass_eof()

    def _pass_eof(self) -> None:
        self._has_ended = True
        if self._is_paused or self._is_waiting:
            self._is_waiting = True
        elif not self._is_eof:
            self._is_eof = True
            if not self._above.eof_received():
                self.close()

    def _send_encrypted(self) -> None:
        if self._handshake.outgoing.pending:
            self._raw.write(self._handshake.outgoing.read())

    # -- called by the protocol above

    def write(self, data: BytesLike) -> None:
        """As a transport."""
        if self._state is not _SECURED or not 0 < len(data) <= PIECE_BYTES:
            self.writelines((data,))
            return
        try:
            self._raw.write(self._session.encrypt(data))
        except ssl.SSLError as error:
            self._fail(self._explain(error))

    def writelines(self, buffers: Iterable[BytesLike]) -> None:
        """As a transport; small ones share a TLS record."""
        if self._state is _SHAKING:
            self._unsent.append(b"".join(buffers))
        if self._state is not _SECURED:
            return
        try:
            for piece in pieces_of(buffers):
                self._raw.write(self._session.encrypt(piece))
        except ssl.SSLError as error:
            self._fail(self._explain(error))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Say that nothing more will be written; what still comes is thrown away.

        During the handshake it is given up, and what was written is lost.
        """
        if self._raw.is_closing():
            return
        if self._state is _SECURED:
            self._raw.write(self._session.end())
        if self._state is not _ENDED:
            self._end()
            with contextlib.suppress(OSError):
                self._raw.write_eof()

    def close(self) -> None:
        """Send what was written, say so, and close; as `write_eof` during the handshake."""
        self.write_eof()
        self._raw.close()

    def abort(self) -> None:
        """Close at once."""
        self._end()
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._problem is not None or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        if not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._is_waiting:
            self._go_on_later()
        elif not (self._is_full or self._raw.is_closing()):
            self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + sum(map(len, self._unsent))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the socket's transport; "tls" is this stream."""
        return self if name == "tls" else self._raw.get_extra_info(name, default)

    def get_protocol(self) -> Upper:
        return self._above

    def set_protocol(self, protocol: Upper) -> None:
        self._above = protocol


def _queue(side: TlsSide, handshakes: Handshakes, raw: asyncio.Transport) -> Executor:
    """Thread of the handshake on this transport."""
    if not side.is_server:
        return handshakes.dialled
    ends = (raw.get_extra_info(key) for key in ("peername", "sockname"))
    peer_ip, own_ip = (str(end[0]) if end else "" for end in ends)
    return handshakes.accepted(peer_ip, is_local=peer_ip == own_ip)


def secured(
    above: Callable[[], Upper],
    side: TlsSide,
    handshakes: Handshakes,
    watcher: TlsWatcher,
    host: str | None = None,
) -> Callable[[], TlsStream]:
    """A factory of protocols with TLS below them, for `create_server` and `create_connection`."""
    return lambda: TlsStream(above(), side, handshakes, watcher, host)
