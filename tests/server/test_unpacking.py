"""Compressed batches are unpacked a few at a time, and what is small is not held up by what is not."""

from __future__ import annotations

import pytest

from quorumd.server.requests.unpacking import UNPACKINGS_MAX, Unpackings
from quorumd.wire.batch_header import read_header
from quorumd.wire.conditions import IF_UNCHANGED_SINCE, Condition, KeyedBatch
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.record_walk import ANY_DELTA
from quorumd.wire.records import Record, build_batch

LONG = build_batch(
    [Record(key=b"k", value=bytes(2_000_000), headers=((IF_UNCHANGED_SINCE, b"7"),))], codec=4
)
FOUND = KeyedBatch([b"k"], Condition(7, ()))


class Reading:
    """One that is under way, as an event loop has them."""

    def __init__(self, unpackings: Unpackings, data: bytes = LONG) -> None:
        self.steps = unpackings.read_keyed(read_header(data), data, None, ANY_DELTA)
        self.result: KeyedBatch | None = None
        self.has_waited = self.has_ended = False

    def go_on(self) -> None:
        try:
            self.has_waited = bool(next(self.steps))
        except StopIteration as end:
            self.result, self.has_ended = end.value, True

    def end(self) -> KeyedBatch | None:
        while not self.has_ended:
            self.go_on()
            assert not self.has_waited
        return self.result


@pytest.mark.parametrize("is_closed", [False, True])
def test_so_many_are_under_way_and_another_one_when_one_has_ended(*, is_closed: bool) -> None:
    unpackings = Unpackings()
    first, *others = (Reading(unpackings) for _ in range(UNPACKINGS_MAX + 1))
    for each in (first, *others):
        each.go_on()
    for _ in range(3):
        assert not first.has_waited
        assert [each.has_waited for each in others] == [False] * (UNPACKINGS_MAX - 1) + [True]
        others[-1].go_on()
    if is_closed:
        first.steps.close()
    else:
        assert first.end() == FOUND
    assert others[-1].end() == FOUND
    assert all(each.end() == FOUND for each in others)


def test_one_that_fails_gives_its_place_back() -> None:
    unpackings = Unpackings()
    data = LONG[:-9] + b"\xff" * 9
    for _ in range(2 * UNPACKINGS_MAX):
        with pytest.raises(RefusedBatch):
            Reading(unpackings, data).end()
    assert Reading(unpackings).end() == FOUND


def test_what_is_small_waits_for_no_other() -> None:
    unpackings = Unpackings()
    under_way = [Reading(unpackings) for _ in range(UNPACKINGS_MAX)]
    for reading in under_way:
        reading.go_on()
    for codec in range(5):
        batch = build_batch([Record(key=b"k", headers=((IF_UNCHANGED_SINCE, b"7"),))], codec=codec)
        assert Reading(unpackings, batch).end() == FOUND
        plain = build_batch([Record(key=b"k", value=bytes(100_000))], codec=codec)
        assert Reading(unpackings, plain).end() is None
