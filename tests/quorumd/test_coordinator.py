"""What all claims of a client share: a reader that begins, ends and begins anew, and turns to write."""

from __future__ import annotations

import asyncio

import pytest

from quorumd import Lock, OffsetOutOfRange, QuorumClient, QuorumUnavailable, Record, force_unlock
from quorumd.client.coordination.coordinator import IN_FLIGHT_MAX, Coordinator
from quorumd.client.errors import ClientClosed
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.snapshots import snapshot_bytes
from tests.quorumd.test_lock import Story, until_waiting, with_quorum

AT_ONCE_S = 10.0
"""Far above what it takes, and far below a third of the ttl."""


def with_impatient_client(story: Story) -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=300) as client,
        ):
            async with asyncio.timeout(60):
                await story(quorum, client)

    asyncio.run(run())


def test_who_begins_again_at_once_is_not_ended_with_the_reader_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumd.client.coordination.coordinator.LINGER_S", 0.0)

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a")
        for _ in range(3):
            await lock.acquire()
            assert await lock.release()

    with_quorum(story)


def test_who_waits_for_an_offset_is_told_that_the_reader_has_ended() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a")
        await lock.acquire()
        reaching = asyncio.create_task(client.companion(Coordinator).reach(1000))
        await asyncio.sleep(0)
        client.close()
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(ClientClosed):
                await reaching
        assert not await lock.release()

    with_quorum(story)


def test_who_could_not_begin_does_not_count_as_one_that_reads() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.elect(0)
        with pytest.raises(QuorumUnavailable):
            await Lock(client, "a").acquire()
        client.close()
        assert not client.companion(Coordinator).is_closed, "nobody used it"

    with_impatient_client(story)


def test_an_outage_that_is_over_is_no_problem_any_more() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        coordinator = client.companion(Coordinator)
        async with Lock(client, "a", ttl=600):
            await coordinator.reach(1)
            quorum.elect(0)
            while coordinator.problem is None:  # noqa: ASYNC110 (it has no event)
                await asyncio.sleep(0.01)
            quorum.elect(2)
            (offset,) = await client.append([Record(value=b"x")], timeout_ms=5000)
            await coordinator.reach(offset + 1)
            assert coordinator.problem is None

    with_impatient_client(story)


def test_what_is_held_is_known_to_be_held_by_a_reader_that_begins_anew() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        held = Lock(client, "a", ttl=600)
        await held.acquire()
        await client.append([Record(value=b"x")])
        await client.companion(Coordinator).reach(2)
        del quorum.log[1:]
        quorum.end_offset = 1
        quorum.judge.close()
        with pytest.raises(OffsetOutOfRange):
            await client.companion(Coordinator).reach(1000)
        async with Lock(client, "b", ttl=600):
            loss = asyncio.create_task(held.lost.wait())
            await asyncio.sleep(0)
            assert await force_unlock(client, "a", held.token)
            async with asyncio.timeout(AT_ONCE_S):
                await loss
        await held.release()

    with_impatient_client(story)


def test_who_left_the_queue_between_two_snapshots_queues_again() -> None:
    """Its record was deleted before it was read: the snapshot shows no change."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with QuorumClient(quorum.addresses) as other, Lock(other, "a", ttl=600):
            (holder,) = quorum.records()
            assert holder.key is not None
            assert holder.value is not None
            snapshot = snapshot_bytes({holder.key: (holder.value, holder.offset)})

            def expel(_: int, request: Message, answer: Message) -> Message:
                if isinstance(request, ProduceRequest):
                    quorum.before_answer = None
                    queued = list(quorum.records())[-1]
                    quorum.append(build_batch([Record(timestamp=1, key=queued.key, value=None)]))
                    quorum.snapshots[quorum.end_offset, quorum.epoch] = snapshot
                    quorum.log_start_offset = quorum.end_offset
                return answer

            quorum.before_answer = expel
            waiting = asyncio.create_task(Lock(client, "a", ttl=600).acquire())
            async with asyncio.timeout(AT_ONCE_S):
                await until_waiting(client, 1)
            assert quorum.log_start_offset == 3
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    with_quorum(story)


def test_who_takes_a_lock_waits_for_no_turn_of_those_who_queue() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        turns = client.companion(Coordinator).turns
        for _ in range(IN_FLIGHT_MAX):
            await turns.acquire()
        async with asyncio.timeout(AT_ONCE_S):
            async with Lock(client, "a") as lock:
                assert lock.is_held

    with_quorum(story)
