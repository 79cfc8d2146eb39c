"""What all claims of a client share: a reader that begins, ends and begins anew, and turns to write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd import (
    Election,
    Lock,
    NotAcquired,
    OffsetOutOfRange,
    QuorumClient,
    QuorumUnavailable,
    Record,
    force_unlock,
)
from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.contest import SILENCE_S
from quorumd.client.coordination.coordinator import (
    IN_FLIGHT_MAX,
    TURN_OVERHEAD_BYTES,
    Coordinator,
)
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.client.errors import ClientClosed
from quorumd.client.view import KeyChange
from quorumd.security.errors import CertificateProblem
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
from quorumd.wire.messages.produce import ProduceRequest, ProduceResponse
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


def test_nor_does_who_has_given_back_and_its_claim_is_forgotten() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Lock(client, "a"):
            pass
        client.close()
        coordinator = client.companion(Coordinator)
        assert not coordinator.is_closed, "nobody uses it any more"
        assert not coordinator.board.live
        assert not coordinator._wakes

    with_quorum(story)


def lose_the_leader_at(quorum: FakeQuorum, offset: int) -> None:
    """As soon as a reader is there: what it has read is not all of the log, and no node leads any more."""

    def lose(_: int, request: Message, answer: Message) -> Message:
        if (
            isinstance(request, FetchRequest)
            and request.topics[0].partitions[0].last_fetched_epoch < 0
            and request.topics[0].partitions[0].fetch_offset >= offset
        ):
            quorum.before_answer = None
            quorum.elect(0)
            return FetchResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return answer

    quorum.before_answer = lose


async def several_responses(client: QuorumClient) -> int:
    """A log that a reader has not with its first response. Returns its end."""
    for _ in range(4):
        offsets = await client.append([Record(value=bytes(500_000))])
    return offsets[-1] + 1


@pytest.mark.parametrize("what", ["lock", "lock at once", "campaign", "leader", "observe"])
def test_an_outage_while_the_log_is_read_for_the_first_time_is_one_in_the_beginning(
    what: str,
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        calls = {
            "lock": Lock(client, "a").acquire,
            "lock at once": partial(Lock(client, "a").acquire, wait_s=0),
            "campaign": Election(client, "a").campaign,
            "leader": Election(client, "a").leader,
            "observe": lambda: anext(Election(client, "a").observe()),
        }
        end_offset = await several_responses(client)
        lose_the_leader_at(quorum, 1)
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(QuorumUnavailable):
                await calls[what]()
        quorum.elect(2)
        before = len(quorum.requests)
        client.timeout_ms = 5000
        async with Lock(client, "a"):
            assert client.companion(Coordinator).end_offset >= end_offset
        assert 0 not in fetched_offsets(quorum, before), "it goes on where it was"

    with_impatient_client(story)


def fetched_offsets(quorum: FakeQuorum, after: int) -> set[int]:
    """Where readers have begun to read, in the requests after so many."""
    return {
        request.topics[0].partitions[0].fetch_offset
        for _, request in quorum.requests[after:]
        if isinstance(request, FetchRequest)
        and request.topics[0].partitions[0].last_fetched_epoch < 0
    }


@pytest.mark.parametrize(
    ("has_leader", "said"),
    [
        (True, "within 1 s: the log is read up to offset [1-3] of 4 so far"),
        (False, "within 1 s: no leader of the quorum responds"),
    ],
)
def test_who_waits_for_a_time_waits_no_longer_for_a_leader_in_the_beginning(
    has_leader: bool, said: str
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        end_offset = await several_responses(client)
        if has_leader:
            lose_the_leader_at(quorum, 1)
        else:
            quorum.elect(0)
        client.timeout_ms = 60_000
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(NotAcquired, match=said):
                await Lock(client, "a").acquire(wait_s=1)
            quorum.elect(2)
            async with Lock(client, "a") as lock:
                assert lock.token == end_offset

    with_quorum(story)


def test_the_time_to_wait_counts_while_the_log_is_read() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        end_offset = await several_responses(client)
        free = asyncio.Event()

        async def slow(node_id: int, request: FetchRequest) -> FetchResponse:
            partition = request.topics[0].partitions[0]
            if partition.last_fetched_epoch >= 0:
                return quorum.nodes[node_id]._fetch_of_replica(request)
            if partition.fetch_offset:
                await free.wait()
            return await quorum.nodes[node_id]._fetch(request)

        quorum.handlers[FetchRequest] = slow
        lock = Lock(client, "a")
        for _ in range(2):
            async with asyncio.timeout(AT_ONCE_S):
                with pytest.raises(NotAcquired, match=rf"read up to offset [1-3] of {end_offset}"):
                    await lock.acquire(wait_s=0.3)
        free.set()
        assert await lock.acquire(wait_s=AT_ONCE_S) == end_offset
        await lock.release()

    with_quorum(story)


def test_an_outage_before_the_first_answer_to_the_reader_ends_nothing() -> None:
    """The leader was reached, and there was nothing to read."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with QuorumClient(quorum.addresses) as other:
            lock = Lock(client, "a", ttl=600)
            await lock.acquire()
            coordinator = client.companion(Coordinator)
            quorum.elect(0)
            while coordinator.problem is None:  # noqa: ASYNC110 (it has no event)
                await asyncio.sleep(0.01)
            quorum.elect(2)
            assert await force_unlock(other, "a", lock.token)
            async with asyncio.timeout(AT_ONCE_S):
                await lock.lost.wait()
            await lock.release()

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


