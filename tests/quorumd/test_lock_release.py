"""A lock that is given back while its task is cancelled, and by two at once; the quorum is a fake."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from quorumd import Lock, LockLost, QuorumClient, force_unlock, list_claims
from quorumd.client.coordination.termination import Termination
from quorumd.wire.messages.produce import ProduceRequest, ProduceResponse
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


def test_through_a_client_that_was_closed_nothing_is_tried() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=60)
        await lock.acquire()
        client.close()
        await lock.release()
        assert len(list(quorum.records())) == 1

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


def test_what_is_on_its_way_to_the_leader_when_its_task_is_cancelled_is_deleted_too() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        arrived, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(node_id: int, request: ProduceRequest) -> ProduceResponse:
            arrived.set()
            await goes_on.wait()
            return quorum.nodes[node_id]._produce(request)

        quorum.handlers[ProduceRequest] = slow
        task = asyncio.create_task(Lock(client, "a", ttl=600).acquire())
        await arrived.wait()
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
        assert not task.done()
        goes_on.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert len(list(quorum.records())) == 2
        assert await list_claims(client) == []

    with_quorum(story)


def test_an_error_in_the_block_is_what_comes_out_though_the_lock_was_lost() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=600)

        async def fail_without_it() -> None:
            async with lock:
                await force_unlock(client, "a", lock.token)
                await lock.lost.wait()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_without_it()
        with pytest.raises(LockLost):
            lock.check()

    with_quorum(story)


@pytest.fixture
def sigterm_ends_us(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And nothing is held, whatever other tests have left."""
    monkeypatch.setattr("quorumd.client.coordination.tenure.TERMINATION", Termination())
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm_ends_us")
def test_sigterm_is_as_it_was_once_nothing_is_held_or_waited_for() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        async with Lock(client, "a"), Lock(client, "b"):
            waiting = asyncio.create_task(Lock(client, "a").acquire())
            await asyncio.sleep(0)
            assert callable(signal.getsignal(signal.SIGTERM))
            waiting.cancel()
            await asyncio.wait([waiting])
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    with_quorum(story)


@pytest.mark.usefixtures("sigterm_ends_us")
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_handler_of_the_program_s_own_is_left_as_it_is(comes_first: bool) -> None:
    def own(number: int, frame: FrameType | None) -> None: ...

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        if comes_first:
            signal.signal(signal.SIGTERM, own)
        async with Lock(client, "a"):
            if not comes_first:
                signal.signal(signal.SIGTERM, own)
            assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGTERM) is own

    with_quorum(story)
