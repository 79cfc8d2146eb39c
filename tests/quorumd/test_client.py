"""The client against nodes on real sockets: finding the leader, appending, reading, describing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from quorumd import (
    EARLIEST,
    LATEST,
    AppendFailed,
    NotSupported,
    OffsetOutOfRange,
    QuorumClient,
    QuorumUnavailable,
    Record,
    RequestRefused,
)
from quorumd.client.connection import ClientConnection
from quorumd.client.errors import ConnectionFailed
from quorumd.client.leader import LeaderFinder
from quorumd.client.timing import Deadline
from quorumd.raft.types import Address, ReplicaKey
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchResponse
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import build_batch, crc_is_valid
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import CLUSTER_ID, FakeQuorum, numbered, with_quorum
from tests.support.accepting import stop_accepting
from tests.support.ports import free_port


def values(quorum: FakeQuorum) -> list[bytes | None]:
    return [record.value for record in quorum.records()]


# --- appending


def test_records_are_appended_in_order_and_their_offsets_are_returned() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        first = Record(key=b"k", value=b"a", headers=(("h", b"x"),), timestamp=5)
        assert await client.append([first, Record(value=None)]) == [0, 1]
        assert await client.append([Record(value=b"c")]) == [2]
        found = list(quorum.records())
        assert found[0] == first
        assert [record.value for record in found] == [b"a", None, b"c"]
        assert found[1].timestamp > 1_600_000_000_000

    with_quorum(story)


def test_a_lost_acknowledgement_appends_nothing_twice() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        losses = [True, False, True, True, False]

        def lose(node_id: int, request: Message, response: Message) -> Message | None:
            is_lost = isinstance(request, ProduceRequest) and losses and losses.pop(0)
            return None if is_lost else response

        quorum.before_answer = lose
        producer = client.producer(batch_bytes=200)
        for record in numbered(100):
            await producer.append(record)
        await producer.flush()
        assert values(quorum) == [b"%d" % number for number in range(100)]
        assert (producer.acknowledged_count, producer.last_offset) == (100, 99)

    with_quorum(story)


def test_a_leader_change_in_the_middle_loses_and_repeats_nothing() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        produced = 0

        def change(node_id: int, request: Message, response: Message) -> Message | None:
            nonlocal produced
            if isinstance(request, ProduceRequest):
                produced += 1
                if produced in (3, 9):
                    quorum.elect(quorum.leader_id % 3 + 1)
                    return None
            return response

        quorum.before_answer = change
        producer = client.producer(batch_bytes=200)
        for record in numbered(100):
            await producer.append(record)
        await producer.flush()
        assert quorum.epoch == 3
        assert values(quorum) == [b"%d" % number for number in range(100)]

    with_quorum(story)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_each_record_is_in_the_log_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    errors = [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        def disturb(node_id: int, request: Message, response: Message) -> Message | None:
            if chance.random() < 0.1:
                quorum.refuse_produce.append(chance.choice(errors))
            if chance.random() < 0.05:
                quorum.elect(chance.randint(1, 3))
            return None if chance.random() < 0.1 else response

        quorum.before_answer = disturb
        producer = client.producer(batch_bytes=250)
        for record in numbered(80):
            await producer.append(record)
        await producer.flush()
        assert values(quorum) == [b"%d" % number for number in range(80)]
        assert (producer.acknowledged_count, producer.last_offset) == (80, 79)

    with_quorum(story)


def test_the_hint_in_an_answer_leads_to_the_new_leader() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"a")])
        quorum.elect(3)
        before = len(quorum.requests)
        assert await client.append([Record(value=b"b")]) == [1]
        asked = [node for node, request in quorum.requests[before:] if _is_produce(request)]
        assert asked == [1, 3] or asked == [3]

    with_quorum(story)


def test_a_leader_that_still_seems_to_lead_but_is_dead_is_not_waited_for() -> None:
    # The others name it until they notice; the client asks again.
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"a")])
        await quorum.nodes[1].stop()
        appending = asyncio.create_task(client.append([Record(value=b"b")]))
        await asyncio.wait([appending], timeout=0.1)
        assert not appending.done()
        quorum.elect(2)
        assert await appending == [1]

    with_quorum(story)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
    ],
)
def test_an_error_that_passes_is_tried_again(error: ErrorCode) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.refuse_produce = [error, error]
        assert await client.append([Record(value=b"a")]) == [0]

    with_quorum(story)


def test_a_refusal_says_what_is_certain_and_what_to_do() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer()
        for record in numbered(3):
            await producer.append(record)
        await producer.flush()
        quorum.refuse_produce = [ErrorCode.MESSAGE_TOO_LARGE]
        await producer.append(Record(value=b"x"))
        with pytest.raises(AppendFailed) as raised:
            await producer.flush()
        assert raised.value.acknowledged_count == 3
        assert raised.value.last_offset == 2
        assert raised.value.unknown_count == 0
        assert "log.max.batch.bytes" in str(raised.value)
        assert "fake MESSAGE_TOO_LARGE" in str(raised.value)
        assert "3 records before that are acknowledged, the last one at offset 2" in str(
            raised.value
        )

    with_quorum(story)


def test_without_an_answer_the_outcome_is_called_unknown() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.before_answer = lambda node, request, response: (
            None if isinstance(request, ProduceRequest) else response
        )
        with pytest.raises(AppendFailed) as raised:
            await client.append(numbered(2), timeout_ms=300)
        assert raised.value.unknown_count == 2
        assert "2 records were sent without a response and may be in the log" in str(raised.value)
        assert values(quorum) == [b"0", b"1"]

    with_quorum(story)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_come_back_as_they_were(codec: int) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        producer = client.producer(codec=codec)
        for record in numbered(500):
            await producer.append(record)
        await producer.flush()
        fetched = await client.fetch(0)
        assert [record.value for record in fetched.records] == [b"%d" % n for n in range(500)]
        assert {batch.header.codec for batch in fetched.batches} == {codec}

    with_quorum(story)


# --- finding the quorum


def test_what_cannot_be_reached_is_named_with_the_reason() -> None:
    async def run() -> None:
        port = free_port()
        async with _listening(_never_answer) as silent_port:
            servers = f"a..b:1,127.0.0.1:{port},127.0.0.1:{silent_port},no-such-host.invalid:9093"
            async with QuorumClient(servers, timeout_ms=400) as client:
                with pytest.raises(QuorumUnavailable) as raised:
                    await client.describe_quorum()
        text = str(raised.value)
        assert "could not describe the quorum within 0.4 s" in text
        assert f"127.0.0.1:{port}: connection refused: nothing listens there" in text
        assert f"127.0.0.1:{silent_port}: accepts connections but did not respond" in text
        assert "no-such-host.invalid:9093: the host name does not resolve" in text
        assert "a..b:1: 'a..b' is no host name" in text

    asyncio.run(run())


def test_a_try_without_time_does_not_hide_what_went_wrong_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = Address("127.0.0.1", free_port())
    finder = LeaderFinder([address], client_id="tests")
    refusal = "connection refused"

    async def refuse(*arguments: object, **named: object) -> ClientConnection:
        raise ConnectionFailed(refusal)

    async def name_it(deadline: Deadline) -> Address:
        return address

    monkeypatch.setattr("quorumd.client.connector.Connector.connect", refuse)
    monkeypatch.setattr(finder, "_find", name_it)
    for timeout_ms, reason in (
        (300, "connection refused"),
        (100, "no response within 0 s"),
    ):
        refusal = reason
        with pytest.raises(QuorumUnavailable) as raised:
            asyncio.run(finder.connection("read", Deadline(timeout_ms)))
        assert raised.value.attempts == {address: "connection refused"}


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "responds in HTTP: that is not the port of a listener",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sent something that is not Kafka's protocol"),
        (b"", "closed the connection at once"),
    ],
)
def test_a_server_of_another_kind_is_recognised(greeting: bytes, reason: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(greeting)

    async def run() -> None:
        async with (
            _listening(greet) as port,
            QuorumClient(f"127.0.0.1:{port}", timeout_ms=200) as client,
        ):
            with pytest.raises(QuorumUnavailable) as raised:
                await client.describe_quorum()
        assert reason in str(raised.value)

    asyncio.run(run())


def test_nodes_without_a_leader_are_asked_until_there_is_one() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.leader_id = -1
        describing = asyncio.create_task(client.describe_quorum())
        await asyncio.wait([describing], timeout=0.1)
        quorum.elect(2)
        assert (await describing).leader_id == 2

    with_quorum(story)


def test_a_quorum_without_a_leader_is_reported_as_such() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.leader_id = -1
        client.timeout_ms = 200
        with pytest.raises(QuorumUnavailable, match="responds, but knows no leader at the moment"):
            await client.describe_quorum()

    with_quorum(story)


def test_the_oldest_versions_will_do() -> None:
    async def run() -> None:
        old = {18: (0, 0), 3: (0, 0), 0: (3, 3), 1: (4, 4), 2: (1, 1), 22: (0, 0), 55: (0, 0)}
        async with FakeQuorum(versions={**old, 60: (0, 0)}) as quorum:
            quorum.elect(2)
            async with QuorumClient(quorum.addresses, timeout_ms=3000) as client:
                assert await client.append([Record(value=b"a")]) == [0]
                assert [record.value for record in (await client.fetch(0)).records] == [b"a"]
                description = await client.describe_quorum()
                assert (description.leader_id, description.cluster_id) == (2, CLUSTER_ID)
                assert description.voters[0].key == ReplicaKey(1, None)

    asyncio.run(run())


def test_a_server_that_cannot_do_it_is_said_to_be_the_wrong_one() -> None:
    async def run() -> None:
        async with (
            FakeQuorum(offered=(18, 55, 60)) as quorum,
            QuorumClient(quorum.addresses, timeout_ms=3000) as client,
        ):
            with pytest.raises(NotSupported, match="does not offer ListOffsets"):
                await client.list_offsets(LATEST)

    asyncio.run(run())


def test_servers_that_are_no_quorum_at_all_are_refused_at_once() -> None:
    async def run() -> None:
        async with (
            FakeQuorum(offered=(18, 0, 1)) as quorum,
            QuorumClient(quorum.addresses, timeout_ms=60_000) as client,
        ):
            with pytest.raises(NotSupported, match="it is not a node of a quorum"):
                await client.describe_quorum()

    asyncio.run(run())


# --- reading


def test_everything_is_read_from_any_offset_whatever_the_fetch_size() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        for first in range(0, 60, 3):
            await client.append(numbered(3, first))
        for max_bytes in (1, 100, 300, 1 << 20):
            for start in (0, 1, 31):
                found, offset = [], start
                while offset < 60:
                    fetched = await client.fetch(offset, max_bytes=max_bytes)
                    found += [record.value for record in fetched.records]
                    assert fetched.next_offset > offset
                    offset = fetched.next_offset
                assert found == [b"%d" % number for number in range(start, 60)]

    with_quorum(story)


def test_control_batches_are_passed_over() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.append(build_batch([Record(key=b"\0\0\0\2", value=b"x")], is_control=True))
        await client.append([Record(value=b"a")])
        quorum.append(build_batch([Record(key=b"\0\0\0\2", value=b"x")], is_control=True))
        fetched = await client.fetch(0)
        assert [(record.offset, record.value) for record in fetched.records] == [(1, b"a")]
        assert (fetched.next_offset, fetched.high_watermark) == (3, 3)

    with_quorum(story)


def test_a_batch_that_does_not_unpack_is_an_empty_one_with_a_problem() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        good = build_batch(numbered(2), codec=1)
        # A whole batch with a right CRC whose payload is no gzip stream.
        bad = build_batch(numbered(2))
        bad = _with_codec(bad, 1)
        quorum.append(good)
        quorum.append(bad)
        quorum.append(good)
        fetched = await client.fetch(0)
        assert [record.offset for record in fetched.records] == [0, 1, 4, 5]
        problems = [batch.problem for batch in fetched.batches]
        assert problems[0] is None
        assert "gzip" in str(problems[1])
        assert problems[2] is None

    with_quorum(story)


@pytest.mark.parametrize("raw", [False, True])
def test_records_that_arrive_damaged_are_fetched_again(raw: bool) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(3))
        is_first = [True]

        def damage(node_id: int, request: Message, response: Message) -> Message | None:
            if not isinstance(response, FetchResponse) or not is_first:
                return response
            is_first.pop()
            (topic,) = response.responses
            data = bytes(topic.partitions[0].records or b"")
            partition = replace(topic.partitions[0], records=data[:-1] + b"\xff")
            return replace(response, responses=(replace(topic, partitions=(partition,)),))

        quorum.before_answer = damage
        if raw:
            # Spark's tasks don't check these CRCs once more.
            data, batches = await client.fetch_raw(0)
            assert all(crc_is_valid(data, at, header) for at, header in batches)
            assert sum(header.record_count for _, header in batches) == 3
        else:
            found = [record.value for record in (await client.fetch(0)).records]
            assert found == [b"0", b"1", b"2"]
        assert not is_first

    with_quorum(story)


def test_at_the_end_a_fetch_waits_for_the_next_record() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"a")])
        waiting = asyncio.create_task(client.fetch(1, max_wait_ms=4000))
        await asyncio.wait([waiting], timeout=0.05)
        async with QuorumClient(quorum.addresses) as other:
            await other.append([Record(value=b"b")])
        assert [record.value for record in (await waiting).records] == [b"b"]
        assert list((await client.fetch(2, max_wait_ms=10)).records) == []

    with_quorum(story)


def test_an_offset_that_is_not_there_is_refused_with_the_ones_that_are() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(5))
        quorum.log_start_offset = 2
        for offset in (1, 6):
            with pytest.raises(OffsetOutOfRange) as raised:
                await client.fetch(offset)
            assert (raised.value.log_start_offset, raised.value.end_offset) == (2, 5)
        assert "the log holds offsets 2 to 5 (exclusive)" in str(raised.value)

    with_quorum(story)


def test_reading_goes_on_at_the_new_leader() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(5))
        await client.fetch(0)
        await quorum.nodes[1].stop()
        quorum.elect(3)
        assert [record.offset for record in (await client.fetch(2)).records] == [2, 3, 4]

    with_quorum(story)


def test_first_and_last_offset_are_known() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append(numbered(5))
        assert (await client.list_offsets(EARLIEST)).offset == 0
        assert (await client.list_offsets(LATEST)).offset == 5

    with_quorum(story)


# --- describing


def test_a_quorum_is_described_with_its_figures() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.elect(2)
        await client.append(numbered(100))
        described = await client.describe_quorum()
        assert described.cluster_id == CLUSTER_ID
        assert (described.leader_id, described.leader_epoch) == (2, 2)
        assert described.high_watermark == 100
        assert [described.lag(replica) for replica in described.voters] == [1, 0, 3]
        assert [described.lag_time_ms(replica) for replica in described.voters] == [10, 0, 30]
        assert described.max_follower_lag == 3
        assert described.max_follower_lag_time_ms == 30
        assert [
            described.status_of(each) for each in (*described.voters, *described.observers)
        ] == [
            "Follower",
            "Leader",
            "Follower",
            "Observer",
        ]
        (addable,) = described.could_be_voters
        assert addable.key == ReplicaKey(9, UUID(int=(1 << 64) + 9))
        assert described.voters[0].endpoints[0].port == quorum.nodes[1].port

    with_quorum(story)


def test_a_request_that_is_refused_says_what_the_code_means() -> None:
    error = RequestRefused("read the log", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")
    assert str(error) == (
        "could not read the log: this client may not do that (CLUSTER_AUTHORIZATION_FAILED, 31). "
        "The server says: no"
    )


async def _never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@asynccontextmanager
async def _listening(handle: Callable[..., Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server that leaves no connection open in the end."""
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


def _is_produce(request: Message) -> bool:
    return isinstance(request, ProduceRequest)


def _with_codec(batch: bytes, codec: int) -> bytes:
    from crc32c import crc32c

    changed = bytearray(batch)
    changed[22] |= codec
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)