@pytest.mark.parametrize("remembers", [True, False])
def test_who_is_refused_for_what_it_has_not_read_reads_that_before_it_tries_again(
    remembers: bool,
) -> None:
    """The leader names the record, or has forgotten what was written so long ago."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        is_asked, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(node_id: int, request: FetchRequest) -> FetchResponse:
            is_asked.set()
            await goes_on.wait()
            return await quorum.nodes[node_id]._fetch(request)

        async with QuorumClient(quorum.addresses) as other, Lock(client, "b", ttl=600):
            quorum.handlers[FetchRequest] = slow
            await is_asked.wait()
            await other.append([Record(key=b"quorumd.locks/a", value=b"?")])
            if not remembers:
                quorum.judge.close()
            before = len(quorum.requests)
            acquired = asyncio.create_task(Lock(client, "a").acquire(wait_s=0))
            await asyncio.wait([acquired], timeout=0.3)
            sent = [each for _, each in quorum.requests[before:]]
            assert sum(isinstance(each, ProduceRequest) for each in sent) == 1
            goes_on.set()
            with pytest.raises(NotAcquired):
                await acquired

    with_quorum(story)


def test_a_certificate_that_is_refused_for_a_moment_ends_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is made anew while programs run."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        append, refused = client.append, 0

        async def refuse_twice(*arguments: Any, **options: Any) -> list[int]:
            nonlocal refused
            if refused < 2:
                refused += 1
                raise CertificateProblem("it is expired")
            return await append(*arguments, **options)

        async with Lock(client, "a", ttl=1) as lock:
            monkeypatch.setattr(client, "append", refuse_twice)
            await asyncio.sleep(1.2)
            assert refused == 2
            assert lock.is_held

    with_quorum(story)


def test_who_waited_through_an_outage_watches_a_dead_holder_as_anybody_else() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        dead = ClaimRecord("o", "h", 1, "", "", 1000, "1" * 32, "2" * 32)
        long_ago_ms = int(time.time() * 1000) - 3_600_000
        await client.append(
            [Record(timestamp=long_ago_ms, key=b"quorumd.locks/a", value=dead.encoded())]
        )
        refused = asyncio.Event()

        def note(_: int, request: Message, answer: Message) -> Message:
            if isinstance(request, ProduceRequest):
                refused.set()
            return answer

        async with Lock(client, "b", ttl=600):
            quorum.elect(0)
            quorum.before_answer = note
            lock = Lock(client, "a", ttl=1)
            acquired = asyncio.create_task(lock.acquire(wait_s=0.8))
            await refused.wait()
            await asyncio.sleep(0.4)
            quorum.elect(2)
            await acquired
            await lock.release()

    with_quorum(story)


def test_a_leader_that_hangs_costs_no_lock_where_another_one_is_elected() -> None:
    """A try to renew takes a part of the ttl."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async def hang(node_id: int, request: ProduceRequest) -> ProduceResponse:
            if node_id == 1:
                quorum.elect(2)
                await asyncio.sleep(60)
            return quorum.nodes[node_id]._produce(request)

        async with Lock(client, "a", ttl=1.2) as lock:
            quorum.handlers[ProduceRequest] = hang
            await asyncio.sleep(1.16)
            assert lock.is_held
            assert quorum.leader_id == 2

    with_quorum(story)


