"""One connection of a client, byte by byte: what ends it, with which reason, and for whom."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quorumd.client.connection import ClientConnection
from quorumd.client.errors import ConnectionFailed, NotSupported, ResponseOverdue
from quorumd.raft.types import Address
from quorumd.wire.codec import encode
from quorumd.wire.headers import decode_request_header, encode_response_header
from quorumd.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from quorumd.wire.registry import APIS

KEY = 2
VERSION = 7


class Peer(asyncio.Transport):
    """The other end: the requests that have come, and whether it was hung up on."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[int] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        header, _ = decode_request_header(bytes(data)[4:])
        self.ids.append(header.correlation_id)

    def abort(self) -> None:
        self.is_aborted = True


def response_to(correlation_id: int, *, throttle_ms: int = 0) -> bytes:
    header = encode_response_header(KEY, VERSION, correlation_id)
    frame = header + encode(ListOffsetsResponse(throttle_time_ms=throttle_ms), VERSION)
    return len(frame).to_bytes(4, "big") + frame


def connected(
    story: Callable[[ClientConnection, Peer], Awaitable[None]], *, versions: tuple[int, int]
) -> list[dict[str, Any]]:
    """Runs it on an open connection to a server that offers these versions; what asyncio had to report."""
    reports: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        connection, peer = ClientConnection(Address("h", 1), "test"), Peer()
        connection.connection_made(peer)
        connection.versions = {KEY: versions}
        await story(connection, peer)
        gc.collect()

    asyncio.run(run())
    return reports


def test_responses_are_those_of_the_requests_in_their_order() -> None:
    async def story(connection: ClientConnection, peer: Peer) -> None:
        sent = [connection.send(ListOffsetsRequest(), VERSION) for _ in range(2)]
        data = b"".join(response_to(each, throttle_ms=each) for each in peer.ids)
        connection.data_received(data[:10])
        connection.data_received(data[10:])
        for each, correlation_id in zip(sent, peer.ids, strict=True):
            response = connection.read(await each.response, each, ListOffsetsResponse)
            assert response.throttle_time_ms == correlation_id
        assert connection.is_open

    assert connected(story, versions=(0, VERSION)) == []


@pytest.mark.parametrize("has_request", [True, False])
def test_a_response_to_another_request_ends_all(has_request: bool) -> None:
    async def story(connection: ClientConnection, peer: Peer) -> None:
        sent = [connection.send(ListOffsetsRequest(), VERSION) for _ in range(2 * has_request)]
        connection.data_received(response_to(7))
        assert peer.is_aborted
        assert not connection.is_open
        which = "another" if has_request else "no"
        for each in sent:
            with pytest.raises(ConnectionFailed, match=f"a response to {which} request"):
                await each.response
        with pytest.raises(ConnectionFailed, match=f"a response to {which} request"):
            connection.send(ListOffsetsRequest(), VERSION)

    assert connected(story, versions=(0, VERSION)) == []


def test_a_caller_with_little_time_ends_the_connection_of_no_other() -> None:
    async def story(connection: ClientConnection, peer: Peer) -> None:
        first = connection.send(ListOffsetsRequest(), VERSION)
        with pytest.raises(ResponseOverdue, match="no response to ListOffsets within"):
            await connection.request(ListOffsetsRequest(), ListOffsetsResponse, timeout_s=0.01)
        last = connection.send(ListOffsetsRequest(), VERSION)
        for number, correlation_id in enumerate(peer.ids):
            connection.data_received(response_to(correlation_id, throttle_ms=number))
        for sent, number in ((first, 0), (last, 2)):
            response = connection.read(await sent.response, sent, ListOffsetsResponse)
            assert response.throttle_time_ms == number
        assert connection.is_open

    assert connected(story, versions=(0, VERSION)) == []


