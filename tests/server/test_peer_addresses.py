"""Links whose peer may be at several addresses, or not where it is said to be, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from quorumd.raft.types import Address
from quorumd.server.peers import address_book
from quorumd.server.peers import peer_channel as peers
from quorumd.server.peers.dialing import HostResolver
from tests.server.links import (
    ITSELF,
    NEITHER,
    SOMEBODY_ELSE,
    VOTER_0_TO_2,
    Behaviour,
    Owner,
    Peer,
    is_unconnected,
    serve_votes,
    until,
    versions_answer,
    vote_answer,
)
from tests.support.ports import free_port
from tests.support.serving import run

LOOPBACK = "127.0.0.1"


async def silent(peer: Peer, reader: Any, writer: Any) -> None:
    """Accepts, and never answers."""
    while await reader.read(1000):
        pass


@asynccontextmanager
async def listening(
    behaviour: Behaviour, error: int = NEITHER, *, host: str = LOOPBACK, port: int = 0
) -> AsyncIterator[tuple[Peer, Address]]:
    peer = Peer(behaviour, error)
    try:
        yield peer, (host, await peer.open(port, host))
    finally:
        peer.close()


@contextmanager
def black_hole() -> Iterator[Address]:
    """An address that drops what is sent to it: its queue of connections is full."""
    with socket.socket() as server, contextlib.ExitStack() as filling:
        server.bind((LOOPBACK, 0))
        server.listen(0)
        for _ in range(2):
            client = filling.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()


@asynccontextmanager
async def link_to(*own: Address, others: tuple[Address, ...] = (), **settings: Any) -> Any:
    owner = Owner(addresses=list(own), others=list(others), **settings)
    owner.link.open()
    try:
        yield owner
    finally:
        await owner.link.close()


def nobody() -> Address:
    return LOOPBACK, free_port()


async def asked(owner: Owner, name: object) -> tuple[object, ...]:
    """What became of one request: how it ended, and the answer's error code if it has one.

    One that is lost with a connection on which another node responded is sent again, as rules do.
    """
    while True:
        before = len(owner.outcomes)
        owner.vote(name)
        outcome = (await owner.outcome(before + 1))[before]
        if outcome[1] == "answered":
            return outcome[1], outcome[3]
        if "is not at" not in outcome[3]:
            return (outcome[1],)


# -- one address of several


def test_an_address_that_accepts_and_never_answers_holds_the_next_one_up_for_a_moment() -> None:
    async def work() -> None:
        async with listening(silent) as (mute, bad), listening(serve_votes) as (_, good):
            began = time.monotonic()
            async with link_to(bad, good) as owner:
                assert await asked(owner, "a") == ("answered", NEITHER)
                assert time.monotonic() - began < 2, "far less than the time to connect"
                await until(lambda: mute.connections == 1 and not mute.open_connections)
                assert (owner.ups, owner.refusals) == (1, 0)

    run(work())


def test_an_address_that_drops_packets_holds_the_next_one_up_for_a_moment() -> None:
    async def work() -> None:
        with black_hole() as bad:
            async with listening(serve_votes) as (_, good):
                began = time.monotonic()
                async with link_to(bad, good) as owner:
                    assert await asked(owner, "a") == ("answered", NEITHER)
                    assert time.monotonic() - began < 2

    run(work())


def test_a_black_hole_is_tried_as_long_as_a_connection_may_take_and_is_no_refusal() -> None:
    async def work() -> None:
        with black_hole() as bad:
            async with link_to(nobody(), bad, timeout_ms=50) as owner:
                owner.vote("a")
                reason = (await owner.outcome())[0][3]
                assert "timed out" in reason
                await until(lambda: owner.metrics.peer_connect_failures >= 4)
                assert owner.refusals == 0, "one of its addresses does not say that nobody is there"

    run(work())


def test_the_process_is_gone_when_all_addresses_refuse() -> None:
    async def work() -> None:
        async with link_to(nobody(), nobody(), nobody()) as owner:
            await until(lambda: owner.refusals == 2)
            assert owner.metrics.peer_connect_failures == 6

    run(work())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Say to which IP addresses a name leads; a name that leads nowhere hangs until the test is over."""
    over, known, real = threading.Event(), dict[str, tuple[str, ...]](), socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host.endswith(".test"):
            if host not in known:
                over.wait(20)
                raise socket.gaierror(socket.EAI_AGAIN, "try again")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in known[host]]
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield lambda name, *ips: known.update({name: ips})
    over.set()


