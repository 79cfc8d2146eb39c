"""Every way in which a handshake fails, in both versions of TLS: what each side says, and counts."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from quorumd.config.tls import TLS_1_2, TLS_1_3, ClientAuth
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem, HandshakeOutcome, PeerSpeaksPlaintext
from quorumd.security.handshake_failures import Failure
from tests.support.in_memory_tls import End, shake, side
from tests.support.odd_certificates import (
    CLIENT_AUTH,
    DAY,
    HOUR,
    SERVER_AUTH,
    Authority,
    Issued,
    key_usage,
    now,
)

CA = Authority()
OTHER = Authority("another CA")
MIDDLE = Authority("middle", above=CA)
NODE = CA.issue("node", ("localhost", "10.0.0.1"))
CLIENT = CA.issue("client", ())
OLD = now() - 3 * DAY
LOOKUPS = (
    "getaddrinfo",
    "getfqdn",
    "gethostbyaddr",
    "gethostbyname",
    "gethostbyname_ex",
    "getnameinfo",
)
BOTH = pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])


class Sides:
    """Makes both sides in a folder, for one version of TLS."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        self.versions = (version,)

    def server(self, issued: Issued = NODE, *trusted: Authority, **more: Any) -> Credentials:
        more = {"ssl_enabled_protocols": self.versions, **more}
        return side(self.folder, issued, *(trusted or (CA,)), is_server=True, **more)

    def client(
        self, issued: Issued | None = CLIENT, *trusted: Authority, **more: Any
    ) -> Credentials:
        more = {"ssl_enabled_protocols": self.versions, **more}
        return side(self.folder, issued, *(trusted or (CA,)), is_server=False, **more)


@pytest.fixture
def sides(tmp_path: Path, version: str) -> Sides:
    return Sides(tmp_path, version)


def said(end: End) -> tuple[HandshakeOutcome, str]:
    assert end.problem is not None, "nothing has failed"
    return end.problem.outcome, str(end.problem)


def keystore(credentials: Credentials) -> str:
    return f"{credentials.tls.ssl_keystore_location} (ssl.keystore.location)"


def truststore(credentials: Credentials) -> str:
    return f"{credentials.tls.ssl_truststore_location} (ssl.truststore.location)"


@BOTH
def test_what_is_sound_is_taken(sides: Sides) -> None:
    for host in ("localhost", "10.0.0.1", "localhost."):
        here, there = shake(sides.server(), sides.client(), host)
        assert (here.problem, there.problem) == (None, None)
        assert here.identity is not None
        assert here.identity.principal == "User:CN=client"
        assert here.identity.expires_at == CLIENT.certificate.not_valid_after_utc.timestamp()


@BOTH
def test_a_client_without_certificate(sides: Sides) -> None:
    here, there = shake(sides.server(), sides.client(None))
    assert said(here) == (
        HandshakeOutcome.NO_CERTIFICATE,
        "showed no certificate: ssl.client.auth is required here",
    )
    assert said(there) == (
        HandshakeOutcome.NO_CERTIFICATE,
        "requires a certificate, and this side has none: set ssl.keystore.location",
    )


@BOTH
def test_a_client_whose_key_is_of_a_kind_that_no_server_takes(sides: Sides) -> None:
    """With TLS 1.3 OpenSSL does not show its certificate."""
    client = sides.client(CA.issue("client", (), key=ec.generate_private_key(ec.SECP256K1())))
    here, there = shake(sides.server(), client)
    if sides.versions == (TLS_1_2,):
        assert said(here)[0] is HandshakeOutcome.CIPHER
        assert "curve or signature algorithm in common" in said(here)[1]
        return
    assert said(here)[0] is HandshakeOutcome.NO_CERTIFICATE
    assert said(there) == (
        HandshakeOutcome.NO_CERTIFICATE,
        f"requires a certificate, and takes none with a key like that of {keystore(client)}: take another",
    )


