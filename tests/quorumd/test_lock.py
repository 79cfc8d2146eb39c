"""A lock as a program uses it: acquired, waited for, lost and given back; the quorum is a fake."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from quorumd import (
    ClaimKind,
    Election,
    KeyValueView,
    Lock,
    LockLost,
    NotAcquired,
    QuorumClient,
    QuorumUnavailable,
    Record,
    force_unlock,
    list_claims,
)
from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.contender import TURN_S
from quorumd.client.coordination.coordinator import TURN_OVERHEAD_BYTES, boot_s
from quorumd.client.coordination.keys import Place
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum

Story = Callable[[FakeQuorum, QuorumClient], Awaitable[None]]


def with_quorum(story: Story) -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=5000) as client,
        ):
            async with asyncio.timeout(60):
                await story(quorum, client)

    asyncio.run(run())


async def held(client: QuorumClient, kind: ClaimKind = ClaimKind.LOCK) -> dict[str, int]:
    """The names that are held, with the tokens."""
    return {
        each.name: each.holder.token
        for each in await list_claims(client, kind)
        if each.holder is not None
    }


# --- one holder


def test_a_lock_is_held_whatever_the_wall_clocks_of_holder_and_leader_say() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.latest_ms = int(time.time() * 1000) - 7_200_000
        async with Lock(client, "a", ttl=1.0) as lock:
            await asyncio.sleep(2.5)
            assert lock.is_held
            assert await held(client) == {"a": lock.token}
        assert await held(client) == {}
        assert {record.timestamp for record in quorum.records()} == {-1}

    with_quorum(story)


def test_the_token_is_the_offset_of_the_record_and_people_can_read_who_has_it() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(value=b"something before")])
        async with Lock(client, "jobs/nightly", ttl=30, owner="ann", comment="report") as lock:
            assert lock.token == 1
            assert lock.is_held
            (record,) = [each for each in quorum.records() if each.offset == lock.token]
            assert record.key == b"quorumd.locks/jobs/nightly"
            fields = json.loads(record.value or b"")
            assert (fields["owner"], fields["comment"], fields["ttl_ms"]) == (
                "ann",
                "report",
                30000,
            )
            (found,) = await list_claims(client)
            assert found.holder is not None
            assert (found.name, found.holder.owner, found.holder.token) == (
                "jobs/nightly",
                "ann",
                1,
            )
        assert not lock.is_held
        assert lock.lost.is_set()
        assert await list_claims(client) == []

    with_quorum(story)


def test_it_is_renewed_at_a_third_of_its_ttl_and_the_token_stays() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "a", ttl=1) as lock:
            await asyncio.sleep(1.5)
            assert lock.is_held
            renewals = [each for each in quorum.records() if each.key == b"quorumd.locks/a"]
            assert 4 <= len(renewals) <= 6
            assert {json.loads(each.value or b"").get("token") for each in renewals} == {None, 0}
            assert await held(client) == {"a": lock.token}

    with_quorum(story)


def test_an_object_can_be_acquired_again_and_holds_once() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a")
        with pytest.raises(RuntimeError, match="not acquired"):
            _ = lock.token
        first = await lock.acquire()
        with pytest.raises(RuntimeError, match="make another one"):
            await lock.acquire()
        assert await lock.release()
        with pytest.raises(RuntimeError, match="given back"):
            await lock.release()
        assert await lock.acquire() > first
        lock.check()
        await lock.release()
        with pytest.raises(LockLost, match="the lock 'a' was lost"):
            lock.check()

    with_quorum(story)


# --- several


@pytest.mark.long
def test_those_who_wait_get_it_in_the_order_of_the_log() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        order: list[tuple[int, int]] = []

        async def work(number: int, own: QuorumClient) -> None:
            async with Lock(own, "a") as lock:
                order.append((number, lock.token))

        async with QuorumClient(quorum.addresses) as other:
            async with Lock(client, "a") as first:
                tasks = []
                for number in range(12):
                    tasks.append(asyncio.create_task(work(number, (client, other)[number % 2])))
                    await until_waiting(client, number + 1)
                assert not order
            await asyncio.gather(*tasks)
        assert [number for number, _ in order] == list(range(12))
        tokens = [first.token, *(token for _, token in order)]
        assert tokens == sorted(set(tokens))
        assert await list_claims(client) == []

    with_quorum(story)


def test_the_first_in_the_queue_is_handed_the_lock_in_the_batch_that_gives_it_back() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with QuorumClient(quorum.addresses) as other:
            first = Lock(client, "a", ttl=60)
            await first.acquire()
            second = Lock(other, "a", ttl=60, comment="second")
            waiting = asyncio.create_task(second.acquire())
            await until_waiting(client, 1)
            (queued,) = [each for each in quorum.records() if b"queue" in (each.key or b"")]
            end_offset = quorum.end_offset
            await first.release()
            assert not first.is_held
            assert await waiting == second.token == end_offset
            assert second.is_held
            assert [(each.key, each.value) for each in list(quorum.records())[end_offset:]] == [
                (b"quorumd.locks/a", queued.value),
                (queued.key, None),
            ]
            await second.release()
            assert await list_claims(client) == []

    with_quorum(story)


def test_of_those_who_wait_the_first_are_told_of_each_change_and_others_of_many() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with AsyncExitStack() as stack, Lock(client, "a"):
            tasks = []
            for number in range(6):
                own = await stack.enter_async_context(QuorumClient(quorum.addresses))
                tasks.append(asyncio.create_task(Lock(own, "a").acquire()))
                await until_waiting(client, number + 1)
            quorum.requests.clear()
            await asyncio.sleep(0.6)  # As long as a leader lets them wait.
            asked = [
                each.min_bytes for _, each in quorum.requests if isinstance(each, FetchRequest)
            ]
            queued = next(each for each in quorum.records() if b"queue" in (each.key or b""))
            turn_bytes = len(b"quorumd.locks/a") + len(queued.key or b"") + len(queued.value or b"")
            turn_bytes += TURN_OVERHEAD_BYTES
            assert {1, *(count * turn_bytes for count in range(1, 5))} == set(asked)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (await list_claims(client))[0].waiters == ()

    with_quorum(story)


def test_the_first_in_the_queue_is_handed_the_lock_however_long_it_has_waited() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with QuorumClient(quorum.addresses) as other:
            first = Lock(client, "a", ttl=60)
            await first.acquire()
            second, third = Lock(other, "a", ttl=1), Lock(client, "a", ttl=1)
            waiting = []
            for count, lock in enumerate((second, third), 1):
                waiting.append(asyncio.create_task(lock.acquire()))
                await until_waiting(client, count)
            await asyncio.sleep(1.2)
            end_offset = quorum.end_offset
            await first.release()
            assert await waiting[0] == end_offset, "by the batch that gave it back"
            queued = [each for each in quorum.records() if b"queue" in (each.key or b"")]
            fields = [json.loads(each.value) for each in queued if each.value is not None]
            mine = [each for each in fields if each["claim"] == fields[0]["claim"]]
            assert len(mine) >= 3, "it was written again, each third of the ttl"
            assert [each.get("queued") for each in mine[1:]] == [queued[0].offset] * (len(mine) - 1)
            assert len(fields) == len(mine) + 1, "who is not the first writes once"
            await second.release()
            await waiting[1]
            await third.release()

    with_quorum(story)


async def until_waiting(client: QuorumClient, count: int) -> None:
    async with KeyValueView(client, prefix=b"quorumd.locks.queue/") as view:
        while len(view) < count:
            await view.wait_for(view.offset)


def test_who_does_not_wait_is_told_who_has_it() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "a", owner="ann", comment="report"):
            for wait_s in (0, 0.2):
                with pytest.raises(NotAcquired, match=r"ann on .*\(report\)") as raised:
                    await Lock(client, "a").acquire(wait_s=wait_s)
                assert raised.value.exit_code == 1
            (found,) = await list_claims(client)
            assert found.waiters == ()

    with_quorum(story)


def test_who_is_cancelled_leaves_the_queue() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "a"):
            lock = Lock(client, "a")
            task = asyncio.create_task(lock.acquire())
            await until_waiting(client, 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            (found,) = await list_claims(client)
            assert found.waiters == ()
        await lock.acquire(wait_s=0)
        await lock.release()

    with_quorum(story)


def test_who_is_cancelled_with_the_lock_gives_it_back() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        has_it = asyncio.Event()

        async def work() -> None:
            async with Lock(client, "a"):
                has_it.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await has_it.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await list_claims(client) == []

    with_quorum(story)


def test_a_holder_that_is_gone_is_followed_after_its_ttl() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        gone = QuorumClient(quorum.addresses)
        former = Lock(gone, "a", ttl=1)
        await former.acquire()
        gone.close()
        began = asyncio.get_running_loop().time()
        async with Lock(client, "a", ttl=1) as lock:
            assert asyncio.get_running_loop().time() - began >= 1
            assert not former.is_held
            assert lock.token > former.token

    with_quorum(story)


def claim_of_the_dead(name: str, *, claim: str = "", ttl_ms: int = 1000, ago_s: float) -> Record:
    """What a process has left behind that was killed so long ago."""
    record = ClaimRecord("ann", "h", 1, "", "", ttl_ms, claim or "a" * 32, "b" * 32)
    place = Place(ClaimKind.LOCK, name, claim)
    written_ms = int((time.time() - ago_s) * 1000)
    return Record(key=place.key, value=record.encoded(), timestamp=written_ms)


@pytest.mark.parametrize("wait_s", [0, 0.1])
def test_a_holder_that_looks_dead_is_followed_by_who_would_not_wait_so_long(wait_s: float) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([claim_of_the_dead("a", ago_s=3)])
        began = boot_s()
        assert await Election(client, "b").leader() is None  # The log is read.
        lock = Lock(client, "a")
        assert await lock.acquire(wait_s=wait_s) > 0
        assert boot_s() - began > 1.05, "the wall clock is a hint alone"
        await lock.release()

    with_quorum(story)


@pytest.mark.long
def test_who_waits_in_the_queue_and_is_dead_keeps_nobody_away_for_ever() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([claim_of_the_dead("a", claim="c" * 32, ago_s=0)])
        await client.append([claim_of_the_dead("b", ago_s=3)])
        await client.append([claim_of_the_dead("b", claim="c" * 32, ago_s=3)])
        for name in ("a", "b"):
            lock = Lock(client, name)
            assert await lock.acquire(wait_s=0)
            await lock.release()
        assert await list_claims(client) == []

    with_quorum(story)


@pytest.mark.parametrize("wait_s", [0, 0.1])
def test_a_holder_whose_clock_is_behind_is_given_up_as_soon_as_it_renews(wait_s: float) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async def renew() -> None:
            while True:
                await client.append([claim_of_the_dead("a", ago_s=1000)])
                await asyncio.sleep(0.33)

        await client.append([claim_of_the_dead("a", ago_s=1000)])
        assert await Election(client, "b").leader() is None  # The log is read.
        renewing = asyncio.create_task(renew())
        for _ in range(3):
            async with asyncio.timeout(TURN_S):
                with pytest.raises(NotAcquired, match="ann on h"):
                    await Lock(client, "a").acquire(wait_s=wait_s)
        renewing.cancel()
        (found,) = await list_claims(client)
        assert found.waiters == ()

    with_quorum(story)


@pytest.mark.long
def test_who_does_not_wait_is_told_so_in_an_outage_too() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "other"):
            await client.append([claim_of_the_dead("a", ago_s=3, ttl_ms=60_000)])
            await client.append([claim_of_the_dead("b", ago_s=3000, ttl_ms=1000)])
            quorum.elect(0)
            began = boot_s()
            for name in ("a", "b"):
                with pytest.raises(NotAcquired):
                    await Lock(client, name).acquire(wait_s=0.5)
            assert boot_s() - began < 30
            quorum.elect(2)

    with_quorum(story)


@pytest.mark.long
def test_who_does_not_wait_gets_to_know_of_an_outage() -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=1000) as client,
            Lock(client, "other", ttl=60),
        ):
            with pytest.raises(NotAcquired, match="has it since"):
                await Lock(client, "other").acquire(wait_s=0)
            quorum.elect(0)
            for _ in range(2):
                async with asyncio.timeout(10):
                    with pytest.raises(QuorumUnavailable, match="knows no leader"):
                        await Lock(client, "a").acquire(wait_s=0)
                    with pytest.raises(NotAcquired, match=r"within 0\.5 s: no leader"):
                        await Lock(client, "a").acquire(wait_s=0.5)
            quorum.elect(2)

    asyncio.run(run())


def test_who_does_not_wait_asks_again_where_the_leader_changes() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "other"):
            quorum.elect(0)
            task = asyncio.create_task(Lock(client, "a", ttl=1).acquire(wait_s=0))
            await asyncio.wait([task], timeout=0.5)
            quorum.elect(2)
            assert await task > 0

    with_quorum(story)


# --- lost


def test_it_is_lost_when_a_person_takes_it_away() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a")
        await lock.acquire()
        assert not await force_unlock(client, "a", lock.token + 1)
        assert await force_unlock(client, "a", lock.token)
        await lock.lost.wait()
        assert not await lock.release()
        assert not await force_unlock(client, "a", lock.token)

    with_quorum(story)


def test_who_waits_for_the_loss_is_told_at_once() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=600)
        await lock.acquire()
        loss = asyncio.create_task(lock.lost.wait())
        await asyncio.sleep(0)
        await force_unlock(client, "a", lock.token)
        async with asyncio.timeout(10):
            assert await loss
        await lock.release()

    with_quorum(story)


def test_what_ends_well_but_without_the_lock_has_not_ended_well() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async def work() -> None:
            async with Lock(client, "a") as lock:
                await force_unlock(client, "a", lock.token)
                await lock.lost.wait()

        with pytest.raises(LockLost, match="the lock 'a' was lost"):
            await work()

    with_quorum(story)


def test_it_is_lost_before_its_ttl_is_over_if_it_cannot_be_renewed() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=1)
        await lock.acquire()
        began = asyncio.get_running_loop().time()
        quorum.elect(0)
        await lock.lost.wait()
        assert asyncio.get_running_loop().time() - began < 1
        quorum.elect(2)
        assert not await lock.release()
        assert await list_claims(client) == []

    with_quorum(story)


@pytest.mark.long
def test_an_outage_shorter_than_what_is_left_costs_nothing() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "a", ttl=3) as lock:
            quorum.elect(0)
            await asyncio.sleep(1.8)
            quorum.elect(2)
            await asyncio.sleep(2)
            assert lock.is_held

    with_quorum(story)


@pytest.mark.long
def test_after_an_outage_the_first_in_the_queue_is_the_first() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        order: list[int] = []

        async def work(number: int, own: QuorumClient) -> None:
            async with Lock(own, "a"):
                order.append(number)

        async with AsyncExitStack() as stack:
            gone, *others = [
                await stack.enter_async_context(QuorumClient(quorum.addresses)) for _ in range(4)
            ]
            await Lock(gone, "a", ttl=1).acquire()
            tasks = []
            for number, own in enumerate(others):
                tasks.append(asyncio.create_task(work(number, own)))
                await until_waiting(client, number + 1)
            gone.close()
            quorum.elect(0)
            await asyncio.sleep(3 * TURN_S)
            quorum.elect(2)
            await asyncio.gather(*tasks)
        assert order == [0, 1, 2]

    with_quorum(story)


def test_an_answer_that_is_lost_is_found_in_the_log() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lost: list[Message] = []

        def lose(node: int, request: Message, response: Message) -> Message | None:
            if isinstance(request, ProduceRequest) and len(lost) < 2:
                lost.append(request)
                return None
            return response

        quorum.before_answer = lose
        async with Lock(client, "a", ttl=5) as lock:
            assert len(lost) == 2
            assert await held(client) == {"a": lock.token}
        assert [each.key for each in quorum.records()] == [b"quorumd.locks/a"] * 2

    with_quorum(story)


# --- what is refused


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "\x7f", "é" * 257, "a\u2028b", "\ud800"])
def test_a_name_that_is_not_permitted_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(ValueError, match=r"give 1 to 512 bytes of UTF-8.* no newlines"):
        Lock(QuorumClient("localhost:1"), name)


@pytest.mark.parametrize("ttl", [0, 0.99, -5, 86_400.1, float("nan"), float("inf")])
def test_a_ttl_that_is_not_permitted_is_refused_with_what_is(ttl: float) -> None:
    with pytest.raises(ValueError, match="give 1 s to 86400 s"):
        Lock(QuorumClient("localhost:1"), "a", ttl=ttl)


def test_a_time_to_wait_that_is_no_number_is_refused_and_the_lock_can_be_had() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a")
        with pytest.raises(ValueError, match="wait_s is nan: give seconds"):
            await lock.acquire(wait_s=math.nan)
        await lock.acquire(wait_s=1)

    with_quorum(story)


def test_after_an_outage_a_client_that_was_closed_can_begin_again() -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=200) as client,
        ):
            former = Lock(client, "a", ttl=1)
            await former.acquire()
            client.close()
            assert await former.lost.wait()
            quorum.elect(0)
            with pytest.raises(QuorumUnavailable):
                await Lock(client, "b").acquire()
            quorum.elect(2)
            async with Lock(client, "b") as lock:
                assert lock.is_held
            await former.release()

    asyncio.run(run())


def test_a_record_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "a", owner="ann"):
            (record,) = quorum.records()
            fields = {**json.loads(record.value or b""), "of a later version": 1}
        value = json.dumps(fields).encode()
        await client.append([Record(key=b"quorumd.locks/a", value=value)])
        (found,) = await list_claims(client)
        assert found.holder is not None
        assert found.holder.owner == "ann"

    with_quorum(story)


def test_what_is_no_record_of_ours_is_shown_and_lapses() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        for value in (b"x", b"[1]", b'{"owner": 1}', b"[" * 100_000):
            await client.append([Record(key=b"quorumd.locks/a", value=value)])
            (found,) = await list_claims(client)
            assert found.holder is not None
            assert "did not write" in found.holder.comment
            with pytest.raises(NotAcquired):
                await Lock(client, "a").acquire(wait_s=0)

    with_quorum(story)
