"""For which hosts a certificate stands, as OpenSSL judges it when one of them is dialled."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from quorumd.security.material import as_file

_WILDCARD_RULE: Final = (
    "a wildcard stands for one label of letters, digits and '-', before two or more"
)


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The host names and IP addresses that a certificate names, for a text."""
    names = _alternatives(certificate)
    if names is None:
        return []
    found = [_marked(name) for name in names.get_values_for_type(x509.DNSName)]
    return found + [str(each) for each in names.get_values_for_type(x509.IPAddress)]


def names_and_not(certificate: x509.Certificate, missing: Sequence[str]) -> str:
    """In words: what it names, and that these hosts are not among it."""
    names = hosts_of(certificate)
    text = f"names {', '.join(names) or 'no host'}, not {', '.join(missing)}"
    is_wild = any(name.startswith("*.") for name in names)
    return f"{text} ({_WILDCARD_RULE})" if is_wild else text


def unnamed_hosts(certificate: x509.Certificate, hosts: Sequence[str]) -> list[str]:
    """The hosts for which it does not stand.

    OpenSSL itself is asked, by a handshake with a certificate that has the same names and nothing else that
    could be refused.
    """
    names = _alternatives(certificate)
    if names is None:
        return list(hosts)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([])
    now = datetime.now(UTC)
    stand_in = (
        x509.CertificateBuilder()
        .subject_name(issuer)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    client.hostname_checks_common_name = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=stand_in.decode())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with as_file(pem + stand_in) as path:
        server.load_cert_chain(path)
    return [host for host in hosts if not _stands_for(server, client, dialled_name(host))]


def dialled_name(host: str) -> str:
    """Name that TLS asks for where `host` is dialled: without the dot that ends a complete name."""
    return host.rstrip(".")


def _alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # what a stranger shows may be anything, and raises more than ValueError
        return None


def _marked(name: str) -> str:
    """A DNS name, which stands for no IP address though it may look like one."""
    with suppress(ValueError):
        return f"{ipaddress.ip_address(name)} as a DNS name instead of an IP address"
    return name


def _stands_for(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        dialling = client.wrap_bio(to_client, to_server, server_hostname=host)
    except ValueError:
        return False
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (dialling, answering, dialling):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True
