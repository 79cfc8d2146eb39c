"""Keys and certificates as they are in files: read, and whole, before anything is made of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from quorumd.config.regular_file import read_regular_file
from quorumd.config.secrets import Secret
from quorumd.config.tls import StoreType, TlsConfig
from quorumd.security import pem_store, pkcs12_store
from quorumd.security.errors import UnusableMaterial
from quorumd.security.pem_store import BadStore, NeedsPassword

KEYSTORE = "ssl.keystore.location"
TRUSTSTORE = "ssl.truststore.location"
CRL = "ssl.crl.location"
_KEY_PASSWORD = "ssl.key.password"
_INLINE_CHAIN = "ssl.keystore.certificate.chain"
_INLINE_KEY = "ssl.keystore.key"
_INLINE_TRUST = "ssl.truststore.certificates"


@dataclass(frozen=True, slots=True)
class Material:
    """One side's keys and certificates. Two are equal if they hold the same certificates and lists."""

    key: PrivateKeyTypes | None = field(repr=False, compare=False)
    """Its certificate says which one it is."""
    chain: tuple[x509.Certificate, ...]
    """This side's own certificate first, then each one's issuer; empty if it has none."""
    roots: tuple[x509.Certificate, ...]
    """The CAs that are trusted; empty for those of the system."""
    crls: tuple[x509.CertificateRevocationList, ...] = ()
    """Revocation lists of these CAs, the newest of each; empty if none are asked for."""

    def chain_pem(self) -> bytes:
        """Private key and chain, the key without password."""
        assert self.key is not None
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + b"".join(each.public_bytes(Encoding.PEM) for each in self.chain)

    def trusted_pem(self) -> bytes:
        """All that is trusted, and the revocation lists."""
        roots = b"".join(each.public_bytes(Encoding.PEM) for each in self.roots)
        return roots + b"".join(each.public_bytes(Encoding.PEM) for each in self.crls)


class Readable(NamedTuple):
    """The contents of stores, of which some may be damaged, as far as they can be read."""

    material: Material
    """Without a private key and a chain, or without roots, where they are `unknown`."""
    problems: Sequence[tuple[str, str]] = ()
    """Key of the configuration, and what is wrong."""
    unknown: Set[str] = frozenset()
    """KEYSTORE, TRUSTSTORE and CRL, if they could not be read whole."""


def read_material(tls: TlsConfig) -> Material:
    """Contents of the stores of this configuration. Raises UnusableMaterial with all that is wrong."""
    found = readable_material(tls)
    if found.problems:
        raise UnusableMaterial(list(found.problems))
    return found.material


def readable_material(tls: TlsConfig, unread: Set[str] = frozenset()) -> Readable:
    """The part of the stores that can be read. Stores that depend on keys in `unread` are no problem."""
    reader = _Reader(tls, unread)
    key, chain = reader.keystore()
    roots, crls = reader.truststore(), reader.revocation_lists()
    material = Material(key, chain, roots, _newest(crls, (*chain[1:], *roots)))
    return Readable(material, reader.problems, reader.unknown)


