"""Appends that wait for their commit: what a leader that has lost its majority does with very many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from quorumd.server.model.metrics import Metrics
from quorumd.server.requests.parked_appends import SHARE_S, ParkedAppends
from quorumd.server.requests.pending_produce import PartitionResult, PendingAppend
from quorumd.wire.error_codes import ErrorCode

# Compiled rooms take no stand-ins.
pytestmark = pytest.mark.pure

LOST = PartitionResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership was lost")
RESPONSE_S = SHARE_S / 10


class Batch:
    """What is needed of a PendingBatch."""

    deadline = 1e9

    def __init__(self, number: int) -> None:
        self.end_offset = number + 1
        self.has_response = False


class Loop:
    """Clock and event loop: each response takes its time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []
        self.refused: list[int] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Any:
        return None

    def finish(self, batch: Batch, result: PartitionResult) -> None:
        assert result is LOST
        assert not batch.has_response
        batch.has_response = True
        self.refused.append(batch.end_offset)
        self.now_s += RESPONSE_S

    def turn(self) -> int:
        """How many are refused in the next turn."""
        before = len(self.refused)
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()
        return len(self.refused) - before


def parked(loop: Loop, count: int) -> ParkedAppends:
    stand_in = cast(Any, loop)
    made = ParkedAppends(stand_in, Metrics(), stand_in, stand_in)
    for number in range(count):
        made.park(PendingAppend([cast(Any, Batch(number))], 0.0, number + 1, 1000))
    return made


def test_very_many_are_refused_in_turns_in_their_order_and_none_is_parked_meanwhile() -> None:
    loop = Loop()
    appends = parked(loop, 95)
    appends.refuse_all(LOST)
    assert (len(loop.refused), appends.batch_count, appends.uncommitted_bytes) == (10, 0, 0)
    # What a later leadership parks is its own.
    appends.park(PendingAppend([cast(Any, Batch(500))], 0.0, 501, 1000))
    assert [loop.turn() for _ in range(10)] == [10] * 8 + [5, 0]
    assert loop.refused == list(range(1, 96))
    assert (appends.batch_count, appends.uncommitted_bytes) == (1, 1000)


def test_few_are_refused_at_once_and_those_with_a_response_not_again() -> None:
    loop = Loop()
    appends = parked(loop, 3)
    appends.appends[1].batches[0].has_response = True
    appends.refuse_all(LOST)
    assert (loop.refused, loop.soon) == ([1, 3], [])


def test_what_is_cut_off_an_append_holds_its_share_of_the_bytes() -> None:
    append = PendingAppend([cast(Any, Batch(number)) for number in range(3)], 0.0, 3, 3000)
    assert append.cut(0) is None
    part = append.cut(2)
    assert part is not None
    assert (len(part.batches), part.end_offset, part.held_bytes) == (2, 2, 2000)
    assert (len(append.batches), append.end_offset, append.held_bytes) == (1, 3, 1000)
