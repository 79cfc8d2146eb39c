"""What OpenSSL is allowed: versions, cipher suites, no sessions that are taken up again, no renegotiation."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from quorumd.config.tls import TLS_1_2, TLS_1_3, ClientAuth, TlsConfig
from quorumd.security.contexts import offers_tls_1_3, suite_problem
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.identity import ANONYMOUS
from tests.support.in_memory_tls import End, configured, shake, side
from tests.support.odd_certificates import Authority

CA = Authority()
NODE = CA.issue()
CLIENT = CA.issue("client", ())
GCM_256 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
CHACHA = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
ALL_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
BOTH = pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
requires_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")


def foreign_context(folder: Path, version: str | None) -> ssl.SSLContext:
    """A client of somebody else's, who would take sessions up again."""
    (folder / "foreign-ca.pem").write_bytes(CA.pem)
    context = ssl.create_default_context(cafile=str(folder / "foreign-ca.pem"))
    context.load_cert_chain(CLIENT.write(folder / "foreign.pem"))
    if version is not None:
        code = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}[version]
        context.minimum_version = context.maximum_version = code
    return context


def call(
    server: Credentials, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[End, ssl.SSLObject]:
    here, incoming, outgoing = End(server), ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
    for _ in range(5):
        try:
            client.do_handshake()
            client.read(1)
        except ssl.SSLWantReadError:
            pass
        here.incoming.write(outgoing.read())
        here.step()
        incoming.write(here.outgoing.read())
    assert here.problem is None
    assert here.identity is not None
    return here, client


@BOTH
def test_a_session_is_not_taken_up_again(tmp_path: Path, version: str) -> None:
    server = side(tmp_path, NODE, CA, is_server=True)
    context = foreign_context(tmp_path, version)
    _, first = call(server, context)
    assert first.session is None or not first.session.has_ticket
    here, second = call(server, context, first.session)
    assert here.tls is not None
    assert not second.session_reused
    assert not here.tls.session_reused
    assert here.identity is not None
    assert here.identity.principal == "User:CN=client"


@BOTH
def test_no_hello_has_keys_or_revocation_lists_parsed(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would cost a node milliseconds and megabytes for each packet of a stranger."""
    revoked = CA.issue("revoked", ())
    crl = tmp_path / "crl.pem"
    crl.write_bytes(CA.crl(revoked))
    server = side(tmp_path, NODE, CA, is_server=True, ssl_crl_location=crl)
    foreign = foreign_context(tmp_path, version)
    client = side(tmp_path, revoked, CA, is_server=False, ssl_enabled_protocols=(version,))
    loaded: list[str] = []
    for name in ("load_cert_chain", "load_verify_locations", "load_default_certs"):
        monkeypatch.setattr(ssl.SSLContext, name, lambda *_, name=name: loaded.append(name))
    for _ in range(3):
        call(server, foreign)
    here, _ = shake(server, client)
    assert here.problem is not None
    assert here.problem.outcome == "revoked"
    assert loaded == []


@contextmanager
def served(credentials: Credentials, connections: int) -> Iterator[int]:
    """The port of a listener for so many connections, one after another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[End] = []

        def serve() -> None:
            for _ in range(connections):
                raw, _ = listener.accept()
                raw.settimeout(20)
                with raw, contextlib.suppress(OSError):
                    end = End(credentials)
                    while end.problem is None and (data := raw.recv(65536)):
                        end.incoming.write(data)
                        end.step()
                        raw.sendall(end.outgoing.read())
                    if end.tls is not None:
                        # OpenSSL keeps the sessions of connections that are closed in order.
                        with contextlib.suppress(ssl.SSLError):
                            end.tls.unwrap()
                        kept.append(end)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)


@pytest.mark.live
@requires_openssl
@pytest.mark.parametrize("option", ["-tls1_2", "-tls1_3"])
def test_openssl_finds_no_session_to_take_up(tmp_path: Path, option: str) -> None:
    server = side(tmp_path, NODE, CA, is_server=True)
    pem = CLIENT.write(tmp_path / "client.pem")
    (tmp_path / "ca.pem").write_bytes(CA.pem)
    with served(server, 6) as port:
        done = subprocess.run(
            [
                *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", option, "-reconnect"),
                *("-cert", str(pem), "-CAfile", str(tmp_path / "ca.pem")),
            ],
            input="",
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert "New, TLSv1." in done.stdout
    assert "Reused, TLS" not in done.stdout
    assert "session ticket" not in done.stdout.lower()


def test_a_client_of_tls_1_2_gets_in_beside_those_of_1_3(tmp_path: Path) -> None:
    server = side(tmp_path, NODE, CA, is_server=True)
    for version, spoken in ((TLS_1_2, "TLSv1.2"), (TLS_1_3, "TLSv1.3"), (None, "TLSv1.3")):
        _, client = call(server, foreign_context(tmp_path, version))
        assert client.version() == spoken


@pytest.mark.parametrize(
    ("versions", "names", "spoken", "cipher"),
    [
        ((TLS_1_2,), (), "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ((TLS_1_2,), (CHACHA,), "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ((TLS_1_2, TLS_1_3), (CHACHA, GCM_256), "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ((TLS_1_2, TLS_1_3), (CHACHA, *ALL_1_3), "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
        ((TLS_1_2, TLS_1_3), ALL_1_3, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_suites_by_the_names_of_iana(
    tmp_path: Path,
    versions: tuple[str, ...],
    names: tuple[str, ...],
    spoken: str,
    cipher: str,
) -> None:
    more = {"ssl_enabled_protocols": versions, "ssl_cipher_suites": names}
    server = side(tmp_path, NODE, CA, is_server=True, **more)
    here, there = shake(server, side(tmp_path, CLIENT, CA, is_server=False))
    assert (here.problem, there.problem) == (None, None)
    assert there.tls is not None
    assert there.tls.version() == spoken
    assert (there.tls.cipher() or ("",))[0] == cipher


def test_an_rsa_key_has_suites_of_its_own(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    server = side(tmp_path, CA.issue(key=key), CA, is_server=True)
    _, client = call(server, foreign_context(tmp_path, TLS_1_2))
    assert (client.cipher() or ("",))[0] == "ECDHE-RSA-AES256-GCM-SHA384"


@pytest.mark.parametrize(
    "name",
    ["AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-SHA384", "DHE-RSA-AES256-GCM-SHA384"],
)
def test_without_forward_secrecy_or_aead_nothing_is_spoken(tmp_path: Path, name: str) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issued = NODE if "ECDSA" in name else CA.issue(key=key)
    context = foreign_context(tmp_path, TLS_1_2)
    context.set_ciphers(name)
    here, incoming = End(side(tmp_path, issued, CA, is_server=True)), ssl.MemoryBIO()
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    here.incoming.write(outgoing.read())
    here.step()
    assert here.problem is not None
    assert here.problem.outcome == "cipher"


def test_what_is_said_of_suites_that_cannot_be() -> None:
    def problem(*names: str, versions: tuple[str, ...] = (TLS_1_2, TLS_1_3)) -> str:
        tls = TlsConfig(ssl_cipher_suites=names, ssl_enabled_protocols=versions)
        return suite_problem(tls) or ""

    if not hasattr(ssl.SSLContext, "set_ciphersuites"):
        assert problem(ALL_1_3[0]) == (
            "Python before 3.15 cannot choose among the suites of TLSv1.3: add "
            "TLS_CHACHA20_POLY1305_SHA256, TLS_AES_128_GCM_SHA256, or remove all three, which leaves TLSv1.2"
        )
        # Where TLS 1.3 is off they are spoken with nobody.
        assert problem(ALL_1_3[0], GCM_256, versions=(TLS_1_2,)) == ""
    assert problem(GCM_256, versions=(TLS_1_3,)) == (
        "none of them is of a version in ssl.enabled.protocols (TLSv1.3)"
    )
    assert problem(*ALL_1_3, GCM_256) == ""


@pytest.mark.skipif(hasattr(ssl.SSLContext, "set_ciphersuites"), reason="it can choose them")
def test_a_bad_suite_is_refused_with_its_key(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, CA, ssl_cipher_suites=ALL_1_3[:1])
    with pytest.raises(CertificateProblem, match=r"^ssl\.cipher\.suites: Python before 3\.15"):
        Credentials(tls, is_server=True)


def test_who_shows_no_certificate_is_nobody_for_as_long_as_the_connection_lasts(
    tmp_path: Path,
) -> None:
    """Connections whose certificate has ended are closed."""
    server = side(tmp_path, NODE, CA, is_server=True, ssl_client_auth=ClientAuth.NONE)
    nobody = server.identify(None)
    assert (nobody.principal, nobody.expires_at, nobody.certificate) == (ANONYMOUS, math.inf, None)


@pytest.mark.live
@requires_openssl
def test_a_client_cannot_renegotiate(tmp_path: Path) -> None:
    server = side(tmp_path, NODE, CA, is_server=True, ssl_client_auth=ClientAuth.NONE)
    (tmp_path / "ca.pem").write_bytes(CA.pem)
    with served(server, 1) as port:
        done = subprocess.run(
            [
                *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2"),
                *("-legacy_renegotiation", "-CAfile", str(tmp_path / "ca.pem")),
            ],
            input="R\n",
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert "RENEGOTIATING" in done.stdout + done.stderr
    assert "no renegotiation" in done.stderr


def hello_of(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def test_a_hello_says_whether_it_offers_tls_1_3(tmp_path: Path) -> None:
    new = hello_of(foreign_context(tmp_path, None))
    assert offers_tls_1_3(new)
    assert not offers_tls_1_3(hello_of(foreign_context(tmp_path, TLS_1_2)))
    # One that is not whole may be of any version.
    assert not any(offers_tls_1_3(new[:end]) for end in range(len(new)))


@given(st.binary(max_size=200))
def test_a_hello_may_be_anything(data: bytes) -> None:
    assert offers_tls_1_3(data) in (True, False)
    assert offers_tls_1_3(b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data) in (True, False)
