"""Requests in sequence on one connection to a peer: until when their responses are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.raft.types import Address
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import CallbackCall
from quorumd.server.peers.call_sequence import CallSequence

API = 1


class Loop:
    """Its time passes when the test says so, and then its timers fire."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = (at_s, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def pass_to(self, now_s: float) -> None:
        while due := sorted(timer for timer in self.timers if timer[0] <= now_s):
            self.timers.remove(due[0])
            self.now_s = due[0][0]
            due[0][1]()
        self.now_s = now_s


def frame(version: int, correlation_id: int) -> bytes:
    return b"frame"


def waits(timeout_ms: int, build: Callable[[int, int], bytes] = frame) -> CallbackCall:
    return CallbackCall(
        api_key=API,
        max_version=0,
        build=build,
        responded=lambda *response: None,
        failed=lambda reason, error: None,
        timeout_ms=timeout_ms,
    )


@pytest.mark.parametrize("timeouts_ms", [(500,), (500, 2000), (2000, 500), (2000, 500, 900)])
def test_the_first_response_that_is_overdue_ends_the_connection(
    timeouts_ms: tuple[int, ...],
) -> None:
    loop, overdue = Loop(), list[str]()
    calls = CallSequence(
        "node 2", cast(asyncio.AbstractEventLoop, loop), Metrics(), 0, overdue.append
    )
    transport = SimpleNamespace(write=lambda frame: None)
    calls.begin(cast(asyncio.Transport, transport), {API: (0, 0)})
    for timeout_ms in timeouts_ms:
        calls.send(waits(timeout_ms))
    loop.pass_to(0.499)
    assert overdue == []
    loop.pass_to(0.5)
    assert overdue == ["node 2 did not respond in 500 ms"]


def test_what_is_given_up_is_not_overdue_later() -> None:
    loop, overdue = Loop(), list[str]()
    calls = CallSequence(
        "node 2", cast(asyncio.AbstractEventLoop, loop), Metrics(), 0, overdue.append
    )
    transport = SimpleNamespace(write=lambda frame: None)
    calls.begin(cast(asyncio.Transport, transport), {API: (0, 0)})
    calls.send(waits(500))
    calls.fail_all("the connection was lost")
    assert not loop.timers
    calls.send(waits(700))
    loop.pass_to(0.699)
    assert overdue == []
    loop.pass_to(0.7)
    assert overdue == ["node 2 did not respond in 700 ms"]


def test_a_response_is_overdue_in_its_own_time_whatever_came_before() -> None:
    loop, overdue = Loop(), list[str]()
    calls = CallSequence(
        "node 2", cast(asyncio.AbstractEventLoop, loop), Metrics(), 0, overdue.append
    )
    transport = SimpleNamespace(write=lambda frame: None)
    calls.begin(cast(asyncio.Transport, transport), {API: (0, 0)})
    for timeout_ms in (500, 900):
        calls.send(waits(timeout_ms))
    calls.take((1).to_bytes(4, "big"), Address("two", 9093), is_trusted=True)
    loop.pass_to(0.899)
    assert overdue == []
    loop.pass_to(0.9)
    assert overdue == ["node 2 did not respond in 900 ms"]


def test_correlation_ids_begin_anew_behind_the_greatest() -> None:
    loop, numbers = Loop(), list[int]()

    def build(version: int, correlation_id: int) -> bytes:
        numbers.append(correlation_id)
        return b"frame"

    calls = CallSequence(
        "node 2", cast(asyncio.AbstractEventLoop, loop), Metrics(), 0x7FFFFFFE, lambda reason: None
    )
    transport = SimpleNamespace(write=lambda frame: None)
    calls.begin(cast(asyncio.Transport, transport), {API: (0, 0)})
    for _ in range(3):
        calls.send(waits(500, build))
    assert numbers == [0x7FFFFFFF, 0, 1]


def test_the_bytes_of_all_that_is_sent_are_counted() -> None:
    metrics, sent = Metrics(), list[bytes]()
    calls = CallSequence(
        "node 2", cast(asyncio.AbstractEventLoop, Loop()), metrics, 0, lambda reason: None
    )
    calls.begin(cast(asyncio.Transport, SimpleNamespace(write=sent.append)), {API: (0, 0)})
    for _ in range(2):
        calls.send(waits(500))
    assert (sent, metrics.peer_bytes_sent) == ([b"frame"] * 2, 2 * len(b"frame"))
