"""What a link to a peer makes of a connection that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import PeerListener
from quorumd.server.peers.call_sequence import CallSequence
from quorumd.server.peers.link_security import NotThisPeer
from quorumd.server.peers.peer_channel import RECONNECT_MAX_MS, TcpPeerChannel
from tests.server.links import (
    ITSELF,
    SOMEBODY_ELSE,
    Owner,
    Peer,
    serve_votes,
    until,
    vote_answer,
    with_peer,
)
from tests.support.serving import frame, run

AT = Address("two", 9093)


class Listener:
    """What it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_connection_lost(self) -> None:
        self.told.append("lost")

    def on_unreachable(self, address: Address, error: BaseException) -> None:
        self.told.append(f"{address}: {error}")

    def elsewhere(self) -> Sequence[Address]:
        return []


def channel_with(listener: Listener, *, is_trusted: bool = True) -> TcpPeerChannel:
    """A link whose connection has just been made."""
    made = TcpPeerChannel(
        "replica 2", lambda: [AT], "c", "1", cast(PeerListener, listener), 1000, Metrics()
    )
    made._address, made._is_trusted = AT, is_trusted
    made._made_at = made._loop.time()
    return made


@pytest.mark.parametrize(("failures", "kept"), [(0, 1), (1, 1), (5, 5)])
def test_one_that_was_of_no_use_does_not_make_the_next_try_sooner(failures: int, kept: int) -> None:
    async def work() -> None:
        channel = channel_with(Listener())
        channel._failures = failures
        channel.on_lost(None)
        assert channel._failures == kept
        channel._made_at -= RECONNECT_MAX_MS / 1000 + 0.1
        channel.on_lost(None)
        assert channel._failures == 0, "that one was in use for a while"

    run(work())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, ["lost"]),
        (ConnectionResetError("reset"), ["lost"]),
        (
            CertificateProblem("its certificate was revoked"),
            ["lost", "two:9093: its certificate was revoked"],
        ),
    ],
)
def test_a_certificate_that_ended_a_connection_is_told(
    error: Exception | None, told: list[str]
) -> None:
    async def work() -> None:
        listener = Listener()
        channel_with(listener).on_lost(error)
        assert listener.told == told

    run(work())


def test_who_was_not_known_to_be_the_peer_is_not_lost() -> None:
    async def work() -> None:
        listener = Listener()
        channel_with(listener, is_trusted=False).on_lost(None)
        assert listener.told == []

    run(work())


def test_an_address_in_doubt_is_not_given_up_while_a_response_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumd.server.peers.peer_channel.DOUBT_S", 0.001)
    given_up: list[str] = []

    async def work() -> None:
        channel = channel_with(Listener(), is_trusted=False)
        calls = SimpleNamespace(is_waiting=True)
        channel._calls = cast(CallSequence, calls)
        monkeypatch.setattr(channel, "_reject_address", given_up.append)
        waiting = asyncio.create_task(channel._until_lost())
        await asyncio.sleep(0.02)
        assert given_up == []
        calls.is_waiting = False
        await asyncio.sleep(0.02)
        assert set(given_up) == {"no node there has identified itself"}
        channel._lost.set()
        await waiting

    run(work())


def test_why_no_connection_was_made_is_said_of_the_peers_own_addresses_if_it_has_any() -> None:
    other = Address("elsewhere", 9093)

    async def work() -> None:
        channel = channel_with(Listener())
        channel._search.begun[other] = False
        channel._on_dial_failed(other, OSError("refused"))
        assert channel._last_error == "cannot connect to elsewhere:9093: refused"
        channel._search.begun[AT] = True
        channel._on_dial_failed(AT, OSError("no route"))
        channel._on_dial_failed(other, OSError("refused"))
        assert channel._last_error == "cannot connect to two:9093: no route"

    run(work())


def test_an_address_at_which_another_node_was_found_is_not_trusted_any_more() -> None:
    async def work() -> None:
        channel = channel_with(Listener())
        channel._search.begun[AT] = True
        channel._on_dial_failed(AT, OSError("no route"))
        assert channel._next_address() is None
        assert channel._where.trusted() == [AT]
        channel._on_dial_failed(AT, NotThisPeer("User:node-3"))
        assert channel._where.trusted() == []

    run(work())


def test_a_link_that_came_back_is_kept_and_told_of_its_own_end() -> None:
    async def first_garbage(peer: Peer, reader: Any, writer: Any) -> None:
        number = peer.connections
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        if number == 1:
            writer.write(frame(b"garbage"))
            await reader.read()
            return
        writer.write(vote_answer(correlation_id))
        await peer.request(reader)

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        (first,) = await owner.outcome()
        assert "sent what is no response" in first[3]
        await until(lambda: owner.ups == 2)
        await asyncio.sleep(0.1)  # what is claimed is that nothing happens
        assert (peer.connections, peer.open_connections) == (2, 1)
        owner.vote("b")
        owner.vote("c")
        _, second, third = await owner.outcome(3)
        assert second[:2] == ("b", "answered")
        assert third[3] == "the connection to replica 2 was lost: closed by the peer"

    with_peer(first_garbage, work)


def test_an_address_at_which_another_node_responds_is_left_for_the_next() -> None:
    async def work() -> None:
        other, itself = Peer(serve_votes, error=SOMEBODY_ELSE), Peer(serve_votes, error=ITSELF)
        addresses = [Address("127.0.0.1", await each.open()) for each in (other, itself)]
        owner = Owner(addresses=addresses)
        try:
            owner.link.open()
            owner.vote()
            await owner.outcome()
            await until(lambda: owner.ups == 2)
            owner.vote()
            await owner.outcome(2)
            assert owner.answered_at == addresses
            assert owner.losses == 0, "who was there was not the peer"
        finally:
            await owner.link.close()
            for each in (other, itself):
                each.close()

    run(work())
