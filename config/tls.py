"""Configuration of TLS: Apache Kafka's `ssl.*` keys, the same for a listener, for HTTP and for a client.

Source: Apache Kafka documentation, "Security", and KIP-651 (PEM); `ssl.crl.location` is of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from quorumd.config import values
from quorumd.config.declaration import configuration, key
from quorumd.config.errors import BadValue
from quorumd.config.secrets import Secret


class SecurityProtocol(StrEnum):
    """The protocol that a listener speaks."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"


class StoreType(StrEnum):
    """Format of a file with keys or certificates."""

    PEM = "PEM"
    PKCS12 = "PKCS12"


class ClientAuth(StrEnum):
    """The rule for certificates of clients: none, requested or required."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"

CIPHER_SUITES: Final = MappingProxyType(
    {
        "TLS_AES_256_GCM_SHA384": TLS_1_3,
        "TLS_CHACHA20_POLY1305_SHA256": TLS_1_3,
        "TLS_AES_128_GCM_SHA256": TLS_1_3,
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    }
)
"""Suites to choose from: ECDHE with AEAD. The value is OpenSSL's name, or TLS_1_3 for a suite of 1.3."""

_SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")


def security_protocol(text: str) -> SecurityProtocol:
    """PLAINTEXT or SSL. Raises BadValue."""
    if text.upper() in _SASL_PROTOCOLS:
        raise BadValue(
            f"{text!r}: logins are not supported yet. Permitted are PLAINTEXT and SSL, which knows "
            "clients by their certificates"
        )
    return values.one_of(SecurityProtocol)(text.upper())


def protocol_map(text: str) -> Mapping[str, SecurityProtocol]:
    """`NAME:PROTOCOL`, separated by commas; the names become upper case. Raises BadValue."""
    found: dict[str, SecurityProtocol] = {}
    for entry in values.names(text):
        name, colon, protocol = (part.strip() for part in entry.partition(":"))
        if not colon or not name:
            raise BadValue(f"{entry!r} is not of the form NAME:PROTOCOL, such as CONTROLLER:SSL")
        if name.upper() in found:
            raise BadValue(f"{name.upper()} occurs more than once: remove one of them")
        found[name.upper()] = security_protocol(protocol)
    return found


def cipher_suites(text: str) -> tuple[str, ...]:
    """IANA names of suites, separated by commas; empty: all that are permitted. Raises BadValue."""
    found = values.names(text) if text else ()
    for entry in found:
        if entry not in CIPHER_SUITES:
            raise BadValue(f"{entry!r} is not permitted: choose of {', '.join(CIPHER_SUITES)}")
    return found


def store_type(text: str) -> StoreType:
    """PEM or PKCS12. Raises BadValue, with what converts a JKS store."""
    if text.upper() == "JKS":
        raise BadValue(
            "'JKS' is a format of Java alone: convert the store, and set PKCS12: keytool -importkeystore "
            "-srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12"
        )
    return values.one_of(StoreType)(text.upper())


def protocols(text: str) -> tuple[str, ...]:
    """Versions of TLS, separated by commas."""
    found = tuple(entry.strip() for entry in text.split(","))
    for entry in found:
        if entry not in (TLS_1_2, TLS_1_3):
            raise BadValue(f"{entry!r} is not served: permitted are {TLS_1_3} and {TLS_1_2}")
    return found


@configuration
class TlsConfig:
    """Keys, certificates and rules of TLS for one side. A text of None was not given."""

    ssl_keystore_type: StoreType = key(
        store_type,
        section="TLS",
        default=StoreType.PEM,
        doc="The format of `ssl.keystore.location`: PEM or PKCS12.",
    )
    ssl_keystore_location: Path | None = key(
        values.file,
        default=None,
        default_text="none",
        doc="The file with this side's private key and its certificate chain, its own certificate first.",
    )
    ssl_keystore_certificate_chain: str | None = key(
        str,
        default=None,
        default_text="none",
        doc="The certificate chain itself as PEM text, instead of a file; with `ssl.keystore.key`.",
    )
    ssl_keystore_key: Secret | None = key(
        Secret,
        default=None,
        default_text="none",
        doc="The private key itself as PEM text (PKCS#8).",
    )
    ssl_keystore_password: Secret | None = key(
        Secret, default=None, default_text="none", doc="Of a PKCS12 file."
    )
    ssl_key_password: Secret | None = key(
        Secret, default=None, default_text="none", doc="Of an encrypted private key."
    )
    ssl_truststore_type: StoreType = key(
        store_type,
        default=StoreType.PEM,
        doc="The format of `ssl.truststore.location`: PEM or PKCS12.",
    )
    ssl_truststore_location: Path | None = key(
        values.file,
        default=None,
        default_text="none",
        doc="The file with the certificates of the CAs that are trusted.",
    )
    ssl_truststore_certificates: str | None = key(
        str,
        default=None,
        default_text="none",
        doc="These certificates themselves as PEM text, instead of a file.",
    )
    ssl_truststore_password: Secret | None = key(
        Secret, default=None, default_text="none", doc="Of a PKCS12 file."
    )
    ssl_client_auth: ClientAuth = key(
        values.one_of(ClientAuth),
        default=ClientAuth.NONE,
        doc="The demand for a certificate of the client: none, requested, required.",
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        protocols,
        is_list=True,
        default=(TLS_1_2, TLS_1_3),
        default_text="both",
        doc="Versions of TLS that are spoken, of `TLSv1.2` and `TLSv1.3`.",
    )
    ssl_cipher_suites: tuple[str, ...] = key(
        cipher_suites,
        is_list=True,
        default=(),
        default_text="all with ECDHE and AEAD",
        doc="Cipher suites, by their IANA names. A version of TLS of which none is named is not spoken.",
    )
    ssl_endpoint_identification_algorithm: str = key(
        values.identification,
        default="https",
        doc="https: the certificate of the server has to name the host that was dialled. "
        "Empty: it may be any that is trusted.",
    )
    ssl_principal_mapping_rules: str = key(
        str,
        default="DEFAULT",
        doc="Rules that make a principal of the subject of a certificate.",
    )
    ssl_crl_location: Path | None = key(
        values.file,
        default=None,
        default_text="none",
        doc="A PEM file with the revocation lists of all CAs that are trusted.",
    )
