"""Certificates of a test's CA in the files that clients read, and properties that name them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import pkcs12

from quorumd.config.tls import ClientAuth, TlsConfig
from tests.support.authority import A_DAY, HOSTS, Authority
from tests.support.canary import remember_password

PASSWORD = remember_password("sesame-opens-nothing")
"""Of every store that has one."""
_END_OF_KEY = b"-----END PRIVATE KEY-----\n"


class ClientFiles:
    """Stores made with a CA, its own or another's, in a folder."""

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = authority or Authority(folder)
        self.trust = self.authority.trust

    def store(self, name: str, *hosts: str, ends_in: datetime.timedelta = A_DAY) -> Path:
        """Private key and certificate in one PEM file."""
        return self.authority.store(name, hosts or HOSTS, ends_in=ends_in)

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key in files of their own."""
        key, certificate = self._parts(name)
        return self.write(f"{name}.crt", certificate), self.write(f"{name}.key", key)

    def pkcs12(self, name: str, password: str = PASSWORD) -> Path:
        """Private key, certificate and CA in a PKCS12 file."""
        key, pem = self._parts(name)
        certificate, ca = x509.load_pem_x509_certificates(pem + self.trust.read_bytes())
        encryption = forms.BestAvailableEncryption(password.encode())
        data = pkcs12.serialize_key_and_certificates(
            name.encode(), _private(key), certificate, [ca], encryption
        )
        return self.write(f"{name}.p12", data)

    def encrypted(self, name: str, password: str = PASSWORD) -> Path:
        """As `store`, the key encrypted."""
        key, certificate = self._parts(name)
        locked = _private(key).private_bytes(
            forms.Encoding.PEM,
            forms.PrivateFormat.PKCS8,
            forms.BestAvailableEncryption(password.encode()),
        )
        return self.write(f"{name}-locked.pem", locked + certificate)

    def properties(self, keys: Mapping[str, object], name: str = "client.properties") -> Path:
        """A file of properties with these keys, over TLS."""
        lines = {"security.protocol": "SSL", **keys}
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        return self.write(name, text.encode())

    def client_keys(self, name: str = "client") -> dict[str, object]:
        """The keys of a client with a certificate, all of them PEM."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.trust,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.store(name),
        }

    def node(self, name: str, *hosts: str) -> TlsConfig:
        """A node that asks everybody for a certificate."""
        return TlsConfig(
            ssl_keystore_location=self.store(name, *hosts),
            ssl_truststore_location=self.trust,
            ssl_client_auth=ClientAuth.REQUIRED,
        )

    def write(self, name: str, data: bytes) -> Path:
        """A file that only its owner reads."""
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return path

    def _parts(self, name: str) -> tuple[bytes, bytes]:
        """Key and certificate."""
        key, end, certificate = self.store(name).read_bytes().partition(_END_OF_KEY)
        return key + end, certificate


def _private(key: bytes) -> EllipticCurvePrivateKey:
    found = forms.load_pem_private_key(key, None)
    assert isinstance(found, EllipticCurvePrivateKey)
    return found
