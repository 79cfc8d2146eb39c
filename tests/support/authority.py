"""A CA for tests of nodes: certificates whose subject is one common name, and PEM stores with them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.canary import remember_key

HOSTS = ("127.0.0.1", "localhost")
A_DAY = datetime.timedelta(days=1)
SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""From Python 3.13 on a client's default context (X509_STRICT) refuses a CA that does not say so."""


class Authority:
    """One CA, and a folder for what it issues."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), now - A_DAY, now + 400 * A_DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.trust = folder / f"{name}.pem"
        """The file that holds the CA's own certificate."""
        self.trust.write_bytes(certificate.public_bytes(Encoding.PEM))

    def store(
        self,
        common_name: str,
        hosts: Sequence[str] = HOSTS,
        *,
        ends_in: datetime.timedelta = 100 * A_DAY,
        file: str = "",
    ) -> Path:
        """A file with a new key and its certificate for these hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.datetime.now(datetime.UTC) + ends_in
        begins = min(until, datetime.datetime.now(datetime.UTC)) - A_DAY
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(_name(common_name), self._name, key.public_key(), begins, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_alternative(at) for at in hosts]), False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        path = self._folder / f"{file or common_name}.pem"
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(remember_key(pem) + certificate.public_bytes(Encoding.PEM))
        path.chmod(0o600)
        return path

    def revoking(self, *stores: Path) -> bytes:
        """A revocation list (PEM) with the certificates in these files."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - A_DAY)
            .next_update(now + A_DAY)
        )
        for store in stores:
            certificate = x509.load_pem_x509_certificate(store.read_bytes())
            entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - A_DAY).build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
