"""Following the log against nodes on real sockets: batches, leaders, outages."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from quorumd import (
    BatchCommitted,
    LeaderChanged,
    LogReplaced,
    NotSupported,
    OffsetOutOfRange,
    QuorumClient,
    QuorumLost,
    QuorumRestored,
    QuorumUnavailable,
)
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum, with_quorum
from tests.quorumd.followed import (
    Events,
    committed,
    elect,
    follow,
    put,
    take_snapshot,
    without_records,
)


def test_the_leader_comes_first_then_each_batch_once_and_live() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        put(quorum, b"a", b"b")
        put(quorum, b"c")
        assert await anext(events) == LeaderChanged(1, 1)
        first = await anext(events)
        assert isinstance(first, BatchCommitted)
        assert first == BatchCommitted(0, 2, 1, 5, first.records)
        assert [record.offset for record in first.records] == [0, 1]
        assert await committed(events, 1) == [(2, [b"c"])]
        waiting = asyncio.ensure_future(committed(events, 1))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        put(quorum, b"d")
        assert await waiting == [(3, [b"d"])]

    follow(story)


def test_a_control_batch_moves_the_offset_and_names_the_leader() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        assert await anext(events) == LeaderChanged(3, 3)
        put(quorum, b"a")
        elect(quorum, 1)
        put(quorum, b"b")
        found = [await anext(events) for _ in range(6)]
        # The leaders of the past are no news.
        assert [without_records(event) for event in found] == [
            BatchCommitted(0, 1, 2, 5, ()),
            BatchCommitted(1, 2, 3, 5, ()),
            BatchCommitted(2, 3, 3, 5, ()),
            LeaderChanged(1, 4),
            BatchCommitted(3, 4, 4, 5, ()),
            BatchCommitted(4, 5, 4, 5, ()),
        ]

    def prepare(quorum: FakeQuorum) -> None:
        elect(quorum, 2)
        elect(quorum, 3)

    follow(story, prepare=prepare)


def test_a_reader_that_begins_in_the_middle_of_a_batch_gets_its_rest() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        assert await committed(events, 2) == [(2, [b"c"]), (3, [b"d"])]

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a", b"b", b"c")
        put(quorum, b"d")
        take_snapshot(quorum, cleans=False)

    follow(story, prepare=prepare, from_offset=2)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_each_batch_comes_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)

    def disturb(quorum: FakeQuorum, response: Message) -> Message | None:
        if chance.random() < 0.1:
            elect(quorum, chance.randint(1, 3))
        return None if chance.random() < 0.15 else response

    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        quorum.before_answer = lambda node, request, response: disturb(quorum, response)
        offset, epoch, values = 0, 0, []
        for number in range(30):
            put(quorum, b"%d" % number)
            while b"%d" % number not in values:
                event = await anext(events)
                if isinstance(event, BatchCommitted):
                    assert event.base_offset == offset
                    assert event.epoch >= epoch
                    offset, epoch = event.next_offset, event.epoch
                    values += [record.value for record in event.records]
        assert values == [b"%d" % number for number in range(30)]

    follow(story)


def test_who_reads_no_longer_leaves_no_connection() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with aclosing(client.follow()) as events:
            await anext(events)
        async with asyncio.timeout(10):
            for node in quorum.nodes.values():
                await node.until_idle()

    with_quorum(story)


def test_an_outage_is_told_once_and_its_end_too() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        put(quorum, b"a")
        await committed(events, 1)
        for node in quorum.nodes.values():
            await node.stop()
        lost = await anext(events)
        assert isinstance(lost, QuorumLost)
        assert "connection refused" in str(lost.error)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.wait([waiting], timeout=1.0)
        assert not waiting.done()
        for node in quorum.nodes.values():
            await node.start()
        put(quorum, b"b")
        assert await waiting == QuorumRestored()
        assert await committed(events, 1) == [(1, [b"b"])]

    follow(story, timeout_ms=300)


def test_a_quorum_that_was_never_there_is_an_error() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        quorum.leader_id = -1
        with pytest.raises(QuorumUnavailable, match="knows no leader"):
            await anext(events)

    follow(story, timeout_ms=200)


def test_a_deposed_leader_that_knows_of_less_is_waited_for() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        put(quorum, b"a")
        put(quorum, b"b")
        await committed(events, 2)
        log, end_offset = quorum.log[:], quorum.end_offset
        quorum.log, quorum.end_offset = log[:1], 1
        quorum.elect(2)
        waiting = asyncio.ensure_future(committed(events, 1))
        await asyncio.wait([waiting], timeout=0.3)
        assert not waiting.done()
        quorum.log, quorum.end_offset = log, end_offset
        elect(quorum, 3)
        put(quorum, b"c")
        assert await waiting == [(3, [b"c"])]

    follow(story)


def test_each_time_a_deposed_leader_is_waited_for_anew() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        for turn in range(3):
            put(quorum, b"a")
            await committed(events, 1)
            log, end_offset = quorum.log[:], quorum.end_offset
            quorum.log, quorum.end_offset = log[:-1], end_offset - 1
            quorum.elect(2)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.wait([waiting], timeout=0.4)
            assert not waiting.done(), turn
            quorum.log, quorum.end_offset = log, end_offset
            elect(quorum, 3)
            assert isinstance(await waiting, LeaderChanged)

    follow(story, timeout_ms=900)


def test_a_log_that_has_lost_what_was_read_ends_the_following() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        put(quorum, b"a")
        put(quorum, b"b")
        await committed(events, 2)
        quorum.log, quorum.end_offset = quorum.log[:1], 1
        quorum.elect(2)
        with pytest.raises(OffsetOutOfRange, match="there is no offset 2"):
            await anext(events)

    follow(story, timeout_ms=300)


def test_the_log_of_another_quorum_is_not_taken_for_the_continuation() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        elect(quorum, 2)
        put(quorum, b"a")
        await committed(events, 1)
        quorum.log.clear()
        quorum.epoch, quorum.end_offset = 1, 0
        for value in (b"x", b"y", b"z"):
            put(quorum, value)
        with pytest.raises(LogReplaced, match=r"from offset 2, epoch 2: .* offset 2, epoch 1"):
            await committed(events, 1)

    follow(story)


def test_a_batch_that_is_missing_is_not_passed_over() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        for value in (b"a", b"b", b"c"):
            put(quorum, value)
        del quorum.log[1]
        with pytest.raises(LogReplaced, match=r"from offset 1, epoch 1: .* offset 2, epoch 1"):
            await committed(events, 2)

    follow(story)


def test_a_server_without_fetches_of_replicas_is_refused() -> None:
    async def run() -> None:
        async with (
            FakeQuorum(versions={1: (4, 11)}) as quorum,
            QuorumClient(quorum.addresses) as client,
            aclosing(client.follow()) as events,
        ):
            with pytest.raises(NotSupported, match="it is no quorumd node"):
                await anext(events)

    asyncio.run(run())
