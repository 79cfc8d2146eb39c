"""Ten thousand wait for one lock: what a release costs them, and the quorum."""

from __future__ import annotations

import asyncio

import pytest

from quorumd import Lock, QuorumClient, list_claims
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum

WAITERS = 10_000
JOINING = 500
"""So many queue at once, so that the fake quorum answers each in time."""


@pytest.mark.live
@pytest.mark.timeout(300)
def test_a_release_wakes_one_of_ten_thousand() -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=60_000) as client,
        ):
            await _crowd(quorum, client)

    asyncio.run(run())


async def _crowd(quorum: FakeQuorum, client: QuorumClient) -> None:
    had: asyncio.Queue[int] = asyncio.Queue()
    first = Lock(client, "popular", ttl=3600)
    await first.acquire()
    locks = [Lock(client, "popular", ttl=3600) for _ in range(WAITERS)]

    async def wait_for_it(number: int) -> None:
        await locks[number].acquire()
        had.put_nowait(number)

    tasks: list[asyncio.Task[None]] = []
    joined = asyncio.Event()

    def on_answer(node: int, request: Message, answer: Message) -> Message:
        if quorum.end_offset > len(tasks):
            joined.set()
        return answer

    quorum.before_answer = on_answer
    for begin in range(0, WAITERS, JOINING):
        joined.clear()
        tasks += [asyncio.create_task(wait_for_it(begin + i)) for i in range(JOINING)]
        await joined.wait()
    quorum.before_answer = None
    async with QuorumClient(quorum.addresses) as other:
        ((_, _, waiters),) = await list_claims(other)
    assert len(waiters) == WAITERS

    held = first
    written = _writes(quorum)
    for turn in range(3):
        await held.release()
        number = await had.get()
        held = locks[number]
        assert had.empty(), "one at a time"
        assert sum(task.done() for task in tasks) == turn + 1
        assert _writes(quorum) <= written + 2 * (turn + 1), "a release and an acquisition each"
    client.close()  # Nobody has to leave the queue.
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=0)


def _writes(quorum: FakeQuorum) -> int:
    return sum(isinstance(request, ProduceRequest) for _, request in quorum.requests)
