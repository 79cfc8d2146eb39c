"""Produce, on real sockets against a partition in memory: what is appended, and when it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.raft.errors import KafkaError, Refusal
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.topic import METADATA
from quorumd.server.requests import produce
from quorumd.server.requests.produce import ProduceHandler
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseCurrentLeader,
    ProduceResponsePartition,
)
from quorumd.wire.records import iter_headers, iter_records
from tests.support.asking import TOPIC, InMemoryPartition, answer_to, ask, batch, question
from tests.support.serving import Client, Parking, Served, run, serving

PRODUCE = 0
VERSIONS = range(3, 14)
NO_LEADER = Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this replica does not lead")


class Bench:
    """A handler behind a listener, and a client."""

    def __init__(self, served: Served, client: Client, handler: ProduceHandler) -> None:
        self.served = served
        self.client = client
        self.handler = handler
        self.partition = cast(InMemoryPartition, handler._target)

    async def send(self, message: ProduceRequest, version: int = 9) -> None:
        """Send it, and let it be appended."""
        before = self.served.metrics.requests[PRODUCE]
        await self.client.send(question(PRODUCE, version, message))
        await until(lambda: self.served.metrics.requests[PRODUCE] > before)
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self, version: int = 9) -> list[ProduceResponsePartition]:
        message = cast(ProduceResponse, await answer_to(self.client, PRODUCE, version))
        return [row for topic in message.responses for row in topic.partition_responses]

    async def ask(
        self, message: ProduceRequest, version: int = 9
    ) -> list[ProduceResponsePartition]:
        answer = cast(ProduceResponse, await ask(self.client, PRODUCE, version, message))
        return [row for topic in answer.responses for row in topic.partition_responses]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def with_bench(work: Callable[[Bench], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def whole() -> None:
        partition = InMemoryPartition(**settings)
        loop = asyncio.get_running_loop()
        handler = ProduceHandler(
            partition,
            partition,
            ProducerState(),
            Metrics(),
            1 << 20,
            daemon_runtime(),
            loop.call_soon,
        )
        partition.produce = handler
        async with serving(Parking(handler.handle)) as served:
            await work(Bench(served, await served.connect(), handler))
        handler.close()

    run(whole())


def to(
    *records: bytes | None, acks: int = -1, timeout_ms: int = 5_000, version: int = 9
) -> ProduceRequest:
    """One topic with these batches, each for partition 0."""
    partitions = tuple(ProduceRequestPartition(index=0, records=data) for data in records)
    topic = ProduceRequestTopic(name=TOPIC, partition_data=partitions)
    if version >= 13:
        topic = ProduceRequestTopic(topic_id=METADATA.topic_id, partition_data=partitions)
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=(topic,))


def codes(rows: list[ProduceResponsePartition]) -> list[int]:
    return [row.error_code for row in rows]


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_is_answered_when_it_is_committed_and_not_before(version: int, acks: int) -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch(3), acks=acks, version=version), version)
        assert at.partition.log_end_offset == 10 + 3
        at.partition.commit(12)
        assert at.handler.parked_count == 1
        at.partition.commit(13)
        (row,) = await at.answer(version)
        assert (row.error_code, row.base_offset) == (0, 10)

    with_bench(work, log_end_offset=10, committed_offset=10)


def test_what_one_turn_of_the_loop_brings_is_one_append() -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch()))
        at.partition.commit(1)
        await at.answer()
        await at.client.send(b"".join(question(PRODUCE, 9, to(batch(2))) for _ in range(5)))
        await until(lambda: at.partition.log_end_offset == 11)
        assert len(at.partition.chunks) <= 3
        headers = [h for chunk in at.partition.chunks for _, h in iter_headers(chunk.data)]
        assert [h.base_offset for h in headers] == [0, 1, 3, 5, 7, 9]
        assert {h.epoch for h in headers} == {5}
        at.partition.commit(11)
        assert [(await at.answer())[0].base_offset for _ in range(5)] == [1, 3, 5, 7, 9]

    with_bench(work)


def test_followers_may_have_got_a_part_of_an_append() -> None:
    async def work(at: Bench) -> None:
        await at.client.send(b"".join(question(PRODUCE, 9, to(batch(2))) for _ in range(4)))
        await until(lambda: at.partition.log_end_offset == 8)
        at.partition.commit(3)
        assert (await at.answer())[0].base_offset == 0
        assert at.handler.parked_count == 3
        at.partition.commit(6)
        assert [(await at.answer())[0].base_offset for _ in range(2)] == [2, 4]
        assert at.handler.parked.uncommitted_bytes > 0
        at.partition.commit(8)
        assert (await at.answer())[0].base_offset == 6
        assert at.handler.parked.uncommitted_bytes == at.handler.parked_count == 0

    with_bench(work)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_requests_of_other_partitions_between_are_refused(version: int) -> None:
    async def work(at: Bench) -> None:
        right = to(batch(), version=version)
        (topic,) = right.topic_data
        (partition,) = topic.partition_data
        wrong = replace(
            right,
            topic_data=(replace(topic, partition_data=(replace(partition, index=1),)),),
        )
        for message, error in ((right, 0), (wrong, 3), (right, 0), (wrong, 3)):
            if error:
                (row,) = await at.ask(message, version)
            else:
                await at.send(message, version)
                at.partition.commit(at.partition.log_end_offset)
                (row,) = await at.answer(version)
            assert row.error_code == error
        assert at.partition.log_end_offset == 2

    with_bench(work)


def test_acks_0_has_no_answer_and_the_next_request_does() -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch(), acks=0))
        await at.send(to(batch()))
        at.partition.commit(2)
        (row,) = await at.answer()
        assert row.base_offset == 1

    with_bench(work)


def test_acks_0_with_an_error_closes_the_connection_and_only_that_one() -> None:
    async def work(at: Bench) -> None:
        other = await at.served.connect()
        await at.send(to(batch(), None, acks=0))
        at.partition.commit(1)
        assert await at.client.rest() == b""
        await other.send(question(PRODUCE, 9, to(None)))
        await answer_to(other, PRODUCE, 9)

    with_bench(work)


@pytest.mark.parametrize("acks", [2, -2, 32767])
@pytest.mark.parametrize("count", [1, 2])
def test_other_acks_are_refused_and_nothing_is_appended(acks: int, count: int) -> None:
    async def work(at: Bench) -> None:
        rows = await at.ask(to(*[batch()] * count, acks=acks))
        assert codes(rows) == [ErrorCode.INVALID_REQUIRED_ACKS] * count
        assert not at.partition.chunks

    with_bench(work)


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 20])
def test_a_request_whose_time_is_over_is_told_so_and_stays_appended(timeout_ms: int) -> None:
    async def work(at: Bench) -> None:
        (row,) = await at.ask(to(batch(), timeout_ms=timeout_ms))
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert at.partition.log_end_offset == 1
        at.partition.commit(1)
        assert at.handler.parked_count == 0
        assert at.handler.parked.uncommitted_bytes == 0

    with_bench(work)


def test_several_partitions_and_topics_are_answered_one_by_one_in_one_answer() -> None:
    async def work(at: Bench) -> None:
        topics = (
            ProduceRequestTopic(
                name=TOPIC,
                partition_data=(
                    ProduceRequestPartition(index=0, records=batch(2)),
                    ProduceRequestPartition(index=1, records=batch()),
                    ProduceRequestPartition(index=0, records=batch(3)),
                ),
            ),
            ProduceRequestTopic(
                name="other", partition_data=(ProduceRequestPartition(index=0, records=batch()),)
            ),
            ProduceRequestTopic(name=TOPIC, partition_data=()),
        )
        await at.send(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics))
        at.partition.commit(2)
        at.partition.commit(5)
        rows = await at.answer()
        assert codes(rows) == [0, 3, 0, 3]
        assert [row.base_offset for row in rows] == [0, -1, 2, -1]

    with_bench(work)


def test_a_request_without_topics_is_answered() -> None:
    async def work(at: Bench) -> None:
        assert await at.ask(ProduceRequest(acks=-1, timeout_ms=0, topic_data=())) == []

    with_bench(work)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [None, b"", b"x" * 70, batch() + batch()])
def test_what_is_no_batch_is_refused_in_every_version(version: int, records: bytes | None) -> None:
    async def work(at: Bench) -> None:
        (row,) = await at.ask(to(records, version=version), version)
        assert row.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
        assert row.base_offset == -1
        if version >= 8:
            assert row.error_message

    with_bench(work)


def test_bytes_behind_a_batch_that_are_none_are_left_out_of_the_log() -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch() + b"rest"))
        (chunk,) = at.partition.chunks
        assert len(chunk.data) == len(batch())

    with_bench(work)


@pytest.mark.parametrize(("version", "code"), [(12, 3), (13, 100)])
def test_an_unknown_topic_has_the_error_of_its_version(version: int, code: int) -> None:
    async def work(at: Bench) -> None:
        partitions = (ProduceRequestPartition(index=0, records=batch()),)
        topic = ProduceRequestTopic(name="x", partition_data=partitions)
        if version >= 13:
            topic = ProduceRequestTopic(topic_id=UUID(int=7), partition_data=partitions)
        request = ProduceRequest(acks=-1, timeout_ms=0, topic_data=(topic,))
        assert codes(await at.ask(request, version)) == [code]

    with_bench(work)


@pytest.mark.parametrize("version", VERSIONS)
def test_who_does_not_lead_names_the_leader_where_the_version_can(version: int) -> None:
    async def work(at: Bench) -> None:
        answer = await ask(at.client, PRODUCE, version, to(batch(), version=version))
        assert isinstance(answer, ProduceResponse)
        (row,) = answer.responses[0].partition_responses
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 5)
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port) == (2, "leader.example", 9092)

    with_bench(work, leader_id=2, is_leader=False, append_refusal=NO_LEADER)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_leader_none_is_named_and_no_epoch(version: int) -> None:
    """librdkafka warns of each response that names leader -1 in an epoch."""

    async def work(at: Bench) -> None:
        answer = await ask(at.client, PRODUCE, version, to(batch(), version=version))
        assert isinstance(answer, ProduceResponse)
        (row,) = answer.responses[0].partition_responses
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader == ProduceResponseCurrentLeader()
        assert answer.node_endpoints == ()

    with_bench(work, leader_id=None, is_leader=False, append_refusal=NO_LEADER)


def test_what_is_parked_when_leadership_ends_is_sent_to_the_new_leader() -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch()))
        at.partition.leader_id = None
        at.handler.on_leadership_lost()
        assert codes(await at.answer()) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert at.handler.parked_count == 0

    with_bench(work)


def test_what_came_in_the_turn_in_which_leadership_ended_is_not_appended() -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch()))
        ends_of_turns: list[Callable[[], None]] = []
        at.handler._call_soon = ends_of_turns.append
        await at.client.send(question(PRODUCE, 9, to(batch())))
        await until(lambda: bool(ends_of_turns))
        at.partition.append_refusal = NO_LEADER
        at.handler.on_leadership_lost()
        for end_turn in ends_of_turns:
            end_turn()
        await at.answer()
        assert codes(await at.answer()) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert at.partition.log_end_offset == 1

    with_bench(work)


def test_a_lone_batch_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def refusal(_: InMemoryPartition) -> None:
        nonlocal asked
        asked += 1

    async def work(at: Bench) -> None:
        await at.send(to(batch()))
        at.partition.commit(1)
        await at.answer()
        with monkeypatch.context() as patched:
            patched.setattr(InMemoryPartition, "append_refusal", property(refusal))
            await at.send(to(batch()))
        assert (asked, at.partition.log_end_offset) == (1, 2)

    with_bench(work)


def test_more_than_may_wait_for_a_majority_is_refused_until_it_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "UNCOMMITTED_BYTES_MAX", 1500)

    async def work(at: Bench) -> None:
        await at.send(to(batch()))
        await at.send(to(batch()))
        other = Bench(at.served, await at.served.connect(), at.handler)
        assert codes(await other.ask(to(batch()))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        at.partition.commit(2)
        await other.send(to(batch()))
        at.partition.commit(3)
        assert codes(await other.answer()) == [0]

    with_bench(work)


def test_a_duplicate_is_answered_with_the_first_offsets_when_the_original_commits() -> None:
    async def work(at: Bench) -> None:
        original = to(batch(3, producer=(7, 0, 0)))
        await at.send(original)
        await at.send(original)
        assert at.partition.log_end_offset == 3, "it is in the log once"
        other = Bench(at.served, await at.served.connect(), at.handler)
        await other.send(original)
        assert at.handler.parked_count == 3
        at.partition.commit(3)
        for rows in (await at.answer(), await at.answer(), await other.answer()):
            assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0)]
        assert [row.base_offset for row in await other.ask(original)] == [0], (
            "at once, if committed"
        )

    with_bench(work)


def test_a_duplicate_of_a_batch_of_the_same_turn_does_not_hold_up_the_ones_before_it() -> None:
    async def work(at: Bench) -> None:
        first, second = batch(producer=(7, 0, 0)), batch(producer=(7, 0, 1))
        await at.send(to(first, second, second, first))
        at.partition.commit(1)
        assert at.handler.parked_count == 2
        at.partition.commit(2)
        rows = await at.answer()
        assert [(row.error_code, row.base_offset) for row in rows] == [
            (0, 0),
            (0, 1),
            (0, 1),
            (0, 0),
        ]

    with_bench(work)


def test_duplicates_whose_time_is_over_are_forgotten() -> None:
    async def work(at: Bench) -> None:
        original = to(batch(producer=(7, 0, 0)), timeout_ms=1)
        for _ in range(3):
            assert codes(await at.ask(original)) == [ErrorCode.REQUEST_TIMED_OUT]
        assert at.handler.parked_count == 1

    with_bench(work)


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((7, 0, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((7, -2, 3), ErrorCode.INVALID_PRODUCER_EPOCH),
        ((7, 1, 3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((7, 0, -1), ErrorCode.INVALID_RECORD),
        ((8, -1, 0), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused_and_changes_nothing(
    producer: tuple[int, int, int], error: ErrorCode
) -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch(3, producer=(7, 0, 0))))
        at.partition.commit(3)
        await at.answer()
        assert codes(await at.ask(to(batch(producer=producer)))) == [error]
        await at.send(to(batch(producer=(7, 0, 3))))
        at.partition.commit(4)
        assert codes(await at.answer()) == [0]

    with_bench(work)


def test_a_client_that_hangs_up_leaves_nothing_behind_and_its_batch_commits() -> None:
    async def work(at: Bench) -> None:
        await at.send(to(batch(value=b"kept")))
        (connection,) = at.served.listeners.connections
        (request,) = connection._waiting
        assert request.frame
        at.client.reset()
        await until(lambda: not at.served.listeners.connections)
        assert request.frame == b""
        at.partition.commit(1)
        assert at.handler.parked_count == 0
        (chunk,) = at.partition.chunks
        assert [record.value for record in iter_records(chunk.data)] == [b"kept"]

    with_bench(work)


def test_a_request_that_is_cut_short_closes_its_connection_and_appends_nothing() -> None:
    async def work(at: Bench) -> None:
        whole = question(PRODUCE, 9, to(batch()))[4:]
        head = encode_request_header(PRODUCE, 9, 1, "tests")
        cut = whole[: len(head) + 20]
        await at.client.send(len(cut).to_bytes(4, "big") + cut)
        assert await at.client.rest() == b""
        assert not at.partition.chunks

    with_bench(work)


def test_a_transactional_request_is_refused() -> None:
    async def work(at: Bench) -> None:
        plain = to(batch())
        message = ProduceRequest(
            transactional_id="t", acks=-1, timeout_ms=0, topic_data=plain.topic_data
        )
        rows = await at.ask(message)
        assert codes(rows) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]

    with_bench(work)
