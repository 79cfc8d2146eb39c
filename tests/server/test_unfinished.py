"""Requests that are not whole, of all connections together: bounded, and who goes for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.unfinished import (
    SMALL_BYTES,
    UNFINISHED_BYTES_MIN,
    UnfinishedRequests,
)


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


def test_many_may_send_small_requests_slowly_at_once() -> None:
    assert UnfinishedRequests[Refused](4096).max_bytes == UNFINISHED_BYTES_MIN
    assert UnfinishedRequests[Refused](100 << 20).max_bytes == 200 << 20
