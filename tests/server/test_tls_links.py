"""Links by TLS, on real sockets: who has to be at the other end, and what is said of who is not."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from quorumd.config.node_principals import NodePrincipals
from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.raft.types import Address
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem, PeerSpeaksPlaintext, PeerSpeaksTls
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity
from quorumd.security.material import read_material
from quorumd.security.tls_records import UNEXPECTED_MESSAGE
from quorumd.security.tls_stream import TlsStream, secured
from quorumd.server.model.node_rights import NodeRights
from quorumd.server.peers.link_security import LinkSecurity, NotThisPeer
from quorumd.server.peers.peer_links import in_words
from tests.server.links import ITSELF, Owner, Peer, serve_votes, until
from tests.support.authority import Authority
from tests.support.serving import run

RIGHTS = NodeRights(NodePrincipals(("User:CN=quorumd-{id}",)), frozenset())
Work = Callable[[Peer, Owner], Awaitable[None]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def handshakes() -> Iterator[Handshakes]:
    threads = Handshakes()
    yield threads
    threads.close()


def listening(authority: Authority, store: Path) -> ssl.SSLContext:
    """How a node listens: everybody has to show a certificate of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(store)
    context.load_verify_locations(authority.trust)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def secure(authority: Authority, handshakes: Handshakes, name: str = "quorumd-1") -> LinkSecurity:
    tls = TlsConfig(
        ssl_keystore_location=authority.store(name, file=f"own-{name}"),
        ssl_truststore_location=authority.trust,
    )
    return LinkSecurity(Credentials(tls, is_server=False), handshakes, RIGHTS)


def with_peers(
    here: LinkSecurity,
    contexts: list[ssl.SSLContext | None],
    work: Callable[[list[Peer], list[Address], Owner], Awaitable[None]],
    **settings: Any,
) -> None:
    """Run the work beside peers that listen so, and a link to the first of them."""

    async def whole() -> None:
        peers = [Peer(serve_votes, error=ITSELF) for _ in contexts]
        ports = [
            await peer.open(tls=context) for peer, context in zip(peers, contexts, strict=True)
        ]
        owner = Owner(port=ports[0], security=here, **settings)
        try:
            await work(peers, [Address("127.0.0.1", port) for port in ports], owner)
        finally:
            await owner.link.close()
            for peer in peers:
                peer.close()

    run(whole())


async def asks_and_is_answered(peers: list[Peer], at: list[Address], owner: Owner) -> None:
    owner.link.open()
    owner.vote()
    assert (await owner.outcome())[0][1] == "answered"
    assert owner.unreachable == []


async def says_nothing(peers: list[Peer], at: list[Address], owner: Owner) -> None:
    """Not a byte of a request reaches who is there."""
    owner.link.open()
    while len(owner.unreachable) < 3:
        owner.vote()
        await asyncio.sleep(0.01)
    assert {outcome[1] for outcome in owner.outcomes} == {"failed"}
    assert peers[0].asked == []
    assert owner.ups == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_peer_itself_is_asked(authority: Authority, handshakes: Handshakes, host: str) -> None:
    there = listening(authority, authority.store("quorumd-2", [host]))
    names: list[str | None] = []
    there.sni_callback = lambda _, name, __: names.append(name)
    with_peers(secure(authority, handshakes), [there], asks_and_is_answered, host=host)
    # A name is sent, by which one port may serve several; an address never is (RFC 6066, section 3).
    assert names == [host if host == "localhost" else None]


def test_a_handshake_that_began_before_a_ca_or_a_list_changed_is_made_again(
    authority: Authority, handshakes: Handshakes, tmp_path: Path
) -> None:
    """It would rest on what counts no more, and nothing would make it anew."""
    there = listening(authority, authority.store("quorumd-2", ["localhost"]))
    here = secure(authority, handshakes)
    side = cast(Credentials, here.side)
    other = Authority(tmp_path, "another")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.trust.read_bytes() + other.trust.read_bytes())
    changed = replace(
        side.material, roots=read_material(TlsConfig(ssl_truststore_location=both)).roots
    )
    begun = 0

    def change(*_: object) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            side.prepare(changed)()

    there.sni_callback = change

    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        owner.link.open()
        while "answered" not in [outcome[1] for outcome in owner.outcomes]:
            owner.vote()
            await asyncio.sleep(0.05)
        ((_, error),) = owner.unreachable
        assert "a handshake that began with former CAs or revocation lists" in str(error)
        assert begun == 2

    with_peers(here, [there], work, host="localhost")


def test_of_the_links_that_were_made_none_is_kept_that_is_closed(
    authority: Authority, handshakes: Handshakes
) -> None:
    here = secure(authority, handshakes)

    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        owner.link.open()
        await until(lambda: owner.ups == 1)
        before = here.open_streams()
        peers[0].writers[-1].transport.abort()
        await until(lambda: owner.ups == 2)
        after = here.open_streams()
        assert (len(before), len(after)) == (1, 1)
        assert here.streams == set(after) != set(before)

    with_peers(here, [listening(authority, authority.store("quorumd-2"))], work)


def test_the_certificate_of_another_node_is_not_the_peers(
    authority: Authority, handshakes: Handshakes
) -> None:
    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        await says_nothing(peers, at, owner)
        address, error = owner.unreachable[0]
        assert (address, type(error)) == (at[0], NotThisPeer)
        rule = "By quorum.node.principals node 2 is User:CN=quorumd-2"
        assert str(error) == f"its certificate is for CN=quorumd-3. {rule}"

    there = listening(authority, authority.store("quorumd-3"))
    with_peers(secure(authority, handshakes), [there], work)


