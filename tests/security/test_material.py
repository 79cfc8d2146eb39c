"""Stores in all the ways in which people write them, and what is said of those that cannot be used."""

from __future__ import annotations

import ssl
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from quorumd.config.secrets import Secret
from quorumd.config.tls import StoreType, TlsConfig
from quorumd.security.errors import UnusableMaterial
from quorumd.security.material import Material, as_file, has_signed, read_material
from tests.support.odd_certificates import HOUR, Authority, Issued, key_pem, now

CA = Authority()
MIDDLE = Authority("middle", above=CA)
LOWER = Authority("lower", above=MIDDLE)
NODE = CA.issue()
DEEP = LOWER.issue()
PASSWORD = "of this key"
LEAF = NODE.certificate.public_bytes(Encoding.PEM)


def read(tmp_path: Path, data: bytes, **more: object) -> Material:
    path = tmp_path / "node.pem"
    path.write_bytes(data)
    return read_material(TlsConfig(ssl_keystore_location=path, **more))  # type: ignore[arg-type]  # the keys differ in type


def refused(tls: TlsConfig) -> list[tuple[str, str]]:
    with pytest.raises(UnusableMaterial) as caught:
        read_material(tls)
    return caught.value.problems


@pytest.mark.parametrize(
    "data",
    [
        NODE.key_pem + LEAF,
        LEAF + NODE.key_pem,
        (NODE.key_pem + LEAF).replace(b"\n", b"\r\n"),
        b"subject=CN = node\n\n" + LEAF + b"Bag Attributes: <none>\n" + NODE.key_pem + b"\nend\n",
        key_pem(NODE.key, PrivateFormat.TraditionalOpenSSL) + LEAF,
        (NODE.key_pem + LEAF).replace(b"-----\n", b"----- \n"),
        b"\xef\xbb\xbf" + NODE.key_pem + LEAF,
    ],
    ids=[
        "key first",
        "key last",
        "CRLF",
        "text between",
        "EC PRIVATE KEY",
        "blanks",
        "byte order mark",
    ],
)
def test_key_and_certificate_of_one_file(tmp_path: Path, data: bytes) -> None:
    found = read(tmp_path, data)
    assert found.chain == (NODE.certificate,)
    assert found.key is not None
    assert "PrivateKey" not in repr(found)


