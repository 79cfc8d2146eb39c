"""Links to other replicas, on real sockets: handshake, order, failures, and how they come back."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import HungUp
from quorumd.server.peers import peer_channel
from quorumd.server.peers.peer_connection import RESPONSE_BYTES_MAX, PeerConnection, Receiver
from tests.server.links import (
    VOTE,
    VOTER_0_TO_2,
    Behaviour,
    Owner,
    Peer,
    is_unconnected,
    serve_votes,
    until,
    versions_answer,
    vote_answer,
    with_peer,
)
from tests.support.ports import free_port
from tests.support.serving import frame, run

# -- all is well


def test_a_request_made_before_the_connection_is_there_waits_for_it() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("first")
        assert await owner.outcome() == [("first", "answered", 2, 104)]
        assert [(key, version) for key, version, _, _ in peer.asked] == [(18, 3), (VOTE, 2)]
        assert owner.ups == 1

    with_peer(serve_votes, work)


def test_a_request_that_is_not_wanted_any_more_is_not_sent() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        wanted = True
        owner.link.open()
        owner.vote("first", is_wanted=lambda: wanted)
        owner.vote("second")
        wanted = False
        assert await owner.outcome(2) == [
            ("first", "failed", None, "not wanted any more"),
            ("second", "answered", 2, 104),
        ]
        assert [key for key, _, _, _ in peer.asked] == [18, VOTE]

    with_peer(serve_votes, work)


def test_requests_are_sent_at_once_and_answered_in_their_order() -> None:
    async def together(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        ids = [(await peer.request(reader))[2] for _ in range(5)]
        writer.write(b"".join(vote_answer(number) for number in ids))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        for name in range(5):
            owner.vote(name)
        assert [outcome[0] for outcome in await owner.outcome(5)] == [0, 1, 2, 3, 4]

    with_peer(together, work)


def test_an_answer_in_single_bytes_is_an_answer() -> None:
    async def bytewise(peer: Peer, reader: Any, writer: Any) -> None:
        _, _, correlation_id, _ = await peer.request(reader)
        for byte in versions_answer(correlation_id, VOTER_0_TO_2):
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        _, _, correlation_id, _ = await peer.request(reader)
        for byte in vote_answer(correlation_id):
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][1] == "answered"

    with_peer(bytewise, work)


def test_the_rest_of_a_frame_is_none_of_its_own_though_it_looks_like_one() -> None:
    async def work() -> None:
        frames: list[bytes] = []
        metrics = Metrics()
        connection = PeerConnection(metrics)
        connection.hand_to(cast(Receiver, SimpleNamespace(on_frame=frames.append)))
        connection.data_received(struct.pack(">i", 12) + b"half")
        connection.data_received(frame(b"rest"))
        assert frames == [b"half" + frame(b"rest")]
        assert metrics.peer_bytes_received == 4 + 12

    run(work())


# -- versions


@pytest.mark.parametrize(("highest", "used"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_the_highest_version_that_both_know_is_used(highest: int, used: int) -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer, ((VOTE, 0, highest),))
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][:3] == (0, "answered", used)

    with_peer(serve, work)


def test_a_pre_vote_that_the_peer_is_too_old_for_fails_as_an_unsupported_version() -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer, ((VOTE, 0, 1),))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote(pre_vote=True)
        assert (await owner.outcome())[0][:3] == (0, "failed", "UNSUPPORTED_VERSION")

    with_peer(serve, work)


@pytest.mark.parametrize("ranges", [((1, 0, 11),), ((VOTE, 3, 5),)])
def test_a_peer_that_serves_no_votes_is_no_reason_to_do_without_pre_votes(
    ranges: tuple[tuple[int, int, int], ...],
) -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer, ranges)
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        _, kind, error, reason = (await owner.outcome())[0]
        assert (kind, error) == ("failed", None)
        assert "does not serve api 52" in reason

    with_peer(serve, work)


def test_a_peer_that_knows_only_older_handshakes_is_asked_in_its_versions() -> None:
    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(versions_answer(correlation_id, ((18, 0, 2), (VOTE, 0, 0)), 35, version=0))
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][:3] == (0, "answered", 0)

    with_peer(serve, work)


# -- what goes wrong


def garbage(data: bytes) -> Behaviour:
    async def behaviour(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await peer.request(reader)
        writer.write(data)
        await reader.read()

    return behaviour


@pytest.mark.parametrize(
    "data",
    [
        vote_answer(99),
        frame(b"\0"),
        frame(struct.pack(">i", 2)),
        frame(struct.pack(">ib", 2, 127)),
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["other id", "no id", "no tags", "cut tags", "empty", "negative", "http"],
)
def test_a_request_whose_answer_is_none_fails_and_the_link_begins_anew(data: bytes) -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        owner.vote("b")
        outcomes = await owner.outcome(2)
        assert [(name, kind) for name, kind, *_ in outcomes] == [("a", "failed"), ("b", "failed")]
        await until(lambda: peer.connections == 2)
        assert len(owner.outcomes) == 2

    with_peer(garbage(data), work)


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async def talkative(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        writer.write(vote_answer(2))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        await until(lambda: peer.connections == 2)
        assert owner.link._failures > 0, "a peer that misbehaves at once is not asked again at once"

    with_peer(talkative, work)


@pytest.mark.parametrize("code", [-1, 31, 42])
def test_a_refused_handshake_fails_what_waits_and_is_not_repeated_at_once(code: int) -> None:
    async def refuse(peer: Peer, reader: Any, writer: Any) -> None:
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(versions_answer(correlation_id, (), code))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        _, kind, error, reason = (await owner.outcome())[0]
        assert (kind, error) == ("failed", None)
        assert f"error {code}" in reason

    with_peer(refuse, work)


def test_a_peer_that_accepts_and_hangs_up_is_tried_later_and_later() -> None:
    async def hang_up(peer: Peer, reader: Any, writer: Any) -> None:
        writer.transport.abort()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        await asyncio.sleep(0.3)  # what is claimed is how little happens in a time
        assert 2 <= peer.connections <= 5

    with_peer(hang_up, work)


def test_it_is_told_who_hangs_up_instead_of_giving_the_first_response_of_a_connection() -> None:
    """So does a node that refuses this one's certificate; a node that ends has mostly responded before."""

    async def serve(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        if peer.connections == 1:
            writer.write(vote_answer(correlation_id))
            await peer.request(reader)

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("first")
        assert (await owner.outcome())[-1][1] == "answered"
        for count, told in ((2, []), (3, [HungUp])):
            owner.vote(count)
            assert (await owner.outcome(count))[-1][1] == "failed"
            await until(lambda losses=count - 1: owner.losses == losses)
            assert [type(error) for _, error in owner.unreachable] == told

    with_peer(serve, work)


def test_after_an_outage_of_any_length_the_next_try_is_not_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []

    async def wait(event: asyncio.Event, seconds: float) -> None:
        pauses_s.append(seconds)
        if len(pauses_s) < 20:
            await asyncio.sleep(0)
        else:
            await event.wait()

    async def work(peer: Peer, owner: Owner) -> None:
        monkeypatch.setattr(peer_channel, "_wait", wait)
        peer.close()
        owner.link.open()
        await until(lambda: len(pauses_s) == 20)
        assert pauses_s == sorted(pauses_s)
        assert pauses_s[-1] == peer_channel.RECONNECT_MAX_MS / 1000

    with_peer(serve_votes, work)


def test_a_silent_peer_fails_the_request_in_its_time_and_the_connection_with_it() -> None:
    async def silent(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        while await reader.read(1000):
            pass

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("short", timeout_ms=30)
        owner.vote("behind it", timeout_ms=5_000)
        outcomes = await owner.outcome(2)
        assert [outcome[:2] for outcome in outcomes] == [
            ("short", "failed"),
            ("behind it", "failed"),
        ]
        assert "30 ms" in outcomes[0][3]
        await until(lambda: peer.connections == 2)
        assert owner.unreachable == [], "it was not the peer that closed the connection"

    with_peer(silent, work)


def test_a_peer_that_never_shakes_hands_fails_what_waits() -> None:
    async def silent(peer: Peer, reader: Any, writer: Any) -> None:
        while await reader.read(1000):
            pass

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][:3] == (0, "failed", None)

    with_peer(silent, work, timeout_ms=30)


def test_a_connection_that_is_lost_fails_its_requests_and_comes_back_at_once() -> None:
    async def one_answer(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        writer.write(vote_answer(correlation_id))
        await peer.request(reader)

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        owner.vote("b")
        outcomes = await owner.outcome(2)
        assert [outcome[:2] for outcome in outcomes] == [("a", "answered"), ("b", "failed")]
        owner.vote("c")
        assert (await owner.outcome(3))[2][:2] == ("c", "answered")
        assert owner.refusals == 0

    with_peer(one_answer, work)


def test_a_process_that_is_gone_is_reported_and_found_again_when_it_is_back() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        await owner.outcome()
        peer.close()
        await until(lambda: owner.refusals > 0)
        owner.vote("b")
        assert (await owner.outcome(2))[1][:3] == ("b", "failed", None)
        again = Peer(serve_votes)
        await again.open(owner.port)
        try:
            await until(lambda: owner.ups == 2)
            owner.vote("c")
            assert (await owner.outcome(3))[2][:2] == ("c", "answered")
        finally:
            again.close()

    with_peer(serve_votes, work)


def test_a_channel_that_waits_before_the_next_attempt_connects_at_once_when_it_is_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_channel, "RECONNECT_MS", 600_000)
    monkeypatch.setattr(peer_channel, "RECONNECT_MAX_MS", 600_000)

    async def work(peer: Peer, owner: Owner) -> None:
        peer.close()
        owner.link.open()
        owner.vote("a")
        assert (await owner.outcome())[0][:3] == ("a", "failed", None)
        again = Peer(serve_votes)
        await again.open(owner.port)
        try:
            owner.link.wake()
            owner.vote("b")
            assert (await owner.outcome(2))[1][:2] == ("b", "answered")
        finally:
            again.close()

    with_peer(serve_votes, work)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "no-such-host.invalid", "", "\0"])
