"""What a TLS stream does with bytes that come in any pieces, at any time, or not at all."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from quorumd.security.credentials import Credentials
from quorumd.security.errors import (
    CertificateProblem,
    HandshakeOutcome,
    PeerSpeaksPlaintext,
)
from quorumd.security.handshakes import HELD_BYTES_MAX, Handshakes
from quorumd.security.identity import Identity
from quorumd.security.tls_records import PIECE_BYTES, RECORD_BYTES, pieces_of, whole_records
from quorumd.security.tls_stream import TlsStream
from tests.support.certificates import Certificates
from tests.support.serving import run, until
from tests.support.tls_site import Above, Peer, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(Certificates(tmp_path))


# -- records


def test_bytes_are_handed_on_by_whole_records() -> None:
    hello, other = b"\x16\x03\x01\x00\x03abc", b"\x14\x03\x03\x00\x01x"
    both = bytearray(hello + other)
    assert [whole_records(both[:size]) for size in range(len(both) + 1)] == [0] * 8 + [8] * 6 + [14]
    assert whole_records(bytearray(b"\x16\x03\x01\xff\xff")) == 5, "no record: OpenSSL says so"
    largest = RECORD_BYTES + 2048
    for size, whole_bytes in ((largest, 0), (largest + 1, 5)):
        assert whole_records(bytearray(b"\x16\x03\x03" + size.to_bytes(2, "big"))) == whole_bytes


def test_small_buffers_share_a_record_and_large_ones_are_cut() -> None:
    assert list(pieces_of([b"a", bytearray(b"b"), memoryview(b"c")])) == [b"abc"]
    assert list(pieces_of([])) == []
    half = bytes(RECORD_BYTES // 2)
    assert list(pieces_of([half, half, b"a"])) == [half + half, b"a"]
    large = bytes(range(256)) * 1000
    pieces = [bytes(piece) for piece in pieces_of([b"head", large, b"tail", b"x" * RECORD_BYTES])]
    assert b"".join(pieces) == b"head" + large + b"tail" + b"x" * RECORD_BYTES
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert pieces[0] == b"head"


# -- pieces


def test_everything_may_come_byte_by_byte_and_costs_no_step_each(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    async def work() -> None:
        async with site.serving():
            queue = site.handshakes.accepted("127.0.0.1", is_local=True)
            submit = queue.submit

            def counting(step: Callable[[bytes], Identity | None], data: bytes) -> object:
                steps.append(data)
                return submit(step, data)

            monkeypatch.setattr(queue, "submit", counting)
            peer = await site.dial()
            await peer.shake(piece_bytes=1)
            await peer.say(b"hello" * 100, piece_bytes=1)
            assert await peer.read(500) == b"hello" * 100
            peer.writer.close()
            assert await site.above[0].lost is None

    run(work())
    assert len(steps) <= 5


@pytest.mark.parametrize("size", [1, RECORD_BYTES, RECORD_BYTES + 1, PIECE_BYTES + 1, 3_000_000])
def test_what_is_sent_comes_back_whatever_its_size(site: Site, size: int) -> None:
    async def work() -> None:
        async with site.serving():
            peer = await site.dial()
            await peer.shake()
            data = (bytes(range(251)) * (size // 251 + 1))[:size]
            sending = asyncio.ensure_future(peer.say(data))
            assert await peer.read(size) == data
            await sending
            peer.writer.close()

    run(work())


def test_several_small_answers_leave_as_one_record(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await site.dial()
            await peer.shake()
            await peer.say(b"x")
            await until(lambda: bool(site.above and site.above[0].got))
            site.above[0].transport.writelines([b"%3d" % n for n in range(20)])
            await peer.fill()
            assert peer.tls.read(1 << 16) == b"".join(b"%3d" % n for n in range(20))
            peer.writer.close()

    run(work())


# -- reading paused


def test_a_protocol_that_paused_reading_is_given_nothing_until_it_resumes(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await site.dial()
            await peer.shake()
            await until(lambda: bool(site.secured))
            above = site.above[0]
            above.transport.pause_reading()
            await peer.say(b"first")
            with suppress(ssl.SSLError):
                peer.tls.unwrap()
            await peer.flush()
            await asyncio.sleep(0.05)
            assert (above.got, above.ends) == ([], 0)
            above.transport.resume_reading()
            assert await above.lost is None
            assert (above.data, above.ends) == (b"first", 1)
            peer.writer.close()

    run(work())


def test_what_came_with_the_last_of_a_handshake_waits_for_a_paused_protocol(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await site.dial()
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            await peer.flush()
            await peer.fill()
            peer.tls.do_handshake()
            peer.tls.write(b"at once")
            data = peer.outgoing.read()

            def pause(stream: TlsStream, identity: Identity) -> None:
                stream.pause_reading()

            site.on_secured = pause  # type: ignore[method-assign]  # what a watcher may do
            peer.writer.write(data)
            await until(lambda: bool(site.above[0].transport.get_extra_info("tls").identity))
            await asyncio.sleep(0.02)
            assert site.above[0].got == []
            site.above[0].transport.resume_reading()
            await until(lambda: site.above[0].data == b"at once")
            peer.writer.close()

    run(work())


def test_a_protocol_learns_that_what_it_writes_is_not_read(site: Site) -> None:
    class Writing(Above):
        def __init__(self) -> None:
            super().__init__()
            self.pauses: list[bool] = []

        def pause_writing(self) -> None:
            self.pauses.append(True)

        def resume_writing(self) -> None:
            self.pauses.append(False)

    async def work() -> None:
        async with site.serving():
            site.make = Writing
            peer = await site.dial()
            await peer.shake()
            await until(lambda: bool(site.secured))
            [above] = site.above
            assert isinstance(above, Writing)
            above.transport.write(bytes(16 << 20))
            await until(lambda: above.pauses == [True])
            assert len(await peer.read(16 << 20)) == 16 << 20
            await until(lambda: above.pauses == [True, False])
            peer.writer.close()

    run(work())


# -- ends


def test_an_end_with_or_without_the_closing_alert_is_told_once(site: Site) -> None:
    async def work(*, with_alert: bool) -> None:
        async with site.serving():
            site.make = lambda: Above(stays_open=True)
            peer = await site.dial()
            await peer.shake()
            await peer.say(b"bye")
            if with_alert:
                with suppress(ssl.SSLError):
                    peer.tls.unwrap()
                await peer.flush()
                peer.writer.write(b"behind the end")
            peer.writer.write_eof()
            await until(lambda: bool(site.above and site.above[-1].ends))
            above = site.above[-1]
            above.transport.write(b"so long")
            above.transport.close()
            assert await above.lost is None
            assert (above.data, above.ends) == (b"bye", 1)
            if not with_alert:
                assert await peer.read(100) == b"so long"
            peer.writer.close()

    run(work(with_alert=False))
    site.handshakes = Handshakes()
    run(work(with_alert=True))


def test_what_is_written_after_the_end_goes_nowhere(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await site.dial()
            await peer.shake()
            await until(lambda: bool(site.secured))
            transport = site.above[0].transport
            transport.write(b"last")
            transport.write_eof()
            transport.write(b"nothing")
            transport.writelines([b"of", b"it"])
            transport.write_eof()
            assert await peer.read(100) == b"last"
            peer.writer.close()
            await site.above[0].lost

    run(work())


def test_a_connection_may_be_aborted_while_a_thread_works_for_it(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            for _ in range(20):
                peer = await site.dial()
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.do_handshake()
                await peer.flush()
                await until(lambda: bool(site.above) and not site.above[-1].lost.done())
                await asyncio.sleep(0)
                site.above[-1].transport.abort()
                assert await site.above[-1].lost is None
                peer.writer.close()

    run(work())
    assert site.failed == []


def test_a_node_that_stops_ends_handshakes_in_progress(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peers = [await site.dial() for _ in range(10)]
            site.handshakes.close()
            for peer in peers:
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.do_handshake()
                await peer.flush()
            for peer in peers:
                assert await peer.reader.read() == b""
                peer.writer.close()
            for above in site.above:
                assert "stops" in str(await above.lost)

    run(work())


# -- hostile


def test_more_than_a_handshake_takes_ends_it(site: Site) -> None:
    """However few steps take it: on a busy machine one step takes what has come for ten."""

    async def work() -> None:
        async with site.serving():
            for piece in (
                b"\x16\x03\x01\x00\x01\x01" * 64,
                b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" * 4096,
            ):
                peer = await site.dial()
                with suppress(ConnectionError):
                    for _ in range(2000):
                        peer.writer.write(piece)
                        await peer.writer.drain()
                        await asyncio.sleep(0)
                    await peer.reader.read()
                peer.writer.close()
                await site.above[-1].lost
            assert len(site.failed) == 2
            assert site.secured == []

    run(work())


@pytest.mark.pure
def test_who_says_nothing_or_half_of_it_is_ended_in_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumd.security.tls_stream.HANDSHAKE_S", 0.2)

    async def work() -> None:
        async with site.serving():
            silent, half = await site.dial(), await site.dial()
            half.writer.write(b"\x16\x03\x01\x02")
            for peer in (silent, half):
                assert await peer.reader.read() == b""
                peer.writer.close()
            assert {each.outcome for each in site.failed} == {HandshakeOutcome.TIMEOUT}
            assert len(site.failed) == 2

    run(work())


@pytest.mark.parametrize("has_step", [False, True])
def test_a_client_that_sends_more_than_a_record_before_the_servers_first_flight_is_ended(
    site: Site, has_step: bool
) -> None:
    async def work() -> None:
        async with site.serving():
            peer = await site.dial()
            with site.held_up():
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.do_handshake()
                hello = peer.outgoing.read()
                peer.writer.write(hello if has_step else hello[:-1])
                await until(lambda: site.handshakes.held_bytes > 0)
                peer.writer.write(bytes(RECORD_BYTES + 4096))
                await until(lambda: bool(site.failed))
                assert "more than a TLS handshake takes" in str(site.failed[0])
                assert site.handshakes.held_bytes == 0

    run(work())


def test_where_handshakes_hold_much_a_long_one_is_ended_and_a_short_one_is_not(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.handshakes.held_bytes = HELD_BYTES_MAX
            short = await site.dial()
            await short.shake()
            await short.say(b"hello")
            assert await short.read(5) == b"hello"
            long = await site.dial()
            with pytest.raises(ssl.SSLWantReadError):
                long.tls.do_handshake()
            await long.flush()
            await long.fill()
            long.writer.write(b"\x16\x03\x03\x40\x00" + bytes(RECORD_BYTES) + bytes(4096))
            await until(lambda: bool(site.failed))
            assert "more than a TLS handshake takes" in str(site.failed[0])
            assert site.handshakes.held_bytes == HELD_BYTES_MAX

    run(work())


def test_thousands_of_records_of_one_byte_are_read_as_one_piece(site: Site) -> None:

    async def work() -> None:
        async with site.serving():
            peer = await site.dial()
            await peer.shake()
            for _ in range(2_000):
                peer.tls.write(b"x")
            await peer.flush()
            assert await peer.read(2_000) == b"x" * 2_000
            peer.writer.close()

    run(work())


def test_a_client_that_is_refused_afterwards_hears_why(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            there = Credentials(site.certificates.without_certificate(), is_server=False)
            above = Above()
            loop = asyncio.get_running_loop()
            stream = TlsStream(above, there, site.handshakes, site, "localhost")
            made = cast(asyncio.Protocol, stream)
            await loop.create_connection(lambda: made, "127.0.0.1", site.port)
            above.transport.write(b"a request")
            problem = await above.lost
            assert isinstance(problem, CertificateProblem)
            assert problem.outcome is HandshakeOutcome.NO_CERTIFICATE

    run(work())


def refusing(peer: Peer, version: ssl.TLSVersion) -> None:
    """Have this client trust no CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    peer.tls = context.wrap_bio(peer.incoming, peer.outgoing)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_alert_of_a_client_counts_though_a_reset_follows_it(
    site: Site, version: ssl.TLSVersion
) -> None:
    """Closing with bytes unread resets a connection, and OpenSSL refuses before it has read all."""

    async def work() -> None:
        async with site.serving():
            peer = await site.dial()
            refusing(peer, version)
            with pytest.raises(ssl.SSLCertVerificationError):
                await peer.shake()
            with site.held_up():
                await peer.flush()
                stream = site.above[0].transport.get_extra_info("tls")
                await until(lambda: stream._handshake.is_stepping)
                peer.reset()
                await until(site.above[0].transport.is_closing)
                assert site.failed == []
            problem = await site.above[0].lost
            assert site.failed == [problem]
            assert isinstance(problem, CertificateProblem)
            assert problem.outcome is HandshakeOutcome.UNTRUSTED
            assert site.handshakes.held_bytes == 0

    run(work())


