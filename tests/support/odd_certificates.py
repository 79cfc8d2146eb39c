"""Certificates as no sound CA would make them, and sound ones of which the test decides all parts."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.canary import remember_key

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
HOUR = datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)
SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def name_of(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def key_pem(
    key: Key, form: PrivateFormat = PrivateFormat.PKCS8, password: str | None = None
) -> bytes:
    encryption: KeySerializationEncryption = NoEncryption()
    if password is not None:
        encryption = BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, form, encryption)


@dataclass
class Issued:
    """A certificate, its key, and its issuers below the root."""

    key: Key
    certificate: x509.Certificate
    issuers: list[x509.Certificate] = field(default_factory=list)

    @property
    def chain_pem(self) -> bytes:
        chain = (self.certificate, *self.issuers)
        return b"".join(each.public_bytes(Encoding.PEM) for each in chain)

    @property
    def key_pem(self) -> bytes:
        return remember_key(key_pem(self.key))

    @property
    def pem(self) -> bytes:
        """Key and chain, as in one file."""
        return self.key_pem + self.chain_pem

    def write(self, path: Path) -> Path:
        """Key and chain in one file."""
        path.write_bytes(self.pem)
        path.chmod(0o600)
        return path


def general_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


class Authority:
    """A CA: a root, or one below another."""

    def __init__(
        self,
        name: str = "quorumd test CA",
        *,
        above: Authority | None = None,
        key: Key | None = None,
        is_ca: bool = True,
        times: tuple[datetime.datetime, datetime.datetime] | None = None,
    ) -> None:
        self.above = above
        self.key = key or ec_key()
        self.name = name_of(name)
        signer = above or self
        begin, end = times or (now() - DAY, now() + 300 * DAY)
        self.certificate = (
            _builder(self.name, signer, self.key, begin, end)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(_usage(is_ca=True), critical=True)
            .sign(signer.key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def chain(self) -> list[x509.Certificate]:
        """From this one up to the one below the root."""
        return [] if self.above is None else [self.certificate, *self.above.chain]

    def issue(
        self,
        name: str | x509.Name = "node",
        hosts: Sequence[str] = ("localhost",),
        *,
        key: Key | None = None,
        purposes: Sequence[x509.ObjectIdentifier] | None = (SERVER_AUTH, CLIENT_AUTH),
        begin: datetime.datetime | None = None,
        end: datetime.datetime | None = None,
        usage: x509.KeyUsage | None = None,
        names: x509.SubjectAlternativeName | None = None,
    ) -> Issued:
        """For `hosts`, or these `names`; `purposes` of None leaves the extended key usage out."""
        key = key or ec_key()
        subject = name_of(name) if isinstance(name, str) else name
        begin, end = begin or now() - DAY, end or now() + 30 * DAY
        builder = _builder(subject, self, key, begin, end)
        if names is None and hosts:
            names = x509.SubjectAlternativeName(general_names(hosts))
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        if purposes is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        if usage is not None:
            builder = builder.add_extension(usage, critical=True)
        certificate = builder.sign(self.key, hashes.SHA256())
        return Issued(key, certificate, self.chain)

    def crl(
        self,
        *revoked: Issued,
        begin: datetime.datetime | None = None,
        end: datetime.datetime | None = None,
        number: int = 1,
        extension: x509.ExtensionType | None = None,
    ) -> bytes:
        """A revocation list (PEM); `extension` is a critical one."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(begin or now() - HOUR)
            .next_update(end or now() + DAY)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        if extension is not None:
            builder = builder.add_extension(extension, critical=True)
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now() - HOUR).build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _builder(
    subject: x509.Name,
    issuer: Authority,
    key: Key,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    """With the key identifiers that Python's default contexts ask for from 3.13 on."""
    of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    of_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(of_issuer, critical=False)
        .add_extension(of_key, critical=False)
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return key_usage(digital_signature=True, key_cert_sign=is_ca, crl_sign=is_ca)


def key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    """What a key may be used for, and nothing else."""
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
