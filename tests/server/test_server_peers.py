"""Links to other replicas, on real sockets: handshake, order, failures, and how they come back."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from server import peers
from server.metrics import Metrics
from server.peers import Call, Link, request_frame
from tests.support.serving import frame, run
from wire.codec import decode, encode
from wire.headers import decode_request_header
from wire.messages.api_versions import ApiVersionsResponse, ApiVersionsResponseApiKey
from wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)

VOTE = 52
VOTER_0_TO_2 = ((18, 0, 4), (VOTE, 0, 2))


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


def vote_answer(correlation_id: int) -> bytes:
    return frame(struct.pack(">ib", correlation_id, 0) + encode(VoteResponse(error_code=104), 2))


Behaviour = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Peer:
    """A server that behaves as the test says. `asked` holds key, version, correlation id and frame."""

    behaviour: Behaviour
    asked: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    connections: int = 0
    server: asyncio.Server | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def open(self, port: int = 0) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        opened: int = self.server.sockets[0].getsockname()[1]
        return opened

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            await self.behaviour(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
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
        writer.write(vote_answer(correlation_id))


@dataclass
class Owner:
    """A link, whoever listens to it, and what became of its calls."""

    port: int = 0
    host: str = "127.0.0.1"
    timeout_ms: int = 5_000
    addresses: list[tuple[str, int]] | None = None
    ups: int = 0
    refusals: int = 0
    outcomes: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.link = Link(
            "replica 2",
            lambda: [(self.host, self.port)] if self.addresses is None else self.addresses,
            "raft-client-1",
            "1.0",
            self,
            self.timeout_ms,
            self.metrics,
        )

    def on_link_up(self) -> None:
        self.ups += 1

    def on_link_refused(self) -> None:
        self.refusals += 1

    def vote(self, name: object = 0, *, pre_vote: bool = False, timeout_ms: int = 5_000) -> None:
        asked = VoteRequestPartition(replica_id=1, pre_vote=pre_vote)
        topics = (VoteRequestTopic(topic_name="t", partitions=(asked,)),)
        message = VoteRequest(topics=topics)

        def build(version: int, correlation_id: int) -> bytes:
            return request_frame(VOTE, message, version, correlation_id, "raft-client-1")

        def answered(version: int, data: bytes, at: int) -> None:
            answer = decode(VoteResponse, version, data, at)
            self.outcomes.append((name, "answered", version, answer.error_code))

        def failed(reason: str, error: str | None) -> None:
            self.outcomes.append((name, "failed", error, reason))

        self.link.call(Call(VOTE, 2, build, answered, failed, timeout_ms))

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


def is_unconnected(link: Link) -> bool:
    return link._transport is None


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
        return port


# -- all is well


def test_a_request_made_before_the_connection_is_there_waits_for_it() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("first")
        assert await owner.outcome() == [("first", "answered", 2, 104)]
        assert [(key, version) for key, version, _, _ in peer.asked] == [(18, 3), (VOTE, 2)]
        assert owner.ups == 1

    with_peer(serve_votes, work)


def test_requests_are_sent_at_once_and_answered_in_their_order() -> None:
    async def together(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        ids = [(await peer.request(reader))[2] for _ in range(5)]
        writer.write(b"".join(vote_answer(number) for number in ids))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        for name in range(5):
            owner.vote(name)
        assert [outcome[0] for outcome in await owner.outcome(5)] == [0, 1, 2, 3, 4]

    with_peer(together, work)


def test_an_answer_in_single_bytes_is_an_answer() -> None:
    async def bytewise(peer: Peer, reader: Any, writer: Any) -> None:
        _, _, correlation_id, _ = await peer.request(reader)
        for byte in versions_answer(correlation_id, VOTER_0_TO_2):
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        _, _, correlation_id, _ = await peer.request(reader)
        for byte in vote_answer(correlation_id):
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][1] == "answered"

    with_peer(bytewise, work)


# -- versions


@pytest.mark.parametrize(("highest", "used"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_the_highest_version_that_both_know_is_used(highest: int, used: int) -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer, ((VOTE, 0, highest),))
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][:3] == (0, "answered", used)

    with_peer(serve, work)


def test_a_pre_vote_that_the_peer_is_too_old_for_fails_as_an_unsupported_version() -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer, ((VOTE, 0, 1),))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote(pre_vote=True)
        assert (await owner.outcome())[0][:3] == (0, "failed", "UNSUPPORTED_VERSION")

    with_peer(serve, work)


@pytest.mark.parametrize("ranges", [((1, 0, 11),), ((VOTE, 3, 5),)])
def test_a_peer_that_serves_no_votes_is_no_reason_to_do_without_pre_votes(
    ranges: tuple[tuple[int, int, int], ...],
) -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer, ranges)
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        _, kind, error, reason = (await owner.outcome())[0]
        assert (kind, error) == ("failed", None)
        assert "does not serve api 52" in reason

    with_peer(serve, work)


def test_a_peer_that_knows_only_older_handshakes_is_asked_in_its_versions() -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(versions_answer(correlation_id, ((18, 0, 2), (VOTE, 0, 0)), 35, version=0))
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][:3] == (0, "answered", 0)

    with_peer(serve, work)


# -- what goes wrong


def garbage(data: bytes) -> Behaviour:
    async def behaviour(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await peer.request(reader)
        writer.write(data)
        await reader.read()

    return behaviour


@pytest.mark.parametrize(
    "data",
    [
        vote_answer(99),
        frame(b"\0"),
        frame(struct.pack(">i", 2)),
        frame(struct.pack(">ib", 2, 127)),
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["other id", "no id", "no tags", "cut tags", "empty", "negative", "http"],
)
def test_a_request_whose_answer_is_none_fails_and_the_link_begins_anew(data: bytes) -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        owner.vote("b")
        outcomes = await owner.outcome(2)
        assert [(name, kind) for name, kind, *_ in outcomes] == [("a", "failed"), ("b", "failed")]
        await until(lambda: peer.connections == 2)
        assert len(owner.outcomes) == 2

    with_peer(garbage(data), work)


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async def talkative(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        writer.write(vote_answer(2))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        await until(lambda: peer.connections == 2)
        assert owner.link._failures > 0, "a peer that misbehaves at once is not asked again at once"

    with_peer(talkative, work)


@pytest.mark.parametrize("code", [-1, 31, 42])
def test_a_refused_handshake_fails_what_waits_and_is_not_repeated_at_once(code: int) -> None:
    async def refuse(peer: Peer, reader: Any, writer: Any) -> None:
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(versions_answer(correlation_id, (), code))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        _, kind, error, reason = (await owner.outcome())[0]
        assert (kind, error) == ("failed", None)
        assert f"error {code}" in reason

    with_peer(refuse, work)


def test_a_peer_that_accepts_and_hangs_up_is_tried_later_and_later() -> None:
    async def hang_up(peer: Peer, reader: Any, writer: Any) -> None:
        writer.transport.abort()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        await asyncio.sleep(0.3)  # what is claimed is how little happens in a time
        assert 2 <= peer.connections <= 5

    with_peer(hang_up, work)


def test_a_silent_peer_fails_the_request_in_its_time_and_the_connection_with_it() -> None:
    async def silent(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        while await reader.read(1000):
            pass

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("short", timeout_ms=30)
        owner.vote("behind it", timeout_ms=5_000)
        outcomes = await owner.outcome(2)
        assert [outcome[:2] for outcome in outcomes] == [
            ("short", "failed"),
            ("behind it", "failed"),
        ]
        assert "30 ms" in outcomes[0][3]
        await until(lambda: peer.connections == 2)

    with_peer(silent, work)


def test_a_peer_that_never_shakes_hands_fails_what_waits() -> None:
    async def silent(peer: Peer, reader: Any, writer: Any) -> None:
        while await reader.read(1000):
            pass

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][:3] == (0, "failed", None)

    with_peer(silent, work, timeout_ms=30)


def test_a_connection_that_is_lost_fails_its_requests_and_comes_back_at_once() -> None:
    async def one_answer(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id))
        await peer.request(reader)

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        owner.vote("b")
        outcomes = await owner.outcome(2)
        assert [outcome[:2] for outcome in outcomes] == [("a", "answered"), ("b", "failed")]
        owner.vote("c")
        assert (await owner.outcome(3))[2][:2] == ("c", "answered")
        assert owner.refusals == 0

    with_peer(one_answer, work)


def test_a_process_that_is_gone_is_reported_and_found_again_when_it_is_back() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        await owner.outcome()
        peer.close()
        await until(lambda: owner.refusals > 0)
        owner.vote("b")
        assert (await owner.outcome(2))[1][:3] == ("b", "failed", None)
        again = Peer(serve_votes)
        await again.open(owner.port)
        try:
            await until(lambda: owner.ups == 2)
            owner.vote("c")
            assert (await owner.outcome(3))[2][:2] == ("c", "answered")
        finally:
            again.close()

    with_peer(serve_votes, work)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "no-such-host.invalid", "", "\0"])
def test_a_host_that_cannot_be_resolved_fails_requests_and_is_tried_again(host: str) -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        assert (await owner.outcome())[0][:3] == ("a", "failed", None)
        assert owner.refusals == 0, "who cannot be found is not known to be gone"
        owner.host = "127.0.0.1"
        await until(lambda: owner.ups == 1)
        owner.vote("b")
        assert (await owner.outcome(2))[1][:2] == ("b", "answered")

    with_peer(serve_votes, work, host=host)


def test_the_second_address_is_tried_if_nobody_listens_at_the_first() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.addresses = [("127.0.0.1", free_port()), ("127.0.0.1", owner.port)]
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][1] == "answered"
        assert owner.refusals == 0

    with_peer(serve_votes, work)


def test_a_peer_without_an_address_fails_requests_and_says_why() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert "no address is known" in (await owner.outcome())[0][3]
        assert owner.refusals == 0

    with_peer(serve_votes, work, addresses=[])


def test_an_address_is_looked_up_anew_at_each_attempt() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        real, owner.port = owner.port, free_port()
        owner.link.open()
        await until(lambda: owner.refusals > 0)
        owner.port = real
        await until(lambda: owner.ups == 1)

    with_peer(serve_votes, work)


# -- the end


def test_a_link_that_is_closed_fails_what_is_pending_and_what_comes_later() -> None:
    async def silent(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        await until(lambda: owner.link._versions is not None)
        owner.vote("pending")
        await owner.link.close()
        owner.vote("late")
        outcomes = await owner.outcome(2)
        assert [(name, kind) for name, kind, *_ in outcomes] == [
            ("pending", "failed"),
            ("late", "failed"),
        ]
        await until(lambda: owner.link._transport is None)
        assert peer.connections == 1

    with_peer(silent, work)


def test_a_link_that_is_closed_while_it_connects_leaves_no_connection_behind() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        for turns in range(12):
            other = Owner(port=owner.port)
            other.link.open()
            other.vote()
            for _ in range(turns):
                await asyncio.sleep(0)
            other.link.discard()
            assert len(other.outcomes) == 1
            await until(partial(is_unconnected, other.link))
            keeper = other.link._keeper
            assert keeper is not None
            await asyncio.gather(keeper, return_exceptions=True)

    with_peer(serve_votes, work)


def test_a_late_answer_never_answers_a_request_of_the_next_connection() -> None:
    async def late(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        if peer.connections == 1:
            await until(lambda: peer.connections == 2)
        writer.write(vote_answer(correlation_id))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a", timeout_ms=20)
        await owner.outcome()
        await until(lambda: owner.ups == 2)
        owner.vote("b")
        assert [outcome[:2] for outcome in await owner.outcome(2)] == [
            ("a", "failed"),
            ("b", "answered"),
        ]

    with_peer(late, work)


def test_no_peer_makes_a_link_hold_more_than_one_answer() -> None:
    async def huge(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await peer.request(reader)
        writer.write(struct.pack(">i", peers.ANSWER_BYTES_MAX + 1))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][1] == "failed"

    with_peer(huge, work)