def test_names_that_hang_do_not_keep_the_others_from_being_found(
    names: Callable[..., None],
) -> None:
    async def work() -> None:
        async with listening(serve_votes) as (_, (_, port)):
            names("good.test", LOOPBACK)
            hanging = [(f"hangs-{number}.test", port) for number in range(6)]
            async with link_to(*hanging, ("good.test", port)) as owner:
                assert await asked(owner, "a") == ("answered", NEITHER)
                assert owner.metrics.peer_connect_failures == 0

    run(work())


def test_a_name_that_hangs_is_looked_up_once_at_a_time(names: Callable[..., None]) -> None:
    async def work() -> None:
        async with link_to(("slow.test", 1), timeout_ms=10) as owner:
            await until(lambda: owner.metrics.peer_connect_failures >= 4)
            looking = [at for at in threading.enumerate() if at.name == "name slow.test"]
            assert len(looking) == 1

    run(work())


def test_a_name_leads_where_it_leads_now(names: Callable[..., None]) -> None:
    async def work() -> None:
        resolver = HostResolver()
        for ip in ("127.0.0.2", "127.0.0.3"):
            names("moves.test", ip)
            assert await resolver.ips_of("moves.test") == [ip]

    run(work())


def test_every_address_of_a_name_is_tried(names: Callable[..., None]) -> None:
    async def work() -> None:
        async with (
            listening(silent) as (mute, (_, port)),
            listening(serve_votes, host="127.0.0.3", port=port),
        ):
            names("three.test", "127.0.0.2", LOOPBACK, "127.0.0.3")
            async with link_to(("three.test", port)) as owner:
                assert await asked(owner, "a") == ("answered", NEITHER)
                assert owner.metrics.peer_connect_failures == 0
                await until(lambda: mute.connections == 1 and not mute.open_connections)

    run(work())


def test_a_name_refuses_if_all_its_addresses_do(names: Callable[..., None]) -> None:
    async def work() -> None:
        with black_hole() as (_, port):
            names("gone.test", "127.0.0.2", "127.0.0.3")
            names("silent.test", "127.0.0.2", LOOPBACK)
            names("impossible.test", "127.0.0.2", "255.255.255.255")
            async with (
                link_to(("gone.test", port)) as gone,
                link_to(("silent.test", port), timeout_ms=50) as silent,
                link_to(("impossible.test", port)) as impossible,
            ):
                await until(lambda: gone.refusals > 1)
                await until(lambda: silent.metrics.peer_connect_failures > 1)
                await until(lambda: impossible.metrics.peer_connect_failures > 1)
                assert silent.refusals == impossible.refusals == 0

    run(work())


def test_where_the_peer_was_it_is_looked_for_though_nobody_names_that_address_any_more() -> None:
    async def work() -> None:
        async with listening(serve_votes) as (peer, address), link_to(address) as owner:
            assert await asked(owner, "a") == ("answered", NEITHER)
            owner.addresses = [nobody()]
            for writer in peer.writers:
                writer.transport.abort()
            await until(lambda: owner.ups == 2)
            assert owner.refusals == 0

    run(work())


def test_an_address_that_has_just_become_known_is_tried_at_once() -> None:
    async def work() -> None:
        async with listening(serve_votes) as (_, address), link_to(nobody()) as owner:
            await until(lambda: owner.refusals == 6)
            owner.vote("before")
            assert (await owner.outcome())[0][:2] == ("before", "failed")
            owner.addresses = [nobody(), address]
            assert await asked(owner, "after") == ("answered", NEITHER)

    run(work())


