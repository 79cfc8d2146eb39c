"""In which order handshakes' steps are taken, and what becomes of those that are not."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from quorumd.security.handshakes import Handshakes

STORM, CLIENT = "10.0.0.66", "10.0.0.8"


class Order:
    """The thread of strangers, held up by a first step until all others are there."""

    def __init__(self) -> None:
        self.handshakes = Handshakes()
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.taken: list[tuple[str, int]] = []
        self.futures = [self.handshakes.accepted("10.0.0.1", is_local=False).submit(self._hold)]
        assert self.begun.wait(10)

    def _hold(self) -> None:
        self.begun.set()
        assert self.go_on.wait(10)

    def step(self, ip: str, number: int) -> Future[None]:
        queue = self.handshakes.accepted(ip, is_local=False)
        future = queue.submit(self.taken.append, (ip, number))
        self.futures.append(future)
        return future

    def end(self) -> None:
        self.go_on.set()
        for each in self.futures:
            if not each.cancelled():
                each.result(10)
        self.handshakes.close()


def test_a_storm_from_one_address_holds_others_up_for_one_step_each() -> None:
    order = Order()
    for number in range(500):
        order.step(STORM, number)
    for number in range(3):
        order.step(CLIENT, number)
    order.end()
    of_client = [order.taken.index((CLIENT, number)) for number in range(3)]
    assert of_client == [1, 3, 5]
    assert [number for ip, number in order.taken if ip == STORM] == list(range(500))


def test_a_step_that_is_cancelled_or_fails_holds_up_no_other() -> None:
    order = Order()
    assert order.step(STORM, 0).cancel()
    failing = order.handshakes.accepted(STORM, is_local=False).submit(int, "no number")
    order.step(STORM, 1)
    order.end()
    assert order.taken == [(STORM, 1)]
    with pytest.raises(ValueError, match="no number"):
        failing.result(10)


def test_after_the_end_no_step_is_begun() -> None:
    order = Order()
    left = order.step(STORM, 0)
    order.handshakes.close()
    order.go_on.set()
    order.futures[0].result(10)
    assert left.cancelled()
    with pytest.raises(RuntimeError):
        order.step(STORM, 1)
    assert order.taken == []


def test_strangers_hold_up_neither_nodes_nor_this_host_nor_what_is_dialled() -> None:
    order = Order()
    known = Handshakes(lambda ip: ip == CLIENT)
    try:
        for of_others in (order.handshakes, known):
            for_local = of_others.accepted(STORM, is_local=True).submit(int, "1")
            assert for_local.result(10) == 1
            assert of_others.dialled.submit(int, "2").result(10) == 2
        held = threading.Event()
        known.accepted(STORM, is_local=False).submit(held.wait, 10)
        assert known.accepted(CLIENT, is_local=False).submit(int, "3").result(5) == 3
        held.set()
    finally:
        order.end()
        known.close()
