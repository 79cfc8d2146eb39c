"""Errors of a key, a certificate or a handshake, in words that say what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from quorumd.config.errors import PicklableError


class HandshakeOutcome(StrEnum):
    """Result of a handshake, in the words of the metric `quorumd_tls_handshakes_total`."""

    DONE = "done"
    PLAINTEXT = "plaintext"
    """The other side does not speak TLS."""
    BROKEN = "broken"
    """The connection ended before the handshake did."""
    TIMEOUT = "timeout"
    PROTOCOL_VERSION = "protocol_version"
    """No version of TLS in common."""
    CIPHER = "cipher"
    """No cipher suite in common."""
    NO_CERTIFICATE = "no_certificate"
    UNTRUSTED = "untrusted"
    """Of a CA that is not in the truststore."""
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    REVOKED = "revoked"
    CRL = "crl"
    """No revocation list of its CA, or one that is too old."""
    PURPOSE = "purpose"
    """A certificate that is not made for what it is used for."""
    HOST = "host"
    """A certificate that does not name the host that was dialled."""
    PRINCIPAL = "principal"
    """A valid certificate of a principal that is not expected here."""
    OTHER = "other"


class CertificateProblem(PicklableError):
    """Keys or certificates that cannot be used, or that the other side refuses. Names cause and file.

    `outcome` is what a handshake that ends so counts as. `exit_code` is that of a command that fails with it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, text: str, outcome: HandshakeOutcome = HandshakeOutcome.OTHER) -> None:
        super().__init__(text)
        self.outcome = outcome


class PeerSpeaksPlaintext(CertificateProblem):
    """The other side does not speak TLS on that port."""

    def __init__(self, text: str) -> None:
        super().__init__(text, HandshakeOutcome.PLAINTEXT)


class PeerSpeaksTls(CertificateProblem):
    """Plaintext was sent to a port where the other side speaks TLS."""

    def __init__(self) -> None:
        super().__init__("responded by TLS: the links of this node are plaintext")


class HandshakeBroken(CertificateProblem):
    """The connection ended before the handshake did, or it took too long: another try may succeed."""

    def __init__(self, text: str, outcome: HandshakeOutcome = HandshakeOutcome.BROKEN) -> None:
        super().__init__(text, outcome)


class UnusableMaterial(CertificateProblem):
    """Stores that cannot be read; `problems` has a configuration key and what is wrong, for each."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in problems))
        self.problems = problems