# -- somebody else's address


def test_an_address_that_has_become_somebody_elses_is_left_for_the_next_one() -> None:
    async def work() -> None:
        async with (
            listening(serve_votes, SOMEBODY_ELSE) as (other, wrong),
            listening(serve_votes, ITSELF) as (peer, right),
            link_to(wrong, right) as owner,
        ):
            assert await asked(owner, "a") == ("answered", SOMEBODY_ELSE)
            await until(lambda: owner.ups == 2)
            assert await asked(owner, "b") == ("answered", ITSELF)
            assert owner.answered_at == [wrong, right]
            assert owner.losses == 0, "it was not the peer that was lost"
            peer.close()
            await until(lambda: owner.refusals > 1)
            assert owner.losses == 1
            assert other.connections == 1, "who listens there is not the peer, so it is gone"

    run(work())


def test_a_voter_that_moved_back_is_found_where_somebody_else_was() -> None:
    async def work() -> None:
        async with (
            listening(serve_votes, SOMEBODY_ELSE) as (peer, address),
            link_to(address) as owner,
        ):
            assert await asked(owner, "a") == ("answered", SOMEBODY_ELSE)
            await until(lambda: not peer.open_connections)
            peer.error = ITSELF
            while await asked(owner, "b") != ("answered", ITSELF):  # noqa: ASYNC110 - each asks anew
                await asyncio.sleep(0.01)
            assert owner.ups == 2, "it counts as reachable again once it has shown who it is"

    run(work())


# -- elsewhere


def test_other_addresses_are_looked_at_only_while_a_request_waits() -> None:
    async def work() -> None:
        async with (
            listening(serve_votes, ITSELF) as (peer, address),
            link_to(nobody(), others=(address,)) as owner,
        ):
            await until(lambda: owner.refusals == 3)
            assert peer.connections == 0
            assert await asked(owner, "a") == ("answered", ITSELF)
            assert owner.ups == 1
            peer.close()
            await until(lambda: owner.refusals >= 4)

    run(work())


def test_where_nobody_is_elsewhere_is_not_asked_again_at_once() -> None:
    async def work() -> None:
        async with link_to(others=(nobody(),)) as owner:
            for name in range(3):
                assert await asked(owner, name) == ("failed",)
            assert owner.metrics.peer_connect_failures == 1

    run(work())


def test_a_voter_is_found_behind_others_that_are_not_it() -> None:
    async def work() -> None:
        async with (
            listening(serve_votes, SOMEBODY_ELSE) as (first, one),
            listening(serve_votes, SOMEBODY_ELSE) as (second, two),
            listening(serve_votes, ITSELF) as (peer, right),
            link_to(nobody(), others=(one, nobody(), two, right)) as owner,
        ):
            answers = [await asked(owner, number) for number in range(3)]
            assert answers == [("answered", SOMEBODY_ELSE)] * 2 + [("answered", ITSELF)]
            assert owner.ups == 1, "the others do not count as the peer"
            refusals = owner.refusals
            for writer in peer.writers:
                writer.transport.abort()
            await until(lambda: owner.ups == 2)
            assert await asked(owner, "again") == ("answered", ITSELF)
            assert owner.trusted == [False, False, False, True]
            assert (first.connections, second.connections) == (1, 1)
            assert owner.refusals == refusals, "where it was found is an address of its own"

    run(work())


def test_who_does_not_say_that_it_is_the_peer_hides_no_refusal_and_is_left_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "DOUBT_S", 0.01)

    async def work() -> None:
        async with (
            listening(serve_votes, NEITHER) as (other, address),
            link_to(nobody(), others=(address,)) as owner,
        ):
            assert await asked(owner, "a") == ("answered", NEITHER)
            await until(lambda: other.connections == 1 and not other.open_connections)
            assert owner.ups == 0
            before = owner.refusals
            await until(lambda: owner.refusals > before)
            assert await asked(owner, "b") == ("failed",), "nobody new to ask: no waiting"

    run(work())


