"""Requests that are not whole, of all connections together: bounded, and who goes for it."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field

from quorumd.server.net.connection_limits import MAX_IN_FLIGHT
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.unfinished import (
    SMALL_BYTES,
    UNFINISHED_BYTES_MIN,
    UnfinishedRequests,
)
from quorumd.wire.framing import FRAMES_MAX
from tests.support.serving import (
    Parking,
    answer_frame,
    answering,
    request_frame,
    run,
    serving,
    until,
)

MIB = 1 << 20


@dataclass(eq=False)
class Refused:
    """A connection that only knows whether it was refused."""

    closed: list[CloseReason] = field(default_factory=list)

    def refuse(self, closed: CloseReason, reason: str) -> None:
        assert reason
        self.closed.append(closed)


def test_from_whom_nothing_has_come_for_longest_goes_first_unless_it_holds_little() -> None:
    unfinished: UnfinishedRequests[Refused] = UnfinishedRequests(1)
    unfinished.max_bytes = 10 * SMALL_BYTES
    small, dead, slow, quick = Refused(), Refused(), Refused(), Refused()
    unfinished.hold(small, SMALL_BYTES - 1)
    unfinished.hold(slow, SMALL_BYTES)
    unfinished.hold(dead, 4 * SMALL_BYTES)
    unfinished.hold(slow, 2 * SMALL_BYTES)
    unfinished.hold(quick, 3 * SMALL_BYTES + 1)
    assert unfinished.total_bytes == 10 * SMALL_BYTES
    assert not any(each.closed for each in (small, dead, slow, quick))
    unfinished.hold(quick, 3 * SMALL_BYTES + 2)
    assert dead.closed == [CloseReason.MEMORY]
    assert unfinished.total_bytes == 6 * SMALL_BYTES + 1
    unfinished.hold(quick, 0)
    unfinished.forget(slow)
    unfinished.forget(dead)
    assert unfinished.total_bytes == SMALL_BYTES - 1
    assert not any(each.closed for each in (small, slow, quick))


def test_where_all_hold_little_the_longest_silent_go_and_at_last_the_one_that_sends() -> None:
    unfinished: UnfinishedRequests[Refused] = UnfinishedRequests(1)
    unfinished.max_bytes = 100
    first, second = Refused(), Refused()
    unfinished.hold(first, 60)
    unfinished.hold(second, 60)
    assert (first.closed, second.closed) == ([CloseReason.MEMORY], [])
    unfinished.hold(second, SMALL_BYTES)
    assert second.closed == [CloseReason.MEMORY]
    assert unfinished.total_bytes == 0


def test_who_holds_nothing_any_more_goes_for_nobody() -> None:
    unfinished: UnfinishedRequests[Refused] = UnfinishedRequests(1)
    unfinished.max_bytes = 100
    whole, slow, sending = Refused(), Refused(), Refused()
    unfinished.hold(whole, 60)
    unfinished.hold(whole, 0)
    unfinished.hold(slow, 60)
    unfinished.hold(sending, 60)
    assert (whole.closed, slow.closed, sending.closed) == ([], [CloseReason.MEMORY], [])


def test_many_may_send_small_requests_slowly_at_once() -> None:
    assert UnfinishedRequests[Refused](4096).max_bytes == UNFINISHED_BYTES_MIN
    assert UnfinishedRequests[Refused](100 << 20).max_bytes == 200 << 20


def test_small_requests_that_wait_behind_others_are_held_in_one_piece() -> None:
    """As objects they would hold nine times as much, and to make these would hold the loop."""
    count = 20_000

    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            client.writer.write(b"".join(request_frame(n) for n in range(count)))
            await parking.received(MAX_IN_FLIGHT)
            unfinished = served.listeners._group.unfinished
            await until(lambda: unfinished.total_bytes > 0)
            (connection,) = served.listeners.connections
            assert 0 < len(connection._incoming.backlog) <= FRAMES_MAX
            for n in range(count):
                request = (await parking.received(n + 1))[n]
                request.respond((answer_frame(request),))
                assert len(connection._incoming.backlog) <= FRAMES_MAX
                assert (await client.answer())[0] == n
            assert unfinished.total_bytes == 0

    run(work())


def test_clients_that_stopped_in_mid_request_make_room_for_one_that_sends() -> None:
    async def work() -> None:
        async with serving(Parking(answering), max_frame_bytes=MIB) as served:
            unfinished = served.listeners._group.unfinished
            unfinished.max_bytes = 2 * MIB
            holders = [await served.connect() for _ in range(3)]
            for client in holders:
                await client.send(struct.pack(">i", MIB) + bytes(2 * MIB // 3 - 100))
            await until(lambda: unfinished.total_bytes > 2 * MIB - 2000)
            good = await served.connect()
            body = bytes(MIB - 17)
            frame = request_frame(1, body=body)
            for at in range(0, len(frame), 100_000):
                await good.send(frame[at : at + 100_000])
                await asyncio.sleep(0.01)
            assert await good.answer() == (1, body)
            # What is closed holds nothing, though it waits for its client.
            assert unfinished.total_bytes == 2 * MIB // 3 - 96
            await until(lambda: served.metrics.connections_closed.get("memory") == 2)

    run(work())