def test_a_sweep_that_a_certificate_stops_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps this client from writing, others hold claims that are over."""
    place = Place(ClaimKind.LOCK, "a")
    monkeypatch.setattr(
        "quorumd.client.coordination.coordinator.overdue", lambda board, now_s: [place]
    )

    async def run() -> None:
        tried = asyncio.Event()
        errors = [CertificateProblem("expired"), CertificateProblem("not yet valid")]

        async def append(records: object, since: int, timeout_s: float) -> int:
            if errors:
                raise errors.pop(0)
            tried.set()
            return 0

        coordinator = Coordinator(QuorumClient("nobody:1"))
        coordinator.sweep_s = 0.0, 0.0
        monkeypatch.setattr(coordinator, "append", append)
        sweeper = asyncio.create_task(coordinator._sweep())
        async with asyncio.timeout(AT_ONCE_S):
            await asyncio.wait(
                [sweeper, asyncio.create_task(tried.wait())], return_when="FIRST_COMPLETED"
            )
        assert tried.is_set()
        sweeper.cancel()
        coordinator.client.close()

    asyncio.run(run())


def test_who_waits_looks_again_when_the_leader_responds_after_a_silence() -> None:
    """Its turn may have come: nobody else may ever write to that name."""

    class Client:
        responded: Callable[[], None]

        async def list_offsets(self, timestamp: int) -> Any:
            return SimpleNamespace(offset=0)

        async def follow(
            self, *, on_response: Callable[[], None], **options: object
        ) -> AsyncGenerator[Any, None]:
            self.responded = on_response
            await asyncio.Event().wait()
            yield

    async def run() -> None:
        client, now_s = Client(), 100.0
        coordinator = Coordinator(cast(QuorumClient, client))
        coordinator.now_s = lambda: now_s
        place = Place(ClaimKind.LOCK, "a")
        await coordinator.enter()
        await asyncio.sleep(0)
        with coordinator.waking(place, "0" * 32) as woken, coordinator.watching(place) as changed:
            for passed_s, is_news in ((0.0, True), (0.1, False), (SILENCE_S + 0.1, True)):
                now_s += passed_s
                woken.clear()
                changed.clear()
                client.responded()
                assert (woken.is_set(), changed.is_set()) == (is_news, is_news)
        coordinator.close()

    asyncio.run(run())


def test_who_waits_behind_others_alone_is_told_of_what_brings_its_turn_near() -> None:
    """And of all that changes again as soon as another claim wants it: by what waits now, not by what did."""

    async def run() -> None:
        coordinator = Coordinator(QuorumClient("nobody:1"))
        name, other = Place(ClaimKind.LOCK, "a"), Place(ClaimKind.LOCK, "b")
        claims = [digit * 32 for digit in "1234"]
        value = ClaimRecord("o", "h", 1, "", "", 9000, claims[0], "9" * 32).encoded()
        for offset, claim in enumerate(claims):
            key = name._replace(claim=claim).key
            coordinator.board.apply(KeyChange(key, value, offset, 0), 0.0)
        keys_bytes = len(name.key) + len(name._replace(claim=claims[0]).key)
        turn_bytes = len(value) + keys_bytes + TURN_OVERHEAD_BYTES
        for claim, turns in zip(claims, (0, 0, 1, 2), strict=True):
            with coordinator.waking(name, claim):
                assert coordinator._min_bytes() == max(1, turns * turn_bytes)
        with coordinator.waking(name, claims[3]):
            with coordinator.waking(other, claims[1]):
                assert coordinator._min_bytes() == 1
            assert coordinator._min_bytes() == 2 * turn_bytes
        assert coordinator._min_bytes() == 1
        coordinator.client.close()

    asyncio.run(run())