def test_where_the_peer_was_not_found_it_is_looked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address_book, "OTHER_NODE_AGAIN_S", 0.05)

    async def work() -> None:
        async with (
            listening(serve_votes, SOMEBODY_ELSE) as (peer, address),
            link_to(nobody(), others=(address,)) as owner,
        ):
            assert await asked(owner, "a") == ("answered", SOMEBODY_ELSE)
            peer.error = ITSELF
            while await asked(owner, "b") != ("answered", ITSELF):  # noqa: ASYNC110 - each asks anew
                await asyncio.sleep(0.01)
            assert owner.ups == 1

    run(work())


def test_a_request_that_waits_for_an_unanswering_peer_elsewhere_fails_in_its_time() -> None:
    async def mute(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await silent(peer, reader, writer)

    async def work() -> None:
        async with listening(mute) as (_, address), link_to(nobody(), others=(address,)) as owner:
            owner.vote("a", timeout_ms=30)
            assert (await owner.outcome())[0][:2] == ("a", "failed")
            assert owner.ups == 0

    run(work())


def test_nobody_is_left_while_a_request_to_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "DOUBT_S", 0.01)

    async def slow(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        await asyncio.sleep(0.1)  # what is claimed is that nothing happens in a time
        writer.write(vote_answer(correlation_id, ITSELF))
        await silent(peer, reader, writer)

    async def work() -> None:
        async with (
            listening(slow) as (_, address),
            link_to(nobody(), others=(address,)) as owner,
        ):
            assert await asked(owner, "a") == ("answered", ITSELF)

    run(work())


# -- nothing is left behind


@pytest.mark.parametrize("nonsense", [vote_answer(2), b"\xff\xff\xff\xff"])
def test_what_comes_with_the_handshake_is_not_lost(nonsense: bytes) -> None:
    async def eager(peer: Peer, reader: Any, writer: Any) -> None:
        """Answers what was not asked yet, in one piece with the handshake."""
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(versions_answer(correlation_id, VOTER_0_TO_2) + nonsense)
        await silent(peer, reader, writer)

    async def work() -> None:
        async with listening(eager) as (peer, address), link_to(address) as owner:
            await until(lambda: peer.connections == 2)
            assert owner.ups >= 1

    run(work())


def test_a_link_that_is_closed_in_the_midst_of_its_attempts_leaves_nothing_behind() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def work() -> None:
        with black_hole() as hole:
            async with (
                listening(silent) as (mute, bad),
                listening(serve_votes) as (peer, good),
            ):
                tasks = len(asyncio.all_tasks())
                files = open_files()
                for turns in range(60):
                    owner = Owner(addresses=[*[hole, bad, good][turns % 3 :], good], timeout_ms=9)
                    owner.link.open()
                    owner.vote()
                    for _ in range(turns // 3):
                        await asyncio.sleep(0)
                    await owner.link.close()
                    assert is_unconnected(owner.link)
                    assert len(owner.outcomes) == 1
                await until(lambda: not mute.open_connections + peer.open_connections)
                await until(lambda: open_files() <= files)
                await until(lambda: len(asyncio.all_tasks()) <= tasks)

    run(work())


def test_attempts_that_lost_are_over_when_the_link_is_up() -> None:
    async def work() -> None:
        with black_hole() as hole:
            async with listening(silent) as (mute, bad), listening(serve_votes) as (_, good):
                before = len(asyncio.all_tasks())
                async with link_to(hole, bad, good) as owner:
                    await until(lambda: owner.ups == 1)
                    await until(lambda: not mute.open_connections)
                    # The keeper, the server's side of it, and no attempt.
                    await until(lambda: len(asyncio.all_tasks()) <= before + 2)

    run(work())
