"""Requests to a peer: what is sent, and the callbacks for what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorumd.raft.types import Address
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from quorumd.wire.schema import Message


class PeerListener(Protocol):
    """The owner of a channel: hears of the peer's process, and knows where else the peer may be."""

    @property
    def peer_id(self) -> int | None:
        """The replica that is looked for; None if any node is right."""

    def on_announced(self, announced: ApiVersionsResponse) -> None:
        """A node says which APIs and features it has, before anything is asked of it.

        Raises KafkaPeer if nothing may be asked of it.
        """

    def on_connection_made(self, ip: str, is_behind: bool = False) -> None:
        """The peer has responded at an address of its own, or has identified itself at another one.

        `is_behind`: its own links are plaintext still, though this one is not.
        """

    def on_connection_lost(self) -> None:
        """The connection to the peer is gone."""

    def on_connection_refused(self) -> None:
        """All of the peer's own addresses refuse connections."""

    def on_unreachable(self, address: Address, error: BaseException) -> None:
        """The peer was not reached at an address of its own, or hung up on the first request."""

    def elsewhere(self) -> Sequence[Address]:
        """Addresses that are not known as the peer's own, but where it may be; the best first."""


class AskLeader(Protocol):
    """`quorumd.server.peers.outbound.Outbound.ask_leader`."""

    def __call__(
        self,
        message: Message,
        version: int,
        responded: Callable[[bytes, int], None],
        failed: Callable[[str], None],
    ) -> None: ...


class StaleRequest(Exception):
    """A request that waited for its connection is not wanted any more; says why."""


class HungUp(Exception):
    """The peer closed the connection instead of responding to the first request on it."""

    def __init__(self) -> None:
        super().__init__(
            "it closed the connection instead of responding. Its log and `warnings` in its `/status` say "
            "why: mostly its quorum.node.principals do not give this node's certificate to this node, or it "
            "takes no node by plaintext"
        )


class PeerCall:
    """A request to be sent; exactly one of `responded` and `failed` is called of it.

    It was sent with `version` and `correlation_id`; `deadline` is on the clock of the event loop.
    """

    __slots__ = (
        "api_key",
        "correlation_id",
        "deadline",
        "max_version",
        "timeout_ms",
        "version",
    )

    def __init__(self, api_key: int, max_version: int, timeout_ms: int) -> None:
        self.api_key = api_key
        self.max_version = max_version
        self.timeout_ms = timeout_ms
        self.version = self.correlation_id = -1
        self.deadline = 0.0

    def build(self, version: int, correlation_id: int) -> bytes:
        """The frame, length and header included. Raises StaleRequest."""
        raise NotImplementedError

    def responded(
        self, version: int, frame: bytes, at: int, address: Address, is_trusted: bool
    ) -> bool | None:
        """A response, whose body begins at `frame[at]`, has come from this address, which is trusted if the
        node there is taken for the peer.

        True if it shows that the peer is at that address, False if it shows another node, None if neither.
        """
        raise NotImplementedError

    def failed(self, reason: str, error: str | None) -> None:
        """There is no response; `error` is the name of a Kafka error code, or None."""
        raise NotImplementedError


class CallbackCall(PeerCall):
    """A call made of functions, for what is asked now and then."""

    __slots__ = ("_build", "_failed", "_responded")

    def __init__(
        self,
        api_key: int,
        max_version: int,
        build: Callable[[int, int], bytes],
        responded: Callable[[int, bytes, int, Address, bool], bool | None],
        failed: Callable[[str, str | None], None],
        timeout_ms: int,
    ) -> None:
        super().__init__(api_key, max_version, timeout_ms)
        self._build = build
        self._responded = responded
        self._failed = failed

    def build(self, version: int, correlation_id: int) -> bytes:
        return self._build(version, correlation_id)

    def responded(
        self, version: int, frame: bytes, at: int, address: Address, is_trusted: bool
    ) -> bool | None:
        return self._responded(version, frame, at, address, is_trusted)

    def failed(self, reason: str, error: str | None) -> None:
        self._failed(reason, error)
