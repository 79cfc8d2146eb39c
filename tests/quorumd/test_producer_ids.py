"""Which appends of a client share a producer id, and which have none; how their batches are numbered, and
what becomes of those whose call was cancelled."""

from __future__ import annotations

import asyncio

import pytest

from quorumd import AppendFailed, QuorumClient
from quorumd.client.addresses import parse_addresses
from quorumd.client.leader import LeaderFinder
from quorumd.client.producer import Producer, ProducerIdentity
from quorumd.client.timing import TRY_TIMEOUT_MS
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import Record, read_header
from tests.quorumd.fake_quorum import FakeQuorum, numbered, with_quorum


def producer_ids(quorum: FakeQuorum) -> list[int]:
    return [read_header(batch).producer_id for batch in quorum.log]


def test_appends_one_after_the_other_are_of_one_producer() -> None:
    """A leader remembers 10,000: a client that was another one each time would soon be forgotten."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        for n in range(4):
            assert await client.append(numbered(2)) == [2 * n, 2 * n + 1]
        assert len(set(producer_ids(quorum))) == 1
        asked = [each for _, each in quorum.requests if isinstance(each, InitProducerIdRequest)]
        assert len(asked) == 1

    with_quorum(story)


def test_appends_at_the_same_time_are_of_several_producers_that_serve_again() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        for _ in range(3):
            found = await asyncio.gather(*(client.append(numbered(1)) for _ in range(5)))
            assert len({offset for (offset,) in found}) == 5
        assert len(set(producer_ids(quorum))) <= 5

    with_quorum(story)


def test_a_producer_of_an_append_that_failed_or_was_cancelled_serves_no_other() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(1))
        quorum.before_answer = lambda node, request, response: (
            None if isinstance(request, ProduceRequest) else response
        )
        with pytest.raises(AppendFailed):
            await client.append(numbered(1), timeout_ms=300)
        quorum.before_answer = None
        assert await client.append(numbered(1)) == [2]
        first, failed, other = producer_ids(quorum)
        assert first == failed != other

    with_quorum(story)


def test_without_idempotence_no_producer_id_is_asked_for() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        assert await client.append(numbered(3), idempotent=False) == [0, 1, 2]
        assert not any(isinstance(each, InitProducerIdRequest) for _, each in quorum.requests)

    with_quorum(story)


def test_without_idempotence_no_batch_overtakes_one_that_is_sent_again() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(idempotent=False, batch_bytes=100)
        for number, record in enumerate(numbered(30)):
            if number == 10:
                await producer.flush()
                quorum.refuse_produce = [ErrorCode.NOT_ENOUGH_REPLICAS]
            await producer.append(record)
        await producer.flush()
        assert not quorum.refuse_produce
        assert [record.value for record in quorum.records()] == [b"%d" % n for n in range(30)]

    with_quorum(story)


def test_the_first_batch_of_a_producer_goes_alone() -> None:
    """A leader that does not know the producer would take a later one for its first."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.refuse_produce = [ErrorCode.NOT_ENOUGH_REPLICAS]
        producer = client.producer(batch_bytes=100)
        for record in numbered(20):
            await producer.append(record)
        await producer.flush()
        asked = [each for _, each in quorum.requests if isinstance(each, ProduceRequest)]
        batches = [each.topic_data[0].partition_data[0].records or b"" for each in asked]
        first, again, *_ = [read_header(batch).base_sequence for batch in batches]
        assert (first, again) == (0, 0)
        assert [record.value for record in quorum.records()] == [b"%d" % n for n in range(20)]

    with_quorum(story)


@pytest.mark.parametrize(
    ("idempotent", "timeout_ms"), [(False, 10 * TRY_TIMEOUT_MS), (True, TRY_TIMEOUT_MS)]
)
def test_without_idempotence_the_first_try_gets_all_the_time(
    idempotent: bool, timeout_ms: int
) -> None:
    """A second one might append twice."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(1), idempotent=idempotent, timeout_ms=10 * TRY_TIMEOUT_MS)
        (sent,) = [each for _, each in quorum.requests if isinstance(each, ProduceRequest)]
        assert sent.timeout_ms == timeout_ms

    with_quorum(story)


def test_behind_the_last_number_of_a_producer_comes_0() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        finder = LeaderFinder(parse_addresses(quorum.addresses), client_id="tests")
        identity = ProducerIdentity(7, 0, next_sequence=0x7FFFFFFE)
        producer = Producer(finder, timeout_ms=5000, identity=identity)
        for _ in range(2):
            for record in numbered(3):
                await producer.append(record)
            await producer.flush()
        finder.close()
        assert [read_header(batch).base_sequence for batch in quorum.log] == [0x7FFFFFFE, 1]

    with_quorum(story)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_goes_on_after_a_call_that_was_cancelled(idempotent: bool) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(idempotent=idempotent)
        await producer.append(Record(value=b"a"))
        await producer.flush()
        await producer.append(Record(value=b"b"))
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        assert producer.unknown_count == 1
        await producer.append(Record(value=b"c"))
        await producer.flush()
        assert (producer.acknowledged_count, producer.last_offset) == (3, 2)
        assert [record.value for record in quorum.records()] == [b"a", b"b", b"c"]

    with_quorum(story)