class _Reader:
    """Reads store after store, and keeps what is wrong with any."""

    def __init__(self, tls: TlsConfig, unread: Set[str]) -> None:
        self._tls = tls
        self._unread = unread
        self.problems: list[tuple[str, str]] = []
        self.unknown: set[str] = set()

    def _report(self, store: str, key: str, text: str) -> None:
        self.unknown.add(store)
        self.problems.append((key, text))

    def _depends_on(self, store: str, *keys: str) -> bool:
        """True if one of these keys of the store has no value, so that its contents are unknown."""
        if self._unread.isdisjoint(keys):
            return False
        self.unknown.add(store)
        return True

    def keystore(self) -> tuple[PrivateKeyTypes | None, tuple[x509.Certificate, ...]]:
        """The private key, and the chain in order."""
        tls = self._tls
        path, texts = (
            tls.ssl_keystore_location,
            (tls.ssl_keystore_key, tls.ssl_keystore_certificate_chain),
        )
        if self._is_given_twice(KEYSTORE, path, _INLINE_CHAIN, *texts):
            return None, ()
        is_pkcs12 = path is not None and tls.ssl_keystore_type is StoreType.PKCS12
        opened_by = ("ssl.keystore.password",) if is_pkcs12 else ()
        if self._depends_on(KEYSTORE, KEYSTORE, "ssl.keystore.type", _INLINE_CHAIN, *opened_by):
            return None, ()
        try:
            if path is None:
                return self._inline_keystore(*texts)
            data = read_regular_file(path)
            key: PrivateKeyTypes | None
            if is_pkcs12:
                key, found = pkcs12_store.keystore(data, path, tls.ssl_keystore_password)
            else:
                key = self._pem_key(data, str(path), KEYSTORE)
                found = pem_store.certificates(data, str(path), KEYSTORE)
            where = f"the private key of {path} belongs to none of its certificates"
            return key, _chain_of(key, found, KEYSTORE, where)
        except OSError as error:
            self._report(KEYSTORE, KEYSTORE, f"{path} cannot be read: {error.strerror}")
        except BadStore as error:
            self._report(KEYSTORE, error.key, str(error))
        return None, ()

    def _pem_key(self, data: bytes, where: str, key: str) -> PrivateKeyTypes | None:
        """The private key; None if its password is missing. Raises BadStore."""
        try:
            return pem_store.private_key(data, where, key, self._tls.ssl_key_password)
        except NeedsPassword as error:
            if not self._depends_on(KEYSTORE, _KEY_PASSWORD):
                self._report(KEYSTORE, error.key, str(error))
            return None

    def _inline_keystore(
        self, key_text: Secret | None, chain_text: str | None
    ) -> tuple[PrivateKeyTypes | None, tuple[x509.Certificate, ...]]:
        if key_text is None and chain_text is None:
            self._depends_on(KEYSTORE, _INLINE_KEY)
            return None, ()
        is_key_unread = self._depends_on(KEYSTORE, _INLINE_KEY)
        if chain_text is not None and is_key_unread:
            found = pem_store.certificates(
                pem_store.inline(chain_text), _INLINE_CHAIN, _INLINE_CHAIN
            )
            return None, _chain_of(None, found, _INLINE_CHAIN, "")
        if key_text is None or chain_text is None:
            given, missing = (
                (_INLINE_CHAIN, _INLINE_KEY) if key_text is None else (_INLINE_KEY, _INLINE_CHAIN)
            )
            raise BadStore(given, f"is set without {missing}: set both")
        key = self._pem_key(pem_store.inline(key_text.reveal()), _INLINE_KEY, _INLINE_KEY)
        found = pem_store.certificates(pem_store.inline(chain_text), _INLINE_CHAIN, _INLINE_CHAIN)
        text = f"{_INLINE_KEY} belongs to none of the certificates of {_INLINE_CHAIN}"
        return key, _chain_of(key, found, _INLINE_KEY, text)

    def truststore(self) -> tuple[x509.Certificate, ...]:
        """The CAs, each of them once; none if no truststore is configured."""
        tls = self._tls
        path, text = tls.ssl_truststore_location, tls.ssl_truststore_certificates
        if self._is_given_twice(TRUSTSTORE, path, _INLINE_TRUST, text):
            return ()
        is_pkcs12 = path is not None and tls.ssl_truststore_type is StoreType.PKCS12
        opened_by = ("ssl.truststore.password",) if is_pkcs12 else ()
        if self._depends_on(
            TRUSTSTORE, TRUSTSTORE, "ssl.truststore.type", _INLINE_TRUST, *opened_by
        ):
            return ()
        try:
            if text is not None:
                found = pem_store.certificates(pem_store.inline(text), _INLINE_TRUST, _INLINE_TRUST)
            elif path is None:
                return ()
            elif is_pkcs12:
                found = pkcs12_store.truststore(
                    read_regular_file(path), path, tls.ssl_truststore_password
                )
            else:
                found = pem_store.certificates(read_regular_file(path), str(path), TRUSTSTORE)
            return tuple(dict.fromkeys(found))
        except OSError as error:
            self._report(TRUSTSTORE, TRUSTSTORE, f"{path} cannot be read: {error.strerror}")
        except BadStore as error:
            self._report(TRUSTSTORE, error.key, str(error))
        return ()

    def revocation_lists(self) -> Sequence[x509.CertificateRevocationList]:
        """All lists; none if none are configured."""
        path = self._tls.ssl_crl_location
        if self._depends_on(CRL, CRL) or path is None:
            return ()
        try:
            return pem_store.revocation_lists(read_regular_file(path), str(path), CRL)
        except OSError as error:
            self._report(CRL, CRL, f"{path} cannot be read: {error.strerror}")
        except BadStore as error:
            self._report(CRL, error.key, str(error))
        return ()

    def _is_given_twice(
        self, key: str, path: Path | None, inline_key: str, *texts: str | Secret | None
    ) -> bool:
        if path is None or all(text is None for text in texts):
            return False
        self._report(key, inline_key, f"is set beside {key}: remove one of them")
        return True


