"""Responses that say too little, and refusals that say more than their code."""

from __future__ import annotations

import pytest

from quorumd import LATEST, AppendFailed, QuorumClient, RequestRefused
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_quorum import DescribeQuorumResponse
from quorumd.wire.messages.fetch import FetchResponse
from quorumd.wire.messages.list_offsets import ListOffsetsResponse
from quorumd.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum, numbered, with_quorum


@pytest.mark.parametrize(
    "empty",
    [
        ProduceResponse(responses=()),
        ListOffsetsResponse(topics=()),
        FetchResponse(responses=()),
        DescribeQuorumResponse(topics=()),
    ],
    ids=lambda empty: type(empty).__name__,
)
def test_who_responds_for_no_partition_is_asked_again(empty: Message) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        left = [empty]
        quorum.before_answer = lambda _, __, answer: (
            left.pop() if left and isinstance(answer, type(empty)) else answer
        )
        assert await client.append(numbered(2)) == [0, 1]
        assert (await client.list_offsets(LATEST)).offset == 2
        assert (await client.fetch(0)).next_offset == 2
        assert (await client.describe_quorum()).leader_id == 1
        assert not left

    with_quorum(story)


@pytest.mark.parametrize(
    ("error", "said"),
    [(ErrorCode.INVALID_RECORD, "Record 0: no key"), (ErrorCode.POLICY_VIOLATION, "refused")],
)
def test_of_a_record_that_is_refused_it_is_said_what_is_wrong_with_it(
    error: ErrorCode, said: str
) -> None:
    record = ProduceResponseRecordError(batch_index_error_message="Record 0: no key")
    partition = ProduceResponsePartition(
        error_code=error, error_message="refused", record_errors=(record,)
    )
    refusal = ProduceResponse(responses=(ProduceResponseTopic(partition_responses=(partition,)),))

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.before_answer = lambda _, __, answer: (
            refusal if isinstance(answer, ProduceResponse) else answer
        )
        with pytest.raises(AppendFailed) as raised:
            await client.append(numbered(1))
        cause = raised.value.__cause__
        assert isinstance(cause, RequestRefused)
        assert (cause.error, cause.server_message) == (error, said)

    with_quorum(story)
