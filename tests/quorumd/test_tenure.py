"""One claim by itself: why its writes reached no leader, its alarm, and what it waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.client.conditional import ReadAgain
from quorumd.client.coordination import tenure as module
from quorumd.client.coordination.contender import ClaimWrite, Contender
from quorumd.client.coordination.coordinator import Coordinator
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.client.coordination.tenure import Tenure
from quorumd.client.errors import AppendFailed, Conflict, QuorumUnavailable

NAME = Place(ClaimKind.LOCK, "a")
CLAIM = "1" * 32
WRITE = cast(ClaimWrite, SimpleNamespace(records=(), since=0))


class Log:
    """Stands in for a coordinator: what an append raises comes next in `errors`."""

    problem = None
    is_closed = False
    end_offset = 8
    board = SimpleNamespace(give_up=lambda place, claim: None)

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(1)
        self.errors: list[Exception | None] = []
        self.time_s = 5.0
        self.reached: list[int] = []
        self.queue: dict[str, object] = {}

    def now_s(self) -> float:
        return self.time_s

    def contest(self, place: Place) -> Any:
        return SimpleNamespace(holder=None, queue=self.queue)

    def check(self) -> None: ...

    async def reach(self, end_offset: int) -> None:
        self.reached.append(end_offset)

    async def append(self, records: object, since: int, timeout_s: float) -> int:
        error = self.errors.pop(0)
        if error is not None:
            raise error
        return 7


def tenure_of(log: Log, held_until_s: float = 10.0, **more: object) -> Tenure:
    contender = SimpleNamespace(
        place=NAME,
        claim=CLAIM,
        offset=7,
        ttl_s=10.0,
        held_until_s=held_until_s,
        acknowledged=lambda step, offset: None,
        holds=lambda now_s: now_s < held_until_s,
        **more,
    )
    return Tenure(cast(Coordinator, log), cast(Contender, contender))


def failed(cause: Exception | None) -> AppendFailed:
    error = AppendFailed("no", acknowledged_count=0, last_offset=-1, unknown_count=1)
    error.__cause__ = cause
    return error


def test_an_outage_is_known_until_a_write_has_reached_a_leader() -> None:
    async def run() -> None:
        log = Log()
        tenure = tenure_of(log)
        outage = QuorumUnavailable("append", 1000, {})
        log.errors = [failed(outage), failed(None), failed(outage), None]
        seen = []
        for error in list(log.errors):
            if error is None:
                await tenure._write(WRITE)
            else:
                with pytest.raises(AppendFailed):
                    await tenure._write(WRITE)
            seen.append(tenure._outage)
        assert seen == [outage, None, outage, None]

    asyncio.run(run())


def test_what_has_changed_since_is_read_before_the_next_write() -> None:
    """Whoever wrote on without it would be refused once more."""

    async def run() -> None:
        log = Log()
        tenure = tenure_of(log)
        for error in (Conflict(b"k", 20, since=5), ReadAgain(30), None):
            log.errors = [error]
            await tenure._perform(WRITE)
        assert log.reached == [21, 30]

    asyncio.run(run())


def test_an_timer_for_a_time_that_has_moved_is_set_again() -> None:
    async def run() -> None:
        log = Log()
        tenure = tenure_of(log)
        tenure._token = 3
        tenure._on_timer()
        assert tenure._timer is not None
        assert not tenure.lost.is_set()
        tenure._timer.cancel()
        tenure._timer = None
        waiting = asyncio.create_task(tenure.lost.wait())
        await asyncio.sleep(0)
        log.time_s = 10.0
        tenure._on_timer()
        assert tenure._timer is None
        async with asyncio.timeout(10):
            assert await waiting

    asyncio.run(run())


def test_who_watches_a_holder_waits_for_its_own_write_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two writes of one claim at a time would be judged against each other."""
    monkeypatch.setattr(module, "may_be_over", lambda contest, wall_ms: True)
    monkeypatch.setattr(module, "watching_s", lambda contest: 0.0)

    async def run() -> None:
        tenure = tenure_of(Log())
        is_written, contended = asyncio.Event(), asyncio.Event()

        async def contend(goes_on: object) -> bool:
            contended.set()
            return True

        async def write() -> None:
            await is_written.wait()

        monkeypatch.setattr(tenure, "_contend", contend)
        tenure._writing = asyncio.create_task(write())
        outlasting = asyncio.create_task(tenure._outlasts())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not contended.is_set()
        is_written.set()
        assert await outlasting

    asyncio.run(run())


def test_after_a_renewal_the_first_pause_between_tries_is_the_shortest_again(
    pauses_ms: list[float],
) -> None:
    async def run() -> None:
        log = Log()
        refused = failed(None)
        log.errors = [refused, refused, refused, None, refused]
        tenure = tenure_of(
            log, keep_step=lambda contest, end_offset, now_s: WRITE if log.errors else None
        )
        await tenure._keep()
        assert pauses_ms == [20, 40, 80, 20]

    asyncio.run(run())


@pytest.mark.parametrize(("queue", "reached"), [({}, []), ({"2" * 32: object()}, [8])])
def test_who_gives_a_name_back_to_a_queue_has_read_it_up_to_its_own_record(
    queue: dict[str, object], reached: list[int]
) -> None:
    """The first in the queue may have left it meanwhile, and to hand the name over to it would be refused."""

    async def run() -> None:
        log = Log()
        log.queue = queue
        seen: list[list[int]] = []

        def leave_step(contest: object, end_offset: int, now_s: float) -> None:
            seen.append(log.reached[:])

        await tenure_of(log, leave_step=leave_step).release()
        assert seen == [reached]

    asyncio.run(run())


def test_a_write_that_hangs_is_ended_with_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it might take the name later, and nobody would give it back."""
    monkeypatch.setattr(module, "GIVE_BACK_S", 0.05)

    async def run() -> None:
        log, goes_on, written = Log(), asyncio.Event(), []

        async def append(records: object, since: int, timeout_s: float) -> int:
            await goes_on.wait()
            written.append(records)
            return 7

        monkeypatch.setattr(log, "append", append)
        tenure = tenure_of(log)
        performing = asyncio.create_task(tenure._perform(WRITE))
        await asyncio.sleep(0)
        await tenure.release()
        goes_on.set()
        await asyncio.gather(performing, return_exceptions=True)
        assert written == []

    asyncio.run(run())