@BOTH
def test_it_may_be_asked_for_or_not(sides: Sides) -> None:
    for auth, name in (
        (ClientAuth.NONE, "User:ANONYMOUS"),
        (ClientAuth.REQUESTED, "User:CN=client"),
    ):
        here, there = shake(sides.server(ssl_client_auth=auth), sides.client())
        assert (here.problem, there.problem) == (None, None)
        assert here.identity is not None
        assert here.identity.principal == name
    here, _ = shake(sides.server(ssl_client_auth=ClientAuth.REQUESTED), sides.client(None))
    assert here.problem is None
    # One that is shown has to be sound all the same.
    here, _ = shake(sides.server(ssl_client_auth=ClientAuth.REQUESTED), sides.client(OTHER.issue()))
    assert said(here)[0] is HandshakeOutcome.UNTRUSTED


@BOTH
def test_a_client_of_another_ca(sides: Sides) -> None:
    server, client = sides.server(), sides.client(OTHER.issue("x", ()))
    here, there = shake(server, client)
    place = truststore(server)
    assert said(here) == (
        HandshakeOutcome.UNTRUSTED,
        f"its certificate is of no CA in {place}: add its CA there, or have it send the CAs between",
    )
    assert said(there) == (
        HandshakeOutcome.UNTRUSTED,
        f"refused the certificate of this side, {keystore(client)}, which is issued by CN=another CA: that "
        "CA is not in the truststore there, or has no revocation list there",
    )


@BOTH
def test_a_server_of_another_ca(sides: Sides) -> None:
    server, client = sides.server(OTHER.issue()), sides.client()
    here, there = shake(server, client)
    assert said(there)[0] is HandshakeOutcome.UNTRUSTED
    assert said(there)[1].startswith(
        f"its certificate (CN=node, issued by CN=another CA) is of no CA in {truststore(client)}: "
    )
    assert said(here)[0] is HandshakeOutcome.UNTRUSTED
    assert "which is issued by CN=another CA" in said(here)[1]


@BOTH
def test_a_ca_between_has_to_be_sent_or_trusted(sides: Sides) -> None:
    sound = MIDDLE.issue("x")
    alone = Issued(sound.key, sound.certificate)
    assert shake(sides.server(sound), sides.client())[1].problem is None
    assert said(shake(sides.server(alone), sides.client())[1])[0] is HandshakeOutcome.UNTRUSTED
    # As in Java, what is in the truststore is trusted, be it a root or not.
    assert shake(sides.server(alone), sides.client(CLIENT, MIDDLE))[1].problem is None


@BOTH
def test_expired(sides: Sides) -> None:
    server = sides.server(CA.issue(begin=OLD, end=now() - 2 * HOUR))
    here, there = shake(server, sides.client())
    assert said(there) == (
        HandshakeOutcome.EXPIRED,
        "its certificate (CN=node, issued by CN=quorumd test CA) expired 2 h ago",
    )
    assert said(here) == (
        HandshakeOutcome.EXPIRED,
        f"refused the certificate of this side, {keystore(server)}, which expired 2 h ago: renew it",
    )
    client = sides.client(CA.issue("c", begin=OLD, end=now() - 2 * DAY))
    here, there = shake(sides.server(), client)
    assert said(here) == (
        HandshakeOutcome.EXPIRED,
        "its certificate, or that of a CA above it, has expired: look at both clocks",
    )
    assert said(there)[1].endswith(", which expired 2 days ago: renew it")


@BOTH
def test_not_yet_valid(sides: Sides) -> None:
    begin = now() + 2 * HOUR + HOUR / 2
    here, there = shake(sides.server(CA.issue(begin=begin)), sides.client())
    assert said(there)[0] is said(here)[0] is HandshakeOutcome.NOT_YET_VALID
    assert f"is not valid yet: its time begins in 2 h, on {begin:%Y-%m-%d %H:%M}" in said(there)[1]
    here, there = shake(sides.server(), sides.client(CA.issue(begin=begin)))
    assert said(there)[0] is said(here)[0] is HandshakeOutcome.NOT_YET_VALID


