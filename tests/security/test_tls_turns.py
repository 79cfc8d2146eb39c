"""A connection whose records are much work to decrypt takes a share of the event loop, not all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorumd.security.handshakes import Handshakes
from quorumd.security.tls_records import PIECE_BYTES, is_one_record, whole_records
from quorumd.security.tls_session import RECORDS_AT_ONCE, TlsSession
from quorumd.server.net.turns import TURN_NS, Turns
from tests.support.certificates import Certificates
from tests.support.key_updates import key_updates
from tests.support.loop_turns import LoopTurns
from tests.support.serving import run, until
from tests.support.tls_site import Above, Peer, Site

MANY = 5_000


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(Certificates(tmp_path))


async def dial(site: Site, key_log: Path | None = None) -> Peer:
    """A peer behind its handshake, whose secrets are logged there."""
    site.handshakes = Handshakes(turns=Turns(asyncio.get_running_loop()))
    peer = await site.dial()
    if key_log is not None:
        context = site.certificates.client_context("a-client")
        context.keylog_filename = str(key_log)
        peer.tls = context.wrap_bio(peer.incoming, peer.outgoing, server_hostname="localhost")
    await peer.shake()
    return peer


def test_so_many_whole_records_are_cut_and_no_more_bytes_than_are_handed_on_at_once() -> None:
    small, large = b"\x17\x03\x03\x00\x01x", b"\x17\x03\x03\x40\x00" + bytes(1 << 14)
    held = bytearray(small * 3 + large * 3 + small[:5])
    assert [whole_records(held, count) for count in (1, 3, 4)] == [6, 18, 18 + len(large)]
    assert whole_records(held, 5) == 18 + len(large), "two large ones are more than is handed on"
    assert whole_records(bytearray(large), 5) == len(large)
    assert len(large) < PIECE_BYTES < 2 * len(large)
    assert is_one_record(small)
    assert is_one_record(large)
    for other in (b"", small[:5], small + b"x", small * 2, b"\x17\x03\x03\x00\x00"):
        assert not is_one_record(other)


def test_a_session_decrypts_for_as_long_as_it_may_and_keeps_the_rest(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await dial(site)
            await until(lambda: bool(site.secured))
            session: TlsSession = site.above[0].transport.get_extra_info("tls")._session
            count = RECORDS_AT_ONCE + 2
            for _ in range(count):
                peer.tls.write(b"x")
            assert session.decrypt(peer.outgoing.read(), lambda: 0) == b""
            assert session.has_more
            assert session.decrypt(b"") == b"x" * count
            assert not session.has_more

    run(work())


def test_thousands_of_requests_for_new_keys_are_no_pause_of_the_event_loop(
    site: Site, tmp_path: Path
) -> None:
    """Each costs two hundred times what its bytes are worth: 270 KB took a third of a second."""

    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await dial(site, tmp_path / "keys")
            said = key_updates(tmp_path / "keys", MANY, b"at last")
            await until(lambda: bool(site.secured))
            [above] = site.above
            turns = LoopTurns()
            peer.writer.write(said)
            await until(lambda: bool(above.got))
            turns.end()
            assert above.got == [b"at last"]
            assert turns.count > 10

    run(work())


def test_records_of_one_byte_are_taken_in_shares_and_in_order(site: Site) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            peer = await dial(site)
            await until(lambda: bool(site.secured))
            [above] = site.above
            data = bytes(range(256)) * 40
            for at in range(len(data)):
                peer.tls.write(data[at : at + 1])
            peer.tls.write(b"end")
            await peer.flush()
            peer.writer.write_eof()
            await above.lost
            assert above.data == data + b"end"
            assert above.ends == 1
            assert len(above.got) > 3

    run(work())


def test_what_waits_for_its_turn_waits_for_a_paused_protocol_too(site: Site) -> None:
    class Pausing(Above):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.002, self.transport.resume_reading)

    async def work() -> None:
        async with site.serving():
            site.make = Pausing
            peer = await dial(site)
            await until(lambda: bool(site.secured))
            [above] = site.above
            for _ in range(MANY):
                peer.tls.write(b"x")
            await peer.flush()
            await until(lambda: len(above.data) == MANY)
            await peer.say(b"and more")
            await until(lambda: above.data == b"x" * MANY + b"and more")

    run(work())


def test_many_such_connections_share_one_turns_time(site: Site, tmp_path: Path) -> None:
    async def work() -> None:
        async with site.serving():
            site.make = Above
            turns = Turns(asyncio.get_running_loop())
            site.handshakes = Handshakes(turns=turns)
            peers = [await site.dial() for _ in range(8)]
            for peer in peers:
                await peer.shake()
            await until(lambda: len(site.secured) == len(peers))
            for peer in peers:
                for _ in range(MANY):
                    peer.tls.write(b"x")
                peer.writer.write(peer.outgoing.read())
            most = 0
            while sum(len(above.data) for above in site.above) < MANY * len(peers):
                before = sum(len(above.data) for above in site.above)
                await asyncio.sleep(0)
                most = max(most, sum(len(above.data) for above in site.above) - before)
            # A record takes a microsecond at the least.
            assert most < 2 * TURN_NS // 1000

    run(work())
