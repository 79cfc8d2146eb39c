"""A stream of records: how they are gathered into batches, and the time that each batch has."""

from __future__ import annotations

import asyncio
import re
from array import array
from typing import Any

import pytest

from quorumd import EARLIEST, QuorumClient
from quorumd.client.errors import AppendFailed
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from quorumd.wire.metadata_topic import TOPIC, TOPIC_ID
from quorumd.wire.records import Record, iter_records, read_header
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum, with_quorum


@pytest.mark.parametrize(
    "record",
    [
        Record(value=bytes(900)),
        Record(key=bytes(900)),
        Record(value=b"", headers=(("n" * 200, bytes(600)),)),
    ],
    ids=["values", "keys", "headers"],
)
def test_batches_are_filled_one_like_the_other(record: Record) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(batch_bytes=10_000)
        for _ in range(35):
            await producer.append(record)
        await producer.flush()
        counts = [read_header(batch).record_count for batch in quorum.log]
        assert len(set(counts[:-1])) == 1
        assert counts[0] > 5
        assert sum(counts) == producer.acknowledged_count == 35
        assert max(map(len, quorum.log)) <= 10_000

    with_quorum(story)


def test_a_record_larger_than_a_batch_is_one_of_its_own() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(batch_bytes=1000)
        for size in (5000, 1, 5000):
            await producer.append(Record(value=bytes(size)))
        await producer.flush()
        assert [read_header(batch).record_count for batch in quorum.log] == [1, 1, 1]

    with_quorum(story)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"value": "blue"},
            "the value of a record is of type str: give bytes, such as text.encode()",
        ),
        ({"key": "color"}, "the key of a record is of type str"),
        ({"value": 5}, "the value of a record is of type int: give bytes"),
        ({"value": memoryview(array("i", [1, 2]))}, "the value of a record is of type memoryview"),
        ({"value": memoryview(b"abcd")[::2]}, "the value of a record is of type memoryview"),
        ({"headers": (("name", "text"),)}, "the header of a record is of type str"),
        ({"headers": ((5, b""),)}, "the header name of a record is of type int"),
        ({"headers": ((None, b""),)}, "the name of a header is None"),
        ({"headers": (("\ud800", b""),)}, "surrogates not allowed"),
        ({"timestamp": 1 << 63}, "the timestamp of a record is 9223372036854775808"),
        ({"timestamp": 1.5}, "the timestamp of a record is 1.5: give whole ms since 1970"),
        ({"headers": {"name": b""}}, "the headers of a record are of type dict: give pairs"),
        ({"headers": None}, "the headers of a record are of type NoneType: give pairs"),
    ],
)
def test_a_record_that_no_batch_can_hold_is_left_out_alone(
    wrong: dict[str, Any], words: str
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer()
        await producer.append(Record(value=b"before"))
        with pytest.raises((TypeError, ValueError), match=re.escape(words)):
            await producer.append(Record(**wrong))
        await producer.append(Record(value=b"behind"))
        await producer.flush()
        assert [r.value for batch in quorum.log for r in iter_records(batch)] == [
            b"before",
            b"behind",
        ]

    with_quorum(story)


@pytest.mark.parametrize(
    ("given", "kind"), [(Record(value=b"x"), "int"), ([b"x"], "bytes"), (["x"], "str")]
)
def test_what_is_no_record_is_refused_by_its_type(given: Any, kind: str) -> None:
    """A record is a tuple: given alone it looks like five of something."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        with pytest.raises(TypeError, match=f"a record is of type {kind}: give quorumd.Record"):
            await client.append(given)
        assert not quorum.log

    with_quorum(story)


@pytest.mark.parametrize(("whole", "batches"), [(False, 3), (True, 1)])
def test_many_records_become_several_batches_unless_they_are_to_be_one(
    whole: bool, batches: int
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        records = [Record(value=bytes(150_000))] * 3
        assert await client.append(records, whole=whole) == [0, 1, 2]
        assert len(quorum.log) == batches

    with_quorum(story)


def test_the_timeout_is_that_of_a_batch_and_not_of_all_of_them() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async def slow(node_id: int, request: ProduceRequest) -> ProduceResponse:
            await asyncio.sleep(0.2)
            return quorum.nodes[node_id]._produce(request)

        quorum.handlers[ProduceRequest] = slow
        acknowledged: list[tuple[int, int]] = []
        producer = client.producer(
            timeout_ms=600,
            batch_bytes=1,
            on_acknowledged=lambda *each: acknowledged.append(each),
        )
        for _ in range(6):
            await producer.append(Record(value=b"x"))
        await producer.flush()
        assert acknowledged == [(offset, 1) for offset in range(6)]
        assert (producer.last_offset, producer.unknown_count) == (5, 0)

    with_quorum(story)


def test_what_is_not_acknowledged_in_its_time_is_counted_as_unknown() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(timeout_ms=300, batch_bytes=1)
        await producer.append(Record(value=b"x"))
        await producer.flush()
        quorum.before_answer = lambda _, request, answer: (
            None if isinstance(request, ProduceRequest) else answer
        )
        await producer.append(Record(value=b"y"))
        with pytest.raises(AppendFailed) as caught:
            await producer.flush()
        failed = caught.value
        assert (failed.acknowledged_count, failed.last_offset, failed.unknown_count) == (1, 0, 1)
        assert failed.was_sent_again

    with_quorum(story)


def test_a_batch_whose_answer_has_come_is_not_sent_again_by_the_next_one() -> None:
    """Without sequence numbers it would be in the log twice."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(batch_bytes=1, idempotent=False)
        await producer.append(Record(value=b"a"))
        await producer.flush()
        for value in (b"b", b"c"):
            await producer.append(Record(value=value))
        sent = producer._pending[0].sent
        assert sent is not None
        await asyncio.wait((sent.response,))
        await producer.append(Record(value=b"d"))
        await producer.flush()
        assert [record.value for record in quorum.records()] == [b"a", b"b", b"c", b"d"]

    with_quorum(story)


@pytest.mark.parametrize(("lost", "unknown"), [(0, 0), (1, 1)])
def test_what_is_refused_is_unknown_if_it_was_sent_before_and_nobody_answered(
    lost: int, unknown: int
) -> None:
    """The first try may be in the log."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(timeout_ms=20_000)
        left = lost

        def answer_of(node_id: int, request: Message, answer: Message) -> Message | None:
            nonlocal left
            if not isinstance(request, ProduceRequest):
                return answer
            left -= 1
            return None if left >= 0 else refused

        refusal = ProduceResponsePartition(
            index=0, error_code=int(ErrorCode.MESSAGE_TOO_LARGE), base_offset=-1
        )
        topic = ProduceResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partition_responses=(refusal,))
        refused = ProduceResponse(responses=(topic,))
        await producer.append(Record(value=b"x"))
        quorum.before_answer = answer_of
        with pytest.raises(AppendFailed) as caught:
            await producer.flush()
        assert (caught.value.unknown_count, caught.value.acknowledged_count) == (unknown, 0)
        assert caught.value.was_sent_again is (lost > 0)

    with_quorum(story)


def test_a_producer_with_little_time_ends_the_connection_of_no_other() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"x")])
        connections = len(quorum.software)
        is_asked, answers = asyncio.Event(), asyncio.Event()

        async def answer_late(node_id: int, request: ProduceRequest) -> ProduceResponse:
            is_asked.set()
            await answers.wait()
            return quorum.nodes[node_id]._produce(request)

        quorum.handlers[ProduceRequest] = answer_late
        producer = client.producer(timeout_ms=100)
        await producer.append(Record(value=b"y"))
        append = asyncio.create_task(producer.flush())
        await is_asked.wait()
        other = asyncio.create_task(client.list_offsets(EARLIEST))
        with pytest.raises(AppendFailed, match=r"no acknowledgement within 0\.1 s") as caught:
            await append
        assert caught.value.unknown_count == 1
        answers.set()
        assert (await other).offset == 0
        assert len(quorum.software) == connections

    with_quorum(story)


def test_a_batch_that_is_tried_again_waits_no_longer_for_the_tries_of_those_before(
    pauses_ms: list[float],
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(batch_bytes=1)
        refusal = ProduceResponsePartition(
            index=0, error_code=int(ErrorCode.NOT_ENOUGH_REPLICAS), base_offset=-1
        )
        topic = ProduceResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partition_responses=(refusal,))
        tries = iter([False, False, False, True, False, True])

        async def refuse_some(node_id: int, request: ProduceRequest) -> ProduceResponse:
            if next(tries):
                return quorum.nodes[node_id]._produce(request)
            return ProduceResponse(responses=(topic,))

        quorum.handlers[ProduceRequest] = refuse_some
        await producer.append(Record(value=b"x"))
        await producer.append(Record(value=b"y"))
        await producer.flush()
        assert producer.acknowledged_count == 2
        assert pauses_ms == [20, 40, 80, 20]

    with_quorum(story)
