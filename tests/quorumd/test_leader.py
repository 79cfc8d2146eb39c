"""How a client learns who leads: from Kafka controllers, and from nodes that do not know better yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorumd import QuorumClient, QuorumUnavailable, RequestRefused
from quorumd.client.leader import LeaderFinder, RetriableError, check
from quorumd.client.timing import Deadline
from quorumd.raft.types import Address
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from quorumd.wire.messages.describe_quorum import DescribeQuorumResponse
from quorumd.wire.messages.fetch import (
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
)
from quorumd.wire.messages.list_offsets import (
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from quorumd.wire.messages.metadata import MetadataRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import CLUSTER_ID, FakeQuorum, numbered, with_quorum


def test_a_kafka_controller_that_has_just_started_is_asked_again() -> None:
    """Until it has read its log, it does not know the metadata version that allows DescribeCluster."""
    said = "Direct-to-controller communication is not supported with the current MetadataVersion."
    unknown = DescribeClusterResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=said, brokers=()
    )

    async def run() -> None:
        async with FakeQuorum(size=1, offered=(18, 55, 60)) as quorum:
            asked: list[Message] = []

            def answer(_: int, request: Message, answer: Message) -> Message:
                if isinstance(request, DescribeClusterRequest):
                    asked.append(request)
                    return unknown if len(asked) < 4 else answer
                return answer

            quorum.before_answer = answer
            async with QuorumClient(quorum.addresses, timeout_ms=20_000) as client:
                assert (await client.describe_quorum()).leader_id == 1
            assert len(asked) >= 4
            quorum.before_answer = lambda _, request, answer: (
                unknown if isinstance(request, DescribeClusterRequest) else answer
            )
            async with QuorumClient(quorum.addresses, timeout_ms=300) as client:
                with pytest.raises(QuorumUnavailable, match=said):
                    await client.describe_quorum()

    asyncio.run(run())


def test_a_broker_is_asked_as_a_broker_and_stands_for_the_leader() -> None:
    def broker(_: int, request: Message, answer: Message) -> Message:
        if isinstance(request, DescribeClusterRequest) and request.endpoint_type == 2:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, brokers=()
            )
        return answer

    async def run() -> None:
        async with FakeQuorum(size=1, offered=(18, 55, 60)) as quorum:
            quorum.before_answer = broker
            async with QuorumClient(quorum.addresses) as client:
                assert (await client.describe_quorum()).cluster_id == CLUSTER_ID

    asyncio.run(run())


def test_what_fails_again_and_again_ends_with_the_time_and_with_pauses() -> None:
    asked: list[Message] = []
    full = ListOffsetsResponsePartition(error_code=ErrorCode.KAFKA_STORAGE_ERROR)

    def answer(_: int, request: Message, answer: Message) -> Message:
        if isinstance(answer, ListOffsetsResponse):
            asked.append(request)
            return ListOffsetsResponse(topics=(ListOffsetsResponseTopic(partitions=(full,)),))
        return answer

    async def run() -> None:
        async with (
            FakeQuorum(size=1) as quorum,
            QuorumClient(quorum.addresses, timeout_ms=100) as client,
        ):
            quorum.before_answer = answer
            with pytest.raises(QuorumUnavailable):
                await client.list_offsets(0)

    asyncio.run(run())
    # Pauses of at least 10, 20 and 40 ms.
    assert len(asked) <= 4


def test_who_leads_is_asked_again_after_a_refusal_that_may_pass() -> None:
    busy = DescribeClusterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, brokers=())

    async def run() -> None:
        async with FakeQuorum(size=1, offered=(18, 55, 60)) as quorum:
            refusals = [busy] * 3
            quorum.before_answer = lambda _, request, answer: (
                refusals.pop()
                if isinstance(request, DescribeClusterRequest) and refusals
                else answer
            )
            async with QuorumClient(quorum.addresses, timeout_ms=20_000) as client:
                assert (await client.describe_quorum()).leader_id == 1
            assert not refusals

    asyncio.run(run())


@pytest.mark.parametrize(
    ("response", "ask"),
    [
        (
            DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            lambda client: client.describe_quorum(),
        ),
        (
            DescribeClusterResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, brokers=()),
            lambda client: client.describe_quorum(),
        ),
        (
            ListOffsetsResponse(
                topics=(
                    ListOffsetsResponseTopic(
                        partitions=(
                            ListOffsetsResponsePartition(
                                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                            ),
                        )
                    ),
                )
            ),
            lambda client: client.list_offsets(0),
        ),
    ],
    ids=["describe", "cluster id", "list offsets"],
)
def test_what_the_leader_refuses_is_refused_at_once(
    response: Message, ask: Callable[[QuorumClient], Awaitable[object]]
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.before_answer = lambda _, __, answer: (
            response if isinstance(answer, type(response)) else answer
        )
        with pytest.raises(RequestRefused) as raised:
            await ask(client)
        assert raised.value.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    with_quorum(story)


@pytest.mark.parametrize(("leader_id", "hint"), [(0, Address("a", 1)), (-1, None), (7, None)])
def test_the_leader_is_the_node_that_a_refusal_names_and_gives_an_address_of(
    leader_id: int, hint: Address | None
) -> None:
    response = FetchResponse(
        node_endpoints=(
            FetchResponseNodeEndpoint(node_id=-1, host="b", port=2),
            FetchResponseNodeEndpoint(node_id=0, host="a", port=1),
        )
    )
    partition = FetchResponsePartition(
        current_leader=FetchResponseCurrentLeader(leader_id=leader_id)
    )
    with pytest.raises(RetriableError) as raised:
        check("read", ErrorCode.NOT_LEADER_OR_FOLLOWER, response=response, partition=partition)
    assert (raised.value.hint, raised.value.stay) == (hint, False)


def test_who_says_that_it_does_not_lead_and_names_itself_is_not_asked_again_at_once() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        addresses = [Address("127.0.0.1", node.port) for node in quorum.nodes.values()]
        finder = LeaderFinder(addresses, client_id="tests")
        leader, other = addresses[0], addresses[1]
        for hint in (leader, None):
            found = await finder.connection("test", Deadline(10_000))
            assert found.address == leader
            finder.retry_later(leader, RetriableError("it does not lead", hint=hint))
            assert finder.open_connection is None
        finder.retry_later(leader, RetriableError("it does not lead", hint=other))
        following = await finder.connection("test", Deadline(10_000))
        assert following.address == other
        finder.retry_later(other, RetriableError("later", stay=True))
        assert finder.open_connection is following
        finder.close()

    with_quorum(story)


def test_what_passes_by_itself_is_asked_of_the_same_leader_again() -> None:
    with pytest.raises(RetriableError) as raised:
        check("read", ErrorCode.KAFKA_STORAGE_ERROR)
    assert raised.value.stay


def test_a_node_that_could_not_be_used_is_waited_for_once_it_can() -> None:
    refusal = DescribeClusterResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, brokers=())

    async def run() -> None:
        async with FakeQuorum(size=1, offered=(18, 55, 60)) as quorum:
            quorum.before_answer = lambda _, request, answer: (
                refusal if isinstance(request, DescribeClusterRequest) else answer
            )
            async with QuorumClient(quorum.addresses, timeout_ms=20_000) as client:
                with pytest.raises(RequestRefused):
                    await client.describe_quorum()
                quorum.leader_id = -1
                asked = asyncio.Event()

                def note(_: int, request: Message, answer: Message) -> Message:
                    if isinstance(request, DescribeClusterRequest):
                        asked.set()
                    return answer

                quorum.before_answer = note
                describing = asyncio.create_task(client.describe_quorum())
                await asked.wait()
                quorum.elect(1)
                assert (await describing).leader_id == 1

    asyncio.run(run())


def test_who_names_the_leader_that_has_failed_is_not_believed_before_others_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumd.client.leader._NEWER_LEADER_WAIT_S", 10.0)

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(1))
        former = quorum.nodes[1]._metadata()
        quorum.elect(3)
        tried: list[int] = []
        heard: set[int] = set()
        are_heard = asyncio.Event()

        async def name_leader(node: int, request: MetadataRequest) -> Message:
            if node == 3:
                await are_heard.wait()
                return quorum.nodes[3]._metadata()
            return former

        def before_answer(node: int, request: Message, answer: Message) -> Message | None:
            if isinstance(request, ProduceRequest):
                tried.append(node)
                return answer if node == 3 else None
            if isinstance(request, MetadataRequest) and node != 3:
                heard.add(node)
                if len(heard) == 2:
                    # So late that the client has read what they said.
                    asyncio.get_running_loop().call_later(0.05, are_heard.set)
            return answer

        quorum.handlers[MetadataRequest] = name_leader
        quorum.before_answer = before_answer
        assert await client.append(numbered(1)) == [1]
        assert tried == [1, 3]

    with_quorum(story)


def test_who_still_leads_is_believed_though_another_node_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a moment is given to those who might know better."""
    monkeypatch.setattr("quorumd.client.leader.CONNECT_TIMEOUT_S", 600.0)

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(1))
        tried: list[int] = []

        async def name_leader(node: int, request: MetadataRequest) -> Message:
            if node == 3:
                await asyncio.Event().wait()
            return quorum.nodes[node]._metadata()

        def lose_first(node: int, request: Message, answer: Message) -> Message | None:
            if not isinstance(request, ProduceRequest):
                return answer
            tried.append(node)
            return answer if len(tried) > 1 else None

        quorum.handlers[MetadataRequest] = name_leader
        quorum.before_answer = lose_first
        async with asyncio.timeout(10):
            assert await client.append(numbered(1), timeout_ms=60_000) == [1]
        assert tried == [1, 1]

    with_quorum(story)
