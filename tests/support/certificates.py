"""Certificates for tests: a CA, and what a side needs of it."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import trustme

from quorumd.config.tls import ClientAuth, TlsConfig
from tests.support.canary import remember_key


class Certificates:
    """A CA of its own, and files made with it."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self._directory = directory
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(self.ca.cert_pem.bytes())

    def store(self, name: str, *hosts: str) -> Path:
        """A file with a private key and its certificate, whose common name is this name."""
        leaf = self.ca.issue_cert(*(hosts or (f"{name}.test",)), common_name=name)
        path = self._directory / f"{name}.pem"
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        path.write_bytes(remember_key(leaf.private_key_pem.bytes()) + chain)
        return path

    def config(self, name: str, *hosts: str) -> TlsConfig:
        """One side's configuration, with a certificate of this name; clients must have one, too."""
        return TlsConfig(
            ssl_keystore_location=self.store(name, *hosts),
            ssl_truststore_location=self.ca_file,
            ssl_client_auth=ClientAuth.REQUIRED,
        )

    def without_certificate(self) -> TlsConfig:
        """A client that trusts the CA, and has no certificate."""
        return replace(TlsConfig(), ssl_truststore_location=self.ca_file)

    def client_context(self, name: str | None = None) -> ssl.SSLContext:
        """Of Python's own client, with a certificate of this name or without one; it checks no host."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.check_hostname = False
        if name is not None:
            context.load_cert_chain(self.store(name))
        return context