def test_an_rsa_key_in_the_form_of_old(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    node = CA.issue(key=key)
    pem = key_pem(key, PrivateFormat.TraditionalOpenSSL)
    assert pem.startswith(b"-----BEGIN RSA PRIVATE KEY")
    assert read(tmp_path, pem + node.chain_pem).chain == (node.certificate,)
    old = key_pem(key, PrivateFormat.TraditionalOpenSSL, PASSWORD)
    assert b"DEK-Info" in old
    assert read(tmp_path, old + node.chain_pem, ssl_key_password=Secret(PASSWORD)).key is not None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_chain_is_put_in_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    chain = [DEEP.certificate, LOWER.certificate, MIDDLE.certificate]
    data = b"".join(chain[each].public_bytes(Encoding.PEM) for each in order)
    assert read(tmp_path, data + DEEP.key_pem).chain == tuple(chain)


def test_what_does_not_belong_to_the_chain_is_left_out(tmp_path: Path) -> None:
    data = Authority("other").pem + DEEP.chain_pem + DEEP.key_pem
    assert read(tmp_path, data).chain[0] == DEEP.certificate
    assert len(read(tmp_path, data).chain) == 3


def test_a_certificate_that_has_signed_itself_is_a_chain_of_one(tmp_path: Path) -> None:
    pem = key_pem(CA.key)
    assert read(tmp_path, pem + CA.pem).chain == (CA.certificate,)


def test_an_encrypted_key(tmp_path: Path) -> None:
    data = key_pem(NODE.key, password=PASSWORD) + LEAF
    assert read(tmp_path, data, ssl_key_password=Secret(PASSWORD)).key is not None
    path = tmp_path / "node.pem"
    [(key, text)] = refused(TlsConfig(ssl_keystore_location=path))
    assert key == "ssl.keystore.location"
    assert text == f"the private key of {path} is encrypted: set ssl.key.password"
    [(key, text)] = refused(
        TlsConfig(ssl_keystore_location=path, ssl_key_password=Secret("another"))
    )
    assert (key, text) == (
        "ssl.key.password",
        f"is not the password of the private key of {path}",
    )
    # One that is not needed does no harm, as in Kafka.
    assert read(tmp_path, NODE.key_pem + LEAF, ssl_key_password=Secret(PASSWORD)).key is not None


def test_an_encryption_that_is_not_known_is_no_wrong_password(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    leaf = CA.issue(key=key).chain_pem
    old = key_pem(key, PrivateFormat.TraditionalOpenSSL, PASSWORD)
    assert b"DEK-Info: AES-256-CBC," in old
    begin, *lines, end = key_pem(key, password=PASSWORD).splitlines()
    # 2.16.840.1.101.3.4.1.42 is AES-256-CBC, and 43 is OFB.
    cbc = bytes.fromhex("60864801650304012a")
    body = b64decode(b"".join(lines))
    assert cbc in body
    ofb = b64encode(body.replace(cbc, cbc[:-1] + b"\x2b"))
    new = b"%b\n%b\n%b\n" % (begin, ofb, end)
    for data in (old.replace(b"AES-256-CBC", b"ARIA-256-CBC"), new):
        path = tmp_path / "node.pem"
        path.write_bytes(data + leaf)
        [(of, text)] = refused(
            TlsConfig(ssl_keystore_location=path, ssl_key_password=Secret(PASSWORD))
        )
        assert of == "ssl.keystore.location"
        assert text.startswith(
            f"the private key of {path} is encrypted in a way that is not read here"
        )


@pytest.mark.parametrize("between", ["\n", " ", "\\n", "\r\n"])
def test_pem_in_the_configuration_itself(between: str) -> None:
    chain = DEEP.chain_pem.decode().replace("\n", between)
    key = key_pem(DEEP.key, password=PASSWORD).decode().replace("\n", between)
    trusted = (CA.pem + Authority("second").pem).decode().replace("\n", between)
    tls = TlsConfig(
        ssl_keystore_certificate_chain=chain,
        ssl_keystore_key=Secret(key),
        ssl_key_password=Secret(PASSWORD),
        ssl_truststore_certificates=trusted,
    )
    found = read_material(tls)
    assert len(found.chain) == 3
    assert found.roots[0] == CA.certificate
    assert len(found.roots) == 2


def test_a_key_in_the_configuration_that_belongs_to_no_certificate_is_the_one_to_look_at() -> None:
    tls = TlsConfig(
        ssl_keystore_certificate_chain=DEEP.chain_pem.decode(),
        ssl_keystore_key=Secret(NODE.key_pem.decode()),
    )
    [(key, text)] = refused(tls)
    assert key == "ssl.keystore.key"
    assert text.startswith(
        "ssl.keystore.key belongs to none of the certificates of ssl.keystore.certificate.chain (CN="
    )


def pkcs12_of(node: Issued, password: str | None) -> bytes:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return pkcs12.serialize_key_and_certificates(
        b"node", node.key, node.certificate, node.issuers[::-1], encryption
    )


def test_pkcs12(tmp_path: Path) -> None:
    store = tmp_path / "node.p12"
    store.write_bytes(pkcs12_of(DEEP, PASSWORD))
    tls = TlsConfig(
        ssl_keystore_type=StoreType.PKCS12,
        ssl_keystore_location=store,
        ssl_keystore_password=Secret(PASSWORD),
    )
    assert read_material(tls).chain == (DEEP.certificate, *DEEP.issuers)
    without = TlsConfig(ssl_keystore_type=StoreType.PKCS12, ssl_keystore_location=store)
    assert refused(without) == [
        (
            "ssl.keystore.location",
            f"{store} cannot be opened: set ssl.keystore.password, or it is no PKCS12",
        )
    ]
    [(_key, text)] = refused(TlsConfig(ssl_keystore_location=store))
    assert "set the store's type to PKCS12" in text
    store.write_bytes(NODE.key_pem + LEAF)
    assert refused(tls) == [
        ("ssl.keystore.location", f"{store} is PEM: set ssl.keystore.type to PEM")
    ]
    store.write_bytes(b"\xfe\xed\xfe\xed")
    assert "-deststoretype PKCS12" in refused(tls)[0][1]
    store.write_bytes(pkcs12_of(NODE, None))
    assert read_material(without).chain == (NODE.certificate,)


@pytest.mark.java
def test_stores_that_keytool_has_made(tmp_path: Path) -> None:
    trust, store, pem = tmp_path / "trust.p12", tmp_path / "node.p12", tmp_path / "ca.pem"
    options = ["-storetype", "PKCS12", "-storepass", PASSWORD, "-noprompt"]
    for number, ca in enumerate((CA, MIDDLE)):
        pem.write_bytes(ca.pem)
        names = ["-alias", f"ca{number}", "-file", str(pem), "-keystore", str(trust)]
        _keytool("-importcert", *names, *options)
    _keytool(
        "-genkeypair",
        "-alias",
        "x",
        "-keyalg",
        "EC",
        "-dname",
        "CN=x",
        "-keystore",
        str(store),
        *options,
    )
    found = read_material(
        TlsConfig(
            ssl_keystore_type=StoreType.PKCS12,
            ssl_keystore_location=store,
            ssl_keystore_password=Secret(PASSWORD),
            ssl_truststore_type=StoreType.PKCS12,
            ssl_truststore_location=trust,
            ssl_truststore_password=Secret(PASSWORD),
        )
    )
    assert found.chain[0].subject.rfc4514_string() == "CN=x"
    assert set(found.roots) == {CA.certificate, MIDDLE.certificate}
    swapped = TlsConfig(
        ssl_keystore_type=StoreType.PKCS12,
        ssl_keystore_location=trust,
        ssl_keystore_password=Secret(PASSWORD),
        ssl_truststore_type=StoreType.PKCS12,
        ssl_truststore_location=store,
        ssl_truststore_password=Secret(PASSWORD),
    )
    assert [text.split(" holds ")[1] for _, text in refused(swapped)] == [
        "no private key: it is a truststore, or was exported without the key",
        "no certificate of a CA",
    ]


def _keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *arguments], check=True, capture_output=True, timeout=60)


