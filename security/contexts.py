"""Keys, certificates and rules -> what OpenSSL makes connections with: one function for all of them."""

from __future__ import annotations

import ssl
from typing import Final

from quorumd.config.tls import CIPHER_SUITES, TLS_1_2, TLS_1_3, ClientAuth, TlsConfig
from quorumd.security.errors import CertificateProblem
from quorumd.security.handshake_failures import key_problem
from quorumd.security.material import Material, as_file

_OF_1_3: Final = tuple(name for name, kind in CIPHER_SUITES.items() if kind == TLS_1_3)
_OF_1_2: Final = {name: kind for name, kind in CIPHER_SUITES.items() if kind != TLS_1_3}
"""With OpenSSL's names."""
# Keys below 112 bits of strength (RSA of 1024), and SHA-1, are refused, whatever the system's default is.
_SECURITY_LEVEL: Final = "@SECLEVEL=2"
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
_CAN_CHOOSE_1_3: Final = hasattr(ssl.SSLContext, "set_ciphersuites")
"""As of Python 3.15."""
_SUPPORTED_VERSIONS: Final = b"\x00\x2b"
_CLIENT_HELLO: Final = 1
_TLS_1_3_CODE: Final = b"\x03\x04"


class Contexts:
    """Makes the TLS objects of one side's new connections.

    OpenSSL keeps the TLS 1.2 sessions of a server's context, and lets clients take them up again: past the
    check of their certificates, and a session each in memory. Python has no switch for that. So each TLS 1.2
    connection that a server takes begins in an empty context of its own, which keeps its session, and then
    changes to the shared one, of which it uses key, CAs and revocation lists: these are parsed once, not for
    each hello of a stranger. TLS 1.3 takes up sessions by tickets alone, and none are given: those begin in
    the shared one.
    """

    def __init__(self, tls: TlsConfig, material: Material, *, is_server: bool) -> None:
        """Raises CertificateProblem."""
        self._tls = tls
        self._material = material
        self._is_server = is_server
        if problem := suite_problem(tls):
            raise CertificateProblem(f"ssl.cipher.suites: {problem}")
        self._versions = spoken_versions(tls)
        self._keeps_sessions = is_server and TLS_1_2 in self._versions
        self._serves_both = self._keeps_sessions and TLS_1_3 in self._versions
        shared = (TLS_1_3,) if self._serves_both else self._versions
        self._shared = make_context(tls, material, is_server=is_server, versions=shared)

    def tls_object(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, host: str | None
    ) -> ssl.SSLObject:
        """For one new connection; a server has the first bytes of it. Raises ValueError."""
        hello = incoming.read()
        incoming.write(hello)
        if not self._keeps_sessions or (self._serves_both and offers_tls_1_3(hello)):
            return self._shared.wrap_bio(
                incoming, outgoing, server_side=self._is_server, server_hostname=host
            )
        own = _empty_context(self._tls, self._material, is_server=True, versions=self._versions)
        tls = own.wrap_bio(incoming, outgoing, server_side=True)
        # OpenSSL goes on to look for sessions, and to put them, where the connection began.
        tls.context = self._shared
        return tls


def make_context(
    tls: TlsConfig, material: Material, *, is_server: bool, versions: tuple[str, ...]
) -> ssl.SSLContext:
    """With key, CAs and revocation lists. Raises CertificateProblem."""
    context = _empty_context(tls, material, is_server=is_server, versions=versions)
    try:
        if material.key is not None:
            with as_file(material.chain_pem()) as path:
                context.load_cert_chain(path)
        if material.roots or material.crls:
            with as_file(material.trusted_pem()) as path:
                context.load_verify_locations(path)
        if not material.roots and not is_server:
            context.load_default_certs()
    except ssl.SSLError as error:
        raise CertificateProblem(key_problem(error.reason)) from None
    except OSError as error:
        text = (
            f"OpenSSL cannot be given the keys ({error.strerror}): free memory or descriptors here"
        )
        raise CertificateProblem(text) from None
    return context


def _empty_context(
    tls: TlsConfig, material: Material, *, is_server: bool, versions: tuple[str, ...]
) -> ssl.SSLContext:
    """The rules alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    allowed = [_VERSIONS[version] for version in versions]
    context.minimum_version, context.maximum_version = min(allowed), max(allowed)
    _set_suites(context, tls.ssl_cipher_suites)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if is_server:
        context.num_tickets = 0
        context.verify_mode = _VERIFY[tls.ssl_client_auth]
    else:
        context.hostname_checks_common_name = False
        context.check_hostname = bool(tls.ssl_endpoint_identification_algorithm)
        context.verify_mode = ssl.CERT_REQUIRED
    if material.crls:
        # Up to the root, since the list about a CA is its issuer's.
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    else:
        # As in Java, whatever is in the truststore is trusted, be it a root or not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def spoken_versions(tls: TlsConfig) -> tuple[str, ...]:
    """The enabled versions that have a suite among the configured ones; all if none are configured."""
    suites = {TLS_1_2: set(_OF_1_2), TLS_1_3: set(_OF_1_3)}
    named = tls.ssl_cipher_suites
    return tuple(v for v in tls.ssl_enabled_protocols if not named or suites[v].intersection(named))


def suite_problem(tls: TlsConfig) -> str | None:
    """The reason why the configured cipher suites cannot be used together; None if they can."""
    names = tls.ssl_cipher_suites
    spoken = spoken_versions(tls)
    if not spoken:
        enabled = ",".join(tls.ssl_enabled_protocols)
        return f"none of them is of a version in ssl.enabled.protocols ({enabled})"
    missing = [suite for suite in _OF_1_3 if suite not in names]
    if names and TLS_1_3 in spoken and missing and not _CAN_CHOOSE_1_3:
        return (
            f"Python before 3.15 cannot choose among the suites of {TLS_1_3}: add {', '.join(missing)}, "
            f"or remove all three, which leaves {TLS_1_2}"
        )
    return None


def _set_suites(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    chosen = [_OF_1_2[name] for name in names if name in _OF_1_2]
    context.set_ciphers(":".join((*(chosen or _OF_1_2.values()), _SECURITY_LEVEL)))
    chosen = [name for name in names if name in _OF_1_3]
    if chosen and _CAN_CHOOSE_1_3:
        # Type checkers do not know it yet.
        getattr(context, "set_ciphersuites")(":".join(chosen))  # noqa: B009  # as said above


def offers_tls_1_3(hello: bytes) -> bool:
    """True if these bytes begin with a whole ClientHello that offers TLS 1.3 (RFC 8446, section 4.1.2)."""
    record = memoryview(hello)[5 : 5 + int.from_bytes(hello[3:5], "big")]
    length = int.from_bytes(record[1:4], "big")
    if not record or record[0] != _CLIENT_HELLO or len(record) < 4 + length:
        return False
    rest = record[4 + 2 + 32 : 4 + length]
    for size_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        rest = rest[size_bytes + int.from_bytes(rest[:size_bytes], "big") :]
    rest = rest[2 : 2 + int.from_bytes(rest[:2], "big")]
    while len(rest) >= 4:
        kind, end = bytes(rest[:2]), 4 + int.from_bytes(rest[2:4], "big")
        if kind == _SUPPORTED_VERSIONS:
            listed = bytes(rest[5:end])
            return _TLS_1_3_CODE in (listed[at : at + 2] for at in range(0, len(listed), 2))
        rest = rest[end:]
    return False