def test_a_host_that_cannot_be_resolved_fails_requests_and_is_tried_again(host: str) -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a")
        assert (await owner.outcome())[0][:3] == ("a", "failed", None)
        assert owner.refusals == 0, "who cannot be found is not known to be gone"
        owner.host = "127.0.0.1"
        await until(lambda: owner.ups == 1)
        owner.vote("b")
        assert (await owner.outcome(2))[1][:2] == ("b", "answered")

    with_peer(serve_votes, work, host=host)


def test_the_second_address_is_tried_if_nobody_listens_at_the_first() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.addresses = [("127.0.0.1", free_port()), ("127.0.0.1", owner.port)]
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][1] == "answered"
        assert owner.refusals == 0

    with_peer(serve_votes, work)


def test_a_peer_without_an_address_fails_requests_and_says_why() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert "no address is known" in (await owner.outcome())[0][3]
        assert owner.refusals == 0

    with_peer(serve_votes, work, addresses=[])


def test_an_address_is_looked_up_anew_at_each_attempt() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        real, owner.port = owner.port, free_port()
        owner.link.open()
        await until(lambda: owner.refusals > 0)
        owner.port = real
        await until(lambda: owner.ups == 1)

    with_peer(serve_votes, work)


# -- the end


def test_a_link_that_is_closed_fails_what_is_pending_and_what_comes_later() -> None:
    async def silent(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        await until(lambda: owner.ups == 1)
        owner.vote("pending")
        await owner.link.close()
        owner.vote("late")
        outcomes = await owner.outcome(2)
        assert [(name, kind) for name, kind, *_ in outcomes] == [
            ("pending", "failed"),
            ("late", "failed"),
        ]
        await until(lambda: owner.link._transport is None)
        assert peer.connections == 1

    with_peer(silent, work)


def test_a_link_that_is_closed_while_it_connects_leaves_no_connection_behind() -> None:
    async def work(peer: Peer, owner: Owner) -> None:
        for turns in range(12):
            other = Owner(port=owner.port)
            other.link.open()
            other.vote()
            for _ in range(turns):
                await asyncio.sleep(0)
            other.link.discard()
            assert len(other.outcomes) == 1
            await until(partial(is_unconnected, other.link))
            keeper = other.link._keeper
            assert keeper is not None
            await asyncio.gather(keeper, return_exceptions=True)

    with_peer(serve_votes, work)


def test_a_late_answer_never_answers_a_request_of_the_next_connection() -> None:
    async def late(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        _, _, correlation_id, _ = await peer.request(reader)
        if peer.connections == 1:
            await until(lambda: peer.connections == 2)
        writer.write(vote_answer(correlation_id))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote("a", timeout_ms=20)
        await owner.outcome()
        await until(lambda: owner.ups == 2)
        owner.vote("b")
        assert [outcome[:2] for outcome in await owner.outcome(2)] == [
            ("a", "failed"),
            ("b", "answered"),
        ]

    with_peer(late, work)


def test_no_peer_makes_a_link_hold_more_than_one_answer() -> None:
    async def huge(peer: Peer, reader: Any, writer: Any) -> None:
        await peer.shake_hands(reader, writer)
        await peer.request(reader)
        writer.write(struct.pack(">i", RESPONSE_BYTES_MAX + 1))
        await reader.read()

    async def work(peer: Peer, owner: Owner) -> None:
        owner.link.open()
        owner.vote()
        assert (await owner.outcome())[0][1] == "failed"

    with_peer(huge, work)