def test_a_root_counts_once_and_the_order_stays(tmp_path: Path) -> None:
    trust = tmp_path / "ca.pem"
    trust.write_bytes(MIDDLE.pem + CA.pem + MIDDLE.pem + NODE.key_pem)
    found = read_material(TlsConfig(ssl_truststore_location=trust))
    assert found.roots == (MIDDLE.certificate, CA.certificate)


def test_of_several_revocation_lists_of_a_ca_the_newest_counts(tmp_path: Path) -> None:
    path = tmp_path / "crl.pem"
    old = CA.crl(begin=now() - 2 * HOUR, number=1)
    new = CA.crl(NODE, begin=now() - HOUR, number=2)
    numbered = CA.crl(begin=now() - 3 * HOUR, number=3)
    path.write_bytes(old + new + MIDDLE.crl() + numbered + old)
    found = read_material(TlsConfig(ssl_crl_location=path)).crls
    assert [len(list(each)) for each in found] == [1, 0]
    assert [each.issuer for each in found] == [CA.name, MIDDLE.name]


def test_a_list_is_of_the_ca_whose_name_it_has_and_not_of_another_with_its_key() -> None:
    renamed = Authority("renamed", key=CA.key)
    crl = x509.load_pem_x509_crl(renamed.crl())
    assert has_signed(renamed.certificate, crl)
    assert not has_signed(CA.certificate, crl)


