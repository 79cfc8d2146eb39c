"""Requests on one connection to a peer, in sequence; its responses come in the same order.

Each request is sent in the highest version that both sides know. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from quorumd.raft.types import Address
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import PeerCall, StaleRequest
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import decode_response_header
from quorumd.wire.registry import APIS

_NO_VERSION: Final = (0, -1)


class CallSequence:
    """See the module's docstring. One for a channel, which gives it one connection after the other."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        correlation_id: int,
        on_overdue: Callable[[str], None],
    ) -> None:
        """`name` is the peer's, in messages; `correlation_id` the last that was used.

        `on_overdue` is called with the reason when a response is: it has to end the connection, since a late
        response would be taken for another request's.
        """
        self._name = name
        self._loop = loop
        self._metrics = metrics
        self._correlation_id = correlation_id
        self._on_overdue = on_overdue
        self._transport: asyncio.Transport | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._pending: deque[PeerCall] = deque()
        """Those that have no response yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.has_responded = False
        """The peer has responded on this connection."""

    @property
    def is_waiting(self) -> bool:
        """A request has no response yet."""
        return len(self._pending) > 0

    def begin(self, transport: asyncio.Transport, versions: Mapping[int, tuple[int, int]]) -> None:
        """Use a new connection; `versions` are the lowest and highest that are served there, by API."""
        self._transport = transport
        self._versions = dict(versions)
        self.has_responded = False

    def send(self, call: PeerCall) -> None:
        """Send a request; what makes that impossible, it hears in the event loop's next turn."""
        lowest, highest = self._versions.get(call.api_key, _NO_VERSION)
        version = call.max_version
        if version > highest:
            version = highest
        if version < lowest:
            # No reason to campaign without pre-votes: it does not know votes at all.
            text = f"{self._name} does not serve api {call.api_key} in a version known here"
            name = APIS[call.api_key].name
            served = f"{lowest} to {highest}" if lowest <= highest else "none"
            self._metrics.count_unknown(f"versions of {name}: a peer serves {served}")
            self._loop.call_soon(call.failed, text, None)
            return
        try:
            self._write(call, version)
        except MalformedMessage as error:
            self._loop.call_soon(call.failed, str(error), "UNSUPPORTED_VERSION")
        except StaleRequest as error:
            self._loop.call_soon(call.failed, str(error), None)

    def _write(self, call: PeerCall, version: int) -> None:
        assert self._transport is not None, "begun"
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = call.build(version, correlation_id)
        deadline = self._loop.time() + call.timeout_ms / 1000
        call.version, call.correlation_id, call.deadline = version, correlation_id, deadline
        self._pending.append(call)
        self._metrics.peer_bytes_sent += len(frame)
        self._transport.write(frame)
        if self._timer is None or deadline < self._timer_at:
            self._arm(deadline)

    def take(self, frame: bytes, address: Address, *, is_trusted: bool) -> bool | None:
        """A response from this address. Returns what `PeerCall.responded` says of the peer.

        Raises MalformedMessage if it is none to what was asked.
        """
        if not self._pending:
            raise MalformedMessage("a response to nothing that was asked")
        call = self._pending[0]
        correlation_id, body_at = decode_response_header(call.api_key, call.version, frame)
        if correlation_id != call.correlation_id:
            raise MalformedMessage(f"correlation id {correlation_id}, not {call.correlation_id}")
        self._pending.popleft()
        self.has_responded = True
        return call.responded(call.version, frame, body_at, address, is_trusted)

    def fail_all(self, reason: str) -> None:
        """No response comes any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, deque()
        for sent in pending:
            sent.failed(reason, None)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._pending:
            return
        first = min(self._pending, key=lambda pending: pending.deadline)
        if first.deadline > self._loop.time():
            self._arm(first.deadline)
        else:
            self._on_overdue(f"{self._name} did not respond in {first.timeout_ms} ms")

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)
