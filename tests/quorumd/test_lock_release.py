"""A lock that is given back while its task is cancelled, and by two at once; the quorum is a fake."""

from __future__ import annotations

import asyncio

import pytest

from quorumd import Lock, QuorumClient, list_claims
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.test_lock import with_quorum


def test_who_is_cancelled_while_it_gives_the_lock_back_gives_it_back() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        for turns in range(12):
            lock = Lock(client, "a", ttl=60)
            await lock.acquire(wait_s=0)
            task = asyncio.create_task(lock.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            is_over = task.done()
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert turns == 0 or is_over or isinstance(outcome, asyncio.CancelledError)
            if not turns:
                # It was cancelled before it began.
                await lock.release()
            assert await list_claims(client) == []
        await lock.acquire(wait_s=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await lock.release()
        assert await list_claims(client) == []

    with_quorum(story)


def test_also_while_the_quorum_is_away_for_a_moment() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=60)
        await lock.acquire()
        refused = asyncio.Event()

        def note(node: int, request: Message, response: Message) -> Message:
            if isinstance(request, ProduceRequest):
                refused.set()
            return response

        quorum.before_answer = note
        quorum.elect(0)
        task = asyncio.create_task(lock.release())
        await refused.wait()
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
        quorum.elect(2)
        await asyncio.wait([task])
        assert task.cancelled()
        assert await list_claims(client) == []

    with_quorum(story)


@pytest.mark.long
def test_of_two_that_give_it_back_while_it_is_renewed_the_first_does() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=3)
        await lock.acquire()
        count = 0
        renewed = asyncio.Event()

        def lose_some(node: int, request: Message, response: Message) -> Message | None:
            nonlocal count
            if not isinstance(request, ProduceRequest):
                return response
            count += 1
            renewed.set()
            return None if count in (1, 4) else response

        quorum.before_answer = lose_some
        await renewed.wait()
        outcomes = await asyncio.gather(lock.release(), lock.release())
        assert list(outcomes) == [True, False]
        assert count == 3

    with_quorum(story)
