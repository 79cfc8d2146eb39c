"""The connections of a client: how they are made, of which event loop they are, and that they end with it."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import threading
import warnings
from contextlib import ExitStack
from typing import Any

import pytest

from quorumd import (
    EARLIEST,
    LATEST,
    KeyValueView,
    QuorumAdmin,
    QuorumClient,
    Record,
    RequestRefused,
    Retry,
)
from quorumd.client.addresses import parse_addresses
from quorumd.client.errors import AppendFailed, QuorumError, QuorumUnavailable
from quorumd.client.leader import LeaderFinder, RetriableError
from quorumd.client.reading import READ
from quorumd.client.timing import Deadline
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.messages.list_offsets import ListOffsetsRequest
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.conftest import QuorumThread
from tests.quorumd.fake_quorum import FakeQuorum, numbered, with_quorum
from tests.quorumd.test_client import values


def test_a_client_is_of_one_event_loop_and_says_so_before_anything_is_sent() -> None:
    with QuorumThread() as thread:
        client = QuorumClient(thread.quorum.addresses)
        assert asyncio.run(client.append([Record(value=b"a")])) == [0]
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"make a client in each `asyncio\.run`"):
                asyncio.run(client.append([Record(value=b"b")]))
        thread.call(lambda quorum: quorum.append(build_batch([Record(value=b"c")])))
        assert values(thread.quorum) == [b"a", b"c"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            client.close()
            gc.collect()


def test_a_call_with_no_time_left_ends_no_connection_of_the_client() -> None:
    """It asks all nodes who leads, on the connections that others use."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        finder = LeaderFinder(parse_addresses(quorum.addresses), client_id="test")
        connection = await finder.connection(READ, Deadline(5000))
        finder.retry_later(connection.address, RetriableError("it moved"))
        for _ in range(3):
            with pytest.raises(QuorumUnavailable, match="no response to Metadata within 0 s"):
                await finder.connection(READ, Deadline(0))
        assert await finder.connection(READ, Deadline(5000)) is connection
        finder.close()

    with_quorum(story)