@pytest.mark.parametrize("name", ["client", "quorumd-2x", "quorumd-02", "quorumd-22"])
def test_a_client_of_the_same_ca_is_not_the_peer(
    authority: Authority, handshakes: Handshakes, name: str
) -> None:
    there = listening(authority, authority.store(name))
    with_peers(secure(authority, handshakes), [there], says_nothing)


def test_a_bootstrap_server_may_be_any_node_but_no_client(
    authority: Authority, handshakes: Handshakes
) -> None:
    async def no_client(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        await says_nothing(peers, at, owner)
        assert str(owner.unreachable[0][1]) == (
            "its certificate is for CN=client, which is no node"
        )

    here = secure(authority, handshakes)
    node, client = (listening(authority, authority.store(name)) for name in ("quorumd-7", "client"))
    with_peers(here, [node], asks_and_is_answered, peer_id=None)
    with_peers(here, [client], no_client, peer_id=None)


def test_a_certificate_has_to_name_the_host_that_was_dialled(
    authority: Authority, handshakes: Handshakes
) -> None:
    """Though it is the peer's, and its IP address is named."""

    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        await says_nothing(peers, at, owner)
        assert isinstance(owner.unreachable[0][1], CertificateProblem)
        assert "localhost" in str(owner.unreachable[0][1])

    there = listening(authority, authority.store("quorumd-2", ["127.0.0.1", "other.test"]))
    with_peers(secure(authority, handshakes), [there], work, host="localhost")


def test_an_expired_certificate_is_refused(authority: Authority, handshakes: Handshakes) -> None:
    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        await says_nothing(peers, at, owner)
        assert "expired" in str(owner.unreachable[0][1])

    store = authority.store("quorumd-2", ends_in=datetime.timedelta(hours=-2))
    with_peers(secure(authority, handshakes), [listening(authority, store)], work)


def test_a_peer_that_answers_in_plaintext_is_told_from_one_that_is_not_there(
    authority: Authority, handshakes: Handshakes
) -> None:
    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        await says_nothing(peers, at, owner)
        assert isinstance(owner.unreachable[0][1], PeerSpeaksPlaintext)

    async def chatty(
        peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1)
        writer.write(b"\0\0\0\4\0\0\0\1")
        await reader.read()

    async def whole() -> None:
        peer = Peer(chatty)
        owner = Owner(port=await peer.open(), security=secure(authority, handshakes))
        await work([peer], [Address("127.0.0.1", owner.port)], owner)
        await owner.link.close()
        peer.close()

    run(whole())


def test_a_peer_that_speaks_tls_is_called_that_by_a_plaintext_link() -> None:
    async def alerting(
        peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1)
        writer.write(UNEXPECTED_MESSAGE)
        await reader.read()

    async def whole() -> None:
        peer = Peer(alerting)
        owner = Owner(port=await peer.open())
        try:
            owner.link.open()
            while not owner.unreachable:
                owner.vote()
                await asyncio.sleep(0.01)
        finally:
            await owner.link.close()
            peer.close()
        error = owner.unreachable[0][1]
        assert isinstance(error, PeerSpeaksTls)
        said = in_words("node 2", Address("127.0.0.1", 9093), error)
        assert "node 2 speaks TLS where this node's links are plaintext (127.0.0.1:9093)" in said

    run(whole())


def test_somebody_elses_certificate_at_another_address_is_an_answer_and_no_alarm(
    authority: Authority, handshakes: Handshakes
) -> None:
    """The peer has moved: it is searched for among others, who say by certificate that they are others."""

    async def work(peers: list[Peer], at: list[Address], owner: Owner) -> None:
        owner.others = at[1:]
        peers[0].close()
        owner.link.open()
        while not owner.ups:
            owner.vote()
            await asyncio.sleep(0.01)
        assert owner.answered_at[-1] == at[2]
        assert {address for address, _ in owner.unreachable} <= {at[0]}
        assert peers[1].asked == []
        assert peers[1].connections == 1

    here = secure(authority, handshakes)
    contexts = [listening(authority, authority.store(f"quorumd-{number}")) for number in (2, 3, 2)]
    with_peers(here, [*contexts], work)


class Silent(asyncio.Protocol):
    """Takes what comes."""


class Deaf:
    """Watches handshakes, and does nothing about them."""

    def on_secured(self, stream: TlsStream, identity: Identity) -> None: ...
    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None: ...


def test_who_refuses_this_nodes_certificate_is_not_taken_for_one_that_is_gone(
    authority: Authority, handshakes: Handshakes, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "elsewhere", "other-ca")
    there = Credentials(
        TlsConfig(
            ssl_keystore_location=authority.store("quorumd-2"),
            ssl_truststore_location=other.trust,
            ssl_client_auth=ClientAuth.REQUIRED,
        ),
        is_server=True,
    )

    async def whole() -> None:
        serve = secured(Silent, there, handshakes, Deaf())
        server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        owner = Owner(port=port, security=secure(authority, handshakes))
        owner.link.open()
        await until(lambda: bool(owner.unreachable))
        assert isinstance(owner.unreachable[0][1], CertificateProblem)
        assert (owner.ups, owner.refusals) == (0, 0)
        await owner.link.close()
        server.close()

    run(whole())
