"""A link to a peer, and peers that behave as a test says, on real sockets."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from quorumd.raft.types import Address
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import CallbackCall, StaleRequest
from quorumd.server.peers.link_security import LinkSecurity
from quorumd.server.peers.peer_channel import TcpPeerChannel, request_frame
from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_request_header
from quorumd.wire.messages.api_versions import ApiVersionsResponse, ApiVersionsResponseApiKey
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from tests.support.serving import frame, run

VOTE = 52
VOTER_0_TO_2 = ((18, 0, 4), (VOTE, 0, 2))
ITSELF, SOMEBODY_ELSE, NEITHER = 0, 125, 104
"""Error codes by which the tests' owner of a link tells who has answered."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds; the test's deadline bounds it."""
    while not condition():  # noqa: ASYNC110 - links have no event to wait for
        await asyncio.sleep(0.001)


def versions_answer(
    correlation_id: int, ranges: tuple[tuple[int, int, int], ...], error: int = 0, version: int = 3
) -> bytes:
    keys = tuple(
        ApiVersionsResponseApiKey(api_key=key, min_version=low, max_version=high)
        for key, low, high in ranges
    )
    message = ApiVersionsResponse(error_code=error, api_keys=keys)
    return frame(struct.pack(">i", correlation_id) + encode(message, version))


def vote_answer(correlation_id: int, error: int = NEITHER) -> bytes:
    return frame(struct.pack(">ib", correlation_id, 0) + encode(VoteResponse(error_code=error), 2))


Behaviour = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Peer:
    """A server that behaves as the test says. `asked` holds key, version, correlation id and frame."""

    behaviour: Behaviour
    error: int = NEITHER
    asked: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    server: asyncio.Server | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def open(
        self, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> int:
        self.server = await asyncio.start_server(self._serve, host, port, ssl=tls)
        opened: int = self.server.sockets[0].getsockname()[1]
        return opened

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self.writers.append(writer)
        try:
            await self.behaviour(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        data = await reader.readexactly(length)
        header, _ = decode_request_header(data)
        self.asked.append((header.api_key, header.api_version, header.correlation_id, data))
        return self.asked[-1]

    async def shake_hands(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ranges: tuple[tuple[int, int, int], ...] = VOTER_0_TO_2,
    ) -> None:
        _, _, correlation_id, _ = await self.request(reader)
        writer.write(versions_answer(correlation_id, ranges))

    def close(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()


async def serve_votes(
    peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await peer.shake_hands(reader, writer)
    while True:
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id, peer.error))


@dataclass
class Owner:
    """A link, whoever listens to it, and what became of its calls."""

    port: int = 0
    host: str = "127.0.0.1"
    timeout_ms: int = 5_000
    addresses: list[Address] | None = None
    others: list[Address] = field(default_factory=list)
    ups: int = 0
    losses: int = 0
    refusals: int = 0
    outcomes: list[tuple[Any, ...]] = field(default_factory=list)
    answered_at: list[Address] = field(default_factory=list)
    trusted: list[bool] = field(default_factory=list)
    security: LinkSecurity | None = None
    peer_id: int | None = 2
    unreachable: list[tuple[Address, BaseException]] = field(default_factory=list)
    is_behind: bool = False
    announced: list[ApiVersionsResponse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.link = TcpPeerChannel(
            "replica 2",
            lambda: [(self.host, self.port)] if self.addresses is None else self.addresses,
            "raft-client-1",
            "1.0",
            self,
            self.timeout_ms,
            self.metrics,
            self.security,
        )

    def elsewhere(self) -> list[Address]:
        return self.others

    def on_announced(self, announced: ApiVersionsResponse) -> None:
        self.announced.append(announced)

    def on_connection_made(self, ip: str, is_behind: bool = False) -> None:
        assert ip.startswith("127.")
        self.ups += 1
        self.is_behind = is_behind

    def on_connection_lost(self) -> None:
        self.losses += 1

    def on_connection_refused(self) -> None:
        self.refusals += 1

    def on_unreachable(self, address: Address, error: BaseException) -> None:
        self.unreachable.append((address, error))

    def vote(
        self,
        name: object = 0,
        *,
        pre_vote: bool = False,
        timeout_ms: int = 5_000,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        asked = VoteRequestPartition(replica_id=1, pre_vote=pre_vote)
        topics = (VoteRequestTopic(topic_name="t", partitions=(asked,)),)
        message = VoteRequest(topics=topics)

        def build(version: int, correlation_id: int) -> bytes:
            if not is_wanted():
                raise StaleRequest("not wanted any more")
            return request_frame(VOTE, message, version, correlation_id, "raft-client-1")

        def answered(
            version: int, data: bytes, at: int, address: Address, is_trusted: bool
        ) -> bool | None:
            answer = decode(VoteResponse, version, data, at)
            self.answered_at.append(address)
            self.trusted.append(is_trusted)
            self.outcomes.append((name, "answered", version, answer.error_code))
            return {ITSELF: True, SOMEBODY_ELSE: False}.get(answer.error_code)

        def failed(reason: str, error: str | None) -> None:
            self.outcomes.append((name, "failed", error, reason))

        self.link.call(CallbackCall(VOTE, 2, build, answered, failed, timeout_ms))

    async def outcome(self, count: int = 1) -> list[tuple[Any, ...]]:
        await until(lambda: len(self.outcomes) >= count)
        return self.outcomes


def with_peer(
    behaviour: Behaviour, work: Callable[[Peer, Owner], Awaitable[None]], **settings: Any
) -> None:
    """Run the work beside such a peer and a link to it; everything asked has one outcome."""

    async def whole() -> None:
        peer = Peer(behaviour)
        owner = Owner(port=await peer.open(), **settings)
        try:
            await work(peer, owner)
        finally:
            await owner.link.close()
            peer.close()

    run(whole())


def is_unconnected(link: TcpPeerChannel) -> bool:
    return link._transport is None
