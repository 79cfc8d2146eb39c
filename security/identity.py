"""The identity of a connection's peer, and the keys and rules that establish it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from quorumd.security.errors import CertificateProblem

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client without a certificate."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The peer of a connection, by a certificate that has been verified."""

    principal: str
    """`User:` and the name; ANONYMOUS without a certificate."""
    expires_at: float
    """Seconds since 1970 at which the certificate ends; infinite without one."""
    certificate: bytes | None
    """The certificate itself (DER)."""


class TlsSide(Protocol):
    """One side's keys, certificates and rules as they are now: `security.credentials`."""

    @property
    def is_server(self) -> bool: ...

    @property
    def trust(self) -> object:
        """Trust of new handshakes, CAs and revocation lists: equal while these are the same."""

    def tls_object(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, host: str | None
    ) -> ssl.SSLObject:
        """For one new connection; `host` is the name that was dialled. A server has the first bytes of it."""

    def identify(self, certificate: bytes | None) -> Identity:
        """The holder of this certificate. Raises CertificateProblem if it is not welcome."""

    def explain(
        self, error: Exception, host: str | None, tls: ssl.SSLObject | None
    ) -> CertificateProblem:
        """The reason why a connection failed, in words that say what to do."""
