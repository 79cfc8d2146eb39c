"""Consumers' fetches that wait: in turns of the event loop, and with one alarm for all of them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from quorumd.server.model.runtime import Runtime
from quorumd.server.net.connection import Connection
from quorumd.server.requests import fetch as consume
from quorumd.wire.error_codes import ErrorCode
from tests.server.test_fetch import LONG_MS, consumer, offsets, only
from tests.support.asking import question
from tests.support.consuming import RECORDS, Bench, until, with_bench


def one_a_turn(runtime: Runtime, later: list[Callable[[], None]]) -> Runtime:
    """Between two readings of its clock a turn's share is over; `later` gets the turns to come."""
    readings = itertools.count()
    return dataclasses.replace(
        runtime,
        monotonic_s=lambda: time.monotonic() + next(readings) * consume.SHARE_S,
        call_soon=later.append,
    )


def test_many_that_wait_are_served_in_turns_of_the_event_loop(tmp_path: Path) -> None:
    later: list[Callable[[], None]] = []

    async def work(at: Bench) -> None:
        benches = [at] + [
            Bench(at.served, await at.served.connect(), at.handler, at.log) for _ in range(2)
        ]
        for count, bench in enumerate(benches, 1):
            await bench.parked(consumer(RECORDS, max_wait_ms=LONG_MS), count=count)
        at.append()
        assert offsets(only(await benches[0].answer())) == [RECORDS]
        at.append()
        assert len(later) == 1, "one turn is asked for, whatever else is committed meanwhile"
        last = Bench(at.served, await at.served.connect(), at.handler, at.log)
        await last.client.send(question(1, 11, consumer(RECORDS + 1)))
        await until(lambda: len(at.handler._woken) == 3)
        later.pop()()
        assert offsets(only(await benches[1].answer())) == [RECORDS, RECORDS + 1]
        later.pop()()
        assert offsets(only(await benches[2].answer())) == [RECORDS, RECORDS + 1]
        later.pop()()
        assert offsets(only(await last.answer())) == [RECORDS + 1]
        assert not later

    with_bench(tmp_path, work, changed=lambda runtime: one_a_turn(runtime, later))


def test_who_waits_again_while_a_turn_is_to_come_has_no_second_one(tmp_path: Path) -> None:
    later: list[Callable[[], None]] = []

    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, min_bytes=1 << 20, max_wait_ms=LONG_MS))
        for count in (2, 3):
            other = Bench(at.served, await at.served.connect(), at.handler, at.log)
            await other.parked(consumer(RECORDS, max_wait_ms=LONG_MS), count=count)
        at.append()
        assert (len(at.handler._parked), len(later)) == (1, 1)
        at.append()
        assert (len(at.handler._woken), len(later)) == (3, 1)
        at.handler.close()
        later.pop()()
        assert not later, "a handler that is closed serves nobody"

    with_bench(tmp_path, work, changed=lambda runtime: one_a_turn(runtime, later))


def test_all_that_wait_have_one_alarm(tmp_path: Path) -> None:
    alarms: list[asyncio.TimerHandle] = []

    def call_at(at_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        alarms.append(loop.call_later(at_s - time.monotonic(), callback))
        return alarms[-1]

    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        await other.parked(consumer(RECORDS, max_wait_ms=3_000), count=2)
        assert [alarm.cancelled() for alarm in alarms] == [True, False]

    changed = partial(dataclasses.replace, call_at=call_at)
    with_bench(tmp_path, work, changed=changed)


def test_who_waits_for_a_turn_when_leadership_ends_is_sent_to_the_new_leader(
    tmp_path: Path,
) -> None:
    later: list[Callable[[], None]] = []

    async def work(at: Bench) -> None:
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        await other.parked(consumer(RECORDS, max_wait_ms=LONG_MS), count=2)
        at.append()
        at.partition.is_leader = False
        at.handler.on_leadership_lost()
        row = only(await other.answer())
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        later.pop()()
        assert not later

    with_bench(tmp_path, work, changed=lambda runtime: one_a_turn(runtime, later))


def test_whose_connection_is_gone_has_no_turn(tmp_path: Path) -> None:
    """Who is served and has too little yet goes on waiting: nobody does here."""
    later: list[Callable[[], None]] = []

    async def work(at: Bench) -> None:
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        await other.parked(consumer(RECORDS, min_bytes=1 << 20, max_wait_ms=LONG_MS), count=2)
        at.append()
        connection = cast(Connection, at.handler._woken[0].request.connection)
        other.client.reset()
        await until(lambda: not connection.is_open)
        later.pop()()
        assert not at.handler._parked
        assert not later

    with_bench(tmp_path, work, changed=lambda runtime: one_a_turn(runtime, later))