def _chain_of(
    key: PrivateKeyTypes | None, found: Sequence[x509.Certificate], config_key: str, if_none: str
) -> tuple[x509.Certificate, ...]:
    """The certificate of this key, its issuer, and so on; what does not belong to it is left out.

    Without a key it is the first one. Raises BadStore with `if_none`, and more, if none is of this key.
    """
    own: x509.Certificate | None = found[0]
    if key is not None:
        public = encoded_key(key.public_key())
        own = next((each for each in found if encoded_key(each.public_key()) == public), None)
    if own is None:
        names = ", ".join(each.subject.rfc4514_string() or "no name" for each in found)
        raise BadStore(
            config_key,
            f"{if_none} ({names}): take the key with which the certificate was requested",
        )
    chain, rest = [own], [each for each in found if each != own]
    while issuer := next((each for each in rest if is_issued_by(chain[-1], each)), None):
        chain.append(issuer)
        rest.remove(issuer)
    return tuple(chain)


def encoded_key(public_key: PublicKeyTypes) -> bytes:
    """The same bytes (DER) for the same key."""
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """True if the name and the signature say so."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, UnsupportedAlgorithm, ValueError):
        return False
    return True


def has_signed(authority: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    """True if the name and the signature say so."""
    try:
        is_signed = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # others raise TypeError
    except (TypeError, ValueError):
        return False
    return is_signed and crl.issuer == authority.subject


def has_extension(crl: x509.CertificateRevocationList, kind: type[x509.ExtensionType]) -> bool:
    """True if the list has an extension of this kind."""
    return any(each.oid == kind.oid for each in crl.extensions)


def _newest(
    crls: Sequence[x509.CertificateRevocationList], authorities: Sequence[x509.Certificate]
) -> tuple[x509.CertificateRevocationList, ...]:
    """The newest list of each CA, and of each part of its certificates if it has several.

    OpenSSL takes any of several lists that are valid: an older one would make a revocation undone.
    """
    newest: dict[tuple[bytes, ...], x509.CertificateRevocationList] = {}
    for crl in crls:
        signer = next((each for each in authorities if has_signed(each, crl)), None)
        key = b"" if signer is None else encoded_key(signer.public_key())
        part = (crl.issuer.public_bytes(), key, *_scope_of(crl))
        if part not in newest or _age(newest[part]) < _age(crl):
            newest[part] = crl
    return tuple(newest.values())


def _scope_of(crl: x509.CertificateRevocationList) -> Iterator[bytes]:
    """The certificates of the CA that the list is about, the key that has signed it, and if it is a delta."""
    for kind in (
        x509.IssuingDistributionPoint,
        x509.AuthorityKeyIdentifier,
        x509.DeltaCRLIndicator,
    ):
        try:
            yield crl.extensions.get_extension_for_class(kind).value.public_bytes()
        except x509.ExtensionNotFound:
            yield b""


def _age(crl: x509.CertificateRevocationList) -> tuple[float, int]:
    try:
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    return crl.last_update_utc.timestamp(), number


@contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """The path of these bytes in memory: OpenSSL reads keys from files alone, and these touch no disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
