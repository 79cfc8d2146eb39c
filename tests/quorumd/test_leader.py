"""How a client learns who leads: from Kafka controllers, and from nodes that do not know better yet."""

from __future__ import annotations

import asyncio

import pytest

from quorumd import QuorumClient, QuorumUnavailable, RequestRefused
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from quorumd.wire.messages.metadata import MetadataRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum, numbered, with_quorum


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