@BOTH
def test_another_host(sides: Sides) -> None:
    server, client = sides.server(), sides.client()
    here, there = shake(server, client, "db2.example.com")
    assert said(there) == (
        HandshakeOutcome.HOST,
        "its certificate names localhost, 10.0.0.1, not db2.example.com",
    )
    assert said(here)[1] == (
        f"refused the certificate of this side, {keystore(server)}, which names localhost, 10.0.0.1; the log "
        "there says why"
    )
    assert said(shake(server, client, "10.0.0.2")[1])[0] is HandshakeOutcome.HOST
    off = sides.client(ssl_endpoint_identification_algorithm="")
    assert shake(server, off, "db2.example.com")[1].problem is None
    # A name is no address, and no address a name.
    assert said(shake(sides.server(CA.issue("x", ("10.0.0.1.nip",))), client, "10.0.0.1")[1])[
        0
    ] is (HandshakeOutcome.HOST)


@BOTH
@pytest.mark.parametrize(
    ("named", "dialled"), [("localhost", "127.0.0.1"), ("127.0.0.1", "localhost")]
)
def test_no_name_server_is_asked_whether_an_address_is_the_host_that_is_named(
    sides: Sides, named: str, dialled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*arguments: object) -> None:
        asked.append(arguments)
        raise OSError("no name server")

    asked: list[object] = []
    for lookup in LOOKUPS:
        monkeypatch.setattr(socket, lookup, ask)
    server, client = sides.server(CA.issue("node", (named,))), sides.client()
    assert shake(server, client, named)[1].problem is None
    assert said(shake(server, client, dialled)[1]) == (
        HandshakeOutcome.HOST,
        f"its certificate names {named}, not {dialled}",
    )
    assert asked == []


