"""How a client learns who leads, where a Kafka controller tells it."""

from __future__ import annotations

import asyncio

import pytest

from quorumd import QuorumClient, QuorumUnavailable
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum


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
