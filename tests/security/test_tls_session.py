"""What one side of a TLS connection keeps of the bytes that come."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import cast

import pytest

from quorumd.security.tls_records import PIECE_BYTES, RECORD_BYTES
from quorumd.security.tls_session import TlsSession
from tests.support.authority import Authority


class End:
    """One side; what it sends waits in `outgoing`."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=is_server)
        self.session = TlsSession(self.tls, self.incoming, self.outgoing)

    def shake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


@pytest.fixture
def ends(tmp_path: Path) -> tuple[End, End]:
    """A client and a server behind their handshake."""
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.store("node"))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    both = End(client, is_server=False), End(server, is_server=True)
    for _ in range(4):
        for one, other in (both, both[::-1]):
            one.shake()
            other.incoming.write(one.outgoing.read())
    assert all(each.shake() for each in both)
    both[0].session.decrypt(b"")
    return both


@pytest.mark.parametrize("size", [1, RECORD_BYTES, PIECE_BYTES])
def test_everything_comes_through(ends: tuple[End, End], size: int) -> None:
    client, server = ends
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert server.session.decrypt(client.session.encrypt(data)) == data
    assert client.session.decrypt(server.session.encrypt(data)) == data
    assert not client.incoming.pending
    assert not server.incoming.pending


@pytest.mark.parametrize("size", [10, 2 * PIECE_BYTES])
def test_what_comes_behind_the_end_takes_no_memory(ends: tuple[End, End], size: int) -> None:
    client, server = ends
    assert server.session.decrypt(client.session.end() + bytes(size)) == b""
    assert server.session.has_ended
    for _ in range(3):
        assert server.session.decrypt(bytes(size)) == b""
        assert not server.incoming.pending


@pytest.mark.parametrize("records", [1, 3])
def test_an_answer_of_tls_itself_is_told_of_whichever_record_asked_for_it(records: int) -> None:
    """So a peer that changes its keys is answered at once, and not with the next response."""

    class Rekeying:
        """OpenSSL, as far as a session sees it: the last record brings one that asks for other keys."""

        left = records

        def read(self, size: int) -> bytes:
            self.left -= 1
            incoming.read(10)
            if not self.left:
                outgoing.write(b"other keys")
            return b"plain"

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = TlsSession(cast(ssl.SSLObject, Rekeying()), incoming, outgoing)
    assert session.decrypt(bytes(10 * records)) == b"plain" * records
    assert session.is_told
    assert session.error is None
    assert not session.has_ended