@pytest.mark.parametrize("wait_s", [0, 0.3])
def test_what_is_under_way_ends_when_the_client_is_closed_and_leaves_no_connection(
    wait_s: float,
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.refuse_produce = [ErrorCode.NOT_ENOUGH_REPLICAS] * 1000
        calls: list[asyncio.Task[object]] = [
            asyncio.create_task(client.append([Record(value=b"a")])),
            asyncio.create_task(client.fetch(0, max_wait_ms=4000)),
        ]
        await asyncio.wait(calls, timeout=wait_s)
        client.close()
        async with asyncio.timeout(client.timeout_ms / 2000):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], AppendFailed)
        for outcome in outcomes:
            assert isinstance(outcome, QuorumError)
            assert "the client was closed" in str(outcome)
        quorum.append(build_batch(numbered(1)))
        for node in quorum.nodes.values():
            await node.until_idle()
        quorum.refuse_produce = []
        assert await client.append([Record(value=b"b")]) == [1]

    with_quorum(story)


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the host two.example: 127.0.0.2 is the first."""
    resolve = socket.getaddrinfo

    def two(host: str, port: int, *rest: int, **named: int) -> list[Any]:
        is_name = host == "two.example" and not named.get("flags", 0) & socket.AI_NUMERICHOST
        hosts = ("127.0.0.2", "127.0.0.1") if is_name else (host,)
        return [each for one in hosts for each in resolve(one, port, *rest, **named)]

    monkeypatch.setattr("socket.getaddrinfo", two)


@pytest.mark.usefixtures("two_addresses")
def test_a_host_is_reached_at_another_address_where_the_first_is_silent() -> None:
    async def run() -> None:
        async with FakeQuorum(size=1) as quorum:
            port = quorum.nodes[1].port
            with ExitStack() as stack:
                # It accepts nothing, and the kernel answers no more than one for it.
                silent = stack.enter_context(socket.socket())
                silent.bind(("127.0.0.2", port))
                silent.listen(0)
                for _ in range(4):
                    waiting = stack.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(("127.0.0.2", port))
                async with QuorumClient(f"two.example:{port}", timeout_ms=20_000) as client:
                    assert await client.append([Record(value=b"a")]) == [0]

    asyncio.run(run())


@pytest.mark.usefixtures("two_addresses")
@pytest.mark.parametrize("says", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_or_where_what_takes_the_connection_there_is_no_node_that_answers(
    says: bytes | None,
) -> None:
    """A node that is frozen, or another service. None is silent, an empty text hangs up."""

    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if says is None:
                await reader.read()
            else:
                writer.write(says)
            writer.close()

        async with FakeQuorum(size=1) as quorum:
            port = quorum.nodes[1].port
            async with (
                await asyncio.start_server(answer, "127.0.0.2", port),
                QuorumClient(f"two.example:{port}", timeout_ms=20_000) as client,
            ):
                assert await client.append([Record(value=b"a")]) == [0]

    asyncio.run(run())


def test_a_name_server_that_is_silent_delays_neither_the_client_nor_the_end_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve, over, asked = socket.getaddrinfo, threading.Event(), []

    def silent(host: str, port: int, *rest: int, **named: int) -> list[Any]:
        if host == "silent.example" and not named.get("flags", 0) & socket.AI_NUMERICHOST:
            asked.append(host)
            over.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return resolve(host, port, *rest, **named)

    monkeypatch.setattr("socket.getaddrinfo", silent)

    async def run() -> None:
        async with FakeQuorum(size=1) as quorum:
            node = f"localhost:{quorum.nodes[1].port}"
            async with QuorumClient(f"silent.example:1,{node}") as client:
                for _ in range(40):
                    # Each finds the leader anew, and asks for all names.
                    client.close()
                    assert (await client.list_offsets(EARLIEST)).offset == 0
                assert await asyncio.to_thread(lambda: not over.is_set())

    try:
        asyncio.run(run())
        assert not over.is_set()
        assert asked == ["silent.example"]
    finally:
        over.set()


def test_the_client_says_who_it_is() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"a")])
        assert set(quorum.software) == {"quorumctl"}

    with_quorum(story)


def test_a_killed_leader_is_left_for_the_next_one() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"a")])
        await quorum.nodes[1].stop()
        quorum.elect(2)
        assert await client.append([Record(value=b"b")]) == [1]

    with_quorum(story)


def test_a_connection_on_which_no_version_is_agreed_is_closed() -> None:
    refusal = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.before_answer = lambda _, request, answer: (
            refusal if isinstance(request, ApiVersionsRequest) else answer
        )
        with pytest.raises(RequestRefused):
            await client.list_offsets(LATEST)
        async with asyncio.timeout(10):
            for node in quorum.nodes.values():
                await node.until_idle()

    with_quorum(story)


@pytest.mark.parametrize("wrong", [math.nan, "5"])
def test_a_timeout_that_is_no_number_is_refused_by_every_call(wrong: Any) -> None:
    """NaN made a call that reaches no leader try for ever, without a pause."""
    with pytest.raises((TypeError, ValueError), match="a timeout is"):
        QuorumClient("127.0.0.1:1", timeout_ms=wrong)
    with pytest.raises((TypeError, ValueError), match="a timeout is"):
        QuorumAdmin("127.0.0.1:1", timeout_ms=wrong)

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with KeyValueView(client) as view:
            for call in (
                client.append([Record(key=b"a")], timeout_ms=wrong),
                client.append([Record(key=b"a")], if_unchanged_since=0, timeout_ms=wrong),
                client.fetch(0, timeout_ms=wrong),
                client.describe_quorum(timeout_ms=wrong),
                view.wait_for(0, timeout_ms=wrong),
            ):
                with pytest.raises((TypeError, ValueError), match="a timeout is"):
                    await call
            with pytest.raises((TypeError, ValueError), match="a timeout is"):
                await view.update(b"a", lambda _: b"1", retry=Retry(timeout_ms=wrong))
        assert not quorum.log

    with_quorum(story)


@pytest.mark.parametrize("timeout_ms", [math.inf, 1 << 40, 2500.5])
def test_a_timeout_may_be_without_end(timeout_ms: Any) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with (
            QuorumClient(quorum.addresses, timeout_ms=timeout_ms) as other,
            KeyValueView(other) as view,
        ):
            await other.append([Record(value=b"1")], idempotent=False)
            assert (await view.update(b"a", lambda _: b"1")).offset == 1
            await other.fetch(0, timeout_ms=timeout_ms)

    with_quorum(story)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (1.5, "is of type float: give a whole"),
        ("5", "is of type str"),
        (1 << 63, "is .*, which 64 bits do not"),
    ],
)
def test_a_number_that_no_request_can_have_is_refused_by_its_name(wrong: Any, said: str) -> None:
    """As a time in ms of time.time(), which is a float."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        with pytest.raises((TypeError, ValueError), match=f"timestamp {said}"):
            await client.list_offsets(wrong)
        with pytest.raises((TypeError, ValueError), match=f"offset {said}"):
            await client.fetch(wrong)
        for name in ("max_bytes", "min_bytes"):
            with pytest.raises((TypeError, ValueError), match=f"{name} is "):
                await client.fetch(0, **{name: wrong})
        with pytest.raises(ValueError, match="max_bytes is -1: give 0 or more"):
            await client.fetch(0, max_bytes=-1)
        assert not quorum.requests

    with_quorum(story)


@pytest.mark.parametrize("wrong", [5, None, "x" * 32_768, "\ud800"])
def test_a_client_id_that_no_request_can_have_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"client_id is|surrogates"):
        QuorumClient("127.0.0.1:1", client_id=wrong)


def test_an_answer_that_nobody_waits_for_any_more_ends_no_connection() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.append(build_batch(numbered(1)))
        assert (await client.list_offsets(LATEST)).offset == 1
        connections = len(quorum.software)
        is_asked, answers = asyncio.Event(), asyncio.Event()

        async def answer_late(node: int, request: ListOffsetsRequest) -> Message:
            is_asked.set()
            del quorum.handlers[ListOffsetsRequest]
            await answers.wait()
            return quorum.nodes[node]._list_offsets(request)

        quorum.handlers[ListOffsetsRequest] = answer_late
        given_up = asyncio.create_task(client.list_offsets(LATEST))
        await is_asked.wait()
        given_up.cancel()
        other = asyncio.create_task(client.list_offsets(EARLIEST))
        await asyncio.wait([given_up])
        answers.set()
        assert (await other).offset == 0
        assert len(quorum.software) == connections

    with_quorum(story)
