"""The cause of a handshake's failure in words, with file and remedy, as far as this side can know.

Each text goes on after the name of the other side: "node 2" or an address, then "its certificate expired 2 h
ago ...". In TLS 1.3 a client is done before the server has judged its certificate: the refusal is an alert
that is read afterwards.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.security.errors import (
    CertificateProblem,
    HandshakeBroken,
    HandshakeOutcome,
    PeerSpeaksPlaintext,
)
from quorumd.security.host_names import hosts_of, names_and_not
from quorumd.security.material import Material

# X509_V_ERR_... of OpenSSL's x509_vfy.h: what of a certificate's verification stands for which outcome.
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_REVOKED: Final = 23
_NO_CRL: Final = frozenset({3, 33, 44})
_CRL_TIME: Final = frozenset({11, 12})
_CRL_BAD: Final = frozenset({5, 6, 8, 15, 16, 35, 36})
_PURPOSE: Final = frozenset({24, 26, 32, 37, 79})
_HOST: Final = frozenset({62, 64})
_WEAK: Final = frozenset({66, 67, 68})
_UNTRUSTED: Final = frozenset({2, 7, 18, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31})

_VERSION_REASONS: Final = frozenset(
    {
        "NO_PROTOCOLS_AVAILABLE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "UNSUPPORTED_PROTOCOL",
        "VERSION_TOO_HIGH",
        "VERSION_TOO_LOW",
        "WRONG_SSL_VERSION",
    }
)
_CIPHER_REASONS: Final = frozenset(
    {
        "NO_CIPHERS_AVAILABLE",
        "NO_SHARED_CIPHER",
        "NO_SHARED_GROUPS",
        "NO_SHARED_SIGNATURE_ALGORITHMS",
        "NO_SUITABLE_GROUPS",
        "NO_SUITABLE_KEY_SHARE",
        "NO_SUITABLE_SIGNATURE_ALGORITHM",
        "UNSUPPORTED_ELLIPTIC_CURVE",
        "WRONG_CIPHER_RETURNED",
        "WRONG_CURVE",
    }
)
_PLAIN_REASONS: Final = frozenset(
    {"HTTPS_PROXY_REQUEST", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "WRONG_VERSION_NUMBER"}
)
_PLAIN: Final = {
    True: "sent plaintext on a listener that is TLS here",
    False: "responded in plaintext: the listener there has no TLS",
}


def key_problem(reason: str) -> str:
    """The reason why OpenSSL does not take keys or certificates, by the reason that it gives."""
    if reason in ("CA_KEY_TOO_SMALL", "EE_KEY_TOO_SMALL"):
        return "the key of a certificate is too weak: take RSA of 2048 bits or more, or ECDSA P-256"
    if reason in ("CA_MD_TOO_WEAK", "EE_MD_TOO_WEAK"):
        return "a certificate is signed with SHA-1 or MD5, which is too weak: have it issued with SHA-256"
    if reason == "NO_CERTIFICATE_ASSIGNED":
        return "its key is of a kind that is not taken here, as RSA-PSS: take one for RSA, ECDSA or Ed25519"
    return f"OpenSSL does not take the keys: {reason}"


def duration(seconds: float) -> str:
    """A time span in words of one unit."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or (unit != "days" and seconds >= size):
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def described(certificate: x509.Certificate) -> str:
    """A certificate, by its subject and its issuer."""
    subject, issuer = (_text(lambda: certificate.subject), _text(lambda: certificate.issuer))
    return f"{subject}, issued by {issuer}"


def _text(read: Callable[[], x509.Name]) -> str:
    """A name of a certificate that anybody may have shown: its types and bytes may be any."""
    try:
        return read().rfc4514_string() or "no name"
    except Exception as error:  # of which kinds, the library does not say
        return f"a name that cannot be read ({error})"


def validity_problem(certificate: x509.Certificate) -> tuple[HandshakeOutcome, str] | None:
    """The reason why it does not hold at this moment, or None."""
    now = time.time()
    begin = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    if now > end.timestamp():
        return HandshakeOutcome.EXPIRED, f"expired {duration(now - end.timestamp())} ago"
    if now < begin.timestamp():
        wait = duration(begin.timestamp() - now)
        text = f"is not valid yet: its time begins in {wait}, on {begin:%Y-%m-%d %H:%M} UTC"
        return HandshakeOutcome.NOT_YET_VALID, text
    return None


def trust_place(tls: TlsConfig) -> str:
    """Place of this side's CAs: a file and its key, or the key alone."""
    if tls.ssl_truststore_location is not None:
        return f"{tls.ssl_truststore_location} (ssl.truststore.location)"
    if tls.ssl_truststore_certificates is not None:
        return "ssl.truststore.certificates"
    return "the system's CAs (ssl.truststore.location is not set)"


def key_place(tls: TlsConfig) -> str:
    """Place of this side's own certificate: a file and its key, or the key alone."""
    if tls.ssl_keystore_location is not None:
        return f"{tls.ssl_keystore_location} (ssl.keystore.location)"
    return "ssl.keystore.certificate.chain"


