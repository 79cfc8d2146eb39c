"""PEM -> keys, certificates and revocation lists, in all the ways in which people write it.

Blocks may be in any order, with text around them, with CRLF, and on one line as Kafka permits it in a
configuration (KIP-651).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from quorumd.config.secrets import Secret

T = TypeVar("T")

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)
_BEGIN: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")
_CERTIFICATE: Final = ("CERTIFICATE", "X509 CERTIFICATE")
_PRIVATE_KEY: Final = (
    "PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
    "EC PRIVATE KEY",
    "RSA PRIVATE KEY",
)
_CRL: Final = ("X509 CRL",)
JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_DER: Final = b"\x30"


class BadStore(Exception):
    """A store that cannot be used; `key` is the key of the configuration to look at."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class NeedsPassword(BadStore):
    """A private key that is encrypted, and no password was given: its certificates can be read."""


class _Block(NamedTuple):
    label: str
    body: bytes


def inline(text: str) -> bytes:
    r"""PEM as it is written in a configuration: line ends may be missing, or be the two characters \n."""
    return text.replace("\\r", "\n").replace("\\n", "\n").encode()


def certificates(data: bytes, where: str, key: str) -> list[x509.Certificate]:
    """All of them, in their order. Raises BadStore if there is none, or one is damaged."""
    found = []
    for number, block in enumerate(_blocks(data, where, key, _CERTIFICATE, "certificate"), 1):
        what = f"certificate {number} of {where}"
        found.append(_parsed(key, what, _certificate, _decoded(block, what, key)))
    return found


def revocation_lists(data: bytes, where: str, key: str) -> list[x509.CertificateRevocationList]:
    """All of them, in their order. Raises BadStore if there is none, or one is damaged."""
    found = []
    for number, block in enumerate(_blocks(data, where, key, _CRL, "revocation list"), 1):
        what = f"revocation list {number} of {where}"
        crl = _parsed(key, what, _revocation_list, _decoded(block, what, key))
        if crl.next_update_utc is None:
            raise BadStore(
                key, f"{what} does not say until when it holds: have the CA make another"
            )
        found.append(crl)
    return found


def private_key(data: bytes, where: str, key: str, password: Secret | None) -> PrivateKeyTypes:
    """The one private key. Raises BadStore."""
    found = _blocks(data, where, key, _PRIVATE_KEY, "private key")
    if len(found) > 1:
        raise BadStore(key, f"{where} holds {len(found)} private keys: leave the one that is meant")
    block = found[0]
    label = block.label.encode()
    body = block.body if b":" in block.body else _lines(block.body)
    pem = b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (label, body.strip(), label)
    is_encrypted = block.label == "ENCRYPTED PRIVATE KEY" or b"ENCRYPTED" in block.body
    if is_encrypted and password is None:
        raise NeedsPassword(key, f"the private key of {where} is encrypted: set ssl.key.password")
    secret = password.reveal().encode() if is_encrypted and password is not None else None
    try:
        return load_pem_private_key(pem, secret)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        # The library's own text could quote the key.
        if is_encrypted and _is_of_encryption(error):
            raise BadStore(
                key,
                f"the private key of {where} is encrypted in a way that is not read here: `openssl pkcs8 "
                "-topk8 -v2 aes-256-cbc` writes it anew",
            ) from None
        if is_encrypted:
            raise BadStore(
                "ssl.key.password", f"is not the password of the private key of {where}"
            ) from None
        raise BadStore(
            key, f"the private key of {where} is damaged, or of a kind that OpenSSL does not know"
        ) from None


def _is_of_encryption(error: Exception) -> bool:
    """The library does not know by which method a key is encrypted, whatever the password."""
    return isinstance(error, UnsupportedAlgorithm) or "unknown" in str(error).lower()


def _blocks(data: bytes, where: str, key: str, labels: tuple[str, ...], what: str) -> list[_Block]:
    """Blocks with one of these labels, at least one. Raises BadStore."""
    blocks = list(_all_blocks(data))
    wanted = [block for block in blocks if block.label in labels]
    begun = sum(match[1].decode().strip() in labels for match in _BEGIN.finditer(data))
    if begun != len(wanted):
        raise BadStore(
            key, f"{where}: a {what} in it has no end: it was cut off, or is being written"
        )
    if not wanted:
        raise BadStore(key, _no_block(data, where, what, blocks))
    return wanted


def _no_block(data: bytes, where: str, what: str, blocks: list[_Block]) -> str:
    if not data.strip():
        return f"{where} is empty"
    if data.startswith(JKS_MAGIC):
        return jks_text(where)
    if data.startswith(_DER):
        return f"{where} is no PEM: set the store's type to PKCS12 if it is that, or convert it by openssl"
    held = ", ".join(sorted({block.label for block in blocks})) or "no PEM at all"
    return f"{where} holds no {what}, but {held}"


def jks_text(where: str) -> str:
    """Advice about a store in Java's own format, for the error."""
    return (
        f"{where} is a JKS store of Java: convert it, and set type and location to the new one: keytool "
        f"-importkeystore -srckeystore {where} -destkeystore NEW.p12 -deststoretype PKCS12"
    )


def _all_blocks(data: bytes) -> Iterator[_Block]:
    for match in _BLOCK.finditer(data):
        yield _Block(match[1].decode().strip(), match[2])


def _lines(body: bytes) -> bytes:
    """The body as lines of 64 characters, whatever spaces it had."""
    packed = b"".join(body.split())
    return b"\n".join(packed[start : start + 64] for start in range(0, len(packed), 64))


def _decoded(block: _Block, what: str, key: str) -> bytes:
    try:
        return base64.b64decode(b"".join(block.body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadStore(key, f"{what} is damaged: its text is no base64") from None


def _parsed(key: str, what: str, parse: Callable[[bytes], T], data: bytes) -> T:
    try:
        return parse(data)
    except Exception as error:  # of more kinds than the library says
        raise BadStore(key, f"{what} is damaged, or of a kind that is not known: {error}") from None


def _certificate(data: bytes) -> x509.Certificate:
    return whole(x509.load_der_x509_certificate(data))


def whole(certificate: x509.Certificate) -> x509.Certificate:
    """The certificate, whose parts have all been parsed. Raises ValueError and its like."""
    _ = certificate.subject, certificate.issuer, certificate.extensions
    certificate.public_key()
    return certificate


def _revocation_list(data: bytes) -> x509.CertificateRevocationList:
    crl = x509.load_der_x509_crl(data)
    _ = crl.issuer, crl.extensions
    return crl
