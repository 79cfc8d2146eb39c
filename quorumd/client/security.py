"""Security of a client's connections to a quorum: the settings of Kafka's clients, checked.

Source: Apache Kafka documentation, "Security": `security.protocol` and `ssl.*` of clients.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from quorumd.config.properties import client_tls, read_properties
from quorumd.config.tls import SecurityProtocol, TlsConfig


class Security:
    """Protocol, keys and certificates of a client, for QuorumClient and QuorumAdmin.

        Security.from_properties("client.properties")
        Security(security_protocol="SSL", ssl_truststore_location="ca.pem",
                 ssl_keystore_location="client.pem")

    The settings are those of Kafka's clients, with underscores for dots. Files are read when a client
    connects, and again at the next connection after they have changed. Passwords and keys are in no repr.
    """

    def __init__(self, **settings: str | os.PathLike[str]) -> None:
        """Raises ConfigError with everything that is wrong, TypeError for a setting that does not exist."""
        pairs = {name.replace("_", "."): os.fspath(each) for name, each in settings.items()}
        self._take(pairs, "Security")
        if self.ignored:
            names = ", ".join(name.replace(".", "_") for name in self.ignored)
            raise TypeError(f"Security has no setting of the name {names}")

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str]) -> Self:
        """As in a file of properties for Kafka's clients and tools, such as client.properties.

        `ignored` has the keys that mean nothing here. Relative paths in it are relative to the working
        directory. Raises ConfigError with everything that is wrong.
        """
        return cls.from_pairs(read_properties(Path(path)), where=os.fspath(path))

    @classmethod
    def from_pairs(cls, pairs: Mapping[str, str], where: str) -> Self:
        """As `from_properties`, of keys and values; `where` is what errors say of their origin."""
        made = cls.__new__(cls)
        made._take(pairs, where)
        return made

    def _take(self, pairs: Mapping[str, str], where: str) -> None:
        protocol, tls, ignored = client_tls(pairs, where)
        self.protocol: SecurityProtocol = protocol
        self.ignored: tuple[str, ...] = tuple(ignored)
        """Keys that mean nothing here."""
        self.tls: TlsConfig | None = None if protocol is SecurityProtocol.PLAINTEXT else tls
        """None if it is plaintext."""

    def __repr__(self) -> str:
        return f"Security({self.protocol.value})"