WRONG = {
    "empty": (b"  \n", "is empty"),
    "cut": (NODE.key_pem + LEAF[:300], "has no end: it was cut off, or is being written"),
    "no key": (LEAF, "holds no private key, but CERTIFICATE"),
    "no certificate": (NODE.key_pem, "holds no certificate, but PRIVATE KEY"),
    "two keys": (NODE.key_pem + DEEP.key_pem + LEAF, "holds 2 private keys: leave the one"),
    "of another": (DEEP.key_pem + LEAF, "belongs to none of its certificates (CN=node)"),
    "no base64": (NODE.key_pem + LEAF.replace(b"MII", b"M*I", 1), "its text is no base64"),
    "no certificate inside": (
        NODE.key_pem + LEAF.replace(b"MII", b"AII", 1),
        "certificate 1 of",
    ),
    "damaged key": (NODE.key_pem.replace(b"MIG", b"AIG", 1) + LEAF, "is damaged, or of a kind"),
    "text": (b"hello", "holds no private key, but no PEM at all"),
    "JKS": (b"\xfe\xed\xfe\xed\0\0", "-deststoretype PKCS12"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_said_with_its_file(tmp_path: Path, name: str) -> None:
    data, expected = WRONG[name]
    path = tmp_path / "node.pem"
    path.write_bytes(data)
    [(key, text)] = refused(TlsConfig(ssl_keystore_location=path))
    assert key == "ssl.keystore.location"
    assert expected in text
    assert str(path) in text
    for line in NODE.key_pem.splitlines()[1:-1]:
        assert line.decode() not in text


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    trust, crl = tmp_path / "ca.pem", tmp_path / "crl.pem"
    trust.write_bytes(b"")
    crl.write_bytes(CA.pem)
    tls = TlsConfig(
        ssl_keystore_location=tmp_path / "none.pem",
        ssl_truststore_location=trust,
        ssl_crl_location=crl,
    )
    assert refused(tls) == [
        (
            "ssl.keystore.location",
            f"{tmp_path / 'none.pem'} cannot be read: No such file or directory",
        ),
        ("ssl.truststore.location", f"{trust} is empty"),
        ("ssl.crl.location", f"{crl} holds no revocation list, but CERTIFICATE"),
    ]


def test_a_store_is_a_file_or_a_text_and_not_both(tmp_path: Path) -> None:
    path = tmp_path / "node.pem"
    path.write_bytes(NODE.key_pem + LEAF)
    both = TlsConfig(
        ssl_keystore_location=path,
        ssl_keystore_key=Secret(NODE.key_pem.decode()),
        ssl_truststore_location=path,
        ssl_truststore_certificates=CA.pem.decode(),
    )
    assert refused(both) == [
        (
            "ssl.keystore.certificate.chain",
            "is set beside ssl.keystore.location: remove one of them",
        ),
        (
            "ssl.truststore.certificates",
            "is set beside ssl.truststore.location: remove one of them",
        ),
    ]
    half = TlsConfig(ssl_keystore_key=Secret(NODE.key_pem.decode()))
    assert refused(half) == [
        ("ssl.keystore.key", "is set without ssl.keystore.certificate.chain: set both")
    ]


def test_a_certificate_of_a_version_that_no_library_knows_is_told_with_its_key(
    tmp_path: Path,
) -> None:
    """The library raises what is no ValueError."""
    der = CA.certificate.public_bytes(Encoding.DER)
    odd = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", 1)
    assert odd != der
    path = tmp_path / "odd.pem"
    path.write_bytes(CA.pem + ssl.DER_cert_to_PEM_cert(odd).encode())
    ((key, text),) = refused(TlsConfig(ssl_truststore_location=path))
    assert key == "ssl.truststore.location"
    assert "is damaged, or of a kind that is not known" in text


def test_a_file_in_memory_is_gone_when_it_has_been_read() -> None:
    with as_file(b"a key") as path:
        assert Path(path).read_bytes() == b"a key"
    assert not Path(path).exists()
    with pytest.raises(ssl.SSLError), as_file(b"no certificate") as path:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    assert not Path(path).exists(), "of what is no certificate, too"
