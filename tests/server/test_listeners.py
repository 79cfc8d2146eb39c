"""Connections on real sockets: order, framing, limits, hostile bytes, and how they end."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from contextlib import suppress

import pytest

from quorumd.raft.types import Endpoint
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.connection_limits import MAX_IN_FLIGHT
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.net.listeners import ListenError, Listeners
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import decode_request_header
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from tests.support.ports import free_port, loopbacks
from tests.support.serving import (
    API_VERSIONS,
    Client,
    Parking,
    answer_frame,
    answering,
    request_frame,
    run,
    serving,
    until,
)

KIB, MIB = 1 << 10, 1 << 20


async def ask(client: Client, correlation_id: int) -> None:
    """One request and its answer: the proof that a connection is served."""
    await client.send(request_frame(correlation_id, body=b"hello"))
    assert await client.answer() == (correlation_id, b"hello")


# -- order and framing


def test_answers_leave_in_the_order_of_the_requests() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(b"".join(request_frame(n) for n in range(50)))
            requests = list(await parking.received(50))
            random.Random(7).shuffle(requests)
            for request in requests:
                request.respond((answer_frame(request),))
            assert [(await client.answer())[0] for _ in range(50)] == list(range(50))

    run(work())


def test_a_finished_answer_waits_for_the_request_before_it() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(request_frame(1) + request_frame(2))
            first, second = await parking.received(2)
            second.respond((answer_frame(second),))
            reading = asyncio.ensure_future(client.answer())
            await until(lambda: any(served.metrics.requests.values()))
            assert served.metrics.bytes_sent == 0
            first.respond((answer_frame(first),))
            assert (await reading)[0] == 1
            assert (await client.answer())[0] == 2

    run(work())


def test_a_request_without_response_holds_nothing_up() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(b"".join(request_frame(n) for n in range(4)))
            requests = await parking.received(4)
            requests[1].finish_without_response()
            requests[3].respond((answer_frame(requests[3]),))
            requests[2].finish_without_response()
            requests[0].respond((answer_frame(requests[0]),))
            assert [(await client.answer())[0] for _ in range(2)] == [0, 3]

    run(work())


@pytest.mark.parametrize("piece_bytes", [1, 3, 5, 64, 1000])
def test_requests_may_come_in_pieces_of_any_size(piece_bytes: int) -> None:
    async def work() -> None:
        async with serving(Parking(answering)) as served:
            client = await served.connect()
            bodies = [bytes([n]) * (n * 37 % 200) for n in range(20)]
            data = b"".join(request_frame(n, body=body) for n, body in enumerate(bodies))
            for at in range(0, len(data), piece_bytes):
                await client.send(data[at : at + piece_bytes])
                await asyncio.sleep(0)
            for n, body in enumerate(bodies):
                assert await client.answer() == (n, body)

    run(work())


def test_a_large_request_and_a_large_answer_pass_whole() -> None:
    async def work() -> None:
        async with serving(Parking(answering), max_frame_bytes=16 * MIB) as served:
            client = await served.connect()
            body = random.Random(3).randbytes(15 * MIB)
            sending = asyncio.ensure_future(client.send(request_frame(5, body=body)))
            correlation_id, answer = await client.answer()
            await sending
            assert (correlation_id, answer == body) == (5, True)
            await ask(client, 6)

    run(work())


def test_an_answer_in_pieces_arrives_as_one_frame() -> None:
    def in_pieces(request: InboundRequest) -> None:
        size = 100 * KIB
        head = struct.pack(">ii", 4 + 3 * size, request.correlation_id)
        request.respond((head, b"a" * size, memoryview(b"b" * size), b"c" * size))

    async def work() -> None:
        async with serving(Parking(in_pieces)) as served:
            client = await served.connect()
            await client.send(request_frame(1) + request_frame(2))
            for n in (1, 2):
                expected = b"a" * 100 * KIB + b"b" * 100 * KIB + b"c" * 100 * KIB
                assert await client.answer() == (n, expected)
            await until(lambda: served.metrics.bytes_sent == 2 * (8 + 300 * KIB))

    run(work())


# -- headers


def test_each_request_carries_its_own_header_and_listener() -> None:
    async def work() -> None:
        parking = Parking(answering)
        async with serving(parking, names=("CONTROLLER", "CLIENT")) as served:
            client = await served.connect(1)
            await client.send(
                request_frame(1, client_id=b"one")
                + request_frame(2, client_id=b"one", version=8, tags=b"")
                + request_frame(-3, client_id=None)
                + request_frame(4, client_id=b"caf\xc3\xa9", tags=b"\x01\x07\x02zz", body=b"x")
                + request_frame(5, client_id=b"caf\xc3\xa9", tags=b"\x01\x07\x02zz", body=b"y")
                + request_frame(6, client_id=b"", key=API_VERSIONS, version=0, tags=b"")
            )
            seen = [
                (r.api_key, r.api_version, r.correlation_id, r.frame[r.body_at :])
                for r in await parking.received(6)
            ]
            assert seen == [
                (0, 9, 1, b""),
                (0, 8, 2, b""),
                (0, 9, -3, b""),
                (0, 9, 4, b"x"),
                (0, 9, 5, b"y"),
                (18, 0, 6, b""),
            ]
            assert {r.listener.name for r in parking.requests} == {"CLIENT"}
            counted = {key: count for key, count in served.metrics.requests.items() if count}
            assert counted == {0: 5, 18: 1}

    run(work())


def test_a_remembered_header_is_not_taken_for_a_similar_one() -> None:
    async def work() -> None:
        parking = Parking(answering)
        async with serving(parking) as served:
            client = await served.connect()
            # The second's client id begins as the first's, tag section included.
            for n, client_id in enumerate((b"ab", b"ab\0", b"ab", b"a", b"ab")):
                await client.send(request_frame(n, client_id=client_id))
                await client.answer()
            headers = [decode_request_header(request.frame) for request in parking.requests]
            assert [header.client_id for header, _ in headers] == ["ab", "ab\0", "ab", "a", "ab"]
            assert [request.body_at for request in parking.requests] == [at for _, at in headers]

    run(work())


def test_api_versions_of_an_unknown_version_reaches_its_handler() -> None:
    def refuse(request: InboundRequest) -> None:
        request.respond_message(ApiVersionsResponse(error_code=35), version=0)

    async def work() -> None:
        parking = Parking(refuse)
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(request_frame(9, key=API_VERSIONS, version=99))
            await client.send(request_frame(10, key=API_VERSIONS, version=-1, tags=b""))
            assert await client.answer() == (9, b"\0\x23" + b"\0\0\0\0")
            assert await client.answer() == (10, b"\0\x23" + b"\0\0\0\0")

    run(work())


# -- bad input


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", 0), "malformed"),
        (struct.pack(">i", -1), "malformed"),
        (struct.pack(">i", -(1 << 31)), "malformed"),
        (struct.pack(">i", (1 << 20) + 1), "malformed"),
        (struct.pack(">i", (1 << 31) - 1), "malformed"),
        (struct.pack(">i", 3) + b"\0\0\0", "malformed"),
        (struct.pack(">i", 9) + bytes(9), "malformed"),
        (request_frame(1, key=-1, version=-1), "unsupported"),
        (request_frame(1, key=-1, version=-1, client_id=b""), "unsupported"),
        (request_frame(1, key=4, version=0), "unsupported"),
        (request_frame(1, key=32767, version=32767), "unsupported"),
        (request_frame(1, version=2, tags=b""), "unsupported"),
        (request_frame(1, version=14), "unsupported"),
        (request_frame(1, tags=b""), "malformed"),
        (request_frame(1, tags=b"\xff\xff\xff\x7f"), "malformed"),
        (struct.pack(">ihhih", 10, 0, 9, 1, 200), "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "malformed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "malformed"),
    ],
)
def test_bytes_that_are_no_request_close_their_connection_alone(data: bytes, reason: str) -> None:
    async def work() -> None:
        async with serving(Parking(answering)) as served:
            good, bad = await served.connect(), await served.connect()
            await ask(good, 1)
            await bad.send(request_frame(7, body=b"first") + data)
            # What came before is answered.
            assert await bad.answer() == (7, b"first")
            assert await bad.rest() == b""
            await ask(good, 2)
            await until(lambda: served.metrics.connections_closed == {reason: 1})
            assert served.open_count == 1

    run(work())


def test_random_bytes_never_disturb_another_connection() -> None:
    async def work() -> None:
        draw = random.Random(20)
        async with serving(Parking(answering)) as served:
            good = await served.connect()
            for n in range(200):
                bad = await served.connect()
                data = draw.randbytes(draw.randrange(1, 300))
                if n % 2:
                    data = struct.pack(">i", len(data)) + data
                await bad.send(data)
                await ask(good, n)
                bad.close()
            await until(lambda: served.open_count == 1)

    run(work())


def test_what_a_dispatcher_raises_closes_that_connection() -> None:
    def fail(request: InboundRequest) -> None:
        header, _ = decode_request_header(request.frame)
        if header.client_id == "malformed":
            raise MalformedMessage("a body that is none")
        if header.client_id == "fault":
            raise RuntimeError("a fault of ours")
        if header.client_id == "late":
            answering(request)
            raise RuntimeError("after the answer")
        answering(request)

    async def work() -> None:
        async with serving(Parking(fail)) as served:
            good = await served.connect()
            for name, reason in ((b"malformed", "malformed"), (b"fault", "failed")):
                bad = await served.connect()
                await bad.send(request_frame(1) + request_frame(2, client_id=name))
                assert (await bad.answer())[0] == 1
                assert await bad.rest() == b""
                await ask(good, 3)
                await until(lambda reason=reason: reason in served.metrics.connections_closed)
            late = await served.connect()
            await late.send(request_frame(1, client_id=b"late"))
            assert (await late.answer())[0] == 1
            assert await late.rest() == b""
            await ask(good, 4)

    run(work())


def test_a_request_is_closed_after_the_ones_before_it_are_answered() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(b"".join(request_frame(n) for n in range(3)))
            first, second, third = await parking.received(3)
            second.close("acks=0, and the batch was refused")
            third.respond((answer_frame(third),))
            reading = asyncio.ensure_future(client.rest())
            assert served.open_count == 1
            first.respond((answer_frame(first),))
            assert await reading == answer_frame(first)
            await until(lambda: served.metrics.connections_closed == {"refused": 1})

    run(work())


def test_an_answer_to_somebody_who_has_gone_is_no_fault() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(b"".join(request_frame(n) for n in range(3)))
            requests = await parking.received(3)
            client.reset()
            await until(lambda: served.open_count == 0)
            assert not requests[0].connection.is_open
            requests[1].respond((answer_frame(requests[1]),))
            requests[0].respond((answer_frame(requests[0]),))
            requests[2].close("too late")
            assert served.metrics.bytes_sent == 0

    run(work())


# -- limits


def test_a_client_that_pipelines_without_end_is_held_up_and_then_served() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            total = 3 * MAX_IN_FLIGHT
            sending = asyncio.ensure_future(
                client.send(b"".join(request_frame(n) for n in range(total)))
            )
            await parking.received(MAX_IN_FLIGHT)
            other = await served.connect()
            await other.send(request_frame(1))
            await until(
                lambda: parking.requests[-1].connection is not parking.requests[0].connection
            )
            assert len(parking.requests) == MAX_IN_FLIGHT + 1
            parking.requests.pop().finish_without_response()

            unanswered = deque(parking.requests)
            parking.requests.clear()
            for n in range(total):
                if not unanswered:
                    await until(lambda: bool(parking.requests))
                    unanswered.extend(parking.requests)
                    parking.requests.clear()
                request = unanswered.popleft()
                assert request.connection.in_flight <= MAX_IN_FLIGHT
                request.respond((answer_frame(request),))
                assert (await client.answer())[0] == n
            await sending

    run(work())


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    big = bytes(256 * KIB)

    def answer(request: InboundRequest) -> None:
        request.respond((answer_frame(request, big),))

    async def work() -> None:
        parking = Parking(answer)
        async with serving(parking) as served:
            client = await served.connect()
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # to read nothing
            total = 400
            for n in range(total):
                client.writer.write(request_frame(n))
            await until(
                lambda: (
                    parking.requests[-1].connection.stalled_since_ns is not None
                    if parking.requests
                    else False
                )
            )
            count = len(parking.requests)
            # 1 MiB in this process, and what the kernel's buffers take, of 100 MiB.
            assert count < total / 2
            other = await served.connect()
            await other.send(request_frame(1))
            assert (await other.answer())[0] == 1
            assert len(parking.requests) == count + 1

            client.reader._transport.resume_reading()  # type: ignore[attr-defined]  # and go on
            for n in range(total):
                correlation_id, body = await client.answer()
                assert (correlation_id, len(body)) == (n, len(big))

    run(work())


def test_a_client_that_never_reads_is_cut_off_after_the_idle_time() -> None:
    def answer(request: InboundRequest) -> None:
        request.respond((answer_frame(request, bytes(MIB)),))

    async def work() -> None:
        async with serving(Parking(answer), max_idle_ms=150) as served:
            client = await served.connect()
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # to read nothing
            client.writer.write(b"".join(request_frame(n) for n in range(100)))
            await until(lambda: served.metrics.connections_closed == {"stalled": 1})

    run(work())


def test_unfinished_requests_take_bounded_memory_together() -> None:
    async def work() -> None:
        parking = Parking(answering)
        async with serving(parking, max_frame_bytes=MIB) as served:
            served.listeners._group.unfinished.max_bytes = 2 * MIB
            good = await served.connect()
            clients = [await served.connect() for _ in range(4)]
            for client in clients:
                await client.send(struct.pack(">i", MIB) + bytes(MIB - 1))
            await until(lambda: served.metrics.connections_closed.get("memory", 0) >= 1)
            await ask(good, 1)
            for client in clients:
                client.close()
            await until(lambda: served.open_count == 1)
            # What they held is given back.
            again = await served.connect()
            body = bytes(MIB - 17)
            await again.send(request_frame(1, body=body))
            assert await again.answer() == (1, body)

    run(work())


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    async def work() -> None:
        async with serving(Parking(answering), max_connections=2) as served:
            first, second = await served.connect(), await served.connect()
            await ask(first, 1)
            await ask(second, 1)
            third = await served.connect()
            await third.send(request_frame(1))
            with suppress(ConnectionError):
                assert await third.rest() == b""
            await ask(first, 2)
            assert served.metrics.connections_closed == {"limit": 1}
            assert served.metrics.connections_refused == 1
            second.close()
            await until(lambda: served.open_count == 1)
            await ask(await served.connect(), 1)

    run(work())


# -- idle connections


def test_an_idle_connection_is_closed_and_a_parked_request_is_not_idle() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking, max_idle_ms=80) as served:
            parked, idle = await served.connect(), await served.connect()
            await parked.send(request_frame(1))
            (request,) = await parking.received(1)
            assert await idle.rest() == b""
            await until(lambda: served.metrics.connections_closed == {"idle": 1})
            request.respond((answer_frame(request),))
            assert (await parked.answer())[0] == 1
            assert await parked.rest() == b""

    run(work())


def test_half_a_request_now_and_then_is_idle_too() -> None:
    async def work() -> None:
        async with serving(Parking(answering), max_idle_ms=100) as served:
            client = await served.connect()
            reading = asyncio.ensure_future(client.rest())
            for byte in struct.pack(">i", 1000) + bytes(996):
                if reading.done():
                    break
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0.005)
            assert await reading == b""
            await until(lambda: served.metrics.connections_closed == {"idle": 1})

    run(work())


# -- opening and closing


def test_a_port_in_use_is_named_with_its_key_and_a_remedy() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            listeners = Listeners(
                (Endpoint("A", "127.0.0.1", 0), Endpoint("B", "127.0.0.1", port)),
                Parking(),
                Metrics(),
                max_frame_bytes=MIB,
                max_connections=10,
                max_idle_ms=0,
            )
            with pytest.raises(ListenError) as caught:
                await listeners.open()
            text = str(caught.value)
            assert text.startswith(f"listeners: cannot listen on B://127.0.0.1:{port}: ")
            assert "the port is in use" in text
            assert listeners.addresses == ()

    run(work())


@pytest.mark.parametrize(
    ("host", "words"),
    [("203.0.113.7", "no interface of this host"), ("no.such.host.invalid", "resolved")],
)
def test_an_address_that_is_not_ours_is_refused_in_words(host: str, words: str) -> None:
    async def work() -> None:
        listeners = Listeners(
            (Endpoint("A", host, 0),),
            Parking(),
            Metrics(),
            max_frame_bytes=MIB,
            max_connections=10,
            max_idle_ms=0,
        )
        with pytest.raises(ListenError, match=words):
            await listeners.open()

    run(work())


@pytest.mark.parametrize("host", ["", "::"])
def test_every_interface_is_ipv4_and_ipv6(host: str) -> None:
    async def work() -> None:
        port = free_port()
        listeners = Listeners(
            (Endpoint("A", host, port),),
            Parking(),
            Metrics(),
            max_frame_bytes=MIB,
            max_connections=10,
            max_idle_ms=0,
        )
        await listeners.open()
        try:
            for local in loopbacks():
                client = Client(*await asyncio.open_connection(local, port))
                await until(lambda: len(listeners.connections) == 1)
                client.close()
                await until(lambda: not listeners.connections)
        finally:
            await listeners.close(0.0)

    run(work())


def test_closing_answers_what_was_taken_and_takes_no_more() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            busy, idle = await served.connect(), await served.connect()
            await busy.send(request_frame(1) + request_frame(2))
            first, second = await parking.received(2)
            address = served.listeners.addresses[0]
            closing = asyncio.ensure_future(served.listeners.close(5))
            assert await idle.rest() == b""
            with pytest.raises(OSError, match=r"[Cc]onnect"):
                await asyncio.open_connection(address.host, address.port)
            await busy.send(request_frame(3))
            second.respond((answer_frame(second),))
            first.respond((answer_frame(first),))
            assert await busy.rest() == answer_frame(first) + answer_frame(second)
            await closing
            assert len(parking.requests) == 2
            assert served.metrics.connections_closed == {"shutdown": 2}

    run(work())


def test_closing_does_not_wait_for_ever() -> None:
    async def work() -> None:
        parking = Parking()
        async with serving(parking) as served:
            client = await served.connect()
            await client.send(request_frame(1))
            await parking.received(1)
            await served.listeners.close(0.05)
            assert await client.rest() == b""
            assert served.metrics.connections_closed == {"shutdown": 1}

    run(work())
