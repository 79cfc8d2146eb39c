"""The race of attempts, and what is known of a peer's whereabouts, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from quorumd.server.peers import dialing
from quorumd.server.peers.address_book import (
    ABSENT_AGAIN_S,
    OTHER_NODE_AGAIN_S,
    OWN_AGAIN_S,
    AddressBook,
)
from quorumd.server.peers.dialing import HostResolver, happy_eyeballs
from tests.support.serving import run

A, B, C = ("a", 1), ("b", 1), ("c", 1)


class Attempts:
    """Attempts by name; each ends when the test says so."""

    def __init__(self, *names: str) -> None:
        self._names = iter(names)
        self.begun: dict[str, asyncio.Future[str]] = {}
        self.failed: list[str] = []
        self.discarded: list[str] = []

    async def _attempt(self, name: str) -> str:
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.begun[name] = outcome
        return await outcome

    def race(self) -> Coroutine[Any, Any, tuple[str, str] | None]:
        return happy_eyeballs(
            lambda: next(self._names, None),
            self._attempt,
            lambda name, error: self.failed.append(f"{name}: {error}"),
            self.discarded.append,
        )

    async def until_begun(self, name: str) -> None:
        while name not in self.begun:  # noqa: ASYNC110 - attempts have no event to wait for
            await asyncio.sleep(0.001)


def test_the_next_attempt_begins_when_one_fails_or_takes_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        monkeypatch.setattr(dialing, "HEAD_START_S", 60.0)
        attempts = Attempts("a", "b", "c")
        race = asyncio.create_task(attempts.race())
        await attempts.until_begun("a")
        attempts.begun["a"].set_exception(OSError("refused"))
        await attempts.until_begun("b")
        assert list(attempts.begun) == ["a", "b"]
        race.cancel()
        monkeypatch.setattr(dialing, "HEAD_START_S", 0.01)
        attempts = Attempts("a", "b", "c")
        race = asyncio.create_task(attempts.race())
        await attempts.until_begun("c")
        attempts.begun["b"].set_result("B")
        assert await race == ("b", "B")
        assert attempts.begun["a"].cancelled()
        assert attempts.begun["c"].cancelled()
        assert (attempts.failed, attempts.discarded) == ([], [])

    run(work())


def test_nothing_answers_if_all_attempts_fail() -> None:
    async def work() -> None:
        attempts = Attempts("a", "b")
        race = asyncio.create_task(attempts.race())
        for name in ("a", "b"):
            await attempts.until_begun(name)
            attempts.begun[name].set_exception(OSError("no"))
        assert await race is None
        assert attempts.failed == ["a: no", "b: no"]

    run(work())


def test_the_second_of_two_that_answer_at_once_is_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "HEAD_START_S", 0.01)

    async def work() -> None:
        attempts = Attempts("a", "b")
        race = asyncio.create_task(attempts.race())
        await attempts.until_begun("b")
        attempts.begun["b"].set_result("B")
        attempts.begun["a"].set_result("A")
        won = await race
        assert won is not None
        assert sorted([won[1], *attempts.discarded]) == ["A", "B"]

    run(work())


def test_what_was_won_is_discarded_if_nobody_waits_for_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many turns of the event loop pass before the race is cancelled."""
    monkeypatch.setattr(dialing, "HEAD_START_S", 0.001)

    async def work() -> None:
        kept = 0
        for turns in range(12):
            attempts = Attempts("a", "b")
            race = asyncio.create_task(attempts.race())
            await attempts.until_begun("b")
            attempts.begun["a"].set_result("A")
            for _ in range(turns):
                await asyncio.sleep(0)
            race.cancel()
            (outcome,) = await asyncio.gather(race, return_exceptions=True)
            was_kept = outcome == ("a", "A")
            kept += was_kept
            # Cancelled before its attempt got it, nothing was won.
            assert was_kept or attempts.discarded == ["A"] or turns == 0
        assert 0 < kept < 12

    run(work())


# -- whereabouts


@pytest.mark.parametrize(
    "outcomes", [["10.0.0.1", "10.0.0.2"], [OSError("no such host"), "10.0.0.2"]]
)
def test_a_host_is_looked_up_anew_each_time(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str | OSError]
) -> None:
    left = list(outcomes)

    def look_up(host: str, port: None, **options: object) -> list[Any]:
        found = left.pop(0)
        if isinstance(found, OSError):
            raise found
        return [(None, None, None, None, (found, 0))]

    monkeypatch.setattr("socket.getaddrinfo", look_up)

    async def work() -> None:
        names = HostResolver()
        for each in outcomes:
            if isinstance(each, OSError):
                with pytest.raises(OSError, match="no such host"):
                    await names.ips_of("db2.example.com")
            else:
                assert await names.ips_of("db2.example.com") == [each]

    run(work())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def whereabouts(
    own: list[tuple[str, int]], elsewhere: list[tuple[str, int]]
) -> tuple[AddressBook, Clock]:
    clock = Clock()
    return AddressBook(lambda: own, lambda: elsewhere, clock), clock


def test_an_own_address_is_trusted_until_it_is_found_wrong_and_again_once_it_is_right() -> None:
    where, clock = whereabouts([A, B], [])
    assert (where.trusted(), where.candidates()) == ([A, B], [])
    where.deny(A)
    assert (where.trusted(), where.candidates()) == ([B], [])
    clock.now += OWN_AGAIN_S
    assert (where.trusted(), where.candidates()) == ([B], [A])
    where.miss(A)
    assert (where.trusted(), where.candidates()) == ([B], [])
    where.confirm(A)
    assert (where.trusted(), where.candidates()) == ([A, B], [])


def test_of_several_wrong_addresses_the_one_denied_longest_ago_is_tried_first() -> None:
    where, clock = whereabouts([A, B], [C])
    for address in (B, A):
        where.deny(address)
        clock.now += OWN_AGAIN_S * 2
    assert where.candidates() == [C, B, A]


def test_an_address_elsewhere_is_tried_once_in_a_while() -> None:
    where, clock = whereabouts([A], [A, B, C])
    assert where.candidates() == [B, C]
    where.deny(B)
    where.miss(C)
    assert where.candidates() == []
    clock.now += ABSENT_AGAIN_S
    assert where.candidates() == [C], "a voter that was not there may have been started"
    clock.now += OTHER_NODE_AGAIN_S
    assert where.candidates() == [C, B], "the one that was tried longest ago comes first"


def test_where_the_peer_was_found_is_its_own_address_as_long_as_it_is_there() -> None:
    where, _ = whereabouts([A], [B, C])
    where.confirm(B)
    assert (where.trusted(), where.candidates()) == ([A, B], [C])
    where.deny(B)
    assert (where.trusted(), where.candidates()) == ([A], [C])
    where.confirm(C)
    assert where.trusted() == [A, C]


def test_an_address_that_becomes_the_peers_own_is_trusted_wherever_it_was_looked_for_before() -> (
    None
):
    own = [A]
    where, _ = whereabouts(own, [B])
    where.deny(B)
    own.append(B)
    assert where.trusted() == [A, B]