@pytest.mark.parametrize("timeout_s", [0.01, 0.3])
def test_a_server_that_sends_nothing_while_it_owes_a_response_is_given_up(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """However short the time of each caller is; what was owed before is not counted."""
    monkeypatch.setattr("quorumd.client.connection.SILENT_S", 0.3)

    async def story(connection: ClientConnection, peer: Peer) -> None:
        await asyncio.sleep(0.3)
        other = connection.send(ListOffsetsRequest(), VERSION)
        begun = time.monotonic()
        while connection.is_open:
            with pytest.raises(ConnectionFailed, match="no response to ListOffsets within"):
                await connection.request(
                    ListOffsetsRequest(), ListOffsetsResponse, timeout_s=timeout_s
                )
        assert 0.3 <= time.monotonic() - begun < 3
        assert peer.is_aborted
        with pytest.raises(ConnectionFailed, match="no response to ListOffsets"):
            await other.response

    assert connected(story, versions=(0, VERSION)) == []


def test_a_server_that_sends_something_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumd.client.connection.SILENT_S", 0.5)

    async def story(connection: ClientConnection, peer: Peer) -> None:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            with pytest.raises(ResponseOverdue):
                await connection.request(ListOffsetsRequest(), ListOffsetsResponse, timeout_s=0.01)
            connection.data_received(response_to(peer.ids.pop(0)))
        assert connection.is_open

    assert connected(story, versions=(0, VERSION)) == []


@pytest.mark.long
@pytest.mark.parametrize("ends", ["whole", "late", "silent"])
def test_a_response_may_take_longer_as_long_as_it_arrives(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("quorumd.client.connection.SILENT_S", 0.4)

    async def story(connection: ClientConnection, peer: Peer) -> None:
        async def arrive() -> None:
            for byte in response_to(0)[: 7 if ends == "silent" else None]:
                await asyncio.sleep(0.05)
                connection.data_received(bytes([byte]))

        arriving = asyncio.create_task(arrive())
        asked = connection.request(
            ListOffsetsRequest(),
            ListOffsetsResponse,
            timeout_s=0.1,
            patience_s=0.5 if ends == "late" else 60,
        )
        begun = time.monotonic()
        if ends == "whole":
            assert (await asked).throttle_time_ms == 0
            assert connection.is_open
        else:
            with pytest.raises(ConnectionFailed, match="no response to ListOffsets within"):
                await asked
            assert not connection.is_open
            assert 0.5 <= time.monotonic() - begun < 30
        arriving.cancel()

    assert connected(story, versions=(0, VERSION)) == []


def test_the_first_reason_is_the_one_that_is_told() -> None:
    async def story(connection: ClientConnection, peer: Peer) -> None:
        connection.data_received(b"HTTP/1.1 400 Bad Request\r\n")
        connection.connection_lost(None)
        connection.close()
        with pytest.raises(ConnectionFailed, match="responds in HTTP"):
            connection.send(ListOffsetsRequest(), VERSION)

    assert connected(story, versions=(0, VERSION)) == []


def test_nobody_is_told_of_a_failure_that_nobody_waits_for() -> None:
    async def story(connection: ClientConnection, peer: Peer) -> None:
        connection.send(ListOffsetsRequest(), VERSION)
        connection.connection_lost(ConnectionResetError())

    assert connected(story, versions=(0, VERSION)) == []


def test_a_version_that_only_one_side_knows_is_none() -> None:
    first, last = APIS[KEY].min_version, APIS[KEY].max_version

    async def story(connection: ClientConnection, peer: Peer) -> None:
        for versions, highest in (
            ((0, last + 5), last),
            ((last, last + 5), last),
            ((0, first), first),
            ((last + 1, last + 5), None),
            ((0, first - 1), None),
        ):
            connection.versions = {KEY: versions}
            assert connection.offers(ListOffsetsRequest) is (highest is not None)
            if highest is None:
                with pytest.raises(NotSupported):
                    connection.version_for(ListOffsetsRequest)
            else:
                assert connection.version_for(ListOffsetsRequest) == highest

    assert connected(story, versions=(0, VERSION)) == []


def test_behind_the_greatest_number_of_a_request_it_begins_anew() -> None:
    """The field is a signed integer of four bytes."""

    async def story(connection: ClientConnection, peer: Peer) -> None:
        connection._next_correlation_id = greatest = 0x7FFFFFFF
        sent = [connection.send(ListOffsetsRequest(), VERSION) for _ in range(3)]
        assert peer.ids == [greatest, 0, 1]
        connection.data_received(b"".join(map(response_to, peer.ids)))
        assert all(each.response.done() for each in sent)
        assert connection.is_open

    assert connected(story, versions=(0, VERSION)) == []
