"""What is refused before it counts: everything at once, with the cause, the file and the remedy."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from quorumd.config.regular_file import STORE_BYTES_MAX
from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.security.checks import problems_of, warnings_of
from quorumd.security.material import read_material
from tests.support.in_memory_tls import configured
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
MIDDLE = Authority("middle", above=CA)
HOSTS = ("db1.example.com", "10.0.0.1")
NODE = CA.issue("node", HOSTS)
OLD = now() - 3 * DAY


def problems(tls: TlsConfig, **more: Any) -> list[tuple[str, str]]:
    sides = {"listener": "SECURE", "hosts": HOSTS, "is_server": True, "is_peers": True, **more}
    return problems_of(tls, **sides)


def only(found: list[tuple[str, str]], key: str) -> str:
    [(named, text)] = found
    assert named == key
    return text


@pytest.mark.parametrize("issued", [NODE, MIDDLE.issue("node", HOSTS)], ids=["root", "between"])
def test_what_is_sound_has_no_problem(tmp_path: Path, issued: Issued) -> None:
    tls = configured(tmp_path, issued, CA)
    assert problems(tls) == []
    assert problems(tls, is_server=False) == []
    assert problems(tls, material=read_material(tls)) == []
    assert warnings_of(tls) == []


def test_a_client_needs_nothing_but_what_it_has() -> None:
    assert problems(TlsConfig(), is_server=False, is_peers=False) == []
    found = problems(TlsConfig(), is_server=True, is_peers=False)
    assert "is missing: SECURE needs a private key" in only(found, "ssl.keystore.location")


def test_a_listener_of_nodes_needs_all() -> None:
    found = problems(TlsConfig())
    assert [key for key, _ in found] == [
        "ssl.keystore.location",
        "ssl.client.auth",
        "ssl.truststore.location",
    ]
    assert found[1][1] == ("is none for SECURE, where nodes reach each other: set it to required")


def test_asking_for_certificates_needs_cas(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, ssl_client_auth=ClientAuth.REQUESTED)
    assert "is missing: SECURE asks" in only(
        problems(tls, is_peers=False), "ssl.truststore.location"
    )


def test_nodes_have_to_show_certificates_and_clients_may(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, CA, ssl_client_auth=ClientAuth.REQUESTED)
    assert problems(tls, is_peers=False) == []
    assert "is requested for SECURE, where nodes reach each other" in only(
        problems(tls), "ssl.client.auth"
    )


def test_several_at_once(tmp_path: Path) -> None:
    issued = CA.issue("node", ("x",), begin=OLD, end=now() - 2 * HOUR, purposes=[SERVER_AUTH])
    tls = configured(tmp_path, issued, Authority("another"))
    texts = [text for _, text in problems(tls)]
    path = f"{tls.ssl_keystore_location} (ssl.keystore.location)"
    assert len(texts) == 4
    assert texts[0] == (
        f"the certificate CN=node, issued by CN=quorumd test CA in {path} expired 2 h ago: "
        "have it issued anew"
    )
    assert "does not hold the CA of this node's certificate" in texts[1]
    assert texts[2].startswith(
        f"the certificate in {path} names x, not db1.example.com, 10.0.0.1, where others reach SECURE"
    )
    assert "is not made for clientAuth" in texts[3]


def test_unreadable_stores_are_told_with_their_keys(tmp_path: Path) -> None:
    tls = TlsConfig(ssl_keystore_location=tmp_path / "no", ssl_truststore_location=tmp_path / "nor")
    assert [key for key, _ in problems(tls)] == [
        "ssl.keystore.location",
        "ssl.truststore.location",
        "ssl.client.auth",
    ]


def test_not_yet_valid_and_a_ca_that_expired(tmp_path: Path) -> None:
    early = configured(tmp_path, CA.issue("node", HOSTS, begin=now() + 2 * DAY), CA)
    assert "is not valid yet" in only(problems(early), "ssl.keystore.location")
    ended = Authority("ended", times=(OLD, now() - DAY))
    text = only(warnings_of(configured(tmp_path, NODE, CA, ended)), "ssl.truststore.location")
    assert text.endswith(" holds CN=ended, issued by CN=ended, which expired 24 h ago: remove it")


def test_a_ca_that_is_not_valid_yet_stays_where_it_is(tmp_path: Path) -> None:
    """Mostly the clock of the host is behind, and then this is the CA of the whole quorum."""
    begin = now() + 3 * DAY
    early = Authority("early", times=(begin, begin + DAY))
    text = only(warnings_of(configured(tmp_path, NODE, CA, early)), "ssl.truststore.location")
    assert f"is not valid yet: its time begins in 2 days, on {begin:%Y-%m-%d %H:%M} UTC" in text
    assert text.endswith("UTC: set the clock of this host, or wait")


@pytest.mark.parametrize(
    ("name", "host", "fits"),
    [
        ("db1.example.com", "DB1.Example.com.", True),
        ("*.example.com", "db1.example.com", True),
        ("*.example.com", "a.db1.example.com", False),
        ("*.example.com", "example.com", False),
        # What OpenSSL does not take, and so no link.
        ("*.local", "db1.local", False),
        ("*.example.com", "db_1.example.com", False),
        ("db_1.example.com", "db_1.example.com", True),
        ("db*.example.com", "db1.example.com", False),
        ("db1", "a..b", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("db1", "10.0.0.1", False),
    ],
)
def test_a_name_of_a_certificate_stands_for_a_host(
    tmp_path: Path, name: str, host: str, fits: bool
) -> None:
    tls = configured(tmp_path, CA.issue("node", (name,)), CA)
    assert (problems(tls, hosts=[host]) == []) is fits
    # Whom this side dials is not in its own certificate.
    assert problems(tls, hosts=[host], is_server=False) == []


def test_an_address_as_a_dns_name_stands_for_no_address(tmp_path: Path) -> None:
    """A link would be refused, with the nonsense that it names 10.0.0.1 and not 10.0.0.1."""
    names = x509.SubjectAlternativeName([x509.DNSName("10.0.0.1"), x509.DNSName("*.local")])
    tls = configured(tmp_path, CA.issue("node", names=names), CA)
    text = only(problems(tls, hosts=["10.0.0.1"]), "ssl.keystore.location")
    assert (
        "names 10.0.0.1 as a DNS name instead of an IP address, *.local, not 10.0.0.1 (a wild"
        in text
    )


def test_only_nodes_need_both_purposes(tmp_path: Path) -> None:
    server = configured(tmp_path, CA.issue("node", HOSTS, purposes=[SERVER_AUTH]), CA)
    assert problems(server, is_peers=False) == []
    assert "not made for clientAuth" in only(problems(server), "ssl.keystore.location")
    client = configured(tmp_path, CA.issue("me", (), purposes=[CLIENT_AUTH]), CA)
    assert problems(client, is_server=False, is_peers=False) == []
    found = problems(client, is_peers=False, hosts=())
    assert "not made for serverAuth" in only(found, "ssl.keystore.location")
    # Without an extended key usage it is for all of them.
    assert problems(configured(tmp_path, CA.issue("node", HOSTS, purposes=None), CA)) == []
    usage = key_usage(key_cert_sign=True)
    odd = configured(tmp_path, CA.issue("node", HOSTS, usage=usage), CA)
    assert "not made for signatures" in only(problems(odd), "ssl.keystore.location")


def test_weak_keys(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    tls = configured(tmp_path, CA.issue("node", HOSTS, key=weak), CA)
    assert "too weak: take RSA of 2048" in only(problems(tls), "ssl.keystore.location")
    authority = Authority("weak", key=weak)
    tls = configured(tmp_path, authority.issue("node", HOSTS), authority)
    assert "too weak" in only(problems(tls), "ssl.keystore.location")


@pytest.mark.live
def test_a_key_for_rsa_pss_alone(tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    command = "openssl req -x509 -newkey rsa-pss -pkeyopt rsa_keygen_bits:2048 -nodes -subj /CN=me"
    pem = subprocess.run([*command.split(), "-keyout", "-"], check=True, capture_output=True).stdout
    store.write_bytes(pem)
    store.chmod(0o600)
    tls = TlsConfig(ssl_keystore_location=store, ssl_truststore_location=store)
    found = problems(tls, hosts=(), is_peers=False)
    assert "take one for RSA, ECDSA or Ed25519" in only(found, "ssl.keystore.location")


@pytest.mark.parametrize("curve", [ec.BrainpoolP256R1(), ec.SECP256K1()], ids=lambda it: it.name)
@pytest.mark.parametrize("is_peers", [False, True])
def test_a_curve_that_no_client_offers(
    tmp_path: Path, curve: ec.EllipticCurve, *, is_peers: bool
) -> None:
    key = ec.generate_private_key(curve)
    tls = configured(tmp_path, CA.issue("node", HOSTS, key=key), CA)
    text = only(problems(tls, is_peers=is_peers), "ssl.keystore.location")
    assert "no cipher suite, curve or signature algorithm in common" in text


def test_suites_for_another_kind_of_key(tmp_path: Path) -> None:
    tls = replace(
        configured(tmp_path, NODE, CA),
        ssl_enabled_protocols=("TLSv1.2",),
        ssl_cipher_suites=("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",),
    )
    for is_peers in (False, True):
        text = only(problems(tls, is_peers=is_peers), "ssl.keystore.location")
        assert "in common with this side (ssl.cipher.suites)" in text


def test_a_file_that_is_too_large_is_no_store(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, CA)
    assert tls.ssl_keystore_location is not None
    for more, is_sound in ((0, True), (1, False)):
        os.truncate(tls.ssl_keystore_location, STORE_BYTES_MAX + more)
        found = problems(tls)
        if is_sound:
            assert found == []
        else:
            text = only(found, "ssl.keystore.location")
            assert "cannot be read: it is larger than 67108864 bytes" in text


def test_a_certificate_may_be_trusted_itself_instead_of_its_ca(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, CA)
    assert tls.ssl_truststore_location is not None
    tls.ssl_truststore_location.write_bytes(NODE.pem)
    assert problems(tls) == []


def test_a_client_may_have_another_ca_than_the_listener(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, Authority("of clients"))
    assert problems(tls, is_peers=False) == []
    for found in (problems(tls), problems(tls, is_peers=False, has_node_stores=True)):
        assert "does not hold the CA" in only(found, "ssl.truststore.location")
    no_trust = configured(tmp_path, NODE, ssl_client_auth=ClientAuth.NONE)
    assert problems(no_trust, is_peers=False, has_node_stores=True) == []


DELTA = x509.DeltaCRLIndicator(1)
COMPROMISED = frozenset({x509.ReasonFlags.key_compromise})


def scope(**only: Any) -> x509.IssuingDistributionPoint:
    parts = {"only_contains_user_certs", "only_contains_ca_certs", "only_contains_attribute_certs"}
    parts |= {"indirect_crl"}
    values: dict[str, Any] = {**dict.fromkeys(parts, False), "only_some_reasons": None, **only}
    return x509.IssuingDistributionPoint(full_name=None, relative_name=None, **values)


def crl_at(folder: Path, *crls: bytes) -> Path:
    path = folder / "crl.pem"
    path.write_bytes(b"".join(crls))
    return path


def test_revocation_lists(tmp_path: Path) -> None:
    path = crl_at(tmp_path, CA.crl())
    tls = configured(tmp_path, NODE, CA, ssl_crl_location=path)
    assert problems(tls) == []
    crl_at(tmp_path, CA.crl(begin=OLD, end=now() - 2 * HOUR))
    assert "should have been replaced 2 h ago, so that nobody would be let in" in only(
        problems(tls), "ssl.crl.location"
    )
    crl_at(tmp_path, CA.crl(NODE))
    assert f"is revoked by {path}" in only(problems(tls), "ssl.keystore.location")
    crl_at(tmp_path, Authority().crl())
    assert "append one that it has signed" in only(problems(tls), "ssl.crl.location")
    crl_at(tmp_path, CA.crl())
    both = configured(tmp_path, NODE, CA, Authority("second"), ssl_crl_location=path)
    text = only(problems(both), "ssl.crl.location")
    assert f"{path} has no revocation list of CN=second" in text
    assert "append one, or remove that CA" in text


@pytest.mark.parametrize(
    ("is_peers", "lists", "said"),
    [
        (
            False,
            [CA.crl(begin=now() - 2 * HOUR), CA.crl(extension=DELTA)],
            "deltas are not applied",
        ),
        (True, [CA.crl(begin=now() - 2 * HOUR), CA.crl(extension=DELTA)], "deltas are not applied"),
        (False, [CA.crl(extension=scope(only_contains_ca_certs=True))], "of nodes and clients"),
        (False, [CA.crl(extension=scope(indirect_crl=True))], "of nodes and clients"),
        (False, [CA.crl(extension=scope(only_some_reasons=COMPROMISED))], "of nodes and clients"),
        (False, [CA.crl(extension=scope(only_contains_user_certs=True))], None),
    ],
)
def test_lists_that_openssl_does_not_look_into(
    tmp_path: Path, is_peers: bool, lists: list[bytes], said: str | None
) -> None:
    tls = configured(tmp_path, NODE, CA, ssl_crl_location=crl_at(tmp_path, *lists))
    found = problems(tls, is_peers=is_peers)
    if said is None:
        assert found == []
    else:
        assert said in only(found, "ssl.crl.location")


def test_two_cas_of_one_name_have_lists_that_say_whose_they_are(tmp_path: Path) -> None:
    """In the middle of an exchange of the CA: both are trusted, and mostly called the same."""
    other = Authority()
    marks = [
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
        for ca in (CA, other)
    ]
    path = crl_at(tmp_path, CA.crl(extension=marks[0]), other.crl(extension=marks[1]))
    tls = configured(tmp_path, NODE, CA, other, ssl_crl_location=path)
    assert problems(tls) == []
    crl_at(tmp_path, CA.crl(extension=marks[0]), other.crl())
    assert "say by authority key identifier" in only(problems(tls), "ssl.crl.location")
    crl_at(tmp_path, CA.crl(), other.crl(begin=now() - 2 * HOUR))
    assert "2 CAs that are all called CN=quorumd test CA" in only(problems(tls), "ssl.crl.location")
    # A revocation of either counts.
    crl_at(tmp_path, CA.crl(NODE, extension=marks[0]), other.crl(extension=marks[1]))
    assert "is revoked by" in only(problems(tls), "ssl.keystore.location")


def test_of_a_ca_above_another_the_list_is_about_cas(tmp_path: Path) -> None:
    of_cas = CA.crl(extension=scope(only_contains_ca_certs=True))
    path = crl_at(tmp_path, of_cas, MIDDLE.crl())
    issued = MIDDLE.issue("node", HOSTS)
    assert problems(configured(tmp_path, issued, CA, ssl_crl_location=path)) == []
    crl_at(tmp_path, CA.crl(extension=scope(only_contains_user_certs=True)), MIDDLE.crl())
    found = problems(configured(tmp_path, issued, CA, ssl_crl_location=path))
    assert "append one about the certificates of CAs" in only(found, "ssl.crl.location")


def test_a_ca_in_between_may_be_revoked_and_a_list_is_about_what_its_own_ca_has_issued(
    tmp_path: Path,
) -> None:
    issued, middle = MIDDLE.issue("node", HOSTS), Issued(MIDDLE.key, MIDDLE.certificate)
    path = crl_at(tmp_path, CA.crl(middle), MIDDLE.crl())
    text = only(
        problems(configured(tmp_path, issued, CA, ssl_crl_location=path)), "ssl.keystore.location"
    )
    assert "the certificate CN=middle, issued by CN=quorumd test CA" in text
    assert f"is revoked by {path}" in text
    # Another CA may have used the same serial numbers.
    crl_at(tmp_path, CA.crl(issued), MIDDLE.crl(middle))
    assert problems(configured(tmp_path, issued, CA, ssl_crl_location=path)) == []


def test_with_revocation_lists_the_whole_chain_has_to_be_trusted(tmp_path: Path) -> None:
    path = crl_at(tmp_path, CA.crl(), MIDDLE.crl())
    issued = MIDDLE.issue("node", HOSTS)
    assert problems(configured(tmp_path, issued, MIDDLE)) == []
    found = problems(configured(tmp_path, issued, MIDDLE, ssl_crl_location=path))
    assert "holds CN=middle, issued by CN=quorumd test CA, which is no root" in only(
        found, "ssl.truststore.location"
    )
    assert problems(configured(tmp_path, issued, MIDDLE, CA, ssl_crl_location=path)) == []


def test_a_key_that_others_may_read_is_a_warning(tmp_path: Path) -> None:
    tls = configured(tmp_path, NODE, CA)
    path = tls.ssl_keystore_location
    assert path is not None
    path.chmod(0o640)
    assert warnings_of(tls) == []
    path.chmod(0o644)
    assert warnings_of(tls) == [
        (
            "ssl.keystore.location",
            f"everybody on this host may read the private key in {path}: chmod 600 {path}",
        )
    ]
    assert problems(tls) == []


def test_suites_are_checked_as_well(tmp_path: Path) -> None:
    suite = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)
    tls = configured(
        tmp_path, NODE, CA, ssl_cipher_suites=suite, ssl_enabled_protocols=("TLSv1.3",)
    )
    assert "none of them is of a version" in only(problems(tls), "ssl.cipher.suites")
    # Those of RSA are of no use to a key of ECDSA.
    tls = configured(
        tmp_path, NODE, CA, ssl_cipher_suites=suite, ssl_enabled_protocols=("TLSv1.2",)
    )
    assert "no cipher suite" in only(problems(tls), "ssl.keystore.location")