def presented_chain(tls: ssl.SSLObject | None) -> list[x509.Certificate]:
    """Certificates that the other side showed, verified or not; a server sees only those that are valid."""
    # Public as of Python 3.13.
    read = getattr(tls, "get_unverified_chain", None)
    if read is None:
        read = getattr(getattr(tls, "_sslobj", None), "get_unverified_chain", None)
    try:
        shown = read() if read is not None else None
        as_der = [
            each if isinstance(each, bytes) else each.public_bytes(ssl._ssl.ENCODING_DER)  # type: ignore[attr-defined]  # of the C part alone
            for each in shown or ()
        ]
        return [x509.load_der_x509_certificate(each) for each in as_der]
    except Exception:  # what was shown may be anything, and raises more than the library says
        return []


@dataclass(frozen=True, slots=True)
class Failure:
    """A handshake that failed, or a connection that was ended after it, and what this side knows of it."""

    error: Exception
    tls: TlsConfig
    material: Material
    is_server: bool
    host: str | None
    """The name that was dialled; None on a server's side."""
    shown: Sequence[x509.Certificate]
    """Certificates that the other side has presented."""

    def explain(self) -> CertificateProblem:
        """The cause in words."""
        if isinstance(self.error, ssl.SSLCertVerificationError):
            return self._of_verification(self.error.verify_code, self.error.verify_message)
        if isinstance(self.error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return HandshakeBroken("closed the connection during the TLS handshake")
        reason = (self.error.reason if isinstance(self.error, ssl.SSLError) else None) or ""
        if reason in _PLAIN_REASONS:
            return PeerSpeaksPlaintext(_PLAIN[self.is_server])
        if reason in _VERSION_REASONS:
            return self._of_versions()
        if reason in _CIPHER_REASONS:
            return self._of_ciphers()
        if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            text = f"showed no certificate: ssl.client.auth is {ClientAuth.REQUIRED} here"
            return CertificateProblem(text, HandshakeOutcome.NO_CERTIFICATE)
        if reason.endswith(("KEY_TOO_SMALL", "MD_TOO_WEAK")):
            return CertificateProblem(key_problem(reason))
        if "_ALERT_" in reason:
            return self._of_alert(reason.partition("_ALERT_")[2])
        return CertificateProblem(f"did not complete the TLS handshake: {reason or self.error}")

    # -- this side refused the other's certificate

    def _of_verification(self, code: int, message: str) -> CertificateProblem:
        outcome = HandshakeOutcome.OTHER
        text = f"its certificate{self._name()} was refused: {message}"
        if code in (_EXPIRED, _NOT_YET_VALID):
            outcome, text = self._of_time(code)
        elif code in _UNTRUSTED:
            outcome, text = self._of_trust(code)
        elif code in _HOST:
            outcome, text = HandshakeOutcome.HOST, self._of_host()
        elif code == _REVOKED:
            outcome = HandshakeOutcome.REVOKED
            text = f"its certificate{self._name()} is revoked by {self.tls.ssl_crl_location}"
        elif code in _NO_CRL | _CRL_TIME | _CRL_BAD:
            outcome, text = HandshakeOutcome.CRL, self._of_crl(code, message)
        elif code in _PURPOSE:
            outcome = HandshakeOutcome.PURPOSE
            use = "clients (clientAuth)" if self.is_server else "servers (serverAuth)"
            text = (
                f"its certificate{self._name()} is not made for {use}, or is no CA where it has to be one: "
                "have it issued with the extended key usage that it needs"
            )
        elif code in _WEAK:
            text = (
                f"its certificate{self._name()} has a key or a signature that is too weak ({message}): "
                "take RSA of 2048 bits or more or ECDSA P-256, and SHA-256"
            )
        return CertificateProblem(text, outcome)

    def _name(self) -> str:
        return f" ({described(self.shown[0])})" if self.shown else ""

    def _of_time(self, code: int) -> tuple[HandshakeOutcome, str]:
        outcome = HandshakeOutcome.EXPIRED if code == _EXPIRED else HandshakeOutcome.NOT_YET_VALID
        what = "has expired" if code == _EXPIRED else "is not valid yet"
        for number, certificate in enumerate((*self.shown, *self.material.roots)):
            found = validity_problem(certificate)
            if found is None or found[0] is not outcome:
                continue
            who = "its certificate" if number == 0 else "the certificate of a CA above its own"
            where = f", in {trust_place(self.tls)}" if number >= len(self.shown) else ""
            return outcome, f"{who} ({described(certificate)}{where}) {found[1]}"
        return outcome, f"its certificate, or that of a CA above it, {what}: look at both clocks"

    def _of_trust(self, code: int) -> tuple[HandshakeOutcome, str]:
        place = trust_place(self.tls)
        if code == 7:
            text = f"its certificate{self._name()} is not signed by the CA of that name in {place}"
        else:
            text = (
                f"its certificate{self._name()} is of no CA in {place}: add its CA there, or have it send "
                "the CAs between"
            )
        return HandshakeOutcome.UNTRUSTED, text

    def _of_host(self) -> str:
        if self.shown and hosts_of(self.shown[0]):
            return f"its certificate {names_and_not(self.shown[0], [str(self.host)])}"
        return (
            f"its certificate{self._name()} names no host at all, and so not {self.host}: a subject "
            "alternative name has to, the CN does not count"
        )

    def _of_crl(self, code: int, message: str) -> str:
        path = self.tls.ssl_crl_location
        if code in _NO_CRL:
            issuer = f" {_text(lambda: self.shown[0].issuer)}" if self.shown else ""
            return f"{path} has no revocation list of a CA above its certificate{issuer}: append it"
        if code in _CRL_TIME:
            old = [problem for each in self.material.crls if (problem := crl_problem(each))]
            return (
                f"in {path} {' and '.join(old) or 'a revocation list is too old'}: nobody is let in"
            )
        return f"a revocation list in {path} cannot be used: {message}"

    # -- nothing in common

    def _of_versions(self) -> CertificateProblem:
        versions = ", ".join(self.tls.ssl_enabled_protocols)
        text = f"speaks no version of TLS that this side does: {versions} (ssl.enabled.protocols)"
        return CertificateProblem(text, HandshakeOutcome.PROTOCOL_VERSION)

    def _of_ciphers(self) -> CertificateProblem:
        key = "ssl.cipher.suites" if self.tls.ssl_cipher_suites else "ECDHE with AEAD"
        text = f"has no cipher suite, curve or signature algorithm in common with this side ({key})"
        return CertificateProblem(text, HandshakeOutcome.CIPHER)

    # -- the other side refused

    def _of_alert(self, alert: str) -> CertificateProblem:
        words = alert.replace("_", " ").lower()
        own = self.material.chain[0] if self.material.chain else None
        if alert == "CERTIFICATE_REQUIRED" or (alert == "HANDSHAKE_FAILURE" and own is None):
            text = "requires a certificate, and this side has none: set ssl.keystore.location"
            if own is not None:
                place = key_place(self.tls)
                text = f"requires a certificate, and takes none with a key like that of {place}: take another"
            return CertificateProblem(text, HandshakeOutcome.NO_CERTIFICATE)
        if alert == "HANDSHAKE_FAILURE":
            return self._of_ciphers()
        if own is None or alert not in _OF_OWN:
            return CertificateProblem(f"ended the TLS handshake: {words}")
        outcome, text = _OF_OWN[alert]
        if problem := validity_problem(own):
            outcome, text = problem[0], f"which {problem[1]}: renew it"
        elif alert == "UNSUPPORTED_CERTIFICATE":
            text = text.format("serverAuth" if self.is_server else "clientAuth")
        elif not self.is_server or alert not in ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN"):
            text = text.format(own.issuer.rfc4514_string())
        else:
            text = f"which names {', '.join(hosts_of(own)) or 'no host'}; {text}"
        who = f"refused the certificate of this side, {key_place(self.tls)}"
        return CertificateProblem(f"{who}, {text}", outcome)


# Meaning of the alerts about a certificate for the one that was shown (RFC 8446, section 6.2).
_OF_OWN: Final = {
    "CERTIFICATE_EXPIRED": (
        HandshakeOutcome.EXPIRED,
        "as expired, which it is not by the clock here: the clocks differ, or a revocation list there is too "
        "old",
    ),
    "CERTIFICATE_REVOKED": (
        HandshakeOutcome.REVOKED,
        "as revoked: have another one issued",
    ),
    "UNKNOWN_CA": (
        HandshakeOutcome.UNTRUSTED,
        "which is issued by {}: that CA is not in the truststore there, or has no revocation list there",
    ),
    "UNSUPPORTED_CERTIFICATE": (
        HandshakeOutcome.PURPOSE,
        "as not made for this use: have it issued with the extended key usage {}",
    ),
    "BAD_CERTIFICATE": (HandshakeOutcome.OTHER, "the log there says why"),
    "CERTIFICATE_UNKNOWN": (HandshakeOutcome.OTHER, "the log there says why"),
    "ACCESS_DENIED": (HandshakeOutcome.PRINCIPAL, "whose name has no access there"),
}


def crl_problem(crl: x509.CertificateRevocationList) -> str | None:
    """The reason why a revocation list does not count at this moment, or None."""
    now = time.time()
    issuer = crl.issuer.rfc4514_string()
    if crl.next_update_utc is not None and now > crl.next_update_utc.timestamp():
        late = duration(now - crl.next_update_utc.timestamp())
        return f"the revocation list of {issuer} should have been replaced {late} ago"
    if now < crl.last_update_utc.timestamp():
        wait = duration(crl.last_update_utc.timestamp() - now)
        return f"the revocation list of {issuer} begins to count in {wait}"
    return None
