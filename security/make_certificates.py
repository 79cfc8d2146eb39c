"""A CA and its certificates, for tests and small sites: ECDSA P-256, key and chain in one PEM file each.

Files below one directory: `ca.pem` is what all trust, `ca.key` is the CA's alone, `quorumd-<id>.pem`
a node's and `<name>.pem` a client's private key and certificate, `<name>.properties` what a client reads.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quorumd.config import java_properties
from quorumd.security.errors import CertificateProblem

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca.key"
NODE_NAME: Final = "quorumd-{id}"
NODE_PRINCIPALS: Final = f"User:CN={NODE_NAME}"
"""Value of `quorum.node.principals` for the nodes that have these certificates."""
CLOCKS_DIFFER: Final = timedelta(hours=1)

_CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_OF_NODE: Final = re.compile(r"quorumd-[0-9]+|ca", re.IGNORECASE)
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(\*\.{_LABEL}\.)?{_LABEL}(\.{_LABEL})*")
"""OpenSSL takes no wildcard with one label alone behind it."""


def make_ca(directory: Path, days: int, *, force: bool = False) -> list[Path]:
    """A new CA. Returns the files made. Raises CertificateProblem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("quorumd CA")
    certificate = (
        _builder(name, name, key.public_key(), datetime.now(UTC) + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = {CA_KEY_FILE: (_key_pem(key), 0o600), CA_FILE: (_pem(certificate), 0o644)}
    return _write(directory, files, force=force)


def make_node(
    directory: Path, node_id: int, hosts: Sequence[str], days: int, *, force: bool = False
) -> list[Path]:
    """The certificate of a node that others reach under these host names and IP addresses.

    It serves for both sides: nodes connect to each other. Raises CertificateProblem.
    """
    name = NODE_NAME.format(id=node_id)
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    store = _issue(directory, name, usage, [_general_name(host) for host in hosts], days)
    return _write(directory, {f"{name}.pem": (store, 0o600)}, force=force)


def node_settings(store: Path, directory: Path) -> list[str]:
    """The lines of its configuration for a node that has this store, and whose CA is in `directory`."""
    return [
        "listener.security.protocol.map: CONTROLLER:SSL",
        _yaml_line("ssl.keystore.location", store),
        _yaml_line("ssl.truststore.location", directory / CA_FILE),
        "ssl.client.auth: required",
        f"quorum.node.principals: {NODE_PRINCIPALS}",
    ]


def _yaml_line(key: str, path: Path) -> str:
    line: str = yaml.safe_dump({key: str(path)}, width=2**31, allow_unicode=True)
    return line.rstrip("\n")


def make_client(directory: Path, name: str, days: int, *, force: bool = False) -> list[Path]:
    """The certificate of a client, and its properties file. Raises CertificateProblem."""
    if not _CLIENT_NAME.fullmatch(name) or _OF_NODE.fullmatch(name):
        raise CertificateProblem(
            f"{name!r} is no name for a client: 1 to 64 letters, digits and . _ @ - are permitted, "
            "and names of nodes (quorumd-1) and 'ca' are not"
        )
    store = _issue(directory, name, [ExtendedKeyUsageOID.CLIENT_AUTH], [], days)
    folder = directory.absolute()
    properties = java_properties.render(
        {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{folder / name}.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / CA_FILE),
        }
    )
    files = {f"{name}.pem": (store, 0o600), f"{name}.properties": (properties.encode(), 0o644)}
    return _write(directory, files, force=force)


def _issue(
    directory: Path,
    name: str,
    usage: Sequence[x509.ObjectIdentifier],
    names: Sequence[x509.GeneralName],
    days: int,
) -> bytes:
    """Private key and certificate, signed by the CA of this directory."""
    ca, ca_key = _read_ca(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(datetime.now(UTC) + timedelta(days=days), ca.not_valid_after_utc)
    builder = (
        _builder(_name(name), ca.subject, key.public_key(), end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _key_pem(key) + _pem(builder.sign(ca_key, hashes.SHA256()))


def _read_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path = directory / CA_KEY_FILE
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        ca = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
    except FileNotFoundError as error:
        raise CertificateProblem(
            f"{error.filename} is missing: `quorumd certs ca --dir {directory}` makes a CA"
        ) from None
    except OSError as error:
        raise CertificateProblem(f"{error.filename} cannot be read: {error.strerror}") from None
    except (TypeError, ValueError) as error:
        raise CertificateProblem(f"{directory} holds no CA that can be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
        raise CertificateProblem(f"{path} is not the key of {directory / CA_FILE}")
    if ca.not_valid_after_utc <= datetime.now(UTC):
        raise CertificateProblem(
            f"the CA in {directory} has expired: make another one in a new directory"
        )
    return ca, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCKS_DIFFER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise CertificateProblem(
            f"{host!r} is neither a host name nor an IP address: write it as others dial it, "
            "without port; a wildcard needs two labels or more behind it"
        )
    return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(directory: Path, files: dict[str, tuple[bytes, int]], *, force: bool) -> list[Path]:
    """All of them or, where one is there already or the disk is full, none. A reader sees whole files."""
    paths = [directory / name for name in files]
    there = [str(path) for path in paths if os.path.lexists(path)]
    if there and not force:
        raise CertificateProblem(
            f"{', '.join(there)}: there already; --force replaces what is there"
        )
    parts = [path.with_name(path.name + ".part") for path in paths]
    at = directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for at, (data, mode) in zip(parts, files.values(), strict=True):
            at.unlink(missing_ok=True)
            handle = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for part, at in zip(parts, paths, strict=True):
            part.rename(at)
    except OSError as error:
        for part in parts:
            with suppress(OSError):
                part.unlink()
        # The error of a full disk names no file.
        raise CertificateProblem(f"cannot write {error.filename or at}: {error.strerror}") from None
    return paths