def odd_certificate(folder: Path, *, at: str = "subject") -> Path:
    """Key and certificate of nobody's, with something in it that is not read."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "AAAABBBB")])
    san = x509.ObjectIdentifier("2.5.29.17")
    value = bytes.fromhex("3004a3028000" if at == "x400 address" else "30068204686f7374")
    der = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(now() - DAY)
        .not_valid_after(now() + DAY)
        .add_extension(x509.UnrecognizedExtension(san, value), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    if at == "teletex":
        der = der.replace(b"\x0c\x08AAAABBBB", b"\x14\x08J\xfcrgenXX")
    if at == "version 2":
        der = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", 1)
    path = folder / "odd.pem"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem + ssl.DER_cert_to_PEM_cert(der).encode())
    return path


@BOTH
@pytest.mark.parametrize("at", ["teletex", "x400 address", "version 2"])
def test_a_stranger_may_show_anything(sides: Sides, at: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(odd_certificate(sides.folder, at=at))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    credentials = sides.client()
    client = credentials.tls_object(to_client, to_server, "localhost")

    def shake_hands() -> None:
        while True:
            for end in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()

    with pytest.raises(ssl.SSLError) as caught:
        shake_hands()
    problem = credentials.explain(caught.value, "localhost", client)
    assert problem.outcome is HandshakeOutcome.UNTRUSTED
    assert "is of no CA in" in str(problem) or "is not signed by" in str(problem)


def test_what_cannot_be_explained_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(_: Failure) -> CertificateProblem:
        raise TypeError("odd")

    monkeypatch.setattr(Failure, "explain", explain)
    credentials = side(tmp_path, CLIENT, CA, is_server=False)
    problem = credentials.explain(ssl.SSLError("refused"), "localhost", None)
    assert "cannot be read: TypeError('odd')" in str(problem)


@BOTH
def test_the_common_name_names_no_host(sides: Sides) -> None:
    _, there = shake(sides.server(CA.issue("localhost", ())), sides.client())
    assert said(there)[0] is HandshakeOutcome.HOST
    assert "names no host at all, and so not localhost" in said(there)[1]


@BOTH
def test_wildcards_stand_for_one_label(sides: Sides) -> None:
    server = sides.server(CA.issue("x", ("*.example.com",)))
    assert shake(server, sides.client(), "db1.example.com")[1].problem is None
    for host in ("example.com", "a.b.example.com", "db1.example.org"):
        assert said(shake(server, sides.client(), host)[1])[0] is HandshakeOutcome.HOST


@BOTH
def test_a_certificate_for_another_use(sides: Sides) -> None:
    server = sides.server(CA.issue(purposes=[CLIENT_AUTH]))
    here, there = shake(server, sides.client())
    assert said(there)[0] is said(here)[0] is HandshakeOutcome.PURPOSE
    assert "is not made for servers (serverAuth)" in said(there)[1]
    assert said(here)[1].endswith("have it issued with the extended key usage serverAuth")
    client = sides.client(CA.issue("c", (), purposes=[SERVER_AUTH]))
    here, there = shake(sides.server(), client)
    assert said(there)[0] is said(here)[0] is HandshakeOutcome.PURPOSE
    assert said(there)[1].endswith("have it issued with the extended key usage clientAuth")
    # Without an extended key usage it is for all of them; a key that must not sign is for none.
    assert shake(sides.server(CA.issue(purposes=None)), sides.client())[1].problem is None
    usage = key_usage(key_cert_sign=True)
    odd = sides.client(CA.issue("c", (), usage=usage))
    assert said(shake(sides.server(), odd)[0])[0] is HandshakeOutcome.PURPOSE


@BOTH
def test_a_leaf_that_issues_certificates_is_no_ca(sides: Sides) -> None:
    rogue = Authority("rogue", above=CA, is_ca=False)
    here, _ = shake(sides.server(), sides.client(rogue.issue("node")))
    assert said(here)[0] in (HandshakeOutcome.PURPOSE, HandshakeOutcome.UNTRUSTED)


@BOTH
def test_a_ca_of_the_same_name_is_another_one(sides: Sides) -> None:
    here, _ = shake(sides.server(), sides.client(Authority().issue("c")))
    assert said(here)[0] is HandshakeOutcome.UNTRUSTED


def written(folder: Path, *crls: bytes) -> Path:
    path = folder / "crl.pem"
    path.write_bytes(b"".join(crls))
    return path


@BOTH
def test_revoked_in_both_directions(sides: Sides) -> None:
    crl = written(sides.folder, CA.crl(CLIENT, NODE))
    server = sides.server(ssl_crl_location=crl)
    here, there = shake(server, sides.client())
    assert said(here) == (HandshakeOutcome.REVOKED, f"its certificate is revoked by {crl}")
    assert said(there)[0] is HandshakeOutcome.REVOKED
    assert said(there)[1].endswith("as revoked: have another one issued")
    here, there = shake(sides.server(), sides.client(ssl_crl_location=crl))
    assert said(there) == (
        HandshakeOutcome.REVOKED,
        f"its certificate (CN=node, issued by CN=quorumd test CA) is revoked by {crl}",
    )
    assert said(here)[0] is HandshakeOutcome.REVOKED
    # Others come in.
    assert shake(server, sides.client(CA.issue("c", ())))[0].problem is None


@BOTH
def test_the_whole_chain_is_looked_up(sides: Sides) -> None:
    leaf = MIDDLE.issue("c")
    middle = Issued(leaf.key, MIDDLE.certificate)
    revoked = written(sides.folder, CA.crl(middle), MIDDLE.crl())
    here, _ = shake(sides.server(ssl_crl_location=revoked), sides.client(leaf))
    assert said(here)[0] is HandshakeOutcome.REVOKED
    sound = written(sides.folder, CA.crl(), MIDDLE.crl())
    assert shake(sides.server(ssl_crl_location=sound), sides.client(leaf))[0].problem is None
    missing = written(sides.folder, CA.crl())
    here, there = shake(sides.server(ssl_crl_location=missing), sides.client(leaf))
    assert said(here) == (
        HandshakeOutcome.CRL,
        f"{missing} has no revocation list of a CA above its certificate: append it",
    )
    assert "or has no revocation list there" in said(there)[1]


@BOTH
def test_a_ca_between_that_is_trusted_beside_its_root_is_looked_up_as_well(sides: Sides) -> None:
    leaf = MIDDLE.issue("c")
    lists = written(sides.folder, CA.crl(), MIDDLE.crl())
    server = sides.server(NODE, CA, MIDDLE, ssl_crl_location=lists)
    assert shake(server, sides.client(leaf))[0].problem is None
    written(sides.folder, CA.crl(Issued(leaf.key, MIDDLE.certificate)), MIDDLE.crl())
    server = sides.server(NODE, CA, MIDDLE, ssl_crl_location=lists)
    assert said(shake(server, sides.client(leaf))[0])[0] is HandshakeOutcome.REVOKED


@BOTH
def test_a_list_past_its_next_update_lets_nobody_in(sides: Sides) -> None:
    stale = written(sides.folder, CA.crl(begin=now() - 2 * DAY, end=now() - 2 * HOUR))
    here, there = shake(sides.server(ssl_crl_location=stale), sides.client())
    assert said(here) == (
        HandshakeOutcome.CRL,
        f"in {stale} the revocation list of CN=quorumd test CA should have been replaced 2 h ago: nobody is "
        "let in",
    )
    assert said(there)[1].endswith(
        "as expired, which it is not by the clock here: the clocks differ, or a revocation list there is too "
        "old"
    )
    early = written(sides.folder, CA.crl(begin=now() + 2 * HOUR + HOUR / 2, end=now() + DAY))
    here, _ = shake(sides.server(ssl_crl_location=early), sides.client())
    assert said(here)[0] is HandshakeOutcome.CRL
    assert "begins to count in 2 h" in said(here)[1]


@BOTH
def test_a_list_that_another_has_signed_does_not_count(sides: Sides) -> None:
    forged = written(sides.folder, Authority().crl())
    here, _ = shake(sides.server(ssl_crl_location=forged), sides.client())
    assert said(here)[0] is HandshakeOutcome.CRL


def test_no_version_in_common(tmp_path: Path) -> None:
    old, new = Sides(tmp_path, TLS_1_2), Sides(tmp_path, TLS_1_3)
    text = "speaks no version of TLS that this side does: {} (ssl.enabled.protocols)"
    for here, there, ours, theirs in (
        (old.server(), new.client(), TLS_1_2, TLS_1_3),
        (new.server(), old.client(), TLS_1_3, TLS_1_2),
    ):
        server, client = shake(here, there)
        assert said(server) == (HandshakeOutcome.PROTOCOL_VERSION, text.format(ours))
        assert said(client) == (HandshakeOutcome.PROTOCOL_VERSION, text.format(theirs))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_1_is_spoken_with_nobody(tmp_path: Path) -> None:
    sides = Sides(tmp_path, TLS_1_2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    to_server, from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(from_server, to_server)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    here = End(sides.server())
    here.incoming.write(to_server.read())
    here.step()
    assert said(here)[0] is HandshakeOutcome.PROTOCOL_VERSION
    from_server.write(here.outgoing.read())
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        client.do_handshake()


def test_no_cipher_suite_in_common(tmp_path: Path) -> None:
    sides = Sides(tmp_path, TLS_1_2)
    name = "TLS_ECDHE_ECDSA_WITH_AES_{}_GCM_SHA{}"
    here, there = shake(
        sides.server(ssl_cipher_suites=(name.format(128, 256),)),
        sides.client(ssl_cipher_suites=(name.format(256, 384),)),
    )
    assert said(here)[0] is HandshakeOutcome.CIPHER
    assert said(there)[0] is HandshakeOutcome.CIPHER
    assert "(ssl.cipher.suites)" in said(there)[1]


@BOTH
def test_plaintext(sides: Sides) -> None:
    here = End(sides.server())
    here.incoming.write(b"GET / HTTP/1.1\r\n\r\n")
    here.step()
    assert isinstance(here.problem, PeerSpeaksPlaintext)
    there = End(sides.client(), "localhost")
    there.step()
    there.incoming.write(b"\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
    there.step()
    assert said(there)[0] is HandshakeOutcome.PLAINTEXT


@BOTH
def test_a_connection_that_is_closed(sides: Sides) -> None:
    there = End(sides.client(), "localhost")
    there.step()
    there.incoming.write_eof()
    there.step()
    assert said(there)[0] is HandshakeOutcome.BROKEN


@BOTH
def test_a_name_that_no_host_can_have(sides: Sides) -> None:
    there = End(sides.client(), ".example.com")
    there.step()
    assert "is no host name that TLS can ask for" in said(there)[1]


@BOTH
def test_weak_keys_are_refused(sides: Sides) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.raises(CertificateProblem, match="too weak: take RSA of 2048 bits"):
        sides.server(CA.issue(key=weak))
