"""PKCS12 -> keys and certificates, as openssl and Java's keytool write it."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12KeyAndCertificates,
    load_pkcs12,
)

from quorumd.config.secrets import Secret
from quorumd.security.pem_store import JKS_MAGIC, BadStore, jks_text, whole


def keystore(
    data: bytes, path: Path, password: Secret | None
) -> tuple[PrivateKeyTypes, list[x509.Certificate]]:
    """The private key, and all certificates. Raises BadStore."""
    store = _opened(data, path, "keystore", password)
    found = _certificates(store, path, "keystore")
    if store.key is None:
        raise BadStore(
            "ssl.keystore.location",
            f"{path} holds no private key: it is a truststore, or was exported without the key",
        )
    return store.key, found


def truststore(data: bytes, path: Path, password: Secret | None) -> list[x509.Certificate]:
    """The certificates that are trusted: all but that of a private key. Raises BadStore."""
    store = _opened(data, path, "truststore", password)
    own = None if store.cert is None or store.key is None else store.cert.certificate
    found = [each for each in _certificates(store, path, "truststore") if each != own]
    if not found:
        raise BadStore("ssl.truststore.location", f"{path} holds no certificate of a CA")
    return found


def _opened(
    data: bytes, path: Path, kind: str, password: Secret | None
) -> PKCS12KeyAndCertificates:
    key = f"ssl.{kind}.location"
    if b"-----BEGIN " in data:
        raise BadStore(key, f"{path} is PEM: set ssl.{kind}.type to PEM")
    if data.startswith(JKS_MAGIC):
        raise BadStore(key, jks_text(str(path)))
    try:
        return load_pkcs12(data, None if password is None else password.reveal().encode())
    except UnsupportedAlgorithm:
        raise BadStore(
            key, f"{path} is encrypted by a method that OpenSSL has given up: export it once more"
        ) from None
    except (TypeError, ValueError):
        # The library's error is the same for both.
        if password is None:
            remedy = f"set ssl.{kind}.password"
        else:
            remedy = f"ssl.{kind}.password is not its password"
        raise BadStore(key, f"{path} cannot be opened: {remedy}, or it is no PKCS12") from None


def _certificates(store: PKCS12KeyAndCertificates, path: Path, kind: str) -> list[x509.Certificate]:
    held = [each.certificate for each in (store.cert, *store.additional_certs) if each is not None]
    try:
        return [whole(each) for each in held]
    except Exception as error:  # of more kinds than the library says
        raise BadStore(
            f"ssl.{kind}.location",
            f"a certificate of {path} is damaged, or of a kind that is not known: {error}",
        ) from None
