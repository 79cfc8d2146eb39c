"""A port on which a node speaks TLS."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from quorumd.config.references import FileReference
from quorumd.config.tls import TlsConfig

HTTP: Final = "http"
"""Stands for HTTP where listeners are named, whose names are upper case."""
KEYSTORE_KEYS: Final = (
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
)
"""Keys for the certificate of a port; at least one of them is set."""
RENEWED: Final = (
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
)
"""Keys whose value may change while a node runs, beside the stores in files."""


class TlsPort(NamedTuple):
    """A listener that is TLS, or HTTP."""

    name: str
    scope: str
    """Prefix of the keys that hold here alone."""
    tls: TlsConfig
    """The keys of TLS: its own, else the node's."""
    hosts: tuple[str, ...] = ()
    """The names and addresses that others dial."""
    is_first: bool = False
    """The first listener, which other nodes use."""
    is_dialled: bool = False
    """Other nodes dial it although it is not the first listener."""
    has_node_stores: bool = False
    """A listener without stores of its own: other nodes may use it tomorrow."""
    references: Mapping[str, FileReference] = MappingProxyType({})
    """Keys, certificates and passwords that are given by `${dir:...}`, by the field of `tls`."""
    unread: frozenset[str] = frozenset()
    """Keys that were set and have no value, without `scope`: what depends on them is not judged."""

    @property
    def has_peers(self) -> bool:
        """Other nodes use it already, or are about to."""
        return self.is_first or self.is_dialled

    @property
    def files(self) -> tuple[Path, ...]:
        """All files from which keys, certificates, CAs and revocation lists come."""
        tls = self.tls
        stores = (tls.ssl_keystore_location, tls.ssl_truststore_location, tls.ssl_crl_location)
        referred = (path for each in self.references.values() for path in each.files)
        return (*(path for path in stores if path is not None), *referred)

    def has_stores_of(self, other: TlsPort) -> bool:
        """Both read the same keys, certificates, CAs and revocation lists."""
        own, theirs = (
            (
                tls.ssl_keystore_type,
                tls.ssl_keystore_location,
                tls.ssl_keystore_certificate_chain,
                tls.ssl_keystore_key,
                tls.ssl_truststore_type,
                tls.ssl_truststore_location,
                tls.ssl_truststore_certificates,
                tls.ssl_crl_location,
            )
            for tls in (self.tls, other.tls)
        )
        return own == theirs

    def read(self) -> TlsConfig:
        """`tls`, with what references stand for now. Raises BadValue."""
        return replace(self.tls, **{name: each.value() for name, each in self.references.items()})

    @property
    def has_certificate(self) -> bool:
        """True if keys say where it has one."""
        tls = self.tls
        kept = (tls.ssl_keystore_location, tls.ssl_keystore_key, tls.ssl_keystore_certificate_chain)
        return any(each is not None for each in kept)

    def key_of(self, key: str, given: Container[str]) -> str:
        """The name under which this key of TLS was set for this port."""
        return self.scope + key if self.scope + key in given else key