def test_a_client_that_is_done_and_resets_at_once_is_lost(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await site.dial()
            await peer.shake(sends_last=False)
            with site.held_up():
                await peer.say(b"a request")
                stream = site.above[0].transport.get_extra_info("tls")
                await until(lambda: stream._handshake.is_stepping)
                peer.reset()
                await until(site.above[0].transport.is_closing)
            problem = await site.above[0].lost
            assert isinstance(problem, CertificateProblem)
            assert problem.outcome is HandshakeOutcome.BROKEN
            assert (site.secured, site.failed, site.above[0].got) == ([], [problem], [])

    run(work())


def test_a_client_that_is_lost_before_the_first_flight_costs_no_step(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            peer = await site.dial()
            with site.held_up():
                with pytest.raises(ssl.SSLWantReadError):
                    peer.tls.do_handshake()
                await peer.flush()
                stream = site.above[0].transport.get_extra_info("tls")
                await until(lambda: stream._handshake.is_stepping)
                peer.reset()
                problem = await site.above[0].lost
                assert site.failed == [problem]
            assert stream._handshake.tls is None

    run(work())


def test_who_is_not_welcome_is_ended_before_a_byte_is_passed_on(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            problem = CertificateProblem("not you", HandshakeOutcome.PRINCIPAL)
            site.on_secured_raises = problem
            peer = await site.dial()
            await peer.shake()
            await peer.say(b"a request")
            assert await peer.read(10) == b""
            peer.writer.close()
            assert await site.above[0].lost is problem
            assert site.above[0].got == []
            assert site.failed == [problem]

    run(work())


# -- memory


@pytest.mark.long
def test_streams_are_gone_with_their_connections_without_a_collection(site: Site) -> None:
    streams: list[weakref.ref[Above]] = []

    async def work() -> None:
        async with site.serving():

            def make() -> Above:
                above = Above()
                streams.append(weakref.ref(above))
                return above

            site.make = make
            for number in range(30):
                peer = await site.dial()
                if number % 3 == 0:
                    site.on_secured_raises = CertificateProblem("not you")
                elif number % 3 == 1:
                    site.on_secured_raises = None
                if number % 3 == 2:
                    peer.writer.write(b"plaintext")
                else:
                    await peer.shake()
                    await peer.read(1) if number % 3 == 0 else None
                peer.writer.close()
                await site.above[-1].lost
                site.above.clear()
            site.failed.clear()
            site.secured.clear()

    gc.collect()
    gc.disable()
    try:
        run(work())
        alive = sum(each() is not None for each in streams)
    finally:
        gc.enable()
    assert alive == 0


def test_sockets_of_refused_ones_are_closed_soon(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            with socket.create_connection(("127.0.0.1", site.port)) as raw:
                raw.setblocking(False)
                raw.send(b"plaintext that is no hello")
                await until(lambda: bool(site.above))
                loop = asyncio.get_running_loop()
                began = loop.time()
                assert isinstance(await site.above[0].lost, CertificateProblem)
                assert loop.time() - began < 3

    run(work())


def test_an_alert_in_place_of_a_hello_is_no_plaintext(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            peer = await site.dial()
            peer.writer.write(b"\x15\x03\x03\x00\x02\x02\x28")
            await until(lambda: bool(site.failed))
            assert not isinstance(site.failed[0], PeerSpeaksPlaintext)
            peer.writer.close()

    run(work())


def test_where_too_much_has_come_already_no_more_is_read_whoever_resumes(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await site.dial()
            await until(lambda: bool(site.above))
            stream = cast(TlsStream, site.above[0].transport)
            stream._is_full = True
            stream.pause_reading()
            stream.resume_reading()
            assert not stream._raw.is_reading()
            stream._is_full = False
            stream.resume_reading()
            assert stream._raw.is_reading()
            peer.writer.close()

    run(work())
